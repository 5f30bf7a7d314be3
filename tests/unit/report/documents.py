"""Report documents built by hand: figures round enough to work out what must be printed.

The full one is DESIGN's example: a 1412 ms step that loses 131 ms, GPU 5 the hot one of eight.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache

from msgspec.structs import replace

from chopperd.model.answers import Finding
from chopperd.model.report import (
    SCHEMA,
    Alignment,
    CauseShare,
    DeviceSummary,
    FrameworkSummary,
    Generated,
    GpuLine,
    HostPart,
    HostTime,
    Note,
    Profiler,
    Reference,
    ReportDocument,
    Sampling,
    Summary,
    TraceSummary,
)
from chopperd.model.report_rows import (
    UNKNOWN_PART,
    ClassTotal,
    ClockStats,
    Dvfs,
    ExposedCopy,
    Family,
    Part,
    Peers,
    Row,
    RowClock,
    Temperature,
    Waterfall,
)

MS = 1_000_000
REFERENCE = Reference(sm_clock_mhz=1980.0, source="device_max")
NO_REFERENCE = Reference(sm_clock_mhz=None, source=None)


def trace(rank: int | None = 0, world_size: int | None = 8) -> TraceSummary:
    return TraceSummary(
        path=f"traces/rank{rank}.pt.trace.json.gz",
        sha256="ab" * 32,
        job="llama",
        run="r1",
        rank=rank,
        rank_source="distributedInfo" if rank is not None else None,
        world_size=world_size,
        base_time_unix_ns=1_700_000_000_000_000_000,
        complete=True,
        events=215_000,
        damaged_events=0,
        invalid_records=0,
        unlinked_kernels=0,
    )


def stats(mean_mhz: float) -> ClockStats:
    return ClockStats(
        mean_mhz=mean_mhz,
        low_mhz=mean_mhz - 6,
        high_mhz=mean_mhz + 6,
        p05_mhz=mean_mhz - 60,
        p95_mhz=mean_mhz + 60,
        std_mhz=30.0,
        samples=124,
    )


def clocked_waterfall() -> Waterfall:
    """Sums to 1412 ms."""
    return Waterfall(
        compute_at_ref=869 * MS,
        dvfs_loss=131 * MS,
        compute_unsampled=4 * MS,
        exposed_comm=208 * MS,
        exposed_copy=20 * MS,
        unknown=0,
        idle_launch_call=100 * MS,
        idle_allocator=10 * MS,
        idle_data=40 * MS,
        idle_sync=20 * MS,
        idle_launch_prep=8 * MS,
        idle_other=2 * MS,
    )


def clockless_waterfall() -> Waterfall:
    """The same step with all compute (1004 ms) unsampled."""
    return replace(
        clocked_waterfall(), compute_at_ref=None, dvfs_loss=None, compute_unsampled=1004 * MS
    )


def family(name: str, class_: str, time_ms: int, lost_ms: int | None) -> Family:
    return Family(
        name=name,
        class_=class_,
        count=960,
        time_ns=time_ms * MS,
        mean_mhz=None if lost_ms is None else 1720.0,
        samples=0 if lost_ms is None else 700,
        lost_ns=None if lost_ms is None else lost_ms * MS,
        beta_reason="fewer than 30 samples",
    )


def classes_of(families: Sequence[Family]) -> tuple[ClassTotal, ...]:
    """The families' classes, whose losses are known within 2 %."""
    members: defaultdict[str, list[Family]] = defaultdict(list)
    for each in families:
        members[each.class_].append(each)
    made = []
    for class_, those in members.items():
        known = [each.lost_ns for each in those if each.lost_ns is not None]
        lost_ns = sum(known) if known else None
        made.append(
            ClassTotal(
                class_=class_,
                count=sum(each.count for each in those),
                total_ns=sum(each.time_ns for each in those),
                mean_mhz=those[0].mean_mhz,
                samples=sum(each.samples for each in those),
                lost_ns=lost_ns,
                lost_low_ns=None if lost_ns is None else round(lost_ns * 0.98),
                lost_high_ns=None if lost_ns is None else round(lost_ns * 1.02),
            )
        )
    return tuple(made)


