"""Make counter tracks of a GPU for trace viewers: clock, power, temperature, causes, loss.

A counter holds its value until its next one, and can't be empty. So a further track, `unknown`, is
1 for each track while that one's value has no meaning.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate.clock.signal import MAX_GAP_PERIODS, achieved_period_ns
from chopperd.correlate.intervals import lengths_ns
from chopperd.correlate.join import RowClocks
from chopperd.correlate.losses import ceiling_loss
from chopperd.correlate.waterfall import Windows
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.kinds import CAUSES, REPORTED_CAUSES, Cause
from chopperd.model.samples import GpuSamples
from chopperd.report.build.clocked_device import ClockedDevice
from chopperd.units import NS_PER_US

_CLOCK: Final = "SM clock"
_PERCENT: Final = 100.0
_NO_CAUSE: Final = "none"


class CounterTrack(Struct, frozen=True, kw_only=True):
    """Values of a track over time; all series have a value at each time."""

    name: str
    series: tuple[str, ...]  # names of the columns: the unit where there is one series
    t_ns: Int64s  # (n,) on the trace's time axis, strictly rising
    values: Float64s  # (n, series), no NaN

    def __len__(self) -> int:
        """Return the number of times."""
        return len(self.t_ns)


def counter_tracks(clocked: ClockedDevice, span_ns: tuple[int, int]) -> tuple[CounterTrack, ...]:
    """Make the tracks of a device; none where its GPU is unknown or has no usable samples.

    Tracks: `SM clock`, `power`, `temperature` as sampled; `clock limited by`, 1 for each limit that
    the driver reported at a sample; `clock loss`, by how many % the clock was below the reference
    while compute ran, between two samples, and `clock loss by`, the same by cause, whose sum over
    covered compute is the loss in a report; `unknown`, 1 where another track has no value.

    Times are those of the join: the clock's have the sensor's lag subtracted. Clocks, limits and
    loss reach as far as the join takes samples: 2 s around the device's records. Outside of
    `span_ns`, the trace's own time, only the next sample on either side is shown.
    """
    clocks, samples = clocked.joined.clocks, clocked.samples
    if clocks is None or samples is None:
        return ()
    readings = {
        _CLOCK: _Readings.of_clock(clocks),
        "power": _Readings.of("W", samples.t_unix_ns, samples.power_w),
        "temperature": _Readings.of("C", samples.t_unix_ns, samples.temperature_c),
    }
    within = {name: one.within(span_ns) for name, one in readings.items()}
    shown = {name: one for name, one in within.items() if len(one.t_ns)}
    tracks = [one.track(name, span_ns[1]) for name, one in shown.items()]
    if _CLOCK in shown:
        tracks += _limits(clocks, samples, span_ns)
        tracks += _losses(clocked, clocks, samples, span_ns)
    tracks += _unknown(shown, span_ns)
    return tuple(tracks)


class _Readings(Struct, frozen=True):
    """Readings of one quantity; no NaN."""

    unit: str
    t_ns: Int64s
    values: Float64s
    max_gap_ns: int

    @classmethod
    def of_clock(cls, clocks: RowClocks) -> "_Readings":
        """Return the clock readings that the join uses."""
        samples = clocks.samples
        return cls("MHz", samples.t_ns, samples.clock_mhz, samples.max_gap_ns)

    @classmethod
    def of(cls, unit: str, t_ns: Int64s, values: Float64s) -> "_Readings":
        """Return the known readings of a quantity, which may be read less often than others."""
        known = np.isfinite(values)
        period_ns = achieved_period_ns(t_ns[known])
        return cls(unit, t_ns[known], values[known], MAX_GAP_PERIODS * period_ns)

    def within(self, span_ns: tuple[int, int]) -> "_Readings":
        """Return the readings in the span, and the next on either side within a gap."""
        taken = _within(self.t_ns, span_ns, self.max_gap_ns)
        return replace(self, t_ns=self.t_ns[taken], values=self.values[taken])

    def track(self, name: str, end_ns: int) -> CounterTrack:
        """Make a track that holds each reading until the next; 0 after the last before a gap."""
        t_ns, values = _ended(self.t_ns, self.values[:, None], self.lasts(end_ns))
        return CounterTrack(name=name, series=(self.unit,), t_ns=t_ns, values=values)

    def lasts(self, end_ns: int) -> Int64s:
        """Return indices of the readings before the end that no other follows within a gap."""
        following = np.append(np.diff(self.t_ns) > self.max_gap_ns, True)
        return np.flatnonzero(following & (self.t_ns < end_ns))


def _ended(t_ns: Int64s, values: Float64s, last: Int64s) -> tuple[Int64s, Float64s]:
    """Return times and values with 0 inserted 1 ns after each index in `last`."""
    return (np.insert(t_ns, last + 1, t_ns[last] + 1), np.insert(values, last + 1, 0.0, axis=0))


def _within(t_ns: Int64s, span_ns: tuple[int, int], max_gap_ns: int) -> slice:
    start_ns, end_ns = span_ns
    first = int(np.searchsorted(t_ns, start_ns, "right"))
    if first and start_ns - t_ns[first - 1] <= max_gap_ns:
        first -= 1
    last = int(np.searchsorted(t_ns, end_ns, "left"))
    if last < len(t_ns) and t_ns[last] - end_ns <= max_gap_ns:
        last += 1
    return slice(first, max(first, last))


def _limits(clocks: RowClocks, samples: GpuSamples, span_ns: tuple[int, int]) -> list[CounterTrack]:
    """Make the track of limits reported at each clock sample; none where the driver never could.

    As counters, not slices: tools would take slices on a stream's row for work of the GPU, and a
    reading does not show when a limit began.
    """
    shown_clock = _Readings.of_clock(clocks).within(span_ns)
    taken = _within(clocks.samples.t_ns, span_ns, clocks.samples.max_gap_ns)
    bits = samples.causes[clocks.sample_rows][taken]
    if (bits == Cause.UNKNOWN.bit).all():
        return []
    masks = {cause.label: (bits & cause.bit) != 0 for cause in REPORTED_CAUSES}
    masks[_NO_CAUSE] = bits == 0
    shown = {label: mask for label, mask in masks.items() if mask.any()}
    track = _flags("clock limited by", clocks.samples.t_ns[taken], shown)
    lasts = shown_clock.lasts(span_ns[1])
    t_ns, values = _ended(track.t_ns, track.values, lasts)
    return [replace(track, t_ns=t_ns, values=values)]


def _losses(
    clocked: ClockedDevice, clocks: RowClocks, samples: GpuSamples, span_ns: tuple[int, int]
) -> list[CounterTrack]:
    reference_mhz = clocked.summary.reference.sm_clock_mhz
    taken = _within(clocks.samples.t_ns, span_ns, clocks.samples.max_gap_ns)
    t_ns = clocks.samples.t_ns[taken]
    if reference_mhz is None or len(t_ns) < 2:
        return []
    pieces = Windows(start_ns=t_ns[:-1], end_ns=t_ns[1:])
    covered_ns = lengths_ns(clocks.compute.covered, pieces.start_ns, pieces.end_ns)
    lost = ceiling_loss(
        replace(clocks.compute, covered_ns=covered_ns),
        pieces,
        reference_mhz,
        samples.gpu.sm_clock_limit_mhz,
        samples.causes[clocks.sample_rows],
        {cause: counter[clocks.sample_rows] for cause, counter in samples.limited_ns.items()},
    )
    ratio = np.divide(
        lost.by_cause_ns.T, covered_ns, out=np.zeros(lost.by_cause_ns.T.shape), where=covered_ns > 0
    )
    percent = np.vstack((ratio.T * _PERCENT, np.zeros((1, len(CAUSES)))))
    total = CounterTrack(
        name="clock loss", series=("%",), t_ns=t_ns, values=percent.sum(axis=1, keepdims=True)
    )
    which = np.flatnonzero(percent.any(axis=0))
    if not len(which):
        return [total]
    labels = tuple(f"{CAUSES[cause].label} %" for cause in which)
    by_cause = CounterTrack(
        name="clock loss by", series=labels, t_ns=t_ns, values=percent[:, which]
    )
    return [total, by_cause]


def _unknown(shown: Mapping[str, _Readings], span_ns: tuple[int, int]) -> list[CounterTrack]:
    """Make the track of when readings have no value, for those with gaps; none without gaps."""
    start_ns, end_ns = span_ns
    gaps = {name: (one, one.lasts(end_ns)) for name, one in shown.items()}
    gaps = {name: (one, lasts) for name, (one, lasts) in gaps.items() if len(lasts)}
    if not gaps:
        return []
    edges = {name: _edges(one, lasts) for name, (one, lasts) in gaps.items()}
    t_ns = np.unique(np.concatenate([[start_ns], *edges.values()])).astype(np.int64)
    # Each edge turns the state, the first one to unknown.
    states = {name: np.searchsorted(turns, t_ns, "right") % 2 == 1 for name, turns in edges.items()}
    return [_flags("unknown", t_ns, states)]


def _edges(one: _Readings, lasts: Int64s) -> Int64s:
    """Return the times at which a gap begins, the next reading ends it, and so on."""
    following = lasts[lasts + 1 < len(one.t_ns)] + 1
    return np.sort(np.concatenate((one.t_ns[lasts] + 1, one.t_ns[following])))


def _flags(name: str, t_ns: Int64s, states: Mapping[str, Bools]) -> CounterTrack:
    values = np.stack(list(states.values()), axis=1).astype(np.float64)
    return CounterTrack(name=name, series=tuple(states), t_ns=t_ns, values=values)


#: The category that marks our events in a trace.
CATEGORY: Final = "chopperd"
_SIMULATED: Final = " (simulated)"


def counter_events(
    track: CounterTrack, *, pid: int | float | str | None, base_ns: int, simulated: bool
) -> Iterator[bytes]:
    """Yield one JSON object (a counter event) for each time of a track.

    A series is a track of its own in Perfetto, named "SM clock MHz"; Chrome's viewer stacks those
    of one event.

    Args:
        track: The values.
        pid: The records' process id, so that the viewer shows the track next to their streams.
        base_ns: Unix time that the file's times count from; 0 where they are Unix time.
        simulated: Whether the name marks the values as simulated.

    Source: Chrome's "Trace Event Format", counter events: `ph` C, `args` maps series to numbers,
    one counter for each process and name.
    """
    head = msgspec.json.encode(
        {
            "ph": "C",
            "cat": CATEGORY,
            "name": track.name + (_SIMULATED if simulated else ""),
            "pid": pid,
        }
    )[:-1]
    labels = [msgspec.json.encode(label).decode() for label in track.series]
    for t_ns, row in zip((track.t_ns - base_ns).tolist(), track.values.tolist(), strict=True):
        pairs = zip(labels, row, strict=True)
        args = ", ".join(f"{label}: {repr(value).removesuffix('.0')}" for label, value in pairs)
        yield head + f', "ts": {us_text(t_ns)}, "args": {{{args}}}}}'.encode()


def us_text(ns: int) -> str:
    """Format ns as microseconds with all their digits: 1234567 ns are "1234.567"."""
    us, rest = divmod(abs(ns), NS_PER_US)
    return f"{'-' if ns < 0 else ''}{us}.{rest:03d}"
