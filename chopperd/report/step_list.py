"""Steps that the agent remembers, as a table a run: what `chopperd steps` shows."""

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Group, RenderableType

from chopperd.model.report import Row
from chopperd.report.sections import STEP_CAPTION, STEP_COLUMNS, step_cells, table
from chopperd.report.text import simulated_mark
from chopperd.report.wording import UNKNOWN

#: Of an RFC 3339 time: from the month to the second.
_MONTH_TO_SECOND: Final = slice(5, 19)


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
        cells = [(_started(row), _rank(row), *step_cells(row)) for row in those]
        title = f"STEPS  job {job or 'unknown'}, run {run or 'unknown'}"
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


def _started(row: Row) -> str:
    return row.start[_MONTH_TO_SECOND].replace("T", " ") if row.start else UNKNOWN


def _rank(row: Row) -> str:
    return UNKNOWN if row.rank is None else str(row.rank)
