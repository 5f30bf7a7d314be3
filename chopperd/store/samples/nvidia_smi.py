"""Samples from `nvidia-smi --query-gpu=timestamp,index,... --format=csv -lms N` output."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from math import nan
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.devices.nvml.codes import causes_of
from chopperd.errors import StoreError
from chopperd.model.arrays import Int64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import Cause
from chopperd.model.report import Note
from chopperd.model.samples import LIMITED_COLUMNS, SampleSet
from chopperd.store.samples.columns import (
    SampleColumns,
    columns_in_turn,
    divided_by_gpu,
    infos_in_turn,
    label_order,
)
from chopperd.store.samples.text_table import TextTable, parts_of_log
from chopperd.units import NS_PER_S, NS_PER_US

#: Names that a query may use for the fields that the header line calls otherwise.
#: Source: `nvidia-smi --help-query-gpu` (short forms, and names before driver 535).
_OTHER_NAMES: Final = {
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.max.mem": "clocks.max.memory",
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
}

_REASONS: Final = "clocks_event_reasons"
_MASK: Final = f"{_REASONS}.active"
#: A reason may have a column of its own, "Active" or "Not Active", or a counter of microseconds.
_CAUSE_BY_REASON: Final = {
    "gpu_idle": Cause.LOW_UTILIZATION,
    "applications_clocks_setting": Cause.USER_LIMIT,
    "sw_power_cap": Cause.POWER_CAP,
    "hw_slowdown": Cause.HW_SLOWDOWN,
    "sync_boost": Cause.SYNC_BOOST,
    "sw_thermal_slowdown": Cause.THERMAL,
    "hw_thermal_slowdown": Cause.HW_THERMAL,
    "hw_power_brake_slowdown": Cause.POWER_BRAKE,
}
#: Our columns from its fields, best first, with the factor from its unit to ours.
_FIELDS: Final[Mapping[str, tuple[tuple[str, ...], float]]] = {
    "sm_clock_mhz": (("clocks.current.sm",), 1.0),
    "mem_clock_mhz": (("clocks.current.memory",), 1.0),
    "power_w": (("power.draw.instant", "power.draw", "power.draw.average"), 1.0),
    "temperature_c": (("temperature.gpu",), 1.0),
    "memory_used_bytes": (("memory.used",), float(1 << 20)),
    "activity_ratio": (("utilization.gpu",), 0.01),
    **{
        LIMITED_COLUMNS[cause]: ((f"{_REASONS}_counters.{reason}",), float(NS_PER_US))
        for reason, cause in _CAUSE_BY_REASON.items()
    },
}
#: If none of these is active, no limit is; the others are part of one of these, or no limit.
_LIMITING_REASONS: Final = {
    *("applications_clocks_setting", "sw_power_cap", "hw_slowdown"),
    *("sync_boost", "sw_thermal_slowdown"),
}
_TIME: Final = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(\.\d+)?")
_ABSENT: Final = re.compile(r"\[.*\]|N/A|ERR!|Unknown.*|")
#: Zones change their offset at multiples of this.
_ZONE_STEP_NS: Final = 15 * 60 * NS_PER_S
#: Local times that fall by more repeat an hour; times of GPUs in one read differ by less.
_FALL_NS: Final = NS_PER_S


def looks_like_smi(line: str) -> bool:
    """Whether a file's first line is that of `nvidia-smi`, with or without header."""
    cells = [cell.strip() for cell in line.split(",")]
    fields = {_field(cell) for cell in cells}
    is_header = "timestamp" in fields and any("." in each or each == "index" for each in fields)
    return is_header or any(_TIME.fullmatch(cell) for cell in cells)


def _is_header(line: str) -> bool:
    return "timestamp" in map(_field, line.split(","))


def parsed_smi(data: bytes, *, path: str, tz: tzinfo | None, fields: Sequence[str]) -> SampleSet:
    """Parse the CSV output of `nvidia-smi --query-gpu`.

    `tz` as in `read_samples`; `fields` are the query's where the lines have no header, else
    empty.

    Raises:
        StoreError: A needed field is missing, or a cell can't be read; names the line.
    """
    recordings = parts_of_log(data, "timestamp", _is_header)
    tables = [_table(part, path, fields, at) for part, at in recordings]
    label_of: dict[str, str] = {}  # by UUID, where no index was queried
    labels = [_labels(table, label_of) for table in tables]
    columns = columns_in_turn(list(map(_columns, tables, labels)))
    t_unix_ns, unsure = unix_from_local(columns.t_unix_ns, tz)
    infos = infos_in_turn(list(map(_infos, tables, labels)), path)
    gpus, dropped = divided_by_gpu(replace(columns, t_unix_ns=t_unix_ns), infos)
    zone = str(tz) if tz else "this machine's"
    text = f"nvidia-smi writes local times, to the ms; taken in the zone: {zone}"
    notes = [Note(code="local_times", text=text)]
    if not all({"index", "uuid"} & {*table.names} for table in tables):
        text = "neither index nor uuid was queried: taken as one GPU 0"
        notes.append(Note(code="gpu_unnamed", text=text))
    notes += [*unsure, *dropped]
    return SampleSet(gpus=gpus, backend="nvidia-smi", source=path, notes=tuple(notes))