def part(name: str, time_ms: int = 500, lost_ms: int | None = 50) -> Part:
    return Part(
        name=name,
        count=40,
        time_ns=time_ms * MS,
        mean_mhz=None if lost_ms is None else 1720.0,
        samples=0 if lost_ms is None else 30,
        lost_ns=None if lost_ms is None else lost_ms * MS,
    )


def row(device: int, step: int | None, *, critical: bool = False) -> Row:
    """A sampled row: gap 131/1000 over 1000 ms covered of 1004 ms compute in 1412 ms.

    The gap's interval of ±0.004 is ±0.004 x 1000/1412 = ±0.28 points of the window.
    """
    return Row(
        job="llama",
        run="r1",
        rank=device,
        step=step,
        step_source="profiler_step",
        device=device,
        gpu=str(device),
        partial=False,
        partial_reasons=(),
        host_only=False,
        tail=False,
        accumulation=1,
        micro_steps=(),
        marker_start_unix_ns=1_700_000_000_000_000_000,
        marker_ns=1400 * MS,
        start_unix_ns=1_700_000_000_100_000_000,
        start="2023-11-14T22:13:20.100000Z",
        window_ns=1412 * MS,
        busy_ns=1232 * MS,
        compute_ns=1004 * MS,
        comm_ns=500 * MS,
        copy_ns=30 * MS,
        overlap_ns=292 * MS,
        overlap_ratio=0.584,
        launched_ns=1230 * MS,
        foreign_ns=2 * MS,
        clock=RowClock(
            basis="in_class", compute=stats(1721.0), busy=stats(1730.0), coverage_ratio=1000 / 1004
        ),
        mem_clock_mhz=2619.0,
        dvfs=Dvfs(
            method="sampled",
            gap_ratio=0.131,
            gap_low=0.127,
            gap_high=0.135,
            lost_ns=131 * MS,
            excess_ns=53 * MS if device == 5 else 0,
            overhead_factor=1.15,
            by_cause_ns={"power_cap": 118 * MS, "thermal": 13 * MS},
        ),
        peers=Peers(n=8, median_mhz=1810.0),
        waterfall_ns=clocked_waterfall(),
        exposed_copy_ns=ExposedCopy(h2d=20 * MS, d2h=0, d2d=0, memset=0),
        energy_j=900.5,
        energy_error_j=12.0,
        power_limit_w=700.0,
        temperature_c=Temperature(mean=70.0, max=72.0),
        is_critical=critical,
    )


def gpu_line(device: int) -> GpuLine:
    hot = device == 5
    return GpuLine(
        gpu=str(device),
        device=device,
        rank=device,
        mean_mhz=1721.0 if hot else 1810.0,
        peers_median_mhz=1810.0,
        gap_ratio=0.131 if hot else 0.086,
        excess_ns_per_step=53.0 * MS if hot else 0.0,
        temperature_mean_c=87.0 if hot else 70.0,
        slowest_steps=10 if hot else 0,
        excess_low_ns_per_step=49.0 * MS if hot else 0.0,
        excess_high_ns_per_step=57.0 * MS if hot else 4.0 * MS,
        stands_out=hot,
    )


