"""What rules of findings look at: the rows of the critical device, and what they cost a step."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from chopperd.model.answers import Finding, Held
from chopperd.model.report import ReportDocument, Summary
from chopperd.model.report_rows import Row
from chopperd.report.findings.clocks import LEAST_RATIO
from chopperd.report.text.wording import brief_ms, percent


class Run(Struct, frozen=True, kw_only=True):
    """What the rules look at: the critical device's rows, of which `summary` has the means."""

    document: ReportDocument
    summary: Summary
    step_ns: float
    rows: Sequence[Row]
    report: str  # the command that makes this report again

    @property
    def held(self) -> Sequence[Held]:
        """Return who held the critical device, in sum over `steps`; empty where unknown."""
        return self.summary.held

    @property
    def steps(self) -> int:
        """Return over how many steps the summary's means are; 1 for a whole file."""
        return max(self.summary.steps, 1)

    def mean_ns(self, row: str) -> float:
        """Return the mean of a row of the waterfall, in ns a step; 0 where unknown."""
        return self.summary.waterfall_ns.get(row, 0.0)

    def is_worth(self, bound_ns: float, ratio: float = LEAST_RATIO) -> bool:
        """Whether a bound is a large enough share of the step."""
        return bound_ns >= ratio * self.step_ns

    def share(self, ns: float) -> str:
        """Return a time and its share of the step as text."""
        return f"{brief_ms(ns)} ms ({percent(ns / self.step_ns)} %)"

    def per_step(self, held: Iterable[Held]) -> float:
        """Return the mean time of holders in ns a step."""
        return sum(each.time_ns for each in held) / self.steps


def finding(
    run: Run,
    code: str,
    title: str,
    evidence: Iterable[str],
    bound_ns: float,
    action: str,
    options: str = "",
    *,
    on_job: bool = False,
) -> Finding:
    """Make a finding on the critical device, or on the job, that a row's time bounds."""
    row = run.rows[0]
    alike = {(each.rank, each.device) for each in run.rows}
    is_one = len(alike) == 1 and not on_job
    return Finding(
        code=code,
        title=title,
        evidence=tuple(filter(None, evidence)),
        bound_ns=round(bound_ns),
        basis="row",
        gpu=row.gpu if is_one else None,
        rank=row.rank if is_one else None,
        action=action,
        command=f"{run.report} {options}".strip(),
    )
