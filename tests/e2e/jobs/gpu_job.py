"""A stand-in for a training job: sets a GPU's course going, outlasts it, writes Kineto traces.

The course of the fake driver's clocks is in the scenario already, waiting; this moves its start to
a moment from now and lays one trace a GPU on the same time axis, as a profiler would.

Usage: gpu_job.py SCENARIO TRACE_FOLDER UUID...
"""

import json
import sys
import time
from pathlib import Path
from typing import Final

from tests.fakes.nvml.scenario import Scenario

MS: Final = 1_000_000
LEAD_NS: Final = 300 * MS
STEP_NS: Final = 500 * MS
STEPS: Final = 5
#: Of each step: kernels from its start, then communication alone, then nothing.
COMPUTE_NS: Final = 400 * MS
COMM_NS: Final = 80 * MS
LAUNCH_NS: Final = 1 * MS


def main(scenario_path: str, folder: str, *uuids: str) -> None:
    scenario = Scenario.attached(Path(scenario_path))
    origin_ns = time.time_ns() + LEAD_NS
    for gpu in scenario.gpus:
        gpu.origin_unix_ns = origin_ns
    end_ns = origin_ns + STEPS * STEP_NS
    time.sleep((end_ns + LEAD_NS - time.time_ns()) / 1e9)
    Path(folder).mkdir(exist_ok=True)
    for rank, uuid in enumerate(uuids):
        document = trace(origin_ns, rank, uuid, len(uuids))
        path = Path(folder) / f"rank{rank}.pt.trace.json"
        path.write_text(json.dumps(document), encoding="utf-8")


def trace(origin_ns: int, rank: int, uuid: str, world_size: int) -> dict[str, object]:
    """One rank's trace: a GEMM and an all-reduce in each step, launched just before they run."""
    base_ns = origin_ns - LEAD_NS
    events: list[dict[str, object]] = []
    for step in range(STEPS):
        start_ns = origin_ns - base_ns + step * STEP_NS
        events += _step(step, start_ns, rank)
    return {
        "schemaVersion": 1,
        "baseTimeNanoseconds": base_ns,
        "displayTimeUnit": "ms",
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "chopperd_devices": [{"device": rank, "uuid": uuid}],
        "traceEvents": events,
    }


def _step(step: int, start_ns: int, rank: int) -> list[dict[str, object]]:
    marker = _event("user_annotation", f"ProfilerStep#{step}", start_ns - 2 * MS, STEP_NS, 900)
    events = [marker]
    kernels = (
        ("ampere_bf16_s16816gemm_bf16_128x128_tn", start_ns, COMPUTE_NS, 7),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", start_ns + COMPUTE_NS, COMM_NS, 20),
    )
    for number, (name, begin_ns, length_ns, stream) in enumerate(kernels):
        correlation = 10 * (step + 1) + number
        launched_ns = start_ns - LAUNCH_NS + number * MS // 4
        call = _event("cuda_runtime", "cudaLaunchKernel", launched_ns, MS // 8, 900)
        call["args"] = {"correlation": correlation, "External id": correlation}
        kernel = _event("kernel", name, begin_ns, length_ns, stream, pid=rank)
        kernel["args"] = {"device": rank, "stream": stream, "correlation": correlation}
        events += [call, kernel]
    return events


def _event(
    category: str, name: str, start_ns: int, length_ns: int, tid: int, pid: int = 900
) -> dict[str, object]:
    times = {"ts": start_ns / 1000, "dur": length_ns / 1000}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times}


if __name__ == "__main__":
    main(*sys.argv[1:])
