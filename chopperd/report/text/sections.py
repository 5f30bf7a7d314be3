"""Render the tables under the headline: waterfall, steps, GPUs, findings, notes, trace files.

Every function returns the table of one section, or None where the document has nothing for it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from chopperd.model.report import DeviceSummary, GpuLine, ReportDocument, TraceSummary
from chopperd.model.report_rows import Row
from chopperd.model.safe_text import visible
from chopperd.report.text.headline import gpu_name, unresolved
from chopperd.report.text.resolution import pooled_share, row_share
from chopperd.report.text.wording import (
    UNKNOWN,
    bar,
    brief_milliseconds,
    count,
    fixed_milliseconds,
    known,
    millisecond_digits,
    milliseconds,
    percent,
    plural,
    shorten,
    whole,
    words,
)

_BAR_WIDTH: Final = 40
_STEPS_SHOWN: Final = 12
_GPUS_SHOWN: Final = 16
_TRACES_SHOWN: Final = 16
_NOTES_SHOWN: Final = 3
_NAME_WIDTH: Final = 22
_WATERFALL_LABELS: Final = {
    "compute_at_ref": "compute at the reference clock",
    "dvfs_loss": "clock loss (ceiling)",
    "compute_unsampled": "compute, clock not sampled",
    "exposed_comm": "exposed communication",
    "exposed_copy": "exposed copies",
    "unknown": "unknown (launches without record)",
    "idle_launch_call": "idle, launch latency",
    "idle_allocator": "idle, device malloc or free",
    "idle_data": "idle, waiting for data",
    "idle_sync": "idle, synchronise call",
    "idle_launch_prep": "idle, host prepares a launch",
    "idle_other": "idle, no next launch known",
}
#: Columns of a table of steps, whose cells `step_cells` gives, and its caption.
STEP_COLUMNS: Final = (
    *("step", "<gpu", "window", "compute", "comm*", "idle", "MHz", "lost"),
    *("<lost % [95 %]", "excess", "<"),
)
STEP_CAPTION: Final = "times in ms; comm*: with no compute at the same time"
_IDLE_ROWS: Final = tuple(name for name in _WATERFALL_LABELS if name.startswith("idle_"))


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    header: bool = True,
    caption: str = "",
) -> Group:
    """Make a titled, borderless table; a leading `<` in a column's name aligns it left, else right.

    Only the last column breaks lines. Title and caption are not held to the table's width.
    """
    body = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header)
    for column in columns:
        left = column.startswith("<")
        name = Text(column.lstrip("<"), style="dim")
        body.add_column(name, justify="left" if left else "right", no_wrap=True)
    body.columns[-1].no_wrap = False
    for row in rows:
        body.add_row(*(Text(visible(cell)) for cell in row))
    below = [Text(caption, style="dim")] if caption else []
    return Group(Text(visible(title), style="bold"), body, *below)


def _plain(title: str, rows: Sequence[Sequence[str]]) -> Group:
    """Make a table of left-aligned columns without header."""
    return table(title, ("<",) * len(rows[0]), rows, header=False)


def waterfall(document: ReportDocument) -> Group | None:
    """Render the mean waterfall of complete steps, else of the file, on the critical device."""
    summary = document.summary
    if summary is None or not summary.waterfall_ns:
        return None
    if summary.basis == "totals":
        title = "WHERE THE TIME WENT  whole file, critical device"
    else:
        steps = plural(summary.steps, "complete step")
        title = f"WHERE THE STEP WENT  critical device, mean over {steps}"
    total_ns = sum(summary.waterfall_ns.values())
    digits = millisecond_digits(total_ns, significant=5)
    rows = []
    for name, label in _WATERFALL_LABELS.items():
        value_ns = summary.waterfall_ns.get(name)
        share = value_ns / total_ns if known(value_ns) and total_ns else None
        rows.append(
            (label, fixed_milliseconds(value_ns, digits), percent(share), bar(share, _BAR_WIDTH))
        )
    rows.append(
        ("window", fixed_milliseconds(total_ns, digits), percent(1.0) if total_ns else UNKNOWN, "")
    )
    return table(title, ("<", "ms", "%", "<"), rows)


def steps(document: ReportDocument) -> Group | None:
    """Render the last steps, each on its critical device; a single step on all devices."""
    if not document.steps:
        return None
    chosen = _critical_rows(document.steps)
    shown = chosen[-_STEPS_SHOWN:]
    title = "STEPS"
    if len({row.step for row in chosen}) < len(chosen):
        title += "  every device"
    elif len(chosen) < len(document.steps):
        title += "  critical device of each"
    if len(shown) < len(chosen):
        title += f"  last {len(shown)} of {count(len(chosen))} (--step N, --last N, --format csv)"
    return table(
        title,
        STEP_COLUMNS,
        [step_cells(row) for row in shown],
        caption=_steps_caption(document, shown),
    )


def _steps_caption(document: ReportDocument, shown: Sequence[Row]) -> str:
    caption = STEP_CAPTION
    unclear = any((share := row_share(row)) and not share.resolved for row in shown)
    pooled = pooled_share(document.totals)
    if unclear and pooled is not None:
        caption += f"\nn.r.: {unresolved(pooled)}"
    return caption


def _critical_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of critical devices; all rows where none is known or there is one step."""
    critical = [row for row in rows if row.is_critical or row.device is None]
    several = len({(row.job, row.run, row.step) for row in rows}) > 1
    return critical if several and any(row.is_critical for row in rows) else list(rows)


