"""Steps that the agent remembers, as a table a run: what `chopperd steps` shows."""

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Group, RenderableType

from chopperd.model.report import Row
from chopperd.report.sections import STEP_CAPTION, STEP_COLUMNS, step_cells, table
from chopperd.report.text import simulated_mark
from chopperd.report.wording import UNKNOWN

#: Parts of an RFC 3339 time.
_DAY: Final = slice(0, 10)
_TIME_OF_DAY: Final = slice(11, 19)
_MONTH_TO_MINUTE: Final = slice(5, 16)


def render_steps(rows: Sequence[Row], *, simulated: bool | None) -> Group:
    """A table for each run, its rows in the given order.

    Args:
        rows: Of any jobs and runs.
        simulated: Whether any of them come from a simulation; None is unknown.
    """
    parts: list[RenderableType] = [simulated_mark()] if simulated else []
    runs = dict.fromkeys((row.job, row.run) for row in rows)
    for job, run in runs:
        those = [row for row in rows if (row.job, row.run) == (job, run)]
        days = {row.start[_DAY] for row in those if row.start}
        shown = _TIME_OF_DAY if len(days) == 1 else _MONTH_TO_MINUTE
        cells = [(_started(row, shown), _rank(row), *step_cells(row)) for row in those]
        title = f"STEPS  job {job or 'unknown'}, run {run or 'unknown'}"
        title += f", {days.pop()}" if len(days) == 1 else ""
        columns = ("<started (UTC)", "rank", *STEP_COLUMNS)
        parts += ["", table(title, columns, cells, caption=STEP_CAPTION)]
    return Group(*(parts if simulated else parts[1:])) if runs else Group("no such steps")


def encode_steps(rows: Sequence[Row], *, simulated: bool | None) -> bytes:
    """The rows as indented JSON; unknown is `null`."""
    body = msgspec.json.encode({"simulated": simulated, "steps": rows})
    return msgspec.json.format(body, indent=2) + b"\n"


def critical_rows(rows: Sequence[Row]) -> list[Row]:
    """The row of the critical device of each step; all rows of a step where it is not known."""
    known = {(row.job, row.run, row.step) for row in rows if row.is_critical}
    return [row for row in rows if row.is_critical or (row.job, row.run, row.step) not in known]


def _started(row: Row, shown: slice) -> str:
    return row.start[shown].replace("T", " ") if row.start else UNKNOWN


def _rank(row: Row) -> str:
    return UNKNOWN if row.rank is None else str(row.rank)
