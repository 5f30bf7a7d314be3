"""One rank of a small training job on the CPU: profiles itself, then writes device rows into it.

A CPU has no device rows: one kernel a step is added on the device that the rank would use, launched
by its own process. It says that it is there, and waits for "go" before it trains, so that a test
can have the driver list it meanwhile. Usage, under torchrun: two_ranks.py FOLDER
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

FOLDER, RANK = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"])


def add_kernels(path: Path) -> None:
    """Add a kernel to each profiled step, in the middle of its time."""
    document = json.loads(path.read_text(encoding="utf-8"))
    steps = [
        event
        for event in document["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    ]
    for number, step in enumerate(steps):
        own = {"ph": "X", "ts": step["ts"] + 1, "args": {"correlation": 10_000 + number}}
        call = {**own, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 1}
        kernel = {**own, "cat": "kernel", "name": "ampere_gemm", "ts": step["ts"] + 10}
        kernel |= {"dur": step["dur"] / 2, "pid": RANK, "tid": 7}
        kernel["args"] = {"device": RANK, "stream": 7, "correlation": 10_000 + number}
        document["traceEvents"] += [{**call, "pid": step["pid"], "tid": step["tid"]}, kernel]
    path.write_text(json.dumps(document), encoding="utf-8")


def save(profiler: profile) -> None:
    path = FOLDER / f"rank{RANK}.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    add_kernels(path)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    (FOLDER / f"ready-{RANK}").touch()
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    plan = schedule(wait=1, warmup=1, active=3)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=save) as profiler:
        for _ in range(6):
            model(torch.randn(8, 32)).square().mean().backward()
            time.sleep(0.2)
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
