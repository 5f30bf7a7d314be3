"""Busy clocks of a GPU written out as columns, and their drops by plain loops."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, pstdev

import numpy as np

from chopperd.correlate.clock.slots import SLOT_NS, ClockSamples
from chopperd.correlate.drops import DropDetector, DropRules
from chopperd.model.captures import ClockDrop
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_MS, NS_PER_S

PERIOD_NS = 100 * NS_PER_MS
#: Runs are (seconds, MHz); None MHz: idle.
Runs = Sequence[tuple[float, float | None]]


def stream(runs: Runs, cause: Cause | None = Cause.POWER_CAP, first_s: float = 0) -> ClockSamples:
    """Ten samples a second; each stands for the 0.1 s before it."""
    clocks = [clock for seconds, clock in runs for _ in range(round(seconds * 10))]
    count = len(clocks)
    return ClockSamples(
        t_ns=round(first_s * NS_PER_S) + np.arange(count) * PERIOD_NS,
        busy_s=np.array([0.0 if clock is None else 0.1 for clock in clocks]),
        sm_clock_mhz=np.array([np.nan if clock is None else clock for clock in clocks]),
        causes=np.full(count, cause.bit if cause is not None else 0),
        power_w=np.full(count, np.nan),
        temperature_c=np.full(count, np.nan),
    )


def found_in(*parts: ClockSamples, rules: DropRules | None = None) -> list[ClockDrop]:
    """What ended, and the open drop as the last one."""
    detector = DropDetector(rules)
    ended = [drop for part in parts for drop in detector.add(part)]
    current = detector.current()
    return [*ended, current] if current else ended


@dataclass
class _Slot:
    begin_ns: int
    end_ns: int
    samples: list[tuple[float, float]]

    @property
    def busy_s(self) -> float:
        return sum(busy for busy, _ in self.samples)


def mean_mhz(slots: Sequence[_Slot]) -> float:
    pairs = [pair for slot in slots for pair in slot.samples]
    return sum(busy * clock for busy, clock in pairs) / sum(busy for busy, _ in pairs)


def _slots(samples: ClockSamples) -> list[_Slot]:
    """All slots but the last one, which may not be whole."""
    made: dict[int, _Slot] = {}
    columns = (samples.t_ns, samples.busy_s, samples.sm_clock_mhz)
    for t, busy, clock in zip(*(column.tolist() for column in columns), strict=True):
        if busy > 0 and clock == clock:  # noqa: PLR0124 - not NaN
            slot = made.setdefault(t // SLOT_NS, _Slot(t, t, []))
            slot.end_ns = t
            slot.samples.append((busy, clock))
    return list(made.values())[:-1]


def _window(slots: Sequence[_Slot], rules: DropRules) -> int:
    """Start of the shortest tail that is a window; -1 if there is none."""
    for first in range(len(slots) - 1, -1, -1):
        tail = slots[first:]
        count = sum(len(slot.samples) for slot in tail)
        busy_s = sum(slot.busy_s for slot in tail)
        if busy_s >= rules.window_s - 1e-6 and count >= rules.least_samples:
            return first
    return -1


def _turn(slots: Sequence[_Slot], level_mhz: float, sign: int) -> int:
    def tail(first: int) -> float:
        return sum(sign * s.busy_s * (mean_mhz([s]) - level_mhz) for s in slots[first:])

    best = max(tail(first) for first in range(len(slots)))
    return max(f for f in range(len(slots)) if tail(f) >= best - 1e-9)


def _reference(
    means: Sequence[tuple[int, float, float]], now_mhz: float, rules: DropRules
) -> float | None:
    """The reference that a mean lies so far below that a drop begins; None if it does not."""
    if sum(busy for *_, busy in means) < rules.warm_up_s:
        return None
    reference = median(mhz for _, mhz, _ in means)
    spread = rules.spread_count * pstdev([mhz for _, mhz, _ in means])
    least = min((1 - rules.depth_ratio) * reference, reference - spread)
    return reference if now_mhz < least else None


def drops_by_loops(samples: ClockSamples, rules: DropRules) -> list[tuple[str, int, int, float]]:
    """State, begin, last or end time, and mean clock of each drop, from the whole stream."""
    stretches: list[list[_Slot]] = [[]]
    for slot in _slots(samples):
        last = stretches[-1]
        if last and slot.begin_ns - last[-1].end_ns > rules.gap_s * NS_PER_S:
            stretches.append([])
        stretches[-1].append(slot)
    found = [_drops_of(stretch, rules, "interrupted") for stretch in stretches[:-1]]
    found.append(_drops_of(stretches[-1], rules, "open"))
    return [drop for drops in found for drop in drops]


def _drops_of(
    slots: Sequence[_Slot], rules: DropRules, last_state: str
) -> list[tuple[str, int, int, float]]:
    """The drops of a stretch without long gaps."""
    found: list[tuple[str, int, int, float]] = []
    past: list[_Slot] = []  # what a window may reach back to
    drop: list[_Slot] = []  # the slots of the open drop
    means: list[tuple[int, float, float]] = []
    reference, low = 0.0, 1 - rules.recovered_ratio
    for slot in slots:
        past.append(slot)
        if drop:
            drop.append(slot)
        first = _window(past, rules)
        if first < 0:
            continue
        now_mhz = mean_mhz(past[first:])
        if not drop:
            since = slot.end_ns - rules.trailing_s * NS_PER_S
            means = [each for each in means if each[0] >= since]
            undercut = _reference(means, now_mhz, rules)
            if undercut is None:
                means.append((slot.end_ns, now_mhz, slot.busy_s))
                continue
            reference = undercut
            past = past[first:]
            past = past[_turn(past, low * reference, -1) :]
            drop = list(past)
        elif now_mhz > low * reference:
            turn = first + _turn(past[first:], low * reference, 1)
            end_ns, begin_ns = past[turn].begin_ns, drop[0].begin_ns
            found.append(("recovered", begin_ns, end_ns, mean_mhz(drop[:turn])))
            means = [(t + end_ns - begin_ns, mhz, busy) for t, mhz, busy in means]
            past, drop = past[turn:], []
        elif slot.end_ns - drop[0].begin_ns >= rules.new_level_s * NS_PER_S:
            found.append(("new_level", drop[0].begin_ns, slot.end_ns, mean_mhz(drop)))
            past, drop, means = [], [], []
    if drop:
        found.append((last_state, drop[0].begin_ns, drop[-1].end_ns, mean_mhz(drop)))
    return found