@cache
def eight_gpus() -> ReportDocument:
    devices = range(8)
    kernels = (
        family("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm", 7000, 950),
        family("flash_fwd_kernel[causal]", "attention", 2000, 250),
        family("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", "comm", 5000, None),
    )
    return ReportDocument(
        schema=SCHEMA,
        generated=Generated(
            version="0.1.0",
            node="node1",
            backend="nvml",
            driver="560.35.03",
            simulated=False,
            time="2026-11-27T10:00:00Z",
        ),
        summary=Summary(
            basis="critical_steps",
            steps=10,
            step_ns=1412.0 * MS,
            lost_ns=131.0 * MS,
            gap_ratio=0.0928,
            gap_low=0.0899,
            gap_high=0.0956,
            lost_measured_low_ns=86.0 * MS,
            lost_measured_high_ns=98.0 * MS,
            excess_ns=53.0 * MS,
            reference_mhz=1980.0,
            reference_source="device_max",
            coverage_ratio=0.996,
            causes=(
                CauseShare(cause="power_cap", lost_ns=117.9 * MS, share=0.90),
                CauseShare(cause="thermal", lost_ns=9.2 * MS, share=0.07),
                CauseShare(cause="unexplained", lost_ns=3.9 * MS, share=0.03),
            ),
            gpus=tuple(gpu_line(device) for device in devices),
            waterfall_ns={
                "compute_at_ref": 869.0 * MS,
                "dvfs_loss": 131.0 * MS,
                "compute_unsampled": 4.0 * MS,
                "exposed_comm": 208.0 * MS,
                "exposed_copy": 20.0 * MS,
                "unknown": 0.0,
                "idle_launch_call": 100.0 * MS,
                "idle_allocator": 10.0 * MS,
                "idle_data": 40.0 * MS,
                "idle_sync": 20.0 * MS,
                "idle_launch_prep": 8.0 * MS,
                "idle_other": 2.0 * MS,
            },
        ),
        findings=(
            Finding(
                code="cooling.hot_gpu",
                title="GPU 5 runs 17 C hotter than the median of its peers",
                evidence=("88 C, its peers 71 C",),
                bound_ns=53 * MS,
                basis="peers",
                gpu="5",
                rank=5,
                action="check airflow and seating of GPU 5",
                command="chopperd devices",
            ),
        ),
        trace=trace(0),
        traces=tuple(trace(rank) for rank in devices),
        sampling=Sampling(
            asked_hz=100.0,
            kept_hz=99.8,
            samples_in_compute=1240,
            sensor_period_ms=20.0,
            power_source="instant",
        ),
        alignment=Alignment(
            offset_uncertainty_ns=400_000,
            lag_ns=None,
            lag_low_ns=None,
            lag_high_ns=None,
            realtime_step=False,
            check="not measurable",
        ),
        profiler=Profiler(profiled_step_ratio=1.018),
        framework=FrameworkSummary(name="fsdp2", evidence=("FSDP::all_gather",)),
        devices=tuple(
            DeviceSummary(
                device=device,
                rank=device,
                gpu=str(device),
                uuid=f"GPU-{device:08d}",
                name="NVIDIA H100 80GB HBM3",
                vendor="nvidia",
                mapping="chopperd_devices",
                reference=REFERENCE,
            )
            for device in devices
        ),
        totals=tuple(_totals(device, kernels) for device in devices),
        steps=tuple(
            row(device, step, critical=device == 5) for step in range(10) for device in devices
        ),
        drops=(),
        notes=(Note(code="lag_not_measurable", text="too few idle gaps to find the sensor lag"),),
    )


def _totals(device: int, kernels: tuple[Family, ...]) -> Row:
    """With its parts: 7000 + 2000 ms of compute, 5000 of communication."""
    return replace(
        row(device, None),
        families=kernels,
        classes=classes_of(kernels),
        by_operation=(
            _summed("aten::mm", kernels[:1]),
            _summed("nccl:all_gather", kernels[2:]),
            _summed("aten::_flash_attention_forward", kernels[1:2]),
        ),
        by_layer=(_summed("layers.7", kernels[:2]), _summed(UNKNOWN_PART, kernels[2:])),
        by_phase=(_summed("backward", kernels),),
    )


def _summed(name: str, kernels: Sequence[Family]) -> Part:
    lost = [each.lost_ns for each in kernels if each.lost_ns is not None]
    return Part(
        name=name,
        count=sum(each.count for each in kernels),
        time_ns=sum(each.time_ns for each in kernels),
        mean_mhz=1720.0 if lost else None,
        samples=sum(each.samples for each in kernels),
        lost_ns=sum(lost) if lost else None,
    )


