"""Which period is kept, and why: decided on times and looks that are written out."""

from math import nan

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.model.devices import DeviceReading
from chopperd.model.kinds import Cause
from chopperd.sampling.memory.layout import RECORD, Pace, Records
from chopperd.sampling.schedule import IdleStretch, Pacer
from chopperd.sampling.settings import SamplerSettings

MS = 1_000_000
SECOND = 1_000_000_000
IDLE = DeviceReading(sm_clock_mhz=345.0, causes=frozenset({Cause.LOW_UTILIZATION}))
BUSY = DeviceReading(sm_clock_mhz=1980.0, causes=frozenset())


class Looks:
    """A pacer, and looks at its GPU each 100 ms, or 1 s where that is kept."""

    def __init__(self, **options: float | None) -> None:
        given = {"hz": 10.0, "idle_hz": 1.0, "budget_ratio": 0.002, **options}
        self.pacer = Pacer(SamplerSettings(**given))  # type: ignore[arg-type]
        self.now_ns = 100 * SECOND
        self.driver_ns = 0

    def look(self, reading: DeviceReading | None, seconds: float, call_ns: int = 0) -> None:
        """Give it looks for a time, and take up what it says."""
        end_ns = self.now_ns + round(seconds * SECOND)
        while self.now_ns < end_ns:
            self.now_ns += self.pacer.decision.period_ns or 100 * MS
            self.driver_ns += call_ns
            self.pacer.note(self.now_ns, reading)
            self.pacer.judge(self.now_ns, self.driver_ns)
            if self.pacer.is_outdated:
                self.pacer.decide()

    @property
    def kept(self) -> tuple[Pace, int]:
        return self.pacer.decision.pace, self.pacer.decision.period_ns


def test_what_is_asked_for_is_kept() -> None:
    looks = Looks()
    looks.look(BUSY, 30)
    assert looks.kept == (Pace.ASKED, 100 * MS)
    assert not looks.pacer.is_outdated


def test_ten_idle_seconds_slow_the_reads_and_one_busy_look_ends_that_at_once() -> None:
    looks = Looks()
    looks.look(IDLE, 9.9)
    assert looks.kept == (Pace.ASKED, 100 * MS)
    looks.look(IDLE, 0.3)
    assert looks.kept == (Pace.IDLE, SECOND)
    looks.look(IDLE, 20)
    assert looks.kept == (Pace.IDLE, SECOND)
    looks.look(BUSY, 0.1)  # one look, a second later
    assert looks.kept == (Pace.ASKED, 100 * MS)
    looks.look(IDLE, 9.5)
    assert looks.kept == (Pace.ASKED, 100 * MS)


def test_an_idle_stretch_is_broken_by_one_busy_look() -> None:
    looks = Looks()
    for _ in range(10):
        looks.look(IDLE, 9)
        looks.look(BUSY, 0.1)
        assert looks.kept == (Pace.ASKED, 100 * MS)


@pytest.mark.parametrize(
    "reading",
    [None, DeviceReading(), DeviceReading(causes=None, sm_clock_mhz=345.0)],
    ids=["failed", "empty", "causes not readable"],
)
def test_what_is_not_known_is_never_idle(reading: DeviceReading | None) -> None:
    looks = Looks()
    looks.look(reading, 60)
    assert looks.kept == (Pace.ASKED, 100 * MS)
    looks.look(IDLE, 11)
    assert looks.kept[0] is Pace.IDLE
    looks.look(reading, 1)
    assert looks.kept == (Pace.ASKED, 100 * MS)


def test_without_an_idle_rate_an_idle_gpu_is_read_as_any_other() -> None:
    looks = Looks(hz=100.0, idle_hz=None)  # as under `record`
    looks.look(IDLE, 30)
    assert looks.kept == (Pace.ASKED, 10 * MS)


def test_an_idle_rate_above_the_one_asked_for_changes_nothing() -> None:
    looks = Looks(hz=0.5)
    looks.look(IDLE, 60)
    assert looks.kept == (Pace.ASKED, 2 * SECOND)


def test_without_an_idle_bit_no_activity_is_idle_and_holds_between_full_reads() -> None:
    idle = IdleStretch()
    for tick in range(151):  # activity is read once a second
        length_ns = idle.note(tick * 100 * MS, None, 0.0 if tick % 10 == 0 else None)
        assert length_ns == tick * 100 * MS
    assert idle.note(15_100 * MS, None, 0.01) == 0


def test_an_activity_that_is_not_read_any_more_says_nothing() -> None:
    idle = IdleStretch()
    idle.note(0, None, 0.0)
    for tick in range(1, 31):
        assert idle.note(tick * 100 * MS, None, None) == tick * 100 * MS
    assert idle.note(3001 * MS, None, None) == 0


def test_an_idle_bit_that_is_gone_wakes_though_the_activity_still_says_none() -> None:
    idle = IdleStretch()
    for second in range(20):
        assert idle.note(second * SECOND, True, 0.0) == second * SECOND
    assert idle.note(20 * SECOND, False, 0.0) == 0


def test_looks_far_apart_are_not_one_stretch() -> None:
    idle = IdleStretch()
    idle.note(0, True, None)
    assert idle.note(6 * SECOND, True, None) == 0
    assert idle.note(7 * SECOND, True, None) == SECOND


