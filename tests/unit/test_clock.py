"""When something that comes again and again is said."""

from chopperd.clock import RepeatLimiter
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock


def test_a_repeat_is_due_at_first_and_then_once_a_minute_each_thing_by_itself() -> None:
    clock = ScriptedClock()
    limiter = RepeatLimiter(clock)
    due: list[tuple[str, int]] = []
    for second in range(122):
        due += [("a", second)] if limiter.is_due("a") else []
        due += [("b", second)] if second >= 1 and limiter.is_due("b") else []
        clock.advance(NS_PER_S)
    assert due == [("a", 0), ("b", 1), ("a", 60), ("b", 61), ("a", 120), ("b", 121)]
