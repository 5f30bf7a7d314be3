"""Traces and samples of a small job, round enough to work out what its report must say.

Every step takes 100 ms on the device: compute from its start, then communication to its end. The
last step is the tail. Samples come every 10 ms and read a constant clock.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.report import ReportDocument
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.trace import Damage, Trace, TraceDevice
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.document import StepSelection, build_document
from chopperd.report.build.privacy import Names, trace_with_names
from chopperd.report.build.rows import DraftRow
from chopperd.report.build.trace_report import TraceReport, report_trace
from chopperd.traces.timeline.layout import lay_out
from tests.trace_building import TraceBuilder

MS = 1_000_000
T0_NS = 1_750_000_000_000_000_000
STEP_MS = 100
TOP_MHZ = 2000.0
H100 = "NVIDIA H100 80GB HBM3"


class Job(Struct, frozen=True, kw_only=True):
    """One process's trace; every field has the value of an ordinary one."""

    rank: int | None = 0
    steps: Sequence[int] = (1, 2, 3)
    compute_ms: int = 80
    at_ms: int = 0
    uuid: str | None = None
    name: str | None = H100
    anchored: bool = True
    path: str | None = None
    damage: Damage | None = None
    devices: Sequence[int] = (0,)
    host_only_steps: Sequence[int] = ()
    lost_launch_in: int | None = None

    def trace(self) -> Trace:
        """The trace as a reader would give it."""
        built = TraceBuilder()
        for nth, step in enumerate((*self.steps, *self.host_only_steps)):
            start_ns = T0_NS + (self.at_ms + nth * STEP_MS) * MS
            built.span(f"ProfilerStep#{step}", start_ns, STEP_MS * MS)
            if step in self.host_only_steps:
                continue
            for device in self.devices:
                self._kernels(built, start_ns, device)
            if step == self.lost_launch_in:
                built.call("cudaLaunchKernel", start_ns + 5_000, correlation=9_000)
        trace = built.build(self.damage)
        said = TraceDevice(device=0, name=self.name, uuid=self.uuid)
        path = self.path or f"rank{self.rank}-step{min(self.steps, default=None)}.json"
        meta = replace(
            trace.meta,
            path=path,
            sha256=path,
            rank=self.rank,
            rank_source=None if self.rank is None else "distributedInfo",
            anchored=self.anchored,
            devices=(said,) if self.uuid or self.name else (),
        )
        return replace(trace, meta=meta)

    def _kernels(self, built: TraceBuilder, start_ns: int, device: int) -> None:
        comm_ms = STEP_MS - self.compute_ms
        built.kernel("gemm", start_ns, start_ns + 1000, self.compute_ms * MS, device=device)
        comm_ns = start_ns + 1000 + self.compute_ms * MS
        built.kernel("ncclDevKernel_AllReduce", start_ns, comm_ns, comm_ms * MS, device=device)


def sampled(
    index: int = 0,
    clock_mhz: float = 1500.0,
    *,
    start_ms: float = -50,
    end_ms: float = 450,
    name: str = H100,
    top_mhz: float | None = TOP_MHZ,
    temperature_c: float = float("nan"),
) -> GpuSamples:
    """Samples every 10 ms from `start_ms` to `end_ms` after T0."""
    t_ns = T0_NS + np.arange(round(start_ms * MS), round(end_ms * MS), 10 * MS, dtype=np.int64)
    absent = np.full(len(t_ns), np.nan)
    gpu = GpuInfo(
        gpu=str(index),
        index=index,
        uuid=f"GPU-{index}",
        name=name,
        vendor=Vendor.NVIDIA,
        sm_clock_max_mhz=top_mhz,
        sensor_lag_ns=0,
    )
    return GpuSamples(
        gpu=gpu,
        t_unix_ns=t_ns,
        sm_clock_mhz=np.full(len(t_ns), clock_mhz),
        read_span_ns=np.zeros(len(t_ns), np.int64),
        causes=np.zeros(len(t_ns), np.int64),
        mem_clock_mhz=absent,
        power_w=absent,
        energy_j=absent,
        temperature_c=np.full(len(t_ns), temperature_c),
        memory_used_bytes=absent,
        activity_ratio=absent,
    )


def sample_set(*gpus: GpuSamples) -> SampleSet:
    return SampleSet(gpus=gpus, asked_hz=100.0, node="n1", backend="nvml", driver="595")


def reported(
    job: Job, samples: SampleSet | None = None, options: JoinOptions | None = None
) -> TraceReport:
    trace = job.trace()
    return report_trace(trace, lay_out(trace), samples, options or JoinOptions())


def document(
    jobs: Sequence[Job],
    samples: SampleSet | None = None,
    options: JoinOptions | None = None,
    selection: StepSelection | None = None,
) -> ReportDocument:
    """The document of a job's traces."""
    return build_document(
        [reported(job, samples, options) for job in jobs],
        version="0",
        time="2025-01-01T00:00:00Z",
        selection=selection or StepSelection(),
    )


def node(clocks_mhz: Sequence[float], **changes: int) -> tuple[list[Job], SampleSet]:
    """A job with a rank a GPU, each at its clock; `changes` apply to the last rank."""
    jobs = [Job(rank=rank, uuid=f"GPU-{rank}") for rank in range(len(clocks_mhz))]
    jobs[-1] = replace(jobs[-1], **changes)
    gpus = [sampled(index, clock) for index, clock in enumerate(clocks_mhz)]
    return jobs, sample_set(*gpus)


def with_names(document: ReportDocument, names: Names) -> ReportDocument:
    """The document as if the reports it is of had been covered."""
    report = replace(
        reported(Job()),
        totals=tuple(DraftRow(row=row) for row in document.totals),
        steps=tuple(DraftRow(row=row) for row in document.steps),
        framework=document.framework,
        notes=document.notes,
        host=document.host[0] if document.host else None,
    )
    shown = trace_with_names(report, names)
    return replace(
        document,
        totals=tuple(each.row for each in shown.totals),
        steps=tuple(each.row for each in shown.steps),
        framework=shown.framework,
        notes=shown.notes,
        host=() if shown.host is None else (shown.host,),
    )
