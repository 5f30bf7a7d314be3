"""Make pandas DataFrames of a finished report, for notebooks; the agent does not use it.

Numbers that may be unknown have pandas' nullable types: whole ns stay whole, and unknown is NA.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.console import Group, RenderableType

from chopperd.errors import ConfigError, StoreError
from chopperd.model.answers import TracedDrop
from chopperd.model.memory import RankMemory
from chopperd.model.report import (
    DeviceSummary,
    GpuLine,
    Note,
    ReportDocument,
    Summary,
    TraceSummary,
)
from chopperd.report.forms.columns import (
    KEYS,
    Kind,
    Table,
    Value,
    drop_work_table,
    host_table,
    record_table,
)
from chopperd.report.forms.parquet import PARQUET_MAGIC, ReportTables, read_parquet, tables_of
from chopperd.report.forms.schema import read_document
from chopperd.report.text.headline import headline
from chopperd.report.text.page import Section, page_text, simulated_mark
from chopperd.report.text.report import FirstScreen
from chopperd.report.text.sections import waterfall
from chopperd.report.text.trust import foreign_samples
from chopperd.report.text.wording import known
from chopperd.units import ms_from_ns

if TYPE_CHECKING:
    import pandas

_UNIX_NS: Final = "_unix_ns"
_NO_TIME: Final = -(2**63)
_DTYPES: Final = {int: "Int64", float: "Float64", bool: "boolean", str: "string"}
_CAUSES: Final = "dvfs_by_cause_ns_"
_WATERFALL: Final = "waterfall_ns_"
_PARTS: Final = "waterfall_ns"
#: Rows of the waterfall that are of no use without the clock's.
_CLOCKED: Final = frozenset(
    f"waterfall/{name}" for name in ("compute_at_ref", "dvfs_loss", "compute_unsampled")
)
MISSING: Final = "needs pandas and pyarrow: pip install 'chopperd[analysis]'"


def _made(doc: str, make: Callable[["Report"], Table]) -> "cached_property[pandas.DataFrame]":
    """Return a cached property that makes the DataFrame of a table."""

    def made(report: "Report") -> "pandas.DataFrame":
        return _frame(make(report))

    made.__doc__ = doc
    return cached_property(made)


def _list(field: str, doc: str) -> "cached_property[pandas.DataFrame]":
    return _made(doc, lambda report: report._tables.lists[field])


def _host(kind: str) -> "cached_property[pandas.DataFrame]":
    doc = f"Host time by {kind}, of traces without device work."
    return _made(doc, lambda report: host_table(report.document, f"by_{kind}"))


class Report:
    """A report as DataFrames, each made when it is first asked for.

    Rows are identified by the columns `row` ("step" or "total"), `job`, `run`, `rank`, `step`,
    `device`, `gpu`; other columns are named as in the CSV, units at their end. A time in ns
    (`..._unix_ns`) has a further column of UTC times, named without that end.

    Attributes:
        document: The report's document, without its rows.

    Args:
        tables: The report.
    """

    def __init__(self, tables: ReportTables) -> None:
        self.document: ReportDocument = tables.document
        self._tables = tables

    @cached_property
    def steps(self) -> "pandas.DataFrame":
        """DataFrame of the steps, one line a step and device."""
        return self._rows("step")

    @cached_property
    def totals(self) -> "pandas.DataFrame":
        """DataFrame of the totals over the whole trace files, one line a device."""
        return self._rows("total")

    families = _list("families", "Kernels by family in each row.")
    classes = _list("classes", "Device work by class in each row of a whole file.")
    operations = _list("by_operation", "Device work by operator in each row.")
    layers = _list("by_layer", "Device work by layer in each row.")
    phases = _list("by_phase", "Device work by phase in each row.")
    annotations = _list("by_annotation", "Device work by annotation in each row.")
    held = _list("held", "Who held the device idle, or its exposed communication, in each row.")
    host_operations, host_layers = _host("operation"), _host("layer")
    host_phases, host_annotations = _host("phase"), _host("annotation")
    copies = _list("copies", "Copies and fills by direction in each row.")
    collectives = _list("collectives", "Communication by collective and process group in each row.")
    micro_steps = _list(
        "micro_steps", "The markers of accumulated steps; `item_step` is a marker's own number."
    )

    @cached_property
    def summary(self) -> "pandas.DataFrame":
        """DataFrame of one line: means of a step, or those of the whole file (`basis`), in ns.

        Reports one below the other compare runs. Empty without a summary.
        """
        summary, trace = self.document.summary, self.document.trace
        found = record_table((summary,) if summary else (), Summary)
        kinds, columns = dict(found.kinds), dict(found.columns)
        del kinds[_PARTS], columns[_PARTS]
        further: list[tuple[str, Kind, Value]] = [("job", str, trace.job), ("run", str, trace.run)]
        if summary is not None:
            further += [(f"{_WATERFALL}{k}", float, v) for k, v in summary.waterfall_ns.items()]
            further += [(f"cause_ratio_{each.cause}", float, each.share) for each in summary.causes]
        for name, kind, value in further:
            kinds[name], columns[name] = kind, [value] * len(found)
        return _frame(Table(kinds=kinds, columns=columns))

    causes = _made(
        "DataFrame of the lost time by cause, `lost_ns`, in each row where the loss is known.",
        lambda report: _melted(report._tables.rows, _CAUSES, ("cause", "lost_ns")),
    )
    waterfall = _made(
        "DataFrame of the waterfall of each row, `time_ns` by `part`; unknown parts left out.",
        lambda report: _melted(report._tables.rows, _WATERFALL, ("part", "time_ns")),
    )
    devices = _made(
        "DataFrame of the traced devices and their GPUs.",
        lambda report: record_table(report.document.devices, DeviceSummary),
    )
    gpus = _made(
        "DataFrame of the run's GPUs, over its complete steps; empty without a summary.",
        lambda report: record_table(getattr(report.document.summary, "gpus", ()), GpuLine),
    )
    traces = _made(
        "DataFrame of the trace files.",
        lambda report: record_table(report.document.traces, TraceSummary),
    )
    notes = _made(
        "DataFrame of the notes on missing and doubtful figures.",
        lambda report: record_table(report.document.notes, Note),
    )
    drops = _made(
        "DataFrame of the drops of GPUs' busy clocks while they were traced.",
        lambda report: record_table(report.document.drops, TracedDrop),
    )
    memory = _made(
        "DataFrame of the memory of each rank's devices: peaks, segments, verdict.",
        lambda report: record_table(report.document.memory, RankMemory),
    )
    drop_work = _made(
        "DataFrame of what ran in drops and outside: a line per drop and class or family.",
        lambda report: drop_work_table(report.document),
    )

    def metrics(self) -> dict[str, float]:
        """Return the known figures of the summary by name, for experiment loggers.

        Names begin with `chopperd/` and end in the unit; what is unknown is not there. Where the
        trace has no complete step the figures are of the whole file: `chopperd/whole_file/`.
        """
        return dict(_metrics(self.document))

    def __repr__(self) -> str:
        """Return the first lines of the report, and where the time went."""
        mark = [simulated_mark()] if self.document.generated.simulated else []
        parts: list[RenderableType] = [*mark, FirstScreen(headline(self.document))]
        if (table := waterfall(self.document)) is not None:
            parts += ["", table]
        return page_text(Group(*parts)).rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the same for notebooks: a list of the lines, and a table."""
        lines = [(row.label, row.separator.join(row.clauses)) for row in headline(self.document)]
        if self.document.generated.simulated:
            lines.insert(0, ("SIMULATED DATA", "from a simulation, not from hardware"))
        head = "".join(f"<dt><b>{escape(k)}</b></dt><dd>{escape(v)}</dd>" for k, v in lines)
        return f"<div><dl>{head}</dl>{_html_table(waterfall(self.document))}</div>"

    def _rows(self, word: str) -> "pandas.DataFrame":
        rows = self._tables.rows
        at = [number for number, row in enumerate(rows.columns["row"]) if row == word]
        columns = {name: [values[k] for k in at] for name, values in rows.columns.items()}
        return _frame(Table(kinds=rows.kinds, columns=columns))


