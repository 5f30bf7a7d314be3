"""Make pandas DataFrames of a finished report, for notebooks; the agent does not use it.

Numbers that may be unknown have pandas' nullable types: whole ns stay whole, and unknown is NA.
"""

import gzip
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from chopperd.errors import ConfigError, StoreError
from chopperd.model.report import DeviceSummary, GpuLine, Note, ReportDocument, TraceSummary
from chopperd.report.forms.columns import KEYS, Table, Value, host_table, record_table
from chopperd.report.forms.parquet import PARQUET_MAGIC, ReportTables, read_parquet, tables_of

if TYPE_CHECKING:
    import pandas

_GZIP_MAGIC: Final = b"\x1f\x8b"
_UNIX_NS: Final = "_unix_ns"
_NO_TIME: Final = -(2**63)
_DTYPES: Final = {int: "Int64", float: "Float64", bool: "boolean", str: "string"}
_CAUSES: Final = "dvfs_by_cause_ns_"
_WATERFALL: Final = "waterfall_ns_"
MISSING: Final = "needs pandas and pyarrow: pip install 'chopperd[analysis]'"


def _list(field: str, doc: str) -> "cached_property[pandas.DataFrame]":
    """Return a cached property that makes the DataFrame of a list in the rows."""

    def listed(report: "Report") -> "pandas.DataFrame":
        return _frame(report._tables.lists[field])

    listed.__doc__ = doc
    return cached_property(listed)


def _host(field: str, doc: str) -> "cached_property[pandas.DataFrame]":
    """Return a cached property that makes the DataFrame of a list of `HostTime`."""

    def listed(report: "Report") -> "pandas.DataFrame":
        return _frame(host_table(report.document, field))

    listed.__doc__ = doc
    return cached_property(listed)


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
    host_operations = _host("by_operation", "Host time by operator, of traces without device work.")
    host_layers = _host("by_layer", "Host time by layer, of traces without device work.")
    host_phases = _host("by_phase", "Host time by phase, of traces without device work.")
    host_annotations = _host(
        "by_annotation", "Host time by annotation, of traces without device work."
    )
    copies = _list("copies", "Copies and fills by direction in each row.")
    collectives = _list("collectives", "Communication by collective and process group in each row.")
    micro_steps = _list(
        "micro_steps", "The markers of accumulated steps; `item_step` is a marker's own number."
    )

    @cached_property
    def causes(self) -> "pandas.DataFrame":
        """DataFrame of the lost time by cause, `lost_ns`, in each row where the loss is known."""
        return _frame(_melted(self._tables.rows, _CAUSES, ("cause", "lost_ns")))

    @cached_property
    def waterfall(self) -> "pandas.DataFrame":
        """DataFrame of the waterfall of each row, `time_ns` by `part`; unknown parts left out."""
        return _frame(_melted(self._tables.rows, _WATERFALL, ("part", "time_ns")))

    @cached_property
    def devices(self) -> "pandas.DataFrame":
        """DataFrame of the traced devices and their GPUs."""
        return _frame(record_table(self.document.devices, DeviceSummary))

    @cached_property
    def gpus(self) -> "pandas.DataFrame":
        """DataFrame of the GPUs of the run, one line each, over its complete steps.

        Empty without a summary.
        """
        summary = self.document.summary
        return _frame(record_table(summary.gpus if summary else (), GpuLine))

    @cached_property
    def traces(self) -> "pandas.DataFrame":
        """DataFrame of the trace files."""
        return _frame(record_table(self.document.traces, TraceSummary))

    @cached_property
    def notes(self) -> "pandas.DataFrame":
        """DataFrame of the notes on missing and doubtful figures."""
        return _frame(record_table(self.document.notes, Note))

    def _rows(self, word: str) -> "pandas.DataFrame":
        rows = self._tables.rows
        at = [number for number, row in enumerate(rows.columns["row"]) if row == word]
        columns = {name: [values[k] for k in at] for name, values in rows.columns.items()}
        return _frame(Table(kinds=rows.kinds, columns=columns))


def read_report(path: Path) -> Report:
    """Read the report in a file: its JSON, also compressed by gzip, or its Parquet form.

    Raises:
        ConfigError: pandas or, for Parquet, pyarrow is not installed.
        StoreError: The file can't be read or is no such report.
    """
    try:
        import pandas as pd  # noqa: F401, PLC0415 - says at once that it is missing

        return Report(_tables(path))
    except ImportError as error:
        raise ConfigError([f"read_report {MISSING}"]) from error


def _tables(path: Path) -> ReportTables:
    try:
        data = path.read_bytes()
        if data.startswith(PARQUET_MAGIC):
            return read_parquet(path)
        text = gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
    except (EOFError, zlib.error) as error:
        raise StoreError(f"{path}: the gzip data is cut off or damaged") from error
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror or error}") from error
    try:
        return tables_of(msgspec.json.decode(text, type=ReportDocument))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{path}: not a report of chopperd (report --format json): {error}"
        ) from error


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
