"""Find when a sensor updates, and how often, from the reads at which its value changes.

A sensor that is read more often than it updates shows one value several times. Its changes then lie
on a grid: each is a whole number of periods after the one before, as two updates may by chance show
the same value.
"""

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.model.arrays import Bools, Float64s, Int64s

#: Fewer changes than this show no period.
MIN_CHANGES: Final = 6
#: A period is resolved if it is at least so many spacings of the reads.
RESOLVED_SPACINGS: Final = 3.0
#: The time must hold so many periods: any few changes lie on some grid.
_MIN_PERIODS: Final = 5.0
#: Changes seen at fewer of the updates than this could lie on the grid by chance.
_MIN_CHANGED_UPDATES: Final = 0.3
#: This share of the changes must come one period after the one before: a job whose clock moves a
#: few times a step lies on some grid, too, at odd multiples of it.
_MIN_NEXT: Final = 0.4
#: How well the changes must lie on the grid: 1 is as well as the spacing of the reads lets them.
_MIN_ALIGNED: Final = 0.92
#: Changes closer than this share of the period, and how many of them may be (a read that hung).
_TOO_CLOSE: Final = 0.75
_MAX_TOO_CLOSE: Final = 0.05
#: Tried periods change the number of periods in the time by 1/8 each.
_TRIES_PER_CYCLE: Final = 8
#: So many at once: a sampler has no memory to spare.
_TRIES_AT_ONCE: Final = 128
#: So many changes are enough, and cost little.
_MOST_CHANGES: Final = 120
#: A change between reads further apart than this, in usual distances, is blurred.
_MAX_BLUR: Final = 1.5
#: A sensor's timer shakes by so much (standard deviation), of the period or in all; a beat of the
#: job that is none fits worse.
_MAX_SHAKE_RATIO: Final = 0.03
_MAX_SHAKE_NS: Final = 400_000
_Z: Final = 3.0
#: A recording is searched in stretches of so many reads, at most so many stretches, each with so
#: many changes; in this share of them the same period must be found.
_STRETCH_READS: Final = 1000
_MOST_STRETCHES: Final = 6
_MIN_STRETCH_CHANGES: Final = 20
_MIN_AGREEING: Final = 0.7
_AGREEING_RATIO: Final = 0.03


class SensorPeriod(Struct, frozen=True, kw_only=True):
    """The time between two updates of a sensor, ns, and an interval that holds it.

    Where reads are not dense enough to resolve it, `low_ns` is 0 and it is at most `high_ns`.
    """

    period_ns: int
    low_ns: int
    high_ns: int

    @property
    def is_resolved(self) -> bool:
        """Whether it is a period, not a bound."""
        return self.low_ns > 0


class Changes(Struct, frozen=True, kw_only=True):
    """The reads between which a sensor's value changed."""

    before_ns: Int64s  # (k,) last read of the old value
    after_ns: Int64s  # (k,) first read of the new one
    spacing_ns: float  # median time between two reads
    span_ns: int  # from the first read to the last

    def __len__(self) -> int:
        return len(self.after_ns)

    @property
    def at_ns(self) -> Float64s:
        """Middle of when each change can have been, ns since the read before the first: (k,)."""
        since_ns = (self.before_ns - self.before_ns[0]) + (self.after_ns - self.before_ns[0])
        half: Float64s = since_ns / 2
        return half

    def first(self, count: int) -> "Changes":
        """The first `count` changes, with their time span."""
        if len(self) <= count:
            return self
        return Changes(
            before_ns=self.before_ns[:count],
            after_ns=self.after_ns[:count],
            spacing_ns=self.spacing_ns,
            span_ns=int(self.after_ns[count - 1] - self.before_ns[0]),
        )

    @property
    def usual_width_ns(self) -> float:
        """Median length in ns of the time in which a change can have been."""
        return float(np.median(self.after_ns - self.before_ns))

    @property
    def is_sharp(self) -> Bools:
        """Whether no late or failed read blurs each change: (k,) bool."""
        return self.after_ns - self.before_ns <= _MAX_BLUR * self.usual_width_ns


def changes_of(t_ns: Int64s, value: Float64s) -> Changes:
    """Find when a value changed.

    `t_ns`: (n,), times of reads, rising. `value`: (n,); NaN where the read failed, which is left
    out.
    """
    read = np.isfinite(value)
    t_ns, value = t_ns[read], value[read]
    changed = np.flatnonzero(np.diff(value) != 0)
    return Changes(
        before_ns=t_ns[changed],
        after_ns=t_ns[changed + 1],
        spacing_ns=float(np.median(np.diff(t_ns))) if len(t_ns) > 1 else 0.0,
        span_ns=int(t_ns[-1] - t_ns[0]) if len(t_ns) else 0,
    )


