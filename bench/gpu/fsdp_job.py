"""A few steps of a small model under FSDP2 on one GPU, profiled: fsdp_job.py cuda|cpu FOLDER.

Standard library and torch only. Between steps it waits, so that load on and off are there for the
sensors' lag to show. Where this torch can't shard, it trains the same model whole and says so.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

_UNTRACED_STEPS: Final = 4
_PAUSE_S: Final = 0.1


def main(device: str, folder: str) -> None:
    """Train and leave a trace."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    step, how = _ready(device)
    print(how, flush=True)
    _train(step, device, Path(folder))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _ready(device: str) -> tuple[Callable[[], None], str]:
    """A training step that has run once, and how it is distributed."""
    try:
        how = _begin(device)
        step = _step(_sharded(_model(device)), device)
        step()
    except Exception as error:  # noqa: BLE001 - whatever a torch can't do, the rest is measured
        step, how = _step(_model(device), device), f"not sharded: {error!r}"
        step()
    return step, how


def _begin(device: str) -> str:
    """A process group of one."""
    backend = "nccl" if device == "cuda" and torch.distributed.is_nccl_available() else "gloo"
    store = Path(mkdtemp(prefix="chopperd-store-")) / "store"
    torch.distributed.init_process_group(
        backend, init_method=f"file://{store}", rank=0, world_size=1
    )
    return f"fully_shard, world size 1, {backend}"


def _model(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    is_cuda = device == "cuda"
    width, heads, depth = (2048, 16, 8) if is_cuda else (32, 2, 2)
    layers = [
        nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0) for _ in range(depth)
    ]
    return nn.Sequential(*layers).to(device, torch.bfloat16 if is_cuda else torch.float32)


def _sharded(model: nn.Sequential) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - older torch has none

    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def _step(model: nn.Sequential, device: str) -> Callable[[], None]:
    is_cuda = device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    shape = (2048, 8, 2048) if is_cuda else (8, 4, 32)
    kind = torch.bfloat16 if is_cuda else torch.float32
    data = torch.randn(*shape, device=device, dtype=kind)

    def step() -> None:
        model(data).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_cuda:
            torch.cuda.synchronize()

    return step


def _train(step: Callable[[], None], device: str, folder: Path) -> None:
    is_cuda = device == "cuda"
    steps = 20 if is_cuda else 4
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    plan = schedule(wait=1, warmup=_UNTRACED_STEPS - 1, active=steps)

    def save(profiler: profile) -> None:
        profiler.export_chrome_trace(str(folder / "fsdp2.pt.trace.json"))

    with profile(activities=activities, schedule=plan, on_trace_ready=save) as profiler:
        for _ in range(_UNTRACED_STEPS + steps):
            step()
            time.sleep(_PAUSE_S if is_cuda else 0.01)
            profiler.step()


if __name__ == "__main__":
    main(*sys.argv[1:3])
