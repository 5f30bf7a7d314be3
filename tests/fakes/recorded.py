"""Records as a sampler leaves them in its ring: made from samples, or by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples
from chopperd.sampling.memory.layout import NO_DIE, RECORD, Records
from chopperd.store.recorder.chunk import Origin
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_S, NS_PER_US, TimeTriple
from tests.fakes.clock import ScriptedClock
from tests.fakes.samples import gpu_info

#: Multiplying by it (splitmix64's first step) scatters neighbours over all 64 bits.
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def records_of(samples: GpuSamples, unix_less_mono_ns: int) -> Records:
    """The samples as records."""
    records = np.zeros(len(samples), RECORD)
    records["die_clocks_mhz"] = NO_DIE
    records["t_mono_ns"] = samples.t_unix_ns - unix_less_mono_ns
    records["span_ns"] = samples.read_span_ns
    records["causes"] = samples.causes
    for name in VALUE_COLUMNS:
        records[name] = getattr(samples, name)
    for cause in CAUSES:
        records["limited_ns"][:, cause] = samples.limited_ns.get(cause, np.nan)
    if (dies_mhz := samples.die_clocks_mhz) is not None:
        known = np.where(np.isnan(dies_mhz), NO_DIE, dies_mhz)
        records["die_clocks_mhz"][:, : dies_mhz.shape[1]] = known
    return records


def cut(records: Records, begin_mono_ns: int, end_mono_ns: int) -> Records:
    """The records of a time."""
    t_ns = records["t_mono_ns"]
    part: Records = records[(t_ns >= begin_mono_ns) & (t_ns < end_mono_ns)]
    return part


def triples_every_second(
    begin_mono_ns: int, end_mono_ns: int, unix_less_mono_ns: int
) -> Sequence[TimeTriple]:
    """Clock triples of a machine whose wall clock runs evenly."""
    return [
        TimeTriple(unix_ns=mono_ns + unix_less_mono_ns, mono_ns=mono_ns, boot_ns=mono_ns)
        for mono_ns in range(begin_mono_ns, end_mono_ns, NS_PER_S)
    ]


def origin(*, gpu_count: int = 2, boot_id: str = "boot-1", hz: float = 10.0) -> Origin:
    """Where hand-made records come from."""
    return Origin(
        gpus=tuple(gpu_info(index) for index in range(gpu_count)),
        backend="scripted",
        driver="1.2",
        node="node-1",
        asked_hz=hz,
        boot_id=boot_id,
    )


def second_of_records(
    begin_mono_ns: int, *, gpu_count: int = 2, hz: int = 10
) -> dict[int, Records]:
    """One second of each GPU: a clock that tells when it was read, slow values in the first row.

    Times are whole us, so that they come back as they are.
    """
    return {slot: _records(begin_mono_ns + 1_000 * slot, hz) for slot in range(gpu_count)}


def clock_mhz_at(t_mono_ns: Int64s) -> Float64s:
    """The clock in hand-made records: told from the time, yet with nothing to compress."""
    scattered = (t_mono_ns // NS_PER_US).astype(np.uint64)
    for shift in (15, 29):
        scattered = (scattered ^ (scattered >> np.uint64(shift))) * _ODD
    return np.divide((scattered >> np.uint64(40)).astype(np.int64), 1_000)


def _records(begin_mono_ns: int, hz: int) -> Records:
    records = np.zeros(hz, RECORD)
    records["die_clocks_mhz"] = NO_DIE
    records["t_mono_ns"] = begin_mono_ns + np.arange(hz) * (NS_PER_S // hz)
    records["span_ns"] = 20_000
    records["causes"] = Cause.POWER_CAP.bit
    for name in VALUE_COLUMNS:
        records[name] = np.nan
    records["sm_clock_mhz"] = clock_mhz_at(records["t_mono_ns"])
    records["energy_j"][0] = begin_mono_ns / NS_PER_S * 300
    records["limited_ns"] = np.nan
    records["limited_ns"][:, Cause.POWER_CAP] = records["t_mono_ns"] / 4
    return records


@dataclass(slots=True)
class Feed:
    """Gives a recorder one second of samples after the other.

    Attributes:
        recorder: Takes them.
        clock: Stands at the end of the last second given.
        source: Where they come from.
        given: (n,) MONOTONIC times of GPU 0's samples so far.
    """

    recorder: FlightRecorder
    clock: ScriptedClock
    source: Origin = field(default_factory=origin)
    given_mono_ns: list[int] = field(default_factory=list)

    def seconds(self, count: int, *, hz: int = 10) -> None:
        """Sample for some seconds."""
        for _ in range(count):
            begin_ns = self.clock.mono_ns()
            records = second_of_records(begin_ns, gpu_count=len(self.source.gpus), hz=hz)
            triple = self.clock.triple()
            self.clock.advance(NS_PER_S)
            self.recorder.append(self.source, records, [triple])
            self.given_mono_ns += records[0]["t_mono_ns"].tolist()
