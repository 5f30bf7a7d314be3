"""Shares of a window lost to the clock, with intervals, and whether sampling resolves them."""

from collections.abc import Sequence
from dataclasses import dataclass

from chopperd.model.report import Summary
from chopperd.model.report_rows import Row
from chopperd.report.build.clocks import RESOLVED_HALF_WIDTH_RATIO
from chopperd.report.text.wording import known, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Loss over window with its 95 % interval, ratios; bounds None where there is no interval.

    `by_run` is whether the run's pooled sampling error resolves the share, as a row's own error may
    be small by chance; None where unknown.
    """

    ratio: float
    low_ratio: float | None
    high_ratio: float | None
    by_run: bool | None = None

    @property
    def half_width_ratio(self) -> float | None:
        """Return half the interval's width, a ratio; None where there is no interval."""
        if self.low_ratio is None or self.high_ratio is None:
            return None
        return (self.high_ratio - self.low_ratio) / 2

    @property
    def resolved(self) -> bool:
        """Whether the share may be shown as a figure; true without an interval, which is marked."""
        half_width_ratio = self.half_width_ratio
        if half_width_ratio is None or self.by_run is not None:
            return half_width_ratio is None or bool(self.by_run)
        return half_width_ratio <= RESOLVED_HALF_WIDTH_RATIO

    def brackets(self) -> str:
        """Format the share as `9.3 % [9.0, 9.6]`."""
        if self.half_width_ratio is None:
            return f"{percent(self.ratio)} %, interval unknown"
        return f"{percent(self.ratio)} % [{percent(self.low_ratio)}, {percent(self.high_ratio)}]"

    def plus_minus(self) -> str:
        """Format the share as `9.3 ± 0.3 %`."""
        if self.half_width_ratio is None:
            return f"{percent(self.ratio)} %, interval unknown"
        return f"{percent(self.ratio)} ± {percent(self.half_width_ratio)} %"


def summary_share(summary: Summary) -> Share | None:
    """Return the run's lost share as the summary states it; None if unknown."""
    if not known(summary.gap_ratio):
        return None
    return Share(
        ratio=summary.gap_ratio,
        low_ratio=_or_none(summary.gap_low),
        high_ratio=_or_none(summary.gap_high),
    )


def row_share(row: Row) -> Share | None:
    """Return a row's lost / window; None if unknown.

    Its interval is that of the gap times the covered share of the window.
    """
    lost_ns, gap_ratio = row.dvfs.lost_ns, row.dvfs.gap_ratio
    if lost_ns is None or not row.window_ns:
        return None
    covered = _covered_ratio(row)
    low, high = row.dvfs.gap_low, row.dvfs.gap_high
    if not known(low) or not known(high) or not known(gap_ratio) or covered is None:
        return Share(ratio=lost_ns / row.window_ns, low_ratio=None, high_ratio=None)
    return Share(
        ratio=lost_ns / row.window_ns,
        low_ratio=low * covered,
        high_ratio=high * covered,
        by_run=row.dvfs.resolved,
    )


def pooled_share(totals: Sequence[Row]) -> Share | None:
    """Average the lost shares of all devices' whole files, weighted by window.

    Half-widths are averaged as if the devices' errors went together, which they may: the join's
    error is common to all. Devices without a share or an interval are left out of both; None if
    that leaves none.
    """
    shares = [(share, row.window_ns or 0) for row in totals if (share := row_share(row))]
    weighted = [
        (s.ratio, s.half_width_ratio, w) for s, w in shares if s.half_width_ratio is not None
    ]
    window_ns = sum(weight for _, _, weight in weighted)
    if not window_ns:
        return None
    ratio = sum(ratio * weight for ratio, _, weight in weighted) / window_ns
    half = sum((half or 0.0) * weight for _, half, weight in weighted) / window_ns
    return Share(ratio=ratio, low_ratio=ratio - half, high_ratio=ratio + half)


def _covered_ratio(row: Row) -> float | None:
    """Return covered compute over the window; None if unknown."""
    if row.clock is None or not known(row.clock.coverage_ratio) or row.compute_ns is None:
        return None
    return row.clock.coverage_ratio * row.compute_ns / row.window_ns if row.window_ns else None


def _or_none(value: float | None) -> float | None:
    return value if known(value) else None
