"""What a read costs, and how often each value changes when it is read back to back."""

import time
from contextlib import closing
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec.structs import asdict

from bench.gpu.part import Options, main
from bench.markdown import table
from chopperd.devices.base import DeviceBackend
from chopperd.devices.registry import open_backend
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.units import NS_PER_S

_VALUES: Final = (
    "sm_clock_mhz",
    "power_w",
    "power_average_w",
    "energy_j",
    "temperature_c",
    "activity_ratio",
)
_MIN_CHANGES: Final = 3


def measure(options: Options) -> tuple[str, object]:
    """The first GPU, read back to back in both scopes."""
    seconds = 0.5 if options.is_dry else 3.0
    with closing(open_backend("nvml")) as backend:
        gpu = next(iter(backend.devices()))
        costs = {}
        for scope in (ReadScope.FAST, ReadScope.FULL):
            read = _read_for(backend, gpu, scope, seconds)
            costs[scope.value] = _cost_us(read)
        changes_ms = {name: change_ms(read, name) for name in _VALUES}
        last = {name: value for name, value in asdict(read[-1][2]).items() if name in _VALUES}
    rows = [(scope, *(f"{value:.1f}" for value in cost.values())) for scope, cost in costs.items()]
    sensors = [
        (name, f"{last[name]}", "-" if changes_ms[name] is None else f"{changes_ms[name]:.1f}")
        for name in _VALUES
    ]
    text = "\n\n".join(
        [
            table(("read", "reads", "p50 us", "p99 us", "most us"), rows),
            "Back-to-back full reads; a value that does not change has no period.",
            table(("sensor", "last value", "changes every ms (median)"), sensors),
        ]
    )
    return text, {"gpu": gpu, "cost_us": costs, "change_ms": changes_ms}


#: Start and end of a read, and what it gave.
_Read = tuple[int, int, DeviceReading]


def _read_for(
    backend: DeviceBackend, gpu: GpuInfo, scope: ReadScope, seconds: float
) -> list[_Read]:
    """Back-to-back reads for so long."""
    read: list[_Read] = []
    until_ns = time.monotonic_ns() + round(seconds * NS_PER_S)
    while not read or read[-1][1] < until_ns:
        start_ns = time.monotonic_ns()
        reading = backend.read(gpu, scope)
        read.append((start_ns, time.monotonic_ns(), reading))
    return read


def _cost_us(read: list[_Read]) -> dict[str, float]:
    took_us = np.array([end_ns - start_ns for start_ns, end_ns, _ in read]) / 1e3
    quantiles = {f"p{q}_us": float(np.percentile(took_us, q)) for q in (50, 99, 100)}
    return {"reads": float(len(read)), **quantiles}


def change_ms(read: list[_Read], name: str) -> float | None:
    """The median time between two changes of a value; None where it changed seldom."""
    known = [(end_ns, getattr(reading, name)) for _, end_ns, reading in read]
    changed_ns = [
        later[0]
        for before, later in pairwise(known)
        if None not in {before[1], later[1]} and before[1] != later[1]
    ]
    if len(changed_ns) <= _MIN_CHANGES:
        return None
    return float(np.median(np.diff(changed_ns))) / 1e6


if __name__ == "__main__":
    main(measure)
