"""Render tables of stored steps, traces, jobs and clock drops, and of the configuration."""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec
from rich.console import Group, RenderableType

from chopperd.model.captures import GpuDrop, JobEntry, TraceEntry
from chopperd.model.report_rows import Row
from chopperd.report.text import wording as fmt
from chopperd.report.text.page import Section, simulated_mark, table
from chopperd.report.text.sections import STEP_CAPTION, STEP_COLUMNS, step_cells
from chopperd.report.text.wording import UNKNOWN

#: Parts of an RFC 3339 time.
_DAY: Final = slice(0, 10)
_TIME_OF_DAY: Final = slice(11, 19)
_MONTH_TO_MINUTE: Final = slice(5, 16)


def render_steps(rows: Sequence[Row], *, simulated: bool | None) -> Group:
    """Render a table for each run, its rows in the given order; `simulated` None is unknown."""
    parts: list[RenderableType] = []
    runs = dict.fromkeys((row.job, row.run) for row in rows)
    for job, run in runs:
        those = [row for row in rows if (row.job, row.run) == (job, run)]
        days = {row.start[_DAY] for row in those if row.start}
        shown = _TIME_OF_DAY if len(days) == 1 else _MONTH_TO_MINUTE
        starts = [row.start[shown].replace("T", " ") if row.start else UNKNOWN for row in those]
        cells = [(start, *step_cells(row)) for start, row in zip(starts, those, strict=True)]
        title = f"STEPS  job {job or 'unknown'}, run {run or 'unknown'}"
        title += f", {days.pop()}" if len(days) == 1 else ""
        columns = ("<started (UTC)", *STEP_COLUMNS)
        parts += ["", table(title, columns, cells, caption=STEP_CAPTION)]
    if not runs:
        return Group("no such steps")
    return _marked(parts if simulated else parts[1:], simulated)


def encode_steps(rows: Sequence[Row], *, simulated: bool | None) -> bytes:
    """Encode the rows as indented JSON; unknown is `null`."""
    body = msgspec.json.encode({"simulated": simulated, "steps": rows})
    return msgspec.json.format(body, indent=2) + b"\n"


def critical_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the row of the critical device of each step; all rows where that is not known."""
    known = {(row.job, row.run, row.step) for row in rows if row.is_critical}
    return [row for row in rows if row.is_critical or (row.job, row.run, row.step) not in known]


def render_traces(traces: Sequence[TraceEntry], *, simulated: bool | None) -> Group:
    """Render the traces that the agent received, in the given order, with reasons of failures."""
    if not traces:
        return Group("no traces")
    columns = ("<received", "<state", "<job", "rank", "size", "<id", "<file")
    rows = (
        (
            fmt.moment(trace.received_unix_ns),
            trace.state.value,
            trace.job or UNKNOWN,
            UNKNOWN if trace.rank is None else str(trace.rank),
            fmt.size(trace.stored_bytes),
            trace.id,
            trace.name,
        )
        for trace in traces
    )
    page: list[RenderableType] = [table("TRACES", columns, rows)]
    reasons = [(trace.id, trace.reason) for trace in traces if trace.reason is not None]
    if reasons:
        page += ["", table("WHY", ("<", "<"), reasons, header=False)]
    return _marked(page, simulated)


def render_jobs(jobs: Sequence[JobEntry], *, simulated: bool | None) -> Group:
    """Render the jobs that traces came from, in the given order."""
    if not jobs:
        return Group("no jobs")
    columns = ("<job", "runs", "captures", "traces", "<first", "<last")
    rows = (
        (
            job.job or UNKNOWN,
            *map(fmt.count, (len(job.runs), job.captures, job.traces)),
            *map(fmt.moment, (job.first_unix_ns, job.last_unix_ns)),
        )
        for job in jobs
    )
    return _marked([table("JOBS", columns, rows)], simulated)


def render_drops(drops: Sequence[GpuDrop], *, simulated: bool | None) -> Group:
    """Render the drops of busy clocks, in the given order."""
    if not drops:
        return Group("no drops of busy clocks")
    return _marked([drops_table(drops)], simulated)


def drops_table(drops: Sequence[GpuDrop]) -> Section:
    """Return the table of drops of busy clocks, in the given order."""
    columns = (
        *("<begin (UTC)", "<gpu", "<state", "length", "MHz", "depth %", "lost s"),
        *("W", "C", "<cause"),
    )
    caption = "MHz, W, C: just before, and in it (MHz: lowest); lost: busy time lost by the drop"
    return table("DROPS", columns, map(_drop_cells, drops), caption=caption)


def _marked(page: Sequence[RenderableType], simulated: bool | None) -> Group:
    return Group(*([simulated_mark()] if simulated else []), *page)


def _drop_cells(drop: GpuDrop) -> tuple[str, ...]:
    return (
        fmt.moment(drop.begin_unix_ns).removesuffix(" UTC"),
        drop.gpu,
        fmt.words(drop.state.value),
        fmt.duration(drop.length_s),
        f"{fmt.whole(drop.reference_mhz)}, {fmt.whole(drop.lowest_mhz)}",
        fmt.percent(drop.depth_ratio),
        fmt.decimal(drop.lost_s, 1),
        f"{fmt.whole(drop.onset_power_w)}, {fmt.whole(drop.mean_power_w)}",
        f"{fmt.whole(drop.onset_temperature_c)}, {fmt.whole(drop.mean_temperature_c)}",
        fmt.words(drop.cause),
    )


class Described(Protocol):
    """A configuration key ("sampling.hz") with its help; the configuration is not imported here."""

    @property
    def key(self) -> str:
        """Return the key as written in the file, after its section."""

    @property
    def help(self) -> str:
        """Return the key's purpose, for people."""


def render_settings(settings: Iterable[tuple[Described, object, str]]) -> RenderableType:
    """Render the settings: key, value, origin and help (`chopperd check-config`)."""
    rows = [(each.key, _shown(value), origin, each.help) for each, value, origin in settings]
    return table("CONFIGURATION", ("<key", "<value", "<from", "<"), rows)


def _shown(value: object) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()