def _table(data: bytes, path: str, fields: Sequence[str], line: int) -> TextTable:
    """Parse one recording as a table, its header left out."""
    first, _, rest = data.partition(b"\n")
    is_headed = _is_header(first.decode())
    names = [_field(name) for name in (first.decode().split(",") if is_headed else fields)]
    _check_names(names, path)
    cells = rest if is_headed else data
    return TextTable(cells, names, path=path, first_line=line + is_headed)


def _field(name: str) -> str:
    """Return the field's present name, without the unit that a header line adds."""
    bare = name.split("[", maxsplit=1)[0].strip().replace("clocks_throttle_reasons", _REASONS)
    return _OTHER_NAMES.get(bare, bare)


def _check_names(names: Sequence[str], path: str) -> None:
    if not names:
        raise StoreError(
            f"{path}: nvidia-smi output without its header line: put the fields of --query-gpu "
            "(timestamp,index,clocks.sm,...) as a first line, or record again without noheader"
        )
    missing = {"timestamp", "clocks.current.sm"}.difference(names)
    if missing:
        graphics = {"clocks.gr", "clocks.current.graphics"} & {*names}
        other = f" ({graphics.pop()} is not the SM clock)" if graphics else ""
        raise StoreError(
            f"{path}: the query lacks {' and '.join(sorted(missing))}{other}: record again with "
            "--query-gpu=timestamp,index,uuid,name,clocks.sm,clocks.max.sm,power.draw,"
            "temperature.gpu,clocks_event_reasons.active"
        )
    if len(set(names)) != len(names):
        raise StoreError(f"{path}: line 1: a field is named twice")


def _labels(table: TextTable, label_of: dict[str, str]) -> Sequence[str]:
    """Label each row's GPU by its index, else by a number for its UUID, stored in `label_of`."""
    if "index" in table.names:
        return table.cells("index")
    if "uuid" not in table.names:
        return ["0"] * len(table)
    return [label_of.setdefault(uuid, str(len(label_of))) for uuid in table.cells("uuid")]


def _columns(table: TextTable, labels: Sequence[str]) -> SampleColumns:
    """Convert to our columns, each from the best field that was queried."""
    floats = {}
    for own, (fields, factor) in _FIELDS.items():
        if field := next((each for each in fields if each in table.names), None):
            floats[own] = np.array(table.parsed(field, _quantity), np.float64) * factor
    return SampleColumns(
        labels=labels,
        t_unix_ns=_local_ns(table),
        read_span_ns=np.zeros(len(table), np.int64),
        causes=_causes(table),
        floats=floats,
    )


def _quantity(cell: str) -> float:
    """Parse the number in a cell such as `1980 MHz` or `699.51`; NaN for `[N/A]`."""
    return nan if _ABSENT.fullmatch(cell) else float(cell.split(" ", maxsplit=1)[0])


def _causes(table: TextTable) -> Int64s:
    if _MASK in table.names:
        return np.array(table.parsed(_MASK, _bits), dtype=np.int64)
    given = [name for name in _CAUSE_BY_REASON if f"{_REASONS}.{name}" in table.names]
    bits = np.zeros(len(table), np.int64)
    reported = np.full(len(table), not _LIMITING_REASONS.difference(given))
    for name in given:
        states = np.array(table.parsed(f"{_REASONS}.{name}", _is_active), np.float64)
        bits |= np.where(states == 1, _CAUSE_BY_REASON[name].bit, 0)
        reported &= ~np.isnan(states) | (name not in _LIMITING_REASONS)
    return np.where((bits == 0) & ~reported, Cause.UNKNOWN.bit, bits)


def _is_active(cell: str) -> float:
    """Parse "Active" as 1, "Not Active" as 0, an absent state as NaN; else ValueError."""
    if _ABSENT.fullmatch(cell):
        return nan
    return ("Not Active", "Active").index(cell)


def _bits(cell: str) -> int:
    """Parse a mask such as `0x0000000000000004` to causes' bits; `unknown` if not given."""
    if _ABSENT.fullmatch(cell):
        return Cause.UNKNOWN.bit
    return sum(cause.bit for cause in causes_of(int(cell, 16)))


