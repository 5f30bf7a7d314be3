"""What `chopperd doctor` found, for people and for programs."""

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Group
from rich.text import Text

from chopperd.diagnosis.diagnosis import Finding, Verdict
from chopperd.report.sections import table
from chopperd.report.wording import plural


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
