"""What of a GPU is written seldom: values that are no part of a sample, timing, processes, trouble.

It lies beside the GPU's status block in the shared memory. The values are written by the thread
that reads the GPU, the rest by whichever thread found it out.
"""

import mmap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import Final

import numpy as np

from chopperd.model.devices import STATE_FIELDS, DeviceReading, GpuInfo, GpuProcess, SensorTiming
from chopperd.sampling.memory.layout import (
    HEADER,
    MOST_PROCESSES,
    SIDE,
    TIMED_SENSORS,
    TROUBLE_BYTES,
    Records,
)

_GENERATION: Final = (HEADER.names or ()).index("generation")
_UNKNOWN: Final = -1
#: A word holds no more; what a driver says beyond that is absurd.
_MOST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAside:
    """What a reader finds there.

    Attributes:
        state_mono_ns: When the values were read; None before the first.
        state: The values that are known, by their name in `DeviceReading`.
        timing: What was found of each sensor, by the name of its field.
        driver_rare_ns: Time in driver calls that are not part of sampling.
        invalid_count: Values that the driver gave and that were dropped as impossible.
        processes_mono_ns: When the processes were listed; None before the first.
        processes: The processes then.
        trouble: What the driver knows to be wrong, for people; None if nothing is.
    """

    state_mono_ns: int | None = None
    state: Mapping[str, float] = field(default_factory=dict)
    timing: Mapping[str, SensorTiming] = field(default_factory=dict)
    driver_rare_ns: int = 0
    invalid_count: int = 0
    processes_mono_ns: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    trouble: str | None = None


class GpuSideWriter:
    """One GPU's side block; for any thread of the sampler.

    Nothing is written once another writer process has taken over.

    Args:
        memory: The shared memory.
        words: The same in words of 8 bytes.
        generation: The number of the writer that this belongs to.
        offset: Where the block begins, in bytes.
    """

    def __init__(
        self, memory: mmap.mmap, words: "memoryview[int]", generation: int, offset: int
    ) -> None:
        self._map = memory
        self._words = words
        self._generation = generation
        self._offset = offset
        self._lock = threading.Lock()

    def begin_anew(self) -> None:
        """Forget what an earlier writer found, but for what it spent and counted."""
        with self._writing() as side:
            for name in ("state_mono_ns", "processes_mono_ns", "processes_count", "trouble_bytes"):
                side[name] = 0
            side["state"] = nan
            side["state_sequence"] += side["state_sequence"] % 2  # odd: who wrote it died over it
            side["sensor_period_ns"] = side["sensor_window_ns"] = _UNKNOWN

    def write_state(self, reading: DeviceReading, t_mono_ns: int) -> None:
        """Put down the values of a full read that are no part of a sample."""
        values = [getattr(reading, name) for name in STATE_FIELDS]
        with self._writing() as side:
            sequence = int(side["state_sequence"]) | 1
            side["state_sequence"] = sequence
            side["state_mono_ns"] = t_mono_ns
            side["state"] = [nan if value is None else value for value in values]
            side["state_sequence"] = sequence + 1

    def write_timing(self, timing: Mapping[str, SensorTiming]) -> None:
        """Put down what was found of sensors, by the name of their fields."""
        with self._writing() as side:
            for name, found in timing.items():
                place = TIMED_SENSORS.index(name)
                side["sensor_period_ns"][place] = _whole(found.period_ns)
                side["sensor_window_ns"][place] = _whole(found.window_ns)

    def write_processes(self, processes: Sequence[GpuProcess], t_mono_ns: int) -> None:
        """Put down the processes on the GPU, as many as there is room for."""
        rows = [
            (one.pid, _whole(one.memory_used_bytes), _whole(one.partition))
            for one in processes[:MOST_PROCESSES]
        ]
        with self._writing() as side:
            side["processes_mono_ns"] = t_mono_ns
            side["processes_count"] = len(rows)
            if rows:
                side["processes"][: len(rows)] = rows

    def write_trouble(self, trouble: str | None) -> None:
        """Put down what is wrong with the GPU; None: nothing."""
        data = (trouble or "").encode()[:TROUBLE_BYTES]
        with self._writing() as side:
            side["trouble_bytes"] = len(data)
            side["trouble"][: len(data)] = np.frombuffer(data, np.uint8)

    def add_driver_ns(self, spent_ns: int) -> None:
        """Count time in driver calls that are not part of sampling."""
        with self._writing() as side:
            side["driver_rare_ns"] += spent_ns

    def add_invalid(self, count: int) -> None:
        """Count values that were dropped as impossible."""
        with self._writing() as side:
            side["invalid_count"] += count

    @contextmanager
    def _writing(self) -> Iterator[np.ndarray]:
        """The block to write to; a block of no consequence once another writer has taken over."""
        with self._lock:
            if self._words[_GENERATION] != self._generation:
                yield np.zeros((), SIDE)
                return
            side = np.ndarray((), SIDE, self._map, self._offset)
            side["sequence"] = int(side["sequence"]) | 1
            try:
                yield side
            finally:  # left unfinished, nothing of the block could be read any more
                side["sequence"] = int(side["sequence"]) + 1


def aside_of(side: Records) -> GpuAside:
    """What a copy of a side block says."""
    count = int(side["processes_count"])
    values = zip(STATE_FIELDS, side["state"].tolist(), strict=True)
    timing = zip(
        TIMED_SENSORS,
        side["sensor_period_ns"].tolist(),
        side["sensor_window_ns"].tolist(),
        strict=True,
    )
    data = side["trouble"][: int(side["trouble_bytes"])].tobytes()
    return GpuAside(
        state_mono_ns=int(side["state_mono_ns"]) or None,
        state={name: value for name, value in values if not isnan(value)},
        timing={
            name: SensorTiming(period_ns=_known(period_ns), window_ns=_known(window_ns))
            for name, period_ns, window_ns in timing
        },
        driver_rare_ns=int(side["driver_rare_ns"]),
        invalid_count=int(side["invalid_count"]),
        processes_mono_ns=int(side["processes_mono_ns"]) or None,
        processes=tuple(
            GpuProcess(pid=pid, memory_used_bytes=_known(used), partition=_known(partition))
            for pid, used, partition in side["processes"][:count].tolist()
        ),
        trouble=data.decode(errors="ignore") or None,
    )


def with_findings(gpu: GpuInfo, aside: GpuAside) -> GpuInfo:
    """The GPU with the power limit that was read last, and the update periods that were found.

    Of the periods, what the back end knew itself stays.
    """
    found = {name: each.period_ns for name, each in aside.timing.items()}
    return replace(
        gpu,
        power_limit_w=aside.state.get("power_limit_w", gpu.power_limit_w),
        sm_clock_period_ns=gpu.sm_clock_period_ns or found.get("sm_clock_mhz"),
        power_period_ns=gpu.power_period_ns or found.get("power_w"),
        energy_period_ns=gpu.energy_period_ns or found.get("energy_j"),
    )


def _whole(value: int | None) -> int:
    return _UNKNOWN if value is None or value > _MOST else value


def _known(value: int) -> int | None:
    return None if value == _UNKNOWN else value
