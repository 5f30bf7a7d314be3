"""FSDPv1 or v2 as rank 0 of eight, alone: fsdp_fake_job.py cuda|cpu 1|2 FOLDER.

Standard library and torch only. The process group is torch's `fake` one: collectives return at
once, so there is no waiting for ranks and no transfer, and gathered parameters are whatever was in
their buffers. Requests, streams, `record_stream`, the rate limiter and the allocator are real.
"""

import sys
from pathlib import Path
from typing import Final

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.profiler import ProfilerActivity, profile, schedule
from torch.testing._internal.distributed.fake_pg import FakeStore

_WORLD: Final = 8
_WARM_UP_STEPS: Final = 3
_MOST_ENTRIES: Final = 400_000


def main(device: str, version: str, folder: str) -> None:
    """Train, and leave a trace with memory rows, and a snapshot of the allocator."""
    out, is_cuda = Path(folder), device == "cuda"
    out.mkdir(parents=True, exist_ok=True)
    if is_cuda:  # stacks would be most of the snapshot
        torch.cuda.memory._record_memory_history(max_entries=_MOST_ENTRIES, context=None)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    distributed.init_process_group("fake", rank=0, world_size=_WORLD, store=FakeStore())
    width, depth, tokens = (2048, 12, 4096) if is_cuda else (32, 2, 16)
    layers = [_layer(width) for _ in range(depth)]
    model = _sharded(nn.Sequential(*layers).to(device), version, device)
    _train(model, torch.randn(2, tokens, width, device=device), out / f"fake-fsdp{version}")
    distributed.destroy_process_group()


def _layer(width: int) -> nn.TransformerEncoderLayer:
    heads = max(1, width // 128)
    return nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)


def _sharded(model: nn.Sequential, version: str, device: str) -> nn.Module:
    """Shard each layer and the rest; version 1 needs its device named, also the CPU."""
    if version == "1":
        policy = ModuleWrapPolicy({nn.TransformerEncoderLayer})
        place = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=place)
    mesh = init_device_mesh(device, (_WORLD,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _train(model: nn.Module, data: torch.Tensor, stem: Path) -> None:
    is_cuda = data.is_cuda
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)
    steps = 60 if is_cuda else 3
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]

    def save(profiler: profile) -> None:
        profiler.export_chrome_trace(f"{stem}.pt.trace.json")

    with profile(
        activities=activities,
        schedule=schedule(wait=_WARM_UP_STEPS - 1, warmup=1, active=steps),
        on_trace_ready=save,
        profile_memory=True,
    ) as profiler:
        for _ in range(_WARM_UP_STEPS + steps):
            model(data).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.memory._dump_snapshot(f"{stem}.pickle")


if __name__ == "__main__":
    main(*sys.argv[1:4])
