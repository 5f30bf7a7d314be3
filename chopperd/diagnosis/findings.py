"""What a look at the machine found: a line each, with what to do about it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from rich.console import Group
from rich.text import Text

from chopperd.report.text.sections import table
from chopperd.report.text.wording import plural


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


# What `chopperd doctor` found, for people and for programs.


def encode_findings(findings: Sequence[Finding]) -> bytes:
    """The findings as indented JSON: `{"ok": ..., "findings": [...]}`."""
    document = {"ok": not _problems(findings), "findings": findings}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def diagnosis_page(findings: Sequence[Finding]) -> Group:
    """A line a finding and, below each that has one, the fix; then how many problems there are."""
    columns = ("<", "<", "<")
    problems = _problems(findings)
    summary = f"{plural(len(problems), 'problem')} found" if problems else "no problem found"
    body = table("DOCTOR", columns, _rows(findings), header=False)
    return Group(body, "", Text(summary, style="bold"))


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    for each in findings:
        yield each.verdict.value, each.check, each.text
        if each.fix is not None:
            yield "", "", f"-> {each.fix}"


def _problems(findings: Sequence[Finding]) -> list[Finding]:
    return [each for each in findings if each.verdict is Verdict.PROBLEM]
