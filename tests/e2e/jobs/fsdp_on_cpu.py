"""One rank of a small FSDP job on the CPU that profiles itself with memory.

Usage, under torchrun: fsdp_on_cpu.py {1|2} FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.profiler import ProfilerActivity, profile, schedule

VERSION, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK = int(os.environ["RANK"])


def sharded(model: nn.Sequential) -> nn.Module:
    """Shard each layer, and the rest."""
    if VERSION == "1":
        policy = ModuleWrapPolicy({nn.Linear})
        device = torch.device("cpu")
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=device)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def save(profiler: profile) -> None:
    FOLDER.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(FOLDER / f"rank{RANK}.pt.trace.json"))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = sharded(nn.Sequential(*(nn.Linear(32, 32) for _ in range(3))))
    optimizer = torch.optim.AdamW(model.parameters())
    plan = schedule(wait=0, warmup=1, active=2)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=save, profile_memory=True
    ) as profiler:
        for _ in range(3):
            model(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
