"""Samples from `amd-smi metric -c -p -t -u -w 1 --csv` output.

Source: amd-smi's own CSV: one line per GPU and read, `timestamp` in whole Unix seconds where it
watches (`-w`), clocks in MHz for each die (`gfx_0_clk` to `gfx_7_clk`), `socket_power` in W,
`hotspot` and `edge` in °C, `gfx_activity` in %, "N/A" where nothing is reported. The first line
is on how to stop, and the header is repeated at each read, unless it writes to a file itself.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Final

import numpy as np

from chopperd.errors import StoreError
from chopperd.model.arrays import Float64s
from chopperd.model.devices import MOST_DIES, GpuInfo, Vendor
from chopperd.model.kinds import Cause
from chopperd.model.report import Note
from chopperd.model.samples import VALUE_COLUMNS, SampleSet
from chopperd.store.samples.columns import SampleColumns, divided_by_gpu, label_order
from chopperd.units import NS_PER_S

_HEADER: Final = ("gpu", "gfx_0_clk")
_FIRST_LINES: Final = 10
#: Our columns from its fields, best first, with the factor from its unit to ours.
_VALUES: Final[Mapping[str, tuple[tuple[str, ...], float]]] = {
    "sm_clock_mhz": (("gfx_0_clk",), 1.0),
    "mem_clock_mhz": (("mem_0_clk",), 1.0),
    "power_w": (("socket_power",), 1.0),
    "temperature_c": (("hotspot", "edge"), 1.0),
    "activity_ratio": (("gfx_activity",), 0.01),
}
_NOTE: Final = Note(
    code="amd_smi_seconds",
    text="amd-smi tells times in whole seconds: intervals allow for half a second either way, and"
    " not for the time that it took to read",
)


@dataclass(frozen=True, slots=True)
class _Line:
    """One line: its number in the file, and its cells by column."""

    number: int
    cells: Mapping[str, str]


def looks_like_amd_smi(data: bytes) -> bool:
    """Whether the first lines hold a header of `amd-smi metric --csv` with clocks."""
    first = data[: 1 << 16].decode(errors="replace").splitlines()[:_FIRST_LINES]
    return any(_is_header(line.split(",")) for line in first)


def parsed_amd_smi(data: bytes, *, path: str) -> SampleSet:
    """The samples in a file.

    A read's time is the middle of its second, and its length that second. Causes are
    unknown: the output's `throttle_status` does not name any. Its energy is left out.

    Args:
        data: Its text, each line ended by just a newline.
        path: The file, for messages.

    Raises:
        StoreError: There are no times, or a cell can't be read; names the line.
    """
    lines = list(_lines(data.decode()))
    if lines and "timestamp" not in lines[0].cells:
        raise StoreError(
            f"{path}: line {lines[0].number}: no times; let amd-smi watch: amd-smi metric -c -p -t"
            " -u -w 1 --csv"
        )
    labels = [line.cells["gpu"] for line in lines]
    values = {name: _values(lines, name, path) for name in VALUE_COLUMNS}
    t_unix_ns = [_second(line, path) * NS_PER_S + NS_PER_S // 2 for line in lines]
    columns = SampleColumns(
        labels=labels,
        t_unix_ns=np.array(t_unix_ns, np.int64),
        read_span_ns=np.full(len(lines), NS_PER_S, np.int64),
        causes=np.full(len(lines), Cause.UNKNOWN.bit, np.int64),
        values=values,
        die_clocks_mhz=_dies(lines, path),
    )
    gpus, dropped = divided_by_gpu(columns, _infos(lines, path))
    return SampleSet(
        gpus=gpus,
        backend="amd-smi",
        source=path,
        notes=(_NOTE, *dropped),
    )


def _lines(text: str) -> Iterator[_Line]:
    """The data lines; incomplete ones, as the last may be, are skipped."""
    names: list[str] = []
    reader = csv.reader(text.splitlines())
    for cells in reader:
        bare = [cell.strip() for cell in cells]
        if _is_header(bare):
            names = bare
        elif names and len(bare) == len(names):
            yield _Line(reader.line_num, dict(zip(names, bare, strict=True)))


def _is_header(cells: Sequence[str]) -> bool:
    names = {cell.strip() for cell in cells}
    return all(name in names for name in _HEADER)


def _second(line: _Line, path: str) -> int:
    text = line.cells["timestamp"]
    if not text.isdecimal():
        raise StoreError(f"{path}: line {line.number}: timestamp {text!r} is no whole second")
    return int(text)


def _values(lines: Sequence[_Line], name: str, path: str) -> Float64s:
    fields, factor = _VALUES.get(name, ((), 1.0))
    return np.array([_best(line, fields, path) * factor for line in lines], np.float64)


def _best(line: _Line, fields: Sequence[str], path: str) -> float:
    """The first of the fields with a value; NaN if there is none."""
    found = (_number(line, field, path) for field in fields)
    return next((value for value in found if not isnan(value)), nan)


def _number(line: _Line, field: str, path: str) -> float:
    text = line.cells.get(field, "N/A")
    if text in ("N/A", ""):
        return nan
    try:
        return float(text)
    except ValueError as error:
        raise StoreError(f"{path}: line {line.number}: {field} {text!r} is no number") from error


def _dies(lines: Sequence[_Line], path: str) -> Float64s | None:
    """Clocks of all dies, (n, `MOST_DIES`); None if no GPU reports more than one."""
    fields = [f"gfx_{die}_clk" for die in range(MOST_DIES)]
    dies_mhz = np.array(
        [[_number(line, field, path) for field in fields] for line in lines], np.float64
    ).reshape(-1, MOST_DIES)
    return None if np.isnan(dies_mhz[:, 1:]).all() else dies_mhz


def _infos(lines: Sequence[_Line], path: str) -> dict[str, GpuInfo]:
    """The GPUs by label, with the highest clock that a line names as theirs."""
    found: dict[str, list[float]] = {line.cells["gpu"]: [] for line in lines}
    for line in lines:
        found[line.cells["gpu"]].append(_number(line, "gfx_0_max_clk", path))
    return {
        label: GpuInfo(
            gpu=label,
            index=int(label) if label.isdecimal() else -1,
            uuid="",
            name="",
            vendor=Vendor.AMD,
            sm_clock_max_mhz=max((mhz for mhz in found[label] if mhz > 0), default=None),
        )
        for label in sorted(found, key=label_order)
    }
