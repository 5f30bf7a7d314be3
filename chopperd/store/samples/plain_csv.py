"""Samples in CSV with columns of other names and units, and their times."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from math import nan
from typing import Final

import numpy as np

from chopperd.errors import StoreError
from chopperd.model.arrays import Int64s
from chopperd.model.kinds import Cause
from chopperd.model.report import Note
from chopperd.model.samples import SampleSet
from chopperd.store.samples.columns import SampleColumns, divided_by_gpu
from chopperd.store.samples.text_table import TextTable
from chopperd.units import NS_PER_MS, NS_PER_S, NS_PER_US

_CLOCK: Final = "sm_clock_mhz"
_MIB: Final = float(1 << 20)
_HERTZ: Final = {"mhz": 1.0, "": 1.0, "ghz": 1e3, "khz": 1e-3, "hz": 1e-6}
#: Other names of our columns in CSV, without unit, and the factor from each unit to ours.
_ALIASES: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, float]]]] = {
    _CLOCK: (
        (
            *("sm_clock", "smclock", "sm_clk", "smclk", "sclk", "clocks.sm", "clocks.current.sm"),
            *("gfx_clock", "gfxclk", "gpu_clock", "clock"),
        ),
        _HERTZ,
    ),
    "mem_clock_mhz": (("mem_clock", "mem_clk", "mclk", "clocks.mem", "memory_clock"), _HERTZ),
    "power_w": (("power", "power_draw", "power.draw"), {"w": 1.0, "": 1.0, "mw": 1e-3}),
    "energy_j": (("energy",), {"j": 1.0, "mj": 1e-3, "kj": 1e3}),
    "temperature_c": (("temperature", "temp", "gpu_temp"), {"c": 1.0, "°c": 1.0, "": 1.0}),
    "activity_ratio": (
        ("activity", "utilization", "util", "gpu_util"),
        {"ratio": 1.0, "%": 0.01, "percent": 0.01, "pct": 0.01},
    ),
    "memory_used_bytes": (
        ("memory_used", "mem_used"),
        {"bytes": 1.0, "b": 1.0, "mib": _MIB, "gib": 1024 * _MIB},
    ),
}
_TIMES: Final = ("t_unix", "timestamp", "time", "unix_time", "unix", "epoch", "t", "ts")
_GPUS: Final = ("gpu", "gpu_id", "gpu_index", "index", "device", "device_id", "card")
_TIME_UNITS: Final = ("s", "ms", "us", "ns")
#: Unix times since 2001 and for 200 years have this many digits before the point, by unit.
_NS_BY_DIGITS: Final = {10: NS_PER_S, 13: NS_PER_MS, 16: NS_PER_US, 19: 1}
_BRACKETED: Final = re.compile(r"(.*?)\s*[\[(]([^\])]*)[\])]")
_NUMBER: Final = re.compile(r"(\d{1,19})(?:\.(\d+))?")
_ABSENT: Final = frozenset({"", "n/a", "[n/a]", "na", "none", "null", "-", "nan"})
_LABEL: Final = re.compile(r"(?:gpu|card|device|nvidia)?[ #_]*(\d+(?:\.\d+)?)")


def parsed_plain(data: bytes, *, path: str) -> SampleSet:
    """Parse CSV with columns of other names and units, and Unix times in any unit.

    The header may be repeated.

    Raises:
        StoreError: A time or SM clock column is missing, or a cell can't be read; with what to do.
    """
    first, _, rest = data.partition(b"\n")
    names = [name.strip().strip('"') for name in first.decode().split(",")]
    found = {own: match for own in _ALIASES if (match := _matched(names, own)) is not None}
    of_time = (name for name in names if _split(name)[0] in _TIMES)
    time = next((name for name in of_time if _split(name)[1] in ("", *_TIME_UNITS)), None)
    if time is None or _CLOCK not in found:
        raise StoreError(_no_columns(names, time is None, path))
    rest = rest.replace(first + b"\n", b"")
    table = TextTable(rest, names, path=path, first_line=2)
    gpu = next((name for name in names if _split(name)[0] in _GPUS), None)
    columns = SampleColumns(
        labels=["0"] * len(table) if gpu is None else table.parsed(gpu, _label),
        t_unix_ns=_moments(table, time),
        read_span_ns=np.zeros(len(table), np.int64),
        causes=np.full(len(table), Cause.UNKNOWN.bit, np.int64),
        floats={
            own: np.array(table.parsed(name, quantity), np.float64) * factor
            for own, (name, factor) in found.items()
        },
    )
    read = ", ".join(f"{own} from {name!r}" for own, (name, _) in found.items())
    text = f"columns of other names were read: times from {time!r}, {read}"
    notes = [Note(code="columns_renamed", text=text)]
    if gpu is None:
        notes.append(Note(code="gpu_unnamed", text="no column of GPUs: taken as one GPU 0"))
    gpus, dropped = divided_by_gpu(columns, {})
    return SampleSet(gpus=gpus, backend="file", source=path, notes=(*notes, *dropped))


def _split(name: str) -> tuple[str, str]:
    """Split a column's name, `power(W)` or `power_w`, into name and unit in small letters."""
    bare = name.strip().lower()
    if found := _BRACKETED.fullmatch(bare):
        return found[1].replace(" ", "_"), found[2].strip()
    base, _, unit = bare.replace(" ", "_").rpartition("_")
    units = {each for _, factors in _ALIASES.values() for each in factors if each}
    return (base, unit) if base and unit in units | {*_TIME_UNITS} else (bare.replace(" ", "_"), "")


