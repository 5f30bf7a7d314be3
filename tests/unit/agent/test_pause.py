"""What the content of a pause file means."""

import pytest

from chopperd.agent.pause import parsed_pause
from chopperd.units import NS_PER_S

#: 2026-11-28T01:00:00Z; by `date -u -d 2026-11-28T01:00:00Z +%s`.
ONE_O_CLOCK_S = 1_795_827_600


@pytest.mark.parametrize(
    ("text", "reason", "until_s"),
    [
        ("", "paused by a file", None),
        ("\n \n", "paused by a file", None),
        ("benchmark of the cooling", "benchmark of the cooling", None),
        ("reason=benchmark", "benchmark", None),
        ("until=2026-11-28T01:00:00Z", "paused by a file", ONE_O_CLOCK_S),
        ("until=2026-11-28T02:00:00+01:00", "paused by a file", ONE_O_CLOCK_S),
        ("until=2026-11-28T01:00:00", "paused by a file", ONE_O_CLOCK_S),
        (f"UNTIL = {ONE_O_CLOCK_S}\nreason = x", "x", ONE_O_CLOCK_S),
        (f"until={ONE_O_CLOCK_S}.25", "paused by a file", ONE_O_CLOCK_S + 0.25),
        ("until=tomorrow", "until=tomorrow", None),
        ("until=nan\nreason=x", "until=nan x", None),
        ("until=inf", "until=inf", None),
        ("reason=one\nreason=two", "one two", None),
        ("by=me", "by=me", None),
        ("a\x00b\tc", "a\x00b c", None),
    ],
)
def test_a_pause_file_says_why_and_until_when(
    text: str, reason: str, until_s: float | None
) -> None:
    pause = parsed_pause(text)
    assert pause.reason == reason
    expected_ns = None if until_s is None else round(until_s * NS_PER_S)
    assert pause.until_unix_ns == expected_ns


def test_a_long_reason_is_cut() -> None:
    assert len(parsed_pause("x" * 5000).reason) == 200
