"""Find drops of one GPU's busy clock in its live samples, as they come in.

A drop begins where the mean over a window (1 s, one step, 5 samples, the longest of these) is more
than 5 % below the median of such means over the last minute, and well outside their spread; that
median is then its reference until it ends. (A clock that swings with the phases of a step has a
median sample far from its mean.) Idle time does not count. A pause inside a drop does not end it,
but after a minute without a busy sample it is `interrupted`: nobody knows what the clock did.

Source: DESIGN.md section 2, "Drops".
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from math import isnan
from typing import Final

import numpy as np
from msgspec import Struct, field

from chopperd.correlate.clock.slots import ClockSamples, ClockSlot, SlotCutter
from chopperd.model.arrays import Float64s
from chopperd.model.captures import ClockDrop, DropState
from chopperd.model.kinds import CAUSES
from chopperd.units import NS_PER_S, seconds_from_ns


class _TrailingMeans:
    """Mean clocks over the windows of the last minute, also sorted: their median costs little."""

    def __init__(self) -> None:
        # End of each window in ns, its mean in MHz, and the busy s by which it is newer.
        self._means: deque[tuple[int, float, float]] = deque()
        self._ordered_mhz: list[float] = []

    def add(self, end_ns: int, mhz: float, busy_s: float) -> None:
        self._means.append((end_ns, mhz, busy_s))
        insort(self._ordered_mhz, mhz)

    def drop_before(self, oldest_ns: float) -> None:
        while self._means and self._means[0][0] < oldest_ns:
            gone_mhz = self._means.popleft()[1]
            del self._ordered_mhz[bisect_left(self._ordered_mhz, gone_mhz)]

    def shift(self, by_ns: int) -> None:
        """Move all windows later by `by_ns`, a time that does not count."""
        self._means = deque((end_ns + by_ns, mhz, busy_s) for end_ns, mhz, busy_s in self._means)

    def clear(self) -> None:
        self._means.clear()
        self._ordered_mhz.clear()

    def median_mhz(self) -> float:
        ordered = self._ordered_mhz
        if not ordered:
            return 0.0
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

    def busy_s(self) -> float:
        return sum(busy_s for _, _, busy_s in self._means)

    def deviation_mhz(self) -> float:
        return float(np.std(self._ordered_mhz))


#: Busy seconds are sums of many spacings.
_ROUNDING_S: Final = 1e-6
#: Sums over a drop before those by cause: busy time, the same times clock; time with known power,
#: the same times power; likewise temperature.
_FIRST_CAUSE: Final = 6


class DropRules(Struct, frozen=True, kw_only=True):
    """Thresholds and durations that decide where a drop begins and ends."""

    #: A mean is over at least so much busy time and so many samples.
    window_s: float = 1.0
    least_samples: int = 5
    step_s: float = 0.0  # length of a step, where it is known: no mean is over less
    depth_ratio: float = 0.05  # it begins this far below the reference,
    spread_count: float = 4.0  # and so many standard deviations of the means
    recovered_ratio: float = 0.025  # it ends less far below the reference
    trailing_s: float = 60.0  # the reference is the median over so much time, without that of drops
    warm_up_s: float = 10.0  # without so much busy time in it there is no reference
    new_level_s: float = 600.0  # a drop that lasts so long is a new level
    gap_s: float = 60.0  # after so long without a busy sample all is forgotten


class _Open(Struct, kw_only=True):
    """A drop that has not ended; `sums` adds up those of its slots that have left the window."""

    begin_ns: int
    reference_mhz: float
    lowest_mhz: float
    onset_power_w: float
    onset_temperature_c: float
    sums: Float64s = field(default_factory=lambda: np.zeros(_FIRST_CAUSE + len(CAUSES)))

    def amounts(self, slot: ClockSlot) -> Float64s:
        """Return what a slot adds to `sums` (see `_FIRST_CAUSE`)."""
        busy_s, amounts = slot.busy_s, np.zeros_like(self.sums)
        amounts[:2] = busy_s, busy_s * slot.clock_mhz
        if not isnan(slot.power_w):
            amounts[2:4] = busy_s, busy_s * slot.power_w
        if not isnan(slot.temperature_c):
            amounts[4:6] = busy_s, busy_s * slot.temperature_c
        below_mhz = max(self.reference_mhz - slot.clock_mhz, 0.0)
        amounts[_FIRST_CAUSE:] = busy_s * below_mhz * slot.cause_shares
        return amounts

    def described(
        self, state: DropState, slots: Iterable[ClockSlot], end_ns: int, *, is_over: bool = True
    ) -> ClockDrop:
        """Build the `ClockDrop` up to `end_ns`, from `sums` and its slots in the window."""
        sums = self.sums.copy()
        for slot in slots:
            sums += self.amounts(slot)
        busy_s, busy_mhz_s, *sensors = sums[:_FIRST_CAUSE].tolist()
        mean_mhz = busy_mhz_s / busy_s
        lost_s = max(busy_s * (1.0 - mean_mhz / self.reference_mhz), 0.0)
        blamed = sums[_FIRST_CAUSE:] / sums[_FIRST_CAUSE:].sum()
        return ClockDrop(
            state=state,
            begin_ns=self.begin_ns,
            end_ns=end_ns if is_over else None,
            length_s=seconds_from_ns(end_ns - self.begin_ns),
            busy_s=busy_s,
            reference_mhz=self.reference_mhz,
            lowest_mhz=min(self.lowest_mhz, mean_mhz),
            mean_mhz=mean_mhz,
            lost_s=lost_s,
            lost_by_cause_s={each: lost_s * float(blamed[each]) for each in CAUSES if blamed[each]},
            onset_power_w=_known(self.onset_power_w),
            mean_power_w=sensors[1] / sensors[0] if sensors[0] else None,
            onset_temperature_c=_known(self.onset_temperature_c),
            mean_temperature_c=sensors[3] / sensors[2] if sensors[2] else None,
        )


class DropDetector:
    """Finds the drops of one GPU, independent of how the samples are split over calls.

    `found_count`: drops found so far, the open one included.
    """

    def __init__(self, rules: DropRules | None = None) -> None:
        self.found_count = 0
        self._rules = rules or DropRules()
        self._window_s = max(self._rules.window_s, self._rules.step_s) - _ROUNDING_S
        self._cutter = SlotCutter()
        self._window: deque[ClockSlot] = deque()
        self._means = _TrailingMeans()
        self._open: _Open | None = None

    def add(self, samples: ClockSamples) -> list[ClockDrop]:
        """Add samples, later than those before; return the drops that ended with them."""
        return self._take(self._cutter.add(samples))

    def advance(self, now_ns: int) -> list[ClockDrop]:
        """Forget all if the last busy sample is too long before `now_ns`; return drops that ended.

        The open drop, if any, ends as interrupted. Pending samples are used first.
        """
        last_ns = self._cutter.last_ns
        if last_ns is None or not self._is_gap(last_ns, now_ns):
            return []
        return [*self._take(self._cutter.flush()), *self._forget()]

    def current(self) -> ClockDrop | None:
        """Return the open drop up to its newest slot; None if there is none."""
        if self._open is None:
            return None
        end_ns = self._window[-1].end_ns
        return self._open.described(DropState.OPEN, self._window, end_ns, is_over=False)

    def _take(self, slots: Iterable[ClockSlot]) -> list[ClockDrop]:
        ended: list[ClockDrop] = []
        for slot in slots:
            if self._window and self._is_gap(self._window[-1].end_ns, slot.begin_ns):
                ended += self._forget()
            self._window.append(slot)
            if self._trim():
                ended += self._judge(slot)
        return ended

    def _is_gap(self, before_ns: int, after_ns: int) -> bool:
        return after_ns - before_ns > self._rules.gap_s * NS_PER_S

    def _forget(self) -> list[ClockDrop]:
        """Clear the window and the means after a gap; return the drop it interrupts, if any."""
        ended = [self._end(self._open, DropState.INTERRUPTED)] if self._open else []
        self._window.clear()
        self._means.clear()
        return ended

    def _trim(self) -> bool:
        """Remove slots that the window can do without; return whether it is long enough.

        Removed slots are added to the sums of the open drop, if any.
        """
        window, rules = self._window, self._rules
        busy_s, count = sum(each.busy_s for each in window), sum(each.count for each in window)
        is_full = busy_s >= self._window_s and count >= rules.least_samples
        while is_full:
            busy_s, count = busy_s - window[0].busy_s, count - window[0].count
            if busy_s < self._window_s or count < rules.least_samples:
                break
            gone = window.popleft()
            if self._open is not None:
                self._open.sums += self._open.amounts(gone)
        return is_full

    def _judge(self, slot: ClockSlot) -> list[ClockDrop]:
        """Begin, update or end a drop by the mean over the window, which ends with `slot`.

        Return the drop that ended, if any. With no drop open or begun, the mean is stored.
        """
        busy_s = sum(each.busy_s for each in self._window)
        mean_mhz = sum(each.busy_s * each.clock_mhz for each in self._window) / busy_s
        if self._open is not None:
            return self._follow(self._open, slot, mean_mhz)
        self._means.drop_before(slot.end_ns - self._rules.trailing_s * NS_PER_S)
        reference_mhz = self._undercut_mhz(mean_mhz)
        if reference_mhz is None:
            self._means.add(slot.end_ns, mean_mhz, slot.busy_s)
        else:
            self._begin(reference_mhz, mean_mhz)
        return []

    def _undercut_mhz(self, mean_mhz: float) -> float | None:
        """Return the reference in MHz if the mean is far enough below it for a drop; or None."""
        rules, median_mhz = self._rules, self._means.median_mhz()
        is_near = mean_mhz >= (1.0 - rules.depth_ratio) * median_mhz
        if is_near or self._means.busy_s() < rules.warm_up_s:
            return None
        spread_mhz = rules.spread_count * self._means.deviation_mhz()
        return median_mhz if mean_mhz < median_mhz - spread_mhz else None

    def _begin(self, reference_mhz: float, mean_mhz: float) -> None:
        """Open a drop where the window's clock left the reference, and cut the window there."""
        place = self._turn(reference_mhz, -1.0)
        onset = self._window[place]
        before = self._window[max(place - 1, 0)]
        self._window = deque(islice(self._window, place, None))
        self._open = _Open(
            begin_ns=onset.begin_ns,
            reference_mhz=reference_mhz,
            lowest_mhz=mean_mhz,
            onset_power_w=before.power_w,
            onset_temperature_c=before.temperature_c,
        )
        self.found_count += 1

    def _follow(self, drop: _Open, slot: ClockSlot, mean_mhz: float) -> list[ClockDrop]:
        """Update the open drop with the window's mean, or end it; return it if it ended."""
        if mean_mhz > (1.0 - self._rules.recovered_ratio) * drop.reference_mhz:
            return [self._recover(drop)]
        drop.lowest_mhz = min(drop.lowest_mhz, mean_mhz)
        if slot.end_ns - drop.begin_ns < self._rules.new_level_s * NS_PER_S:
            return []
        ended = self._end(drop, DropState.NEW_LEVEL)
        self._window.clear()
        self._means.clear()
        return [ended]

    def _recover(self, drop: _Open) -> ClockDrop:
        """End the drop where the window's clock came back, and return it.

        The means are shifted by its length, as if it had not been.
        """
        place = self._turn(drop.reference_mhz, 1.0)
        slots = list(self._window)
        self._window = deque(slots[place:])
        self._open = None
        end_ns = slots[place].begin_ns
        self._means.shift(end_ns - drop.begin_ns)
        return drop.described(DropState.RECOVERED, slots[:place], end_ns)

    def _end(self, drop: _Open, state: DropState) -> ClockDrop:
        self._open = None
        return drop.described(state, self._window, self._window[-1].end_ns)

    def _turn(self, reference_mhz: float, sign: float) -> int:
        """Return the index in the window from which on the clock is most above the recovery level.

        Most below it for a `sign` of -1. It is the change point by cumulative sums (Page 1954).
        """
        level_mhz = (1.0 - self._rules.recovered_ratio) * reference_mhz
        return _largest_tail(
            [sign * each.busy_s * (each.clock_mhz - level_mhz) for each in self._window]
        )


def _largest_tail(values: Sequence[float]) -> int:
    best, best_sum, running = len(values) - 1, -np.inf, 0.0
    for place in range(len(values) - 1, -1, -1):
        running += values[place]
        if running > best_sum:
            best, best_sum = place, running
    return best


def _known(value: float) -> float | None:
    return None if isnan(value) else value