def _matched(names: Sequence[str], own: str) -> tuple[str, float] | None:
    """Find the best-named column for one of ours, and the factor to our unit; None if none."""
    aliases, factors = _ALIASES[own]
    own_base = _split(own)[0]
    split = {name: _split(name) for name in names}
    for alias in (own_base, *aliases):
        for name, (base, unit) in split.items():
            if base == alias and unit in factors:
                return name, factors[unit]
    return None


def _no_columns(names: Sequence[str], lacks_time: bool, path: str) -> str:
    """Say what is missing, the nearest name there is, and which columns would do."""
    wanted = ("t_unix_ns", "timestamp") if lacks_time else (_CLOCK, "sm_clock")
    close = [near for want in wanted for near in get_close_matches(want, names, 1, 0.75)]
    meant = f" (is it {close[0]!r}?)" if close else ""
    missing = "t_unix_ns, or timestamp in Unix s, ms, us or ns" if lacks_time else _CLOCK
    return (
        f"{path}: line 1: no column {missing}{meant}; not a sample file: CSV needs t_unix_ns,gpu,"
        f"{_CLOCK}; read are also nvidia-smi and amd-smi CSV, dcgmi dmon with times, and a "
        "Prometheus range as JSON"
    )


def quantity(cell: str) -> float:
    """Parse the number in a cell such as `1485` or `1485 MHz`; NaN for `N/A`."""
    return nan if cell.lower() in _ABSENT else float(cell.split(" ", maxsplit=1)[0])


def _label(cell: str) -> str:
    """Parse the label in a cell such as `0`, `GPU 0` or `card1`; others stay as they are."""
    found = _LABEL.fullmatch(cell.lower())
    return found[1] if found else cell


def _moments(table: TextTable, name: str) -> Int64s:
    """Convert the times of a column, in any unit, to Unix ns."""
    unit = _split(name)[1]
    times = np.zeros(len(table), np.int64)
    for row, cell in enumerate(table.cells(name)):
        try:
            times[row] = unix_ns_of(cell, unit)
        except ValueError:
            table.fail(
                row, name, f"is no Unix time in {unit or 's, ms, us or ns'}, nor has it a zone"
            )
    return times


def unix_ns_of(text: str, unit: str = "") -> int:
    """Parse a Unix time in s, ms, us or ns (by its size), or a date with its zone, to Unix ns.

    `unit` is that of its column, "" if that names none.

    Raises:
        ValueError: It is neither, or not in that unit.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(text)
        whole_s = int(moment.replace(microsecond=0).timestamp())
        return whole_s * NS_PER_S + moment.microsecond * NS_PER_US
    scale = _NS_BY_DIGITS.get(len(found[1].lstrip("0")))
    if scale is None or (unit and scale != list(_NS_BY_DIGITS.values())[_TIME_UNITS.index(unit)]):
        raise ValueError(text)
    fraction = found[2] or ""
    return int(found[1]) * scale + int(fraction[:9].ljust(9, "0") or 0) * scale // NS_PER_S
