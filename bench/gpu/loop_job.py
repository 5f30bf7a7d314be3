"""A job that does one thing again and again and says when and how long, until stdin closes.

Usage: loop_job.py step|alloc cuda|cpu. Each line: CLOCK_MONOTONIC of the start and the time taken,
ns. Standard library and torch only.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

_ALLOC_BYTES: Final = 64 << 20


def main(what: str, device: str) -> None:
    """Go on until stdin closes."""
    # Every allocation is a cudaMalloc then, and every release a cudaFree: read by torch at start.
    if what == "alloc":
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    turn = _alloc(device) if what == "alloc" else _step(device)
    for _ in range(5):
        turn()
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    while not ended.is_set():
        start_ns = time.monotonic_ns()
        turn()
        print(start_ns, time.monotonic_ns() - start_ns, flush=True)
        if what == "alloc":
            time.sleep(0.0005)


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def _alloc(device: str) -> Callable[[], None]:
    import torch  # noqa: PLC0415 - after the environment is set

    held_first = torch.zeros(1, device=device)
    if device == "cuda" and torch.cuda.memory_reserved():
        raise RuntimeError("this torch keeps its cache of device memory: nothing would be measured")
    del held_first

    def turn() -> None:
        held = torch.empty(_ALLOC_BYTES, dtype=torch.uint8, device=device)
        del held

    return turn


def _step(device: str) -> Callable[[], None]:
    import torch  # noqa: PLC0415 - one place for both

    is_cuda = device == "cuda"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, batch = (4096, 8192) if is_cuda else (64, 64)
    kind = torch.bfloat16 if is_cuda else torch.float32
    layers = [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width)]
    model = torch.nn.Sequential(*layers).to(device, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn(batch, width, device=device, dtype=kind)
    passes = 4 if is_cuda else 1

    def turn() -> None:
        for _ in range(passes):
            model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_cuda:
            torch.cuda.synchronize()

    return turn


if __name__ == "__main__":
    main(*sys.argv[1:3])
