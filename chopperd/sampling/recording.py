"""Records samples of all GPUs: keeps a sampler running and collects columns at the end."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.clock import Clock
from chopperd.correlate.clock.governing import reported_dies
from chopperd.correlate.timebase import unix_from_mono
from chopperd.errors import StoreError
from chopperd.model.arrays import Int64s
from chopperd.model.devices import GpuInfo
from chopperd.model.kinds import CAUSES
from chopperd.model.report import Note
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples, SampleSet
from chopperd.sampling.memory.layout import NO_DIE, RECORD, Pace, Records
from chopperd.sampling.memory.ring_reader import GpuStatus, RingReader, die_clocks_mhz
from chopperd.sampling.memory.slow_state import SlowState, with_findings
from chopperd.sampling.process_table import ProcessTable, descendants
from chopperd.sampling.supervisor import SamplerSupervisor
from chopperd.units import NS_PER_S, TimeTriple

_DRAIN_EVERY_S: Final = 0.2
#: Interval at which processes are read from /proc: in the first seconds, and the longest later.
_PROCESSES_NS: Final = NS_PER_S // 2
_LONGEST_PROCESSES_NS: Final = 10 * NS_PER_S


class Recorder:
    """Records all GPUs from `start` to `finish`; starts, stops and closes the supervisor."""

    def __init__(self, supervisor: SamplerSupervisor, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drain_until_stopped, name="chopperd-recorder")
        self._chunks: dict[int, list[Records]] = {}
        self._positions: dict[int, int] = {}
        self._triples: list[TimeTriple] = []
        self._triples_position = 0
        self._processes = ProcessTable(clock)
        self._processes_at_mono_ns = self._begun_mono_ns = clock.mono_ns()
        self._overwritten_count = 0
        self._started_unix_ns = 0

    def start(self) -> None:
        """Start the sampler and the recording; returns once samples are being taken.

        Raises:
            BackendUnavailableError: There is nothing to sample; the message says why.
        """
        self._started_unix_ns = self._clock.unix_ns()
        self._supervisor.start()
        self._thread.start()

    @property
    def gpus(self) -> tuple[GpuInfo, ...]:
        """The GPUs that are recorded."""
        return self._supervisor.reader.description().gpus

    def finish(self, timeout_s: float = 2.0) -> SampleSet:
        """Stop the sampler and the recording; return everything recorded.

        A sampler that hangs for longer than the timeout is left alone.
        """
        try:
            left_pids = self._end(timeout_s)
            self._drain()
            return self._collected(left_pids)
        finally:
            self._supervisor.close()

    def close(self) -> None:
        """End the recording if it has not been ended; samples not yet collected are lost."""
        self._end(timeout_s=2.0)
        self._supervisor.close()

    def _end(self, timeout_s: float) -> tuple[int, ...]:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        return self._supervisor.stop(timeout_s)

    def _drain_until_stopped(self) -> None:
        while not self._stop.wait(_DRAIN_EVERY_S):
            self._supervisor.poll()
            self._drain()

    def _drain(self) -> None:
        """Copy new records and clock triples out of the ring; update the processes if due."""
        reader = self._supervisor.reader
        for slot in range(reader.gpu_slots):
            drained = reader.drain(slot, self._positions.get(slot, 0))
            self._positions[slot] = drained.position
            self._overwritten_count += drained.overwritten_count
            if len(drained.records):
                self._chunks.setdefault(slot, []).append(drained.records)
        triples, self._triples_position = reader.triples(self._triples_position)
        self._triples.extend(triples)
        if self._clock.mono_ns() >= self._processes_at_mono_ns:
            self._follow_processes(reader)

    def _follow_processes(self, reader: RingReader) -> None:
        """Update the processes: those on the GPUs, and from /proc those this process started.

        Often in a job of seconds, every 10 s in one of hours.
        """
        now_ns = self._clock.mono_ns()
        age_ns = now_ns - self._begun_mono_ns
        self._processes_at_mono_ns = now_ns + min(
            max(age_ns // 10, _PROCESSES_NS), _LONGEST_PROCESSES_NS
        )
        with suppress(StoreError):  # the sampler is writing it: next time
            gpus = reader.description().gpus
            self._processes.follow(gpus, [reader.slow_state(slot) for slot in range(len(gpus))])
        own = {self._supervisor.pid, *self._supervisor.left_pids}
        self._processes.update({}, set(descendants(os.getpid())) - own)

    def _collected(self, left_pids: Sequence[int]) -> SampleSet:
        reader = self._supervisor.reader
        self._follow_processes(reader)
        description = reader.description()
        gpus, notes = [], list[Note]()
        for slot, gpu in enumerate(description.gpus):
            slow_state = reader.slow_state(slot)
            records = np.concatenate([np.zeros(0, RECORD), *self._chunks.get(slot, [])])
            gpus.append(gpu_samples(recorded_gpu(gpu, slow_state), records, self._triples))
            notes += _notes(gpu, reader.status(slot), slow_state.invalid_count)
        return SampleSet(
            gpus=tuple(gpus),
            asked_hz=self._supervisor.settings.hz,
            started_unix_ns=self._started_unix_ns,
            simulated=description.simulated,
            backend=description.backend,
            driver=description.driver,
            node=os.uname().nodename,
            triples=tuple(self._triples),
            processes=self._processes.rows(),
            source="live",
            notes=(*notes, *self._own_notes(left_pids)),
        )

    def _own_notes(self, left_pids: Sequence[int]) -> Iterator[Note]:
        """Yield notes on the recording as a whole."""
        if self._overwritten_count:
            text = f"{self._overwritten_count} samples were overwritten before they were read"
            yield Note(code="samples_overwritten", text=text)
        if self._supervisor.restart_count:
            text = f"the sampler process was replaced {self._supervisor.restart_count} times"
            yield Note(code="sampler_restarted", text=text)
        if left_pids:
            text = f"sampler processes that hang in a driver were left alone: {list(left_pids)}"
            yield Note(code="sampler_left", text=text)


def gpu_samples(gpu: GpuInfo, records: Records, triples: Sequence[TimeTriple]) -> GpuSamples:
    """Convert one GPU's records to samples in Unix time; arguments as for `in_unix_time`."""
    return samples_at(gpu, *in_unix_time(records, triples))


