"""Findings of `chopperd doctor`, each with its fix; rendered as a page and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from rich.console import Group
from rich.text import Text

from chopperd.report.text.page import table
from chopperd.report.text.wording import plural


class Verdict(StrEnum):
    """Result of a check; `UNKNOWN`: no clear result, which is not a problem yet."""

    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check, in words for people."""

    check: str  # name: "driver library"
    verdict: Verdict
    text: str
    fix: str | None = None  # None if there is nothing to do


def ok(check: str, text: str) -> Finding:
    """Return the finding that a check found no problem."""
    return Finding(check=check, verdict=Verdict.OK, text=text)


def problem(check: str, text: str, fix: str) -> Finding:
    """Return the finding of a problem and its fix."""
    return Finding(check=check, verdict=Verdict.PROBLEM, text=text, fix=fix)


def unknown(check: str, text: str, fix: str | None = None) -> Finding:
    """Return the finding of a check without a clear result."""
    return Finding(check=check, verdict=Verdict.UNKNOWN, text=text, fix=fix)


def encode_findings(findings: Sequence[Finding]) -> bytes:
    """Return the findings as indented JSON: `{"ok": ..., "findings": [...]}`."""
    document = {"ok": not problem_count(findings), "findings": findings}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def diagnosis_page(findings: Sequence[Finding]) -> Group:
    """Return a page: a line for each finding, then its fix if any; last the number of problems."""
    rows: list[tuple[str, str, str]] = []
    for each in findings:
        rows.append((each.verdict.value, each.check, each.text))
        if each.fix is not None:
            rows.append(("", "", f"-> {each.fix}"))
    count = problem_count(findings)
    summary = f"{plural(count, 'problem')} found" if count else "no problem found"
    body = table("DOCTOR", ("<", "<", "<"), rows, header=False)
    return Group(body, "", Text(summary, style="bold"))


def problem_count(findings: Sequence[Finding]) -> int:
    """Return how many findings are problems."""
    return sum(each.verdict is Verdict.PROBLEM for each in findings)