@cache
def single_gpu() -> ReportDocument:
    """One sampled GPU: no peers, hence no excess; sensitivity not measured."""
    full = eight_gpus()
    assert full.summary is not None
    alone = replace(row(0, None).dvfs, excess_ns=None)
    rows = [
        replace(row(0, step, critical=True), dvfs=alone, peers=None) for step in (None, *range(3))
    ]
    line = replace(gpu_line(0), peers_median_mhz=None, excess_ns_per_step=None)
    return replace(
        full,
        summary=replace(
            full.summary,
            steps=3,
            excess_ns=None,
            lost_measured_low_ns=None,
            lost_measured_high_ns=None,
            gpus=(line,),
        ),
        findings=(),
        traces=(full.trace,),
        profiler=Profiler(),
        devices=full.devices[:1],
        totals=tuple(rows[:1]),
        steps=tuple(rows[1:]),
        notes=(Note(code="peers_untraced", text="fewer than 4 GPUs of one model were traced"),),
    )


@cache
def without_clocks() -> ReportDocument:
    """A trace with no samples beside it: times stand, everything about clocks is unknown."""
    full = single_gpu()
    assert full.summary is not None
    parts = {"clock": None, "mem_clock_mhz": None, "dvfs": Dvfs(), "energy_j": None}
    parts |= {"energy_error_j": None, "power_limit_w": None, "temperature_c": None}
    clockless = clockless_waterfall()
    waterfall_ns = {k: v for k, v in full.summary.waterfall_ns.items() if k != "dvfs_loss"}
    waterfall_ns["compute_unsampled"] = 1004.0 * MS
    del waterfall_ns["compute_at_ref"]
    unknown_line = replace(
        full.summary.gpus[0], gpu=None, mean_mhz=None, gap_ratio=None, temperature_mean_c=None
    )
    return replace(
        full,
        generated=replace(full.generated, backend=None, driver=None),
        summary=replace(
            full.summary,
            lost_ns=None,
            gap_ratio=None,
            gap_low=None,
            gap_high=None,
            reference_mhz=None,
            reference_source=None,
            coverage_ratio=None,
            causes=(),
            gpus=(unknown_line,),
            waterfall_ns=waterfall_ns,
        ),
        sampling=Sampling(
            asked_hz=None,
            kept_hz=None,
            samples_in_compute=0,
            sensor_period_ms=None,
            power_source=None,
        ),
        alignment=replace(full.alignment, offset_uncertainty_ns=None, check="no samples"),
        devices=tuple(
            replace(d, gpu=None, uuid=None, mapping=None, reference=NO_REFERENCE)
            for d in full.devices
        ),
        totals=tuple(replace(r, **parts, gpu=None, waterfall_ns=clockless) for r in full.totals),
        steps=tuple(replace(r, **parts, gpu=None, waterfall_ns=clockless) for r in full.steps),
        notes=(Note(code="no_samples", text="no clock samples were given (--samples F)"),),
    )


@cache
def totals_only() -> ReportDocument:
    """A trace without step markers: the summary is over the whole file."""
    full = single_gpu()
    assert full.summary is not None
    return replace(
        full,
        summary=replace(full.summary, basis="totals", steps=0),
        steps=(),
        notes=(Note(code="no_steps", text="the trace marks no steps; totals only"),),
    )


@cache
def host_only() -> ReportDocument:
    """A CPU job: step markers but no device at all."""
    full = without_clocks()
    marker = replace(
        full.steps[0],
        device=None,
        host_only=True,
        window_ns=None,
        busy_ns=None,
        compute_ns=None,
        comm_ns=None,
        waterfall_ns=None,
        is_critical=None,
    )
    return replace(full, summary=None, devices=(), totals=(), steps=(marker,), notes=())


@cache
def host_timed() -> ReportDocument:
    """The same where the trace tells operators, whose layers are known but for one."""
    layers = (
        HostPart(name="layers.0", count=5, host_ns=3 * MS),
        HostPart(name=UNKNOWN_PART, count=1, host_ns=MS),
    )
    host = HostTime(
        job=None,
        run="run",
        rank=0,
        by_operation=(HostPart(name="aten::mm", count=6, host_ns=4 * MS),),
        by_layer=layers,
        by_phase=(HostPart(name="forward", count=6, host_ns=4 * MS),),
    )
    return replace(host_only(), host=(host,))
