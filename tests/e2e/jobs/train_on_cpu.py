"""Trains a small network on the CPU and profiles three of its steps: STATUS [FOLDER].

It leaves with the status; the profile is written into the folder, which it makes.
"""

import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

FOLDER = Path(sys.argv[2] if len(sys.argv) > 2 else "profiles")


def save(profiler: profile) -> None:
    FOLDER.mkdir()
    profiler.export_chrome_trace(str(FOLDER / "cpu.pt.trace.json"))


def train() -> float:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.TransformerEncoderLayer(d_model=32, nhead=4, dim_feedforward=64)
    optimizer = torch.optim.AdamW(model.parameters())
    plan = schedule(wait=1, warmup=1, active=3)
    loss = torch.zeros(())
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=save) as profiler:
        for _ in range(6):
            loss = model(torch.randn(8, 16, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    return float(loss.item())


if __name__ == "__main__":
    print("training", flush=True)
    print("finite" if train() > 0 else "broken", flush=True)
    sys.exit(int(sys.argv[1]))