def _local_ns(table: TextTable) -> Int64s:
    """Parse the times as ns since 1970-01-01 of the local calendar."""
    cells = table.cells("timestamp")
    refused = next((row for row, cell in enumerate(cells) if not _TIME.fullmatch(cell)), None)
    if refused is not None:
        table.fail(refused, "timestamp", "is not a time as nvidia-smi writes it")
    try:
        times = np.array([cell.replace("/", "-") for cell in cells], dtype="datetime64[ns]")
    except ValueError as error:
        raise StoreError(f"{table.path}: timestamp: {error}") from error
    return times.astype(np.int64)


def unix_from_local(local_ns: Int64s, tz: tzinfo | None) -> tuple[Int64s, tuple[Note, ...]]:
    """Convert local times, in the file's order, to Unix ns; also return a note on unclear ones.

    In an hour that a zone repeats, the order of times distinguishes the passes: times that fall, or
    those around the hour. Without either it is taken for the first pass, with a note.
    """
    steps, row_steps = np.unique(local_ns // _ZONE_STEP_NS, return_inverse=True)
    starts_s = (steps * _ZONE_STEP_NS // NS_PER_S).tolist()
    first, second = (
        np.array([_offset_ns(each, tz, fold) for each in starts_s], np.int64)[row_steps]
        for fold in (0, 1)
    )
    repeated = np.flatnonzero(first > second)  # where an hour is skipped it is the other way round
    t_unix_ns, unsure = local_ns - first, 0
    for rows in np.split(repeated, np.flatnonzero(np.diff(repeated) > 1) + 1):
        falls = np.flatnonzero(np.diff(local_ns[rows]) < -_FALL_NS)
        again = rows[falls[0] + 1 :] if len(falls) else rows[:0]
        if len(rows) and not len(falls):
            passes = _pass_by_neighbours(t_unix_ns, rows, first[rows[0]] - second[rows[0]])
            again = rows if passes == 1 else again
            unsure += len(rows) if passes is None else 0
        t_unix_ns[again] = local_ns[again] - second[again]
    if not unsure:
        return t_unix_ns, ()
    return t_unix_ns, (_unsure(unsure, tz, int(second[repeated[0]])),)


def _pass_by_neighbours(t_unix_ns: Int64s, rows: Int64s, shift_ns: int) -> int | None:
    """Find the pass, 0 or 1, of adjacent rows by the times next to them; None if those are far."""
    begin, end = int(rows[0]), int(rows[-1])
    if begin and 0 <= t_unix_ns[begin] - t_unix_ns[begin - 1] < shift_ns // 2:
        return 0
    is_last = end + 1 == len(t_unix_ns)
    if not is_last and 0 <= t_unix_ns[end + 1] - t_unix_ns[end] - shift_ns < shift_ns // 2:
        return 1
    return None


def _unsure(rows: int, tz: tzinfo | None, second_ns: int) -> Note:
    """Make the note on rows in a repeated hour whose pass is not known."""
    hours, rest = divmod(second_ns, 3600 * NS_PER_S)
    zone = f" (else read it with --tz Etc/GMT{-hours:+d})" if not rest else ""
    text = (
        f"{rows} samples lie in an hour that {tz or 'this zone'} has twice: taken for the first "
        f"time{zone}; TZ=UTC nvidia-smi ... writes times that are clear"
    )
    return Note(code="local_times_twice", text=text)


def _offset_ns(local_s: int, tz: tzinfo | None, fold: int) -> int:
    """Return how far a zone is ahead of UTC at a local time, in ns; `fold` as in `datetime`."""
    local = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=local_s)
    local = local.replace(tzinfo=tz, fold=fold)
    offset = (local if tz else local.astimezone()).utcoffset()
    return int(offset.total_seconds()) * NS_PER_S if offset else 0


def _infos(table: TextTable, labels: Sequence[str]) -> dict[str, GpuInfo]:
    """Return the GPUs by label, as their first rows describe them."""
    first = {label: row for row, label in reversed(list(enumerate(labels)))}
    return {label: _info(table, label, first[label]) for label in sorted(first, key=label_order)}


def _info(table: TextTable, label: str, row: int) -> GpuInfo:
    def text(field: str) -> str | None:
        cell = table.cell(field, row) if field in table.names else ""
        return None if _ABSENT.fullmatch(cell) else cell

    def number(*fields: str) -> float | None:
        given = (text(field) for field in fields)
        return next((float(cell.split(" ")[0]) for cell in given if cell), None)

    size_mib = number("memory.total")
    return GpuInfo(
        gpu=label,
        index=int(label) if label.isdecimal() else -1,
        uuid=text("uuid") or "",
        name=text("name") or "",
        vendor=Vendor.NVIDIA,
        pci_bus_id=text("pci.bus_id"),
        sm_clock_max_mhz=number("clocks.max.sm"),
        mem_clock_max_mhz=number("clocks.max.memory"),
        power_limit_w=number("enforced.power.limit", "power.limit"),
        power_limit_default_w=number("power.default_limit"),
        memory_size_bytes=None if size_mib is None else round(size_mib * (1 << 20)),
    )
