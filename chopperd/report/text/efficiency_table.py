"""How near matrix kernels come to the stated peak, over the whole files, one line a device."""

from typing import Final

from rich.console import Group

from chopperd.model.report import ReportDocument, Row
from chopperd.model.row_work import Efficiency
from chopperd.report.text.sections import table
from chopperd.report.text.wording import UNKNOWN, decimal, known, milliseconds, percent

_SHOWN: Final = 8
_TERA: Final = 1e12
_MEANING: Final = (
    "took = at peak x use x overlap x clock, at the clock of the stated peak: Chopper's chain of\n"
    "utilization, overlap and frequency\n"
    "shaped: share of matrix kernels' time whose work is known"
)


def efficiency(document: ReportDocument) -> Group | None:
    """The devices with the most shaped work; None where no work is known."""
    found = [
        (row, row.efficiency)
        for row in document.totals
        if row.efficiency is not None and known(row.efficiency.achieved_flops_per_s)
    ]
    if not found:
        return None
    found.sort(key=lambda each: -(each[1].flops or 0.0))
    title = "EFFICIENCY  whole file, matrix kernels of recorded shapes"
    if len(found) > _SHOWN:
        title += f", {_SHOWN} of {len(found)} devices (--format json)"
    columns = (
        "<gpu",
        "rank",
        "<type",
        "TFLOP/s",
        "of peak %",
        "at peak ms",
        "use",
        "overlap",
        "clock",
        "took ms",
        "shaped %",
    )
    rows = [_cells(row, each) for row, each in found[:_SHOWN]]
    return table(title, columns, rows, caption=_caption([each for _, each in found]))


def _cells(row: Row, each: Efficiency) -> tuple[str, ...]:
    took_ns = each.shaped_time_ns if each.rated_time_ns is None else each.rated_time_ns
    return (
        f"dev {row.device}" if row.gpu is None else row.gpu,
        UNKNOWN if row.rank is None else str(row.rank),
        each.dtype or UNKNOWN,
        decimal(_tera(each.achieved_flops_per_s), 1),
        percent(each.utilization),
        milliseconds(each.theoretical_ns),
        decimal(each.overhead_utilization, 3),
        decimal(each.overhead_overlap, 3),
        decimal(each.overhead_frequency, 3),
        milliseconds(took_ns),
        percent(each.shaped_share),
    )


def _tera(value: float | None) -> float | None:
    return None if value is None else value / _TERA


def _caption(found: list[Efficiency]) -> str:
    """What the columns mean, if there is a chain, and why figures are missing."""
    reasons = dict.fromkeys(each.reason for each in found if each.reason is not None)
    rated = any(each.theoretical_ns is not None for each in found)
    meaning = [_MEANING] if rated else []
    return "\n".join([*meaning, *reasons])