def sensor_period(t_ns: Int64s, value: Float64s) -> SensorPeriod | None:
    """Measure the update period of a sensor that was read back to back; None if not measurable.

    None: the value changed too seldom, or not on any grid. Of the periods on whose grid the changes
    lie the longest is taken, as they lie on that of its half as well.

    `t_ns`: (n,), times of the reads, rising. `value`: (n,); NaN where a read failed.
    """
    changes = changes_of(t_ns, value)
    if len(changes) < MIN_CHANGES:
        return None
    resolved_ns = RESOLVED_SPACINGS * changes.spacing_ns
    if np.median(np.diff(changes.after_ns)) < resolved_ns:  # the reads set the pace, not the sensor
        high_ns = round(resolved_ns)
        return SensorPeriod(period_ns=round(changes.spacing_ns), low_ns=0, high_ns=high_ns)
    changes = changes.first(_MOST_CHANGES)
    tried_ns = _tried_periods_ns(changes)
    if not len(tried_ns):
        return None
    aligned = _alignment(changes, tried_ns)
    fitting = aligned >= max(_MIN_ALIGNED, 0.95 * float(aligned.max()))
    if not fitting.any():
        return None
    longest = int(np.flatnonzero(fitting)[-1])
    near = tried_ns > tried_ns[longest] * (1 - tried_ns[longest] / changes.span_ns)
    best = int(np.argmax(np.where(near, aligned, -1.0)))
    return _fitted(changes, float(tried_ns[best]))


