"""Traces find their GPUs by samples alone, on a fake NVIDIA driver that lists no process.

As in a pod that doesn't see the host's processes: eight equal GPUs under one job, whose ranks pause
for data each in their own way and meet in a collective at the end of each step.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from chopperd.model.report import ReportDocument
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.agent_http import ask
from tests.e2e.agents import agent_under, nvml_environment
from tests.fakes.nvml.scenario import Scenario, Segment
from tests.waiting import wait_for

#: The fake driver plays 32 stretches at most: three a step.
RANKS, STEPS, STEP_NS = 8, 10, 600 * NS_PER_MS
COMM_NS = 60 * NS_PER_MS
#: The GPU of each rank.
ORDER = (3, 0, 6, 1, 7, 2, 5, 4)
NODE = os.uname().nodename


@dataclass(frozen=True, kw_only=True)
class Step:
    """One rank's step, all since the job's begin: a pause, compute, a collective, ns."""

    start_ns: int
    pause_ns: int

    @property
    def compute_ns(self) -> tuple[int, int]:
        return self.start_ns + self.pause_ns, self.start_ns + STEP_NS - COMM_NS

    @property
    def comm_ns(self) -> tuple[int, int]:
        return self.compute_ns[1], self.start_ns + STEP_NS


def played() -> list[list[Step]]:
    """The steps of each rank."""
    pauses = np.random.default_rng(5).integers(20, 320, (RANKS, STEPS)) * NS_PER_MS
    return [
        [Step(start_ns=n * STEP_NS, pause_ns=int(pause)) for n, pause in enumerate(of_rank)]
        for of_rank in pauses
    ]


def play(scenario: Scenario, ranks: list[list[Step]], origin_ns: int) -> None:
    """Have each rank's GPU do what the rank does."""
    for rank, steps in enumerate(ranks):
        segments = []
        for step in steps:
            idle = Segment(
                length_ns=step.pause_ns, sm_clock_mhz=1980, power_mw=120_000, activity_percent=0
            )
            compute_ns = step.compute_ns[1] - step.compute_ns[0]
            compute = Segment(length_ns=compute_ns, sm_clock_mhz=1500, power_mw=650_000)
            comm = Segment(length_ns=COMM_NS, sm_clock_mhz=1890, power_mw=300_000)
            segments += [idle, compute, comm]
        scenario.gpus[ORDER[rank]].plays(*segments, origin_unix_ns=origin_ns)


def traced(steps: list[Step], rank: int, origin_ns: int) -> bytes:
    """The trace of one rank, without a word on which GPU its device is."""
    events: list[dict[str, object]] = []
    for number, step in enumerate(steps):
        at = {"pid": 900, "tid": 900, "ph": "X"}
        marker = {"ts": step.start_ns / 1000, "dur": STEP_NS / 1000, **at}
        events.append({"cat": "user_annotation", "name": f"ProfilerStep#{number}", **marker})
        kinds = (("gemm_bf16_128x128_tn", step.compute_ns, 7), ("ncclDevKernel", step.comm_ns, 20))
        for name, (start_ns, end_ns), stream in kinds:
            link = {"correlation": 1000 * stream + number, "External id": 1000 * stream + number}
            call = {"ts": (step.start_ns + NS_PER_MS) / 1000, "dur": 20, "args": link, **at}
            events.append({"cat": "cuda_runtime", "name": "cudaLaunchKernel", **call})
            lasts = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
            where = {"ph": "X", "pid": rank, "tid": stream}
            args = {"device": rank, "stream": stream, **link}
            events.append({"cat": "kernel", "name": name, "args": args, **lasts, **where})
    document = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": origin_ns,
        "displayTimeUnit": "ms",
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
        "host_name": NODE,
        "trace_id": f"of-{rank}",
        "traceEvents": events,
    }
    return json.dumps(document).encode()


def test_eight_equal_gpus_are_told_by_samples_alone(
    nvml_library: Callable[[], Path], tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path / "scenario.bin", RANKS)
    ranks = played()
    settings = {"SAMPLING__HZ": "50"}
    environment = nvml_environment(nvml_library(), scenario.path)
    with agent_under(tmp_path, None, settings, environment) as agent:
        origin_ns = time.time_ns() + NS_PER_S
        play(scenario, ranks, origin_ns)
        time.sleep(1.5 + STEPS * STEP_NS / NS_PER_S)
        for rank, steps in enumerate(ranks):
            agent.drop("job", f"rank{rank}.json", traced(steps, rank, origin_ns))

        def document() -> ReportDocument | None:
            asked = ask(tmp_path / "run" / "api.sock", "/api/v1/report/latest?job=job")
            if asked.status != 200:
                return None
            latest = msgspec.json.decode(asked.text, type=ReportDocument)
            return latest if len(latest.traces) == RANKS else None

        wait_for(lambda: document() is not None, "the report on all ranks", 60)
        found = document()
    assert found is not None
    mapped = [(each.rank, each.gpu, each.mapping) for each in found.devices]
    assert mapped == [(rank, str(gpu), "signal") for rank, gpu in enumerate(ORDER)]
    assert all(row.clock is not None for row in found.totals)
    assert "device_unmapped" not in {note.code for note in found.notes}
