"""Render the tables under the headline: waterfall, steps, GPUs, findings, notes, trace files.

Every function returns the table of one section, or None where the document has nothing for it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from chopperd.model.report import DeviceSummary, GpuLine, ReportDocument, TraceSummary
from chopperd.model.report_rows import Row
from chopperd.palette import ROWS
from chopperd.report.text import wording as fmt
from chopperd.report.text.costs import gpu_name, launch_parts, main_cause, wait_and_transfer
from chopperd.report.text.holders import holders
from chopperd.report.text.page import Section, plain, table
from chopperd.report.text.trust import pooled_share, row_share, unresolved
from chopperd.report.text.wording import UNKNOWN, known

#: Shares of the step from which a row is marked as large, and very large.
_LARGE: Final = 0.05
_VERY_LARGE: Final = 0.2
_STEPS_SHOWN: Final = 12
_GPUS_SHOWN: Final = 16
_TRACES_SHOWN: Final = 16
_NOTES_SHOWN: Final = 3
_NAME_WIDTH: Final = 22
#: Columns of a table of steps, whose cells `step_cells` gives, and its caption.
STEP_COLUMNS: Final = (
    *("step", "-?rank", "<-gpu", "-window", "-??compute", "-comm*", "-idle", "-marker", "-???MHz"),
    *("-????lost", "<-lost % [95 %]", "-excess", "<-"),
)
STEP_CAPTION: Final = "times in ms; comm*: with no compute at the same time"
_REMARKS: Final = ("host_only", "tail", "partial")
_HOST_CAPTION: Final = "times in ms, of the host's markers"
_IDLE_ROWS: Final = tuple(name for name in ROWS if name.startswith("idle_"))


def waterfall(document: ReportDocument) -> Section | None:
    """Render the mean waterfall of complete steps, else of the file, without rows of no time."""
    summary = document.summary
    if summary is None or not summary.waterfall_ns:
        return None
    if summary.basis == "totals":
        title = "WHERE THE TIME WENT  whole file, critical device"
    else:
        steps = fmt.plural(summary.steps, "complete step")
        title = f"WHERE THE STEP WENT  critical device, mean over {steps}"
    total_ns = sum(summary.waterfall_ns.values())
    digits = fmt.ms_digits(total_ns, significant=5)
    rows: list[tuple[str, ...]] = []
    styles: dict[int, str] = {}
    for label, value_ns, style in _waterfall_lines(document, summary.waterfall_ns):
        share = value_ns / total_ns if total_ns else None
        styles[len(rows)] = _severity(share) if style is None else style
        drawn = "" if share is None or label.startswith(" ") else str(share)
        rows.append((label, fmt.fixed_ms(value_ns, digits), fmt.percent(share), drawn))
    whole_share = fmt.percent(1.0) if total_ns else UNKNOWN
    rows.append(("window", fmt.fixed_ms(total_ns, digits), whole_share, ""))
    return table(title, ("<", "ms", "%", "??="), rows, styles=styles)


def _severity(share: float | None) -> str:
    if share is None or share < _LARGE:
        return ""
    return "red" if share >= _VERY_LARGE else "yellow"


def _waterfall_lines(
    document: ReportDocument, waterfall_ns: Mapping[str, float]
) -> Iterator[tuple[str, float, str | None]]:
    is_clocked = "dvfs_loss" in waterfall_ns
    for name, mark in ROWS.items():
        label, value_ns = mark.words, waterfall_ns.get(name)
        if not value_ns:
            continue
        if name == "compute_unsampled" and not is_clocked:
            label = "compute, clock unknown"
        yield label, value_ns, None if name.startswith(("idle", "exposed")) else ""
        for part, part_ns in _parts(document, name):
            yield f"  {part}", part_ns, "dim"


def _parts(document: ReportDocument, name: str) -> list[tuple[str, float]]:
    if name == "exposed_comm":
        parts = wait_and_transfer(document)
        return list(zip(("waiting for other ranks", "transfer"), parts or (), strict=False))
    found = holders(document) if name == "idle_launch_call" else None
    if found is None:
        return []
    labels = ("in launch calls", "after the call has returned", "the device waits")
    sums = zip(labels, map(found.mean_ns, launch_parts(found.of(name))), strict=True)
    return [(label, time_ns) for label, time_ns in sums if time_ns]


def steps(document: ReportDocument) -> Section | None:
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
        title += (
            f"  last {len(shown)} of {fmt.count(len(chosen))} (--step N, --last N, --format csv)"
        )
    caption = _steps_caption(document, shown)
    return table(title, STEP_COLUMNS, map(step_cells, shown), caption=caption)


def _steps_caption(document: ReportDocument, shown: Sequence[Row]) -> str:
    if all(row.host_only for row in shown):
        return _HOST_CAPTION
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
        _integer(row.rank),
        _row_gpu(row),
        fmt.milliseconds(row.window_ns),
        fmt.milliseconds(row.compute_ns),
        fmt.milliseconds(parts.exposed_comm if parts else None),
        fmt.milliseconds(sum(getattr(parts, name) for name in _IDLE_ROWS) if parts else None),
        fmt.milliseconds(row.marker_ns) if row.host_only else UNKNOWN,
        fmt.whole(clock.mean_mhz if clock is not None else None),
        fmt.milliseconds(row.dvfs.lost_ns),
        _lost_share(row),
        fmt.milliseconds(row.dvfs.excess_ns),
        fmt.words(", ".join(each for each in _REMARKS if getattr(row, each))),
    )


def _row_gpu(row: Row) -> str:
    if row.gpu is not None:
        return row.gpu
    return f"dev {row.device}" if row.device is not None else UNKNOWN


def _lost_share(row: Row) -> str:
    share = row_share(row)
    if share is None:
        return UNKNOWN
    return share.brackets().replace(" %", "") if share.resolved else "n.r."


def gpus(document: ReportDocument) -> Section | None:
    """Render one line a GPU, worst excess first; None where nothing is known of any."""
    summary = document.summary
    if summary is None or not summary.gpus:
        return None
    if not any(known(line.mean_mhz) or len(summary.gpus) > 1 for line in summary.gpus):
        return None
    lines = by_excess(summary.gpus)
    shown = lines[:_GPUS_SHOWN]
    title = "GPUS" if len(shown) == len(lines) else f"GPUS  worst {len(shown)} of {len(lines)}"
    columns = (
        *("<gpu", "-rank", "MHz", "-peers", "-gap %", "-excess ms", "<-[95 %]", "-C"),
        *("<-cause", "-?slowest"),
    )
    styles = {nth: "bold red" for nth, line in enumerate(shown) if line.stands_out}
    rows = [_gpu_cells(document, line) for line in shown]
    caption = "gap: of compute, below the reference; excess: a step, beyond the peers"
    return table(title, columns, rows, caption=caption, styles=styles)


def by_excess(lines: Sequence[GpuLine]) -> list[GpuLine]:
    """Return the lines of GPUs, worst excess first."""
    return sorted(lines, key=lambda line: -(line.excess_ns_per_step or 0.0))


def _gpu_cells(document: ReportDocument, line: GpuLine) -> tuple[str, ...]:
    cause = main_cause(document, line)
    return (
        gpu_name(line).removeprefix("GPU ").replace("trace device", "dev"),
        _integer(line.rank),
        fmt.whole(line.mean_mhz),
        fmt.whole(line.peers_median_mhz),
        fmt.percent(line.gap_ratio),
        fmt.milliseconds(line.excess_ns_per_step),
        fmt.ms_interval(line.excess_low_ns_per_step, line.excess_high_ns_per_step) or UNKNOWN,
        fmt.whole(line.temperature_mean_c),
        fmt.share_of(*cause) if cause is not None else UNKNOWN,
        _integer(line.slowest_steps),
    )


def _integer(value: int | None) -> str:
    return UNKNOWN if value is None else fmt.count(value)


def notes(document: ReportDocument) -> Section | None:
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
    return plain("NOTES", rows)


def sources(document: ReportDocument) -> Section:
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
    return table("FROM", ("<", "<", "<??", "<?", "<~"), rows, header=False)


def _is_in(device: DeviceSummary, nth: int, trace: TraceSummary) -> bool:
    """Whether a device belongs to a file, by rank in documents of earlier versions."""
    return device.rank == trace.rank if device.trace is None else device.trace == nth


def _rank(trace: TraceSummary) -> str:
    if trace.rank is None:
        return "rank unknown"
    return f"rank {trace.rank}" + (f" of {trace.world_size}" if trace.world_size else "")


def _device_cells(device: DeviceSummary) -> tuple[str, str, str]:
    name = fmt.shorten(device.name or "unnamed", _NAME_WIDTH)
    if device.gpu is None:
        return f"device {device.device}", name, "clocks unknown"
    return f"GPU {device.gpu}", name, f"by {fmt.words(device.mapping or 'unknown rule')}"