def test_past_the_budget_the_pace_says_so() -> None:
    """Calls of 1 ms at 10 Hz are 1 %, five times the budget of 0.2 %: every fifth period."""
    looks = Looks()
    looks.look(BUSY, 6, call_ns=MS)
    assert looks.kept == (Pace.BUDGET, 500 * MS)
    assert looks.pacer.budget.asked_ratio == pytest.approx(0.01)
    looks.look(BUSY, 60, call_ns=MS)
    assert looks.kept == (Pace.BUDGET, 500 * MS)
    looks.look(BUSY, 11, call_ns=0)
    assert looks.kept == (Pace.ASKED, 100 * MS)


def test_an_idle_stretch_says_nothing_of_the_budget() -> None:
    """Once a second those calls take 0.1 %; judged by that the rate would swing at every wake."""
    looks = Looks()
    looks.look(BUSY, 11, call_ns=MS)
    looks.look(IDLE, 40, call_ns=MS)
    assert looks.kept == (Pace.IDLE, SECOND)
    looks.look(BUSY, 1, call_ns=MS)
    assert looks.kept == (Pace.BUDGET, 500 * MS)
    looks.look(BUSY, 30, call_ns=MS)
    assert looks.kept == (Pace.BUDGET, 500 * MS)


STRETCHES: dict[str, list[tuple[float, DeviceReading]]] = {
    "busy": [(30, BUSY)],
    "idle": [(8, BUSY), (22, IDLE)],
    "idle twice, not long enough": [(8, IDLE), (0.1, BUSY), (8, IDLE), (0.1, BUSY), (8.8, IDLE)],
    "busy in between and idle at last": [(13, IDLE), (1, BUSY), (16, IDLE)],
    "idle for half of each second": [(0.5, IDLE), (0.5, BUSY)] * 30,
    "no activity and no bit": [(8, BUSY), (22, replace(BUSY, activity_ratio=0.0))],
    "activity": [(30, replace(BUSY, activity_ratio=0.5))],
    "not known": [(12, IDLE), (18, replace(BUSY, causes=None))],
}


@pytest.mark.parametrize("name", STRETCHES)
def test_looks_in_batches_tell_the_same_as_one_by_one(name: str) -> None:
    """Batches of 5 s; the stretches end far enough from the 10 s that make a GPU idle."""
    seen, batched = Looks(), Looks()
    records: list[tuple[int, DeviceReading]] = []
    for seconds, reading in STRETCHES[name]:
        for _ in range(round(10 * seconds)):
            now_ns = 100 * SECOND + (1 + len(records)) * 100 * MS
            is_full = len(records) % 10 == 0
            look = reading if is_full else replace(reading, activity_ratio=None)
            records.append((now_ns, look))
            seen.pacer.note(now_ns, look)
            if len(records) % 50 == 0:
                batched.pacer.note_records(recorded(records[-50:]))
                kept = [each.pacer.decide().pace for each in (seen, batched)]
                assert kept[0] is kept[1], f"after {len(records) / 10} s"


def recorded(looks: list[tuple[int, DeviceReading]]) -> Records:
    """The records of looks, as far as a pacer takes them in."""
    made = np.zeros(len(looks), RECORD)
    for record, (now_ns, look) in zip(made, looks, strict=True):
        causes = {Cause.UNKNOWN} if look.causes is None else look.causes
        record["t_mono_ns"] = now_ns
        record["scope"] = look.activity_ratio is not None
        record["causes"] = sum(cause.bit for cause in causes)
        record["activity_ratio"] = nan if look.activity_ratio is None else look.activity_ratio
    return made


def test_an_activity_between_two_full_looks_ends_an_idle_stretch() -> None:
    """A driver whose fast looks hold the activity, and that has no idle bit."""
    looks = [(100 * SECOND + n * 100 * MS, DeviceReading(causes=frozenset())) for n in range(150)]
    made = recorded(looks)
    made["activity_ratio"] = 0.0
    made["scope"] = np.arange(150) % 10 == 0
    idle, woken = Looks().pacer, Looks().pacer
    idle.note_records(made)
    assert idle.decide().pace is Pace.IDLE
    made["activity_ratio"][75] = 0.4
    woken.note_records(made)
    assert woken.decide().pace is Pace.ASKED


def test_reads_by_others_are_looked_at_when_a_decision_may_change() -> None:
    looks = Looks(idle_after_s=10.0, budget_ratio=0.01)
    looks.look(BUSY, 6)
    pacer = looks.pacer
    assert looks.now_ns < pacer.review_at_mono_ns <= looks.now_ns + 15 * SECOND
    assert pacer.review_at_driver_ns == looks.driver_ns + 50 * MS  # 1 % of 5 s
    looks.look(IDLE, 0.1)
    assert pacer.review_at_mono_ns == looks.now_ns + 10 * SECOND
    looks.look(IDLE, 30)
    assert looks.kept[0] is Pace.IDLE
    assert pacer.review_at_mono_ns < looks.now_ns  # after each read


def test_an_idle_bit_beside_activity_is_not_idle() -> None:
    """A GPU that is stuck in a low state at work goes on being read at the full rate."""
    idle = IdleStretch()
    assert idle.note(0, True, 1.0) == 0
    for tick in range(1, 10):
        assert idle.note(tick * 100 * MS, True, None) == 0
    assert idle.note(SECOND, True, 0.0) == 0
    assert idle.note(2 * SECOND, True, 0.0) == SECOND