def step_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of one row under `STEP_COLUMNS`."""
    parts = row.waterfall_ns
    clock = row.clock.compute if row.clock is not None else None
    return (
        str(row.step) if row.step is not None else UNKNOWN,
        _row_gpu(row),
        milliseconds(row.window_ns),
        milliseconds(row.compute_ns),
        milliseconds(parts.exposed_comm if parts else None),
        milliseconds(sum(getattr(parts, name) for name in _IDLE_ROWS) if parts else None),
        whole(clock.mean_mhz if clock is not None else None),
        milliseconds(row.dvfs.lost_ns),
        _lost_share(row),
        milliseconds(row.dvfs.excess_ns),
        _remarks(row),
    )


def _row_gpu(row: Row) -> str:
    if row.gpu is not None:
        return row.gpu
    return f"dev {row.device}" if row.device is not None else UNKNOWN


def _lost_share(row: Row) -> str:
    share = row_share(row)
    if share is None:
        return UNKNOWN
    if not share.resolved:
        return "n.r."
    return share.brackets().replace(" %", "")


def _remarks(row: Row) -> str:
    marks = [
        f"host only, marker {milliseconds(row.marker_ns)} ms" if row.host_only else "",
        "tail" if row.tail else "",
        "partial" if row.partial else "",
    ]
    return ", ".join(filter(None, marks))


def gpus(document: ReportDocument) -> Group | None:
    """Render one line a GPU, worst excess first; None where nothing is known of any."""
    summary = document.summary
    if summary is None or not summary.gpus:
        return None
    if not any(known(line.mean_mhz) or len(summary.gpus) > 1 for line in summary.gpus):
        return None
    lines = sorted(summary.gpus, key=lambda line: -(line.excess_ns_per_step or 0.0))
    shown = lines[:_GPUS_SHOWN]
    title = "GPUS" if len(shown) == len(lines) else f"GPUS  worst {len(shown)} of {len(lines)}"
    columns = ("<gpu", "rank", "MHz", "peers", "gap %", "excess ms", "C", "slowest")
    return table(title, columns, [_gpu_cells(line) for line in shown])


def _gpu_cells(line: GpuLine) -> tuple[str, ...]:
    return (
        gpu_name(line).removeprefix("GPU ").replace("trace device", "dev"),
        _integer(line.rank),
        whole(line.mean_mhz),
        whole(line.peers_median_mhz),
        percent(line.gap_ratio),
        milliseconds(line.excess_ns_per_step),
        whole(line.temperature_mean_c),
        _integer(line.slowest_steps),
    )


def _integer(value: int | None) -> str:
    return UNKNOWN if value is None else count(value)


def findings(document: ReportDocument) -> Group | None:
    """Render the findings, each with its bound, the action, and the command that verifies it."""
    if not document.findings:
        return None
    rows = []
    for finding in document.findings:
        bound = f" (at most {brief_milliseconds(finding.bound_ns)} ms)"
        rows += [
            (finding.code, finding.title + (bound if known(finding.bound_ns) else "")),
            *(("", text) for text in finding.evidence),
            ("", f"do: {finding.action}"),
            ("", f"check: {finding.command}"),
        ]
    return _plain("NEXT", rows)


def notes(document: ReportDocument) -> Group | None:
    """Render the notes on missing and doubtful figures: of each code the first few."""
    if not document.notes:
        return None
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for note in document.notes:
        texts[note.code].append(note.text)
    rows = []
    for code, alike in texts.items():
        rows += [(code, text) for text in alike[:_NOTES_SHOWN]]
        if len(alike) > _NOTES_SHOWN:
            rows.append(("", f"and {len(alike) - _NOTES_SHOWN} more like these"))
    return _plain("NOTES", rows)


def sources(document: ReportDocument, width: int) -> Group:
    """Render the trace files and the GPUs of their devices: a line for each file and device."""
    traces = document.traces or (document.trace,)
    rows: list[tuple[str, ...]] = []
    for nth, trace in enumerate(traces[:_TRACES_SHOWN]):
        devices = [_device_cells(each) for each in document.devices if _is_in(each, nth, trace)]
        first, *more = devices or [("no device", "", "")]
        rows.append((_rank(trace), *first, trace.path))
        rows += [("", *cells, "") for cells in more]
    if len(traces) > _TRACES_SHOWN:
        rows.append((f"and {len(traces) - _TRACES_SHOWN} more", "", "", "", ""))
    beside = sum(2 + max(len(row[column]) for row in rows) for column in range(4))
    return _plain("FROM", [(*row[:4], shorten(row[4], width - beside)) for row in rows])


def _is_in(device: DeviceSummary, nth: int, trace: TraceSummary) -> bool:
    """Whether a device belongs to a file, by rank in documents of earlier versions."""
    return device.rank == trace.rank if device.trace is None else device.trace == nth


def _rank(trace: TraceSummary) -> str:
    if trace.rank is None:
        return "rank unknown"
    return f"rank {trace.rank}" + (f" of {trace.world_size}" if trace.world_size else "")


def _device_cells(device: DeviceSummary) -> tuple[str, str, str]:
    name = shorten(device.name or "unnamed", _NAME_WIDTH)
    if device.gpu is None:
        return f"device {device.device}", name, "clocks unknown"
    return f"GPU {device.gpu}", name, f"by {words(device.mapping or 'unknown rule')}"