def period_in_samples(t_ns: Int64s, value: Float64s) -> SensorPeriod | None:
    """Measure a sensor's update period in the samples of a recording; None if not measurable.

    What is found in stretches of the recording must agree: over minutes a sensor's timer drifts,
    and a job has a beat of its own in some of them.

    `t_ns`: (n,), rising. `value`: (n,); NaN where not read.
    """
    found: list[SensorPeriod] = []
    asked = 0
    starts = range(0, max(len(t_ns) - _STRETCH_READS // 2, 1), _STRETCH_READS)
    for first in starts[:: -(-len(starts) // _MOST_STRETCHES)]:
        inside = slice(first, first + _STRETCH_READS)
        if len(changes_of(t_ns[inside], value[inside])) < _MIN_STRETCH_CHANGES:
            continue
        asked += 1
        period = sensor_period(t_ns[inside], value[inside])
        if period is not None and period.is_resolved:
            found.append(period)
    if not found or len(found) < _MIN_AGREEING * asked:
        return None
    middle = sorted(found, key=lambda each: each.period_ns)[len(found) // 2]
    near = [abs(each.period_ns / middle.period_ns - 1) < _AGREEING_RATIO for each in found]
    return middle if sum(near) >= _MIN_AGREEING * asked else None


def contradicts(t_ns: Int64s, value: Float64s, period_ns: int) -> bool:
    """Whether samples show changes too close together for a sensor of this period.

    A probe of a second or two can take a job's beat for the sensor's; a whole recording can not.

    `t_ns`: (n,), rising. `value`: (n,); NaN where not read. `period_ns`: the period that is
    doubted.
    """
    changes = changes_of(t_ns, value)
    at_most_apart_ns = changes.after_ns[1:] - changes.before_ns[:-1]
    close = int(np.count_nonzero(at_most_apart_ns < _TOO_CLOSE * period_ns))
    return close > max(_MAX_TOO_CLOSE * len(at_most_apart_ns), MIN_CHANGES)


def _tried_periods_ns(changes: Changes) -> Float64s:
    """Return the periods in ns that the changes do not rule out, rising: (c,) float64."""
    shortest_ns = max(
        RESOLVED_SPACINGS * changes.spacing_ns * 0.9,
        _MIN_CHANGED_UPDATES * changes.span_ns / len(changes),
    )
    at_most_apart_ns = np.sort(changes.after_ns[1:] - changes.before_ns[:-1])
    few = int(_MAX_TOO_CLOSE * len(at_most_apart_ns))
    longest_ns = min(float(at_most_apart_ns[few]) / _TOO_CLOSE, changes.span_ns / _MIN_PERIODS)
    if longest_ns <= shortest_ns:
        return np.empty(0)
    step_hz = 1 / (_TRIES_PER_CYCLE * changes.span_ns)
    return 1 / np.arange(1 / shortest_ns, 1 / longest_ns, -step_hz)


def _alignment(changes: Changes, period_ns: Float64s) -> Float64s:
    """Score how well each period fits the changes: (c,) float64, 1 for a perfect fit.

    The length of the mean unit vector at the changes' phases, divided by the most that reads so
    far apart allow. Changes that a late or failed read blurs are left out.
    """
    at_ns = changes.at_ns[changes.is_sharp]
    aligned = np.empty(len(period_ns))
    for first in range(0, len(period_ns), _TRIES_AT_ONCE):
        some = slice(first, first + _TRIES_AT_ONCE)
        phase = np.exp((2j * np.pi / period_ns[some])[:, None] * at_ns)
        aligned[some] = np.abs(phase.mean(axis=1))
    at_best = np.sinc(np.minimum(changes.usual_width_ns / period_ns, 0.5))
    return np.minimum(aligned / at_best, 1.0)


def _fitted(changes: Changes, period_ns: float) -> SensorPeriod | None:
    """Fit the period near a first guess by a line through the changes' numbers; None if poor."""
    at_ns = changes.at_ns
    phase = np.angle(np.exp(2j * np.pi * at_ns / period_ns).mean()) / (2 * np.pi)
    number = np.round(at_ns / period_ns - phase)
    if np.mean(np.diff(number) == 1) < _MIN_NEXT:
        return None
    spread = float(np.sum((number - number.mean()) ** 2))
    slope_ns, start_ns = np.polyfit(number, at_ns, 1)
    off_ns = at_ns - start_ns - slope_ns * number
    seen_to_ns = changes.usual_width_ns / np.sqrt(12)
    shakes_ns = max(_MAX_SHAKE_RATIO * slope_ns, _MAX_SHAKE_NS)
    if float(off_ns[changes.is_sharp].std()) > 1.2 * np.hypot(seen_to_ns, shakes_ns):
        return None
    error_ns = max(float(off_ns.std()), seen_to_ns) / np.sqrt(spread)
    half_ns = _Z * error_ns + 1
    return SensorPeriod(
        period_ns=round(slope_ns),
        low_ns=max(round(slope_ns - half_ns), 1),
        high_ns=round(slope_ns + half_ns),
    )


# A sensor that updates each 100 ms and is read each 10 ms gives ten reads an update. Taken as ten
# samples they are too certain, and most of them are labelled by what ran long after the update.

#: An update that is assumed to have shown no change is left out so close before the next change.
_DISTINCT: Final = 0.5


class Updates(Struct, frozen=True, kw_only=True):
    """The updates of a sensor, found from its reads."""

    row: Int64s  # (k,) the first read of each, rising
    t_ns: Int64s  # (k,) the middle of when it can have been; strictly rising
    period_ns: int | None  # time between two updates; None if not known


def sensor_updates(t_ns: Int64s, value: Float64s, period_ns: int) -> Updates:
    """Find the updates behind reads of a sensor that takes a new value once a period.

    A new value was taken after the read before, and at most one period ago: half-way between. So
    was one that is read more than a period after the read before, with any value. While the
    value does not change the sensor is assumed to update at its period.

    `t_ns`: (n,), times of reads, strictly rising. `value`: (n,), no NaN. `period_ns`: time between
    two updates, > 0.
    """
    if not len(t_ns):
        return Updates(row=np.empty(0, np.int64), t_ns=t_ns, period_ns=period_ns)
    gap_ns = np.diff(t_ns, prepend=t_ns[0] - period_ns)
    is_new = (np.diff(value, prepend=np.nan) != 0) | (gap_ns >= period_ns)
    first = np.flatnonzero(is_new)
    taken_ns = t_ns[first] - np.minimum(gap_ns[first], period_ns) // 2
    run = np.cumsum(is_new) - 1
    turn = (t_ns - taken_ns[run]) // period_ns
    begins = is_new | (np.diff(turn, prepend=0) > 0)
    row = np.flatnonzero(begins)
    updated_ns = taken_ns[run[row]] + turn[row] * period_ns
    next_ns = np.append(taken_ns[1:], np.iinfo(np.int64).max)[run[row]]
    distinct = is_new[row] | (next_ns - updated_ns >= _DISTINCT * period_ns)
    return Updates(row=row[distinct], t_ns=updated_ns[distinct], period_ns=period_ns)


def clock_updates(t_ns: Int64s, clock_mhz: Float64s, known_ns: int | None) -> Updates:
    """Find the updates behind reads of a clock; each read is one if the sensor is unknown.

    A period may be the job's beat, of a clock with one level for each phase, also one that a probe
    found: an update moved to when it must have been would cross a border then. So each update has
    the time of the first read that shows it, at most a third of a period late, where reads are
    dense enough for that; only where they are not it is moved.

    `t_ns`: (n,), times of reads, strictly rising. `clock_mhz`: (n,), no NaN. `known_ns`: the update
    period as found on the device; None if it was not. The samples may show that it can't be.
    """
    if known_ns and not contradicts(t_ns, clock_mhz, known_ns):
        seen = sensor_updates(t_ns, clock_mhz, known_ns)
        if known_ns < RESOLVED_SPACINGS * float(np.median(np.diff(t_ns))):
            return seen
        return replace(seen, t_ns=t_ns[seen.row])
    measured = period_in_samples(t_ns, clock_mhz)
    if measured is None:
        return Updates(row=np.arange(len(t_ns)), t_ns=t_ns, period_ns=None)
    seen = sensor_updates(t_ns, clock_mhz, measured.period_ns)
    return replace(seen, t_ns=t_ns[seen.row])