def in_unix_time(records: Records, triples: Sequence[TimeTriple]) -> tuple[Records, Int64s]:
    """Return records, (n,) of `RECORD` rising in time, and their Unix times in ns.

    The times rise strictly: where the wall clock was set back, records whose time was passed are
    left out.
    """
    if not len(records):
        return records, np.zeros(0, np.int64)
    t_unix_ns = unix_from_mono(records["t_mono_ns"], triples)
    passed_ns = np.maximum.accumulate(t_unix_ns)
    rises = np.concatenate([[True], t_unix_ns[1:] > passed_ns[:-1]])
    return records[rises], t_unix_ns[rises]


def samples_at(gpu: GpuInfo, records: Records, t_unix_ns: Int64s) -> GpuSamples:
    """Convert one GPU's records, (n,) of `RECORD`, to samples at (n,) Unix times in ns."""
    limited_ns = records["limited_ns"]
    has_dies = bool((records["die_clocks_mhz"] != NO_DIE).any())
    return GpuSamples(
        gpu=gpu,
        t_unix_ns=t_unix_ns,
        read_span_ns=records["span_ns"].copy(),
        causes=records["causes"].copy(),
        limited_ns={
            cause: limited_ns[:, cause].copy()
            for cause in CAUSES
            if not np.isnan(limited_ns[:, cause]).all()
        },
        die_clocks_mhz=reported_dies(die_clocks_mhz(records)) if has_dies else None,
        **{name: records[name].copy() for name in VALUE_COLUMNS},
    )


def recorded_gpu(gpu: GpuInfo, slow_state: SlowState) -> GpuInfo:
    """Return the GPU for a recording; without power limit if that changed during the recording."""
    found = with_findings(gpu, slow_state)
    if gpu.power_limit_w is None or found.power_limit_w == gpu.power_limit_w:
        return found
    return replace(found, power_limit_w=None)


def _notes(gpu: GpuInfo, status: GpuStatus, dropped_count: int) -> Iterator[Note]:
    """Yield notes on one GPU: dropped values, losses, failed and missed reads, reduced rate."""
    if dropped_count:
        text = f"GPU {gpu.gpu}: {dropped_count} impossible values left out"
        yield Note(code="invalid_readings", text=text)
    failed = status.transient_count + status.unexpected_count
    if status.losses_count:
        yield Note(code="gpu_lost", text=f"GPU {gpu.gpu} was lost {status.losses_count} times")
    if failed:
        yield Note(code="reads_failed", text=f"GPU {gpu.gpu}: {failed} reads failed")
    if status.pace is Pace.BUDGET:
        hz = NS_PER_S / status.period_ns
        text = f"GPU {gpu.gpu}: driver calls take long; sampled at {hz:.3g} Hz at the end"
        yield Note(code="rate_reduced", text=text)
    if status.missed_count:
        due_count = status.ticks_count + status.missed_count
        text = f"GPU {gpu.gpu}: {status.missed_count} of {due_count} reads missed"
        yield Note(code="reads_missed", text=text)