def _metrics(document: ReportDocument) -> Iterator[tuple[str, float]]:
    """Yield the known figures of the summary with their names; losses only of the trace's clocks.

    `lost_ns` of causes is a sum over steps; their means are shares of the mean loss.
    """
    summary = document.summary
    if summary is None:
        return
    of_file = summary.basis == "totals"
    prefix = "chopperd/whole_file/" if of_file else "chopperd/"
    lost_ns = None if foreign_samples(document) else summary.lost_ns
    times_ns: dict[str, float | None] = {
        "window" if of_file else "step": summary.step_ns,
        **{f"waterfall/{name}": value for name, value in summary.waterfall_ns.items()},
    }
    ratios: dict[str, float | None] = {"coverage": summary.coverage_ratio}
    if lost_ns is None:
        times_ns = {name: v for name, v in times_ns.items() if name not in _CLOCKED}
    else:
        times_ns |= {"clock_lost": lost_ns, "excess": summary.excess_ns}
        times_ns |= {"excess_low": summary.excess_low_ns, "excess_high": summary.excess_high_ns}
        times_ns |= {f"lost/{each.cause}": each.share * lost_ns for each in summary.causes}
        ratios |= {"clock_lost": summary.gap_ratio}
        ratios |= {"clock_lost_low": summary.gap_low, "clock_lost_high": summary.gap_high}
        yield from _known({f"{prefix}reference_mhz": summary.reference_mhz})
        for line in summary.gpus:
            name = f"{prefix}gpu/{line.gpu}/"
            yield from _known({f"{name}mean_mhz": line.mean_mhz} if line.gpu is not None else {})
    yield f"{prefix}steps", summary.steps
    yield from _known({f"{prefix}{name}_ms": _ms(value) for name, value in times_ns.items()})
    yield from _known({f"{prefix}{name}_ratio": value for name, value in ratios.items()})


