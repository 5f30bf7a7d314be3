"""The slow state of a GPU: values that are not part of a sample, sensor timing, processes, faults.

It follows the GPU's status block in the shared memory. The values are written by the thread that
reads the GPU, the rest by the thread that found it.
"""

import mmap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan, nan
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from chopperd.model.devices import STATE_FIELDS, DeviceReading, GpuInfo, GpuProcess, SensorTiming
from chopperd.sampling.memory.layout import (
    GENERATION_WORD,
    MOST_PROCESSES,
    SLOW_STATE,
    TIMED_SENSORS,
    TROUBLE_BYTES,
    Records,
)

_UNKNOWN: Final = -1
#: The largest number in a word; a driver's number above that is nonsense.
_MOST: Final = 2**63 - 1


class SlowState(Struct, frozen=True, kw_only=True):
    """The slow state of a GPU as a reader gets it."""

    state_mono_ns: int | None = None  # when the values were read; None before the first
    #: The known values, by their name in `DeviceReading`.
    state: Mapping[str, float] = field(default_factory=dict)
    #: The timing of each sensor, by the name of its field.
    timing: Mapping[str, SensorTiming] = field(default_factory=dict)
    driver_rare_ns: int = 0  # time in driver calls that are not part of sampling
    invalid_count: int = 0  # impossible values of the driver that were dropped
    processes_mono_ns: int | None = None  # when the processes were listed; None before the first
    processes: tuple[GpuProcess, ...] = ()  # the processes on the GPU at that time
    #: The fault that the driver reports, for people; None if there is none.
    trouble: str | None = None


class SlowStateWriter:
    """Writes one GPU's slow state; for any thread of the sampler.

    Nothing is written once another writer process (`generation`) has taken over.
    """

    def __init__(
        self, memory: mmap.mmap, words: "memoryview[int]", generation: int, offset: int
    ) -> None:
        self._map = memory
        self._words = words
        self._generation = generation
        self._offset = offset
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Clear an earlier writer's values, except its counts."""
        with self._writing() as block:
            for name in ("state_mono_ns", "processes_mono_ns", "processes_count", "trouble_bytes"):
                block[name] = 0
            block["state"] = nan
            block["state_sequence"] += block["state_sequence"] % 2  # odd: who wrote it died over it
            block["sensor_period_ns"] = block["sensor_window_ns"] = _UNKNOWN

    def write_state(self, reading: DeviceReading, t_mono_ns: int) -> None:
        """Write the values of a full read that are not part of a sample."""
        values = [getattr(reading, name) for name in STATE_FIELDS]
        with self._writing() as block:
            sequence = int(block["state_sequence"]) | 1
            block["state_sequence"] = sequence
            block["state_mono_ns"] = t_mono_ns
            block["state"] = [nan if value is None else value for value in values]
            block["state_sequence"] = sequence + 1

    def write_timing(self, timing: Mapping[str, SensorTiming]) -> None:
        """Write the timing of sensors, given by field name."""
        with self._writing() as block:
            for name, found in timing.items():
                place = TIMED_SENSORS.index(name)
                block["sensor_period_ns"][place] = _whole(found.period_ns)
                block["sensor_window_ns"][place] = _whole(found.window_ns)

    def write_processes(self, processes: Sequence[GpuProcess], t_mono_ns: int) -> None:
        """Write the processes on the GPU, 64 at most, and when they were listed."""
        rows = [
            (one.pid, _whole(one.memory_used_bytes), _whole(one.partition))
            for one in processes[:MOST_PROCESSES]
        ]
        with self._writing() as block:
            block["processes_mono_ns"] = t_mono_ns
            block["processes_count"] = len(rows)
            if rows:
                block["processes"][: len(rows)] = rows

    def write_trouble(self, trouble: str | None) -> None:
        """Write the GPU's fault for people, cut to 256 bytes; None: there is none."""
        data = (trouble or "").encode()[:TROUBLE_BYTES]
        with self._writing() as block:
            block["trouble_bytes"] = len(data)
            block["trouble"][: len(data)] = np.frombuffer(data, np.uint8)

    def add_driver_ns(self, spent_ns: int) -> None:
        """Add time in driver calls that are not part of sampling."""
        with self._writing() as block:
            block["driver_rare_ns"] += spent_ns

    def add_invalid(self, count: int) -> None:
        """Add to the count of values dropped as impossible."""
        with self._writing() as block:
            block["invalid_count"] += count

    @contextmanager
    def _writing(self) -> Iterator[np.ndarray]:
        """Yield the block to write to, locked; a dummy once another writer has taken over."""
        with self._lock:
            if self._words[GENERATION_WORD] != self._generation:
                yield np.zeros((), SLOW_STATE)
                return
            block = np.ndarray((), SLOW_STATE, self._map, self._offset)
            block["sequence"] = int(block["sequence"]) | 1
            try:
                yield block
            finally:  # left unfinished, nothing of the block could be read any more
                block["sequence"] = int(block["sequence"]) + 1


def slow_state_of(block: Records) -> SlowState:
    """Decode a copy of a slow state block."""
    count = int(block["processes_count"])
    values = zip(STATE_FIELDS, block["state"].tolist(), strict=True)
    timing = zip(
        TIMED_SENSORS,
        block["sensor_period_ns"].tolist(),
        block["sensor_window_ns"].tolist(),
        strict=True,
    )
    data = block["trouble"][: int(block["trouble_bytes"])].tobytes()
    return SlowState(
        state_mono_ns=int(block["state_mono_ns"]) or None,
        state={name: value for name, value in values if not isnan(value)},
        timing={
            name: SensorTiming(period_ns=_known(period_ns), window_ns=_known(window_ns))
            for name, period_ns, window_ns in timing
        },
        driver_rare_ns=int(block["driver_rare_ns"]),
        invalid_count=int(block["invalid_count"]),
        processes_mono_ns=int(block["processes_mono_ns"]) or None,
        processes=tuple(
            GpuProcess(pid=pid, memory_used_bytes=_known(used), partition=_known(partition))
            for pid, used, partition in block["processes"][:count].tolist()
        ),
        trouble=data.decode(errors="ignore") or None,
    )


def with_findings(gpu: GpuInfo, slow_state: SlowState) -> GpuInfo:
    """Return the GPU with the power limit read last, and update periods that it lacked."""
    found = {name: each.period_ns for name, each in slow_state.timing.items()}
    return replace(
        gpu,
        power_limit_w=slow_state.state.get("power_limit_w", gpu.power_limit_w),
        sm_clock_period_ns=gpu.sm_clock_period_ns or found.get("sm_clock_mhz"),
        power_period_ns=gpu.power_period_ns or found.get("power_w"),
        energy_period_ns=gpu.energy_period_ns or found.get("energy_j"),
    )


def _whole(value: int | None) -> int:
    return _UNKNOWN if value is None or value > _MOST else value


def _known(value: int) -> int | None:
    return None if value == _UNKNOWN else value
