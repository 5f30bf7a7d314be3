"""What a look at the machine found: a line each, with what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How what was looked at stands; `UNKNOWN`: it could not be told, which is no problem yet."""

    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: Which, in a word or two: "driver library".
        verdict: How it stands.
        text: What was found, for people.
        fix: What to do about it; None where there is nothing to do.
    """

    check: str
    verdict: Verdict
    text: str
    fix: str | None = None


def ok(check: str, text: str) -> Finding:
    """It stands as it should."""
    return Finding(check=check, verdict=Verdict.OK, text=text)


def problem(check: str, text: str, fix: str) -> Finding:
    """It does not; there is something to do."""
    return Finding(check=check, verdict=Verdict.PROBLEM, text=text, fix=fix)


def unknown(check: str, text: str, fix: str | None = None) -> Finding:
    """It could not be told."""
    return Finding(check=check, verdict=Verdict.UNKNOWN, text=text, fix=fix)