def _known(values: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    yield from ((name, value) for name, value in values.items() if known(value))


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else ms_from_ns(value_ns)


def _html_table(section: Section | None) -> str:
    if section is None:
        return ""
    names, rows = section.known_cells()
    head = "".join(f"<th>{escape(name)}</th>" for _, name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><caption>{escape(section.title)}</caption><tr>{head}</tr>{body}</table>"


def report_of(document: ReportDocument) -> Report:
    """Return a document as DataFrames; raise `ConfigError` without pandas."""
    try:
        import pandas as pd  # noqa: F401, PLC0415 - says at once that it is missing
    except ImportError as error:
        raise ConfigError([f"read_report {MISSING}"]) from error
    return Report(tables_of(document))


def read_report(path: Path) -> Report:
    """Read the report in a file: its JSON (also by gzip), HTML or Parquet form.

    Raises `ConfigError` without pandas or pyarrow, `StoreError` if it is no such report.
    """
    try:
        import pandas as pd  # noqa: F401, PLC0415 - says at once that it is missing

        return Report(_tables(path))
    except ImportError as error:
        raise ConfigError([f"read_report {MISSING}"]) from error


def _tables(path: Path) -> ReportTables:
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror or error}") from error
    return read_parquet(path) if is_parquet else tables_of(read_document(path))


def _melted(rows: Table, prefix: str, names: tuple[str, str]) -> Table:
    """Turn the columns of a prefix into lines: key of the row, column, and its value if known."""
    wide = {name.removeprefix(prefix): name for name in rows.columns if name.startswith(prefix)}
    known = [
        (number, short)
        for number in range(len(rows))
        for short, name in wide.items()
        if rows.columns[name][number] is not None
    ]
    keys = {name: rows.columns[name] for name in KEYS}
    what, value = names
    return Table(
        kinds={**{name: rows.kinds[name] for name in KEYS}, what: str, value: int},
        columns={
            **{name: [values[number] for number, _ in known] for name, values in keys.items()},
            what: [short for _, short in known],
            value: [rows.columns[wide[short]][number] for number, short in known],
        },
    )


def _frame(table: Table) -> "pandas.DataFrame":
    import pandas as pd  # noqa: PLC0415 - pandas is an extra

    columns: dict[str, object] = {}
    for name, values in table.columns.items():
        if f"{name}{_UNIX_NS}" in table.columns:
            continue  # The same time as text.
        columns[name] = pd.array(values, dtype=_DTYPES[table.kinds[name]])
        if name.endswith(_UNIX_NS):
            columns[name.removesuffix(_UNIX_NS)] = _times(values)
    return pd.DataFrame(columns)


def _times(unix_ns: Sequence[Value]) -> "pandas.DatetimeIndex":
    import pandas as pd  # noqa: PLC0415

    whole = [_NO_TIME if value is None else value for value in unix_ns]
    return pd.DatetimeIndex(np.array(whole, np.int64).view("datetime64[ns]"), tz="UTC")
