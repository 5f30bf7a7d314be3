"""Samples from `nvidia-smi --query-gpu=timestamp,index,... --format=csv -lms N` output."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from math import nan
from typing import Final

import numpy as np

from chopperd.errors import StoreError
from chopperd.model.arrays import Int64s
from chopperd.model.causes import Cause
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.report import Note
from chopperd.model.samples import VALUE_COLUMNS, SampleSet
from chopperd.store.sample_columns import SampleColumns, divided_by_gpu, label_order
from chopperd.store.text_table import TextTable
from chopperd.units import NS_PER_S

#: Names that a query may use for the fields that the header line calls otherwise.
#: Source: `nvidia-smi --help-query-gpu` (short forms, and names before driver 535).
_OTHER_NAMES: Final = {
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.max.mem": "clocks.max.memory",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
}

#: Our columns from its fields, best first, with the factor from its unit to ours.
_VALUES: Final[Mapping[str, tuple[tuple[str, ...], float]]] = {
    "sm_clock_mhz": (("clocks.current.sm",), 1.0),
    "mem_clock_mhz": (("clocks.current.memory",), 1.0),
    "power_w": (("power.draw.instant", "power.draw", "power.draw.average"), 1.0),
    "temperature_c": (("temperature.gpu",), 1.0),
    "memory_used_bytes": (("memory.used",), float(1 << 20)),
    "activity_ratio": (("utilization.gpu",), 0.01),
}

#: The mask's bits. Source: nvml.h, nvmlClocksEventReason*; others count as `unknown`.
_CAUSE_BY_MASK: Final = {
    0x001: Cause.LOW_UTILIZATION,
    0x002: Cause.USER_LIMIT,
    0x004: Cause.POWER_CAP,
    0x008: Cause.HW_SLOWDOWN,
    0x010: Cause.SYNC_BOOST,
    0x020: Cause.THERMAL,
    0x040: Cause.HW_THERMAL,
    0x080: Cause.POWER_BRAKE,
    0x100: Cause.USER_LIMIT,
}
_MASK: Final = "clocks_event_reasons.active"
_TIME: Final = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(\.\d+)?")
_ABSENT: Final = re.compile(r"\[.*\]|N/A|Unknown.*|")
#: Zones change their offset at multiples of this.
_ZONE_STEP_NS: Final = 15 * 60 * NS_PER_S


def looks_like_smi(line: str) -> bool:
    """Whether a file's first line is that of `nvidia-smi`, with or without header."""
    names = [_field(cell) for cell in line.split(",")]
    return "timestamp" in names or any(_TIME.fullmatch(cell.strip()) for cell in line.split(","))


def parsed_smi(data: bytes, *, path: str, tz: tzinfo | None, fields: Sequence[str]) -> SampleSet:
    """The samples in a file.

    Args:
        data: Its text, each line ended by just a newline.
        path: The file, for messages.
        tz: Zone of the times; None is this machine's.
        fields: The query's fields where the lines have no header, else empty.

    Raises:
        StoreError: A needed field is missing, or a cell can't be read; names the line.
    """
    first, _, rest = data.partition(b"\n")
    names = [_field(name) for name in (fields or first.decode().split(","))]
    _check_names(names, path, has_fields=bool(fields))
    table = TextTable(data if fields else rest, names, path=path, first_line=1 if fields else 2)
    labels = _labels(table)
    t_unix_ns = _unix_from_local(_local_ns(table), tz)
    values = {name: _values(table, name) for name in VALUE_COLUMNS}
    columns = SampleColumns(
        labels=labels,
        t_unix_ns=t_unix_ns,
        read_span_ns=np.zeros(len(table), dtype=np.int64),
        causes=_causes(table),
        values=values,
    )
    gpus, dropped = divided_by_gpu(columns, _infos(table, labels))
    return SampleSet(
        gpus=gpus,
        backend="nvidia-smi",
        source=path,
        notes=(*_notes(tz, has_index="index" in names or "uuid" in names), *dropped),
    )


def _field(name: str) -> str:
    """The field's present name, without the unit that a header line adds."""
    bare = name.split("[", maxsplit=1)[0].strip()
    return _OTHER_NAMES.get(bare, bare)


def _check_names(names: Sequence[str], path: str, *, has_fields: bool) -> None:
    if "timestamp" not in names and not has_fields:
        raise StoreError(
            f"{path}: nvidia-smi output without its header line; say its query fields, or record "
            "again without noheader"
        )
    missing = {"timestamp", "clocks.current.sm"}.difference(names)
    if missing:
        raise StoreError(f"{path}: the query lacks {' and '.join(sorted(missing))}")
    if len(set(names)) != len(names):
        raise StoreError(f"{path}: line 1: a field is named twice")


def _labels(table: TextTable) -> Sequence[str]:
    """The label of each row's GPU: its index, else a number by first appearance of its UUID."""
    if "index" in table.names:
        return table.cells("index")
    if "uuid" in table.names:
        uuids = table.cells("uuid")
        label_of = {uuid: str(i) for i, uuid in enumerate(dict.fromkeys(uuids))}
        return [label_of[uuid] for uuid in uuids]
    return ["0"] * len(table)


def _values(table: TextTable, name: str) -> "np.ndarray":
    fields, factor = _VALUES.get(name, ((), 1.0))
    for field in fields:
        if field in table.names:
            return np.array(table.parsed(field, _quantity)) * factor
    return np.full(len(table), nan)


def _quantity(cell: str) -> float:
    """The number in a cell such as `1980 MHz`, `699.51` or `[N/A]`."""
    return nan if _ABSENT.fullmatch(cell) else float(cell.split(" ", maxsplit=1)[0])


def _causes(table: TextTable) -> Int64s:
    if _MASK not in table.names:
        return np.full(len(table), Cause.UNKNOWN.bit, dtype=np.int64)
    return np.array(table.parsed(_MASK, _bits), dtype=np.int64)


def _bits(cell: str) -> int:
    """The bit set of a mask such as `0x0000000000000004`; `unknown` where it was not given."""
    if _ABSENT.fullmatch(cell):
        return Cause.UNKNOWN.bit
    mask = int(cell, 16)
    known = sum(_CAUSE_BY_MASK)
    bits = Cause.UNKNOWN.bit if mask & ~known else 0
    for bit, cause in _CAUSE_BY_MASK.items():
        bits |= cause.bit if mask & bit else 0
    return bits


def _local_ns(table: TextTable) -> Int64s:
    """The written times as ns since 1970-01-01 of the local calendar."""
    cells = table.cells("timestamp")
    refused = next((row for row, cell in enumerate(cells) if not _TIME.fullmatch(cell)), None)
    if refused is not None:
        table.fail(refused, "timestamp", "is not a time as nvidia-smi writes it")
    try:
        times = np.array([cell.replace("/", "-") for cell in cells], dtype="datetime64[ns]")
    except ValueError as error:
        raise StoreError(f"{table.path}: timestamp: {error}") from error
    return times.astype(np.int64)


def _unix_from_local(local_ns: Int64s, tz: tzinfo | None) -> Int64s:
    """Unix times; an hour that a zone repeats is taken for its first pass."""
    steps, row_steps = np.unique(local_ns // _ZONE_STEP_NS, return_inverse=True)
    offsets = [_offset_ns(step * _ZONE_STEP_NS // NS_PER_S, tz) for step in steps.tolist()]
    return local_ns - np.array(offsets, dtype=np.int64)[row_steps]


def _offset_ns(local_s: int, tz: tzinfo | None) -> int:
    """What a zone is ahead of UTC at a local time."""
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=local_s)).replace(tzinfo=tz)
    offset = (local if tz else local.astimezone()).utcoffset()
    return int(offset.total_seconds()) * NS_PER_S if offset else 0


def _infos(table: TextTable, labels: Sequence[str]) -> dict[str, GpuInfo]:
    """What the first row of each GPU tells of it."""
    first_rows: dict[str, int] = {}
    for row, label in enumerate(labels):
        first_rows.setdefault(label, row)
    return {
        label: _info(table, label, first_rows[label])
        for label in sorted(first_rows, key=label_order)
    }


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


def _notes(tz: tzinfo | None, *, has_index: bool) -> tuple[Note, ...]:
    zone = str(tz) if tz else "this machine's"
    notes = [
        Note(
            code="local_times",
            text=f"nvidia-smi writes local times, to the ms; taken in the zone: {zone}",
        )
    ]
    if not has_index:
        notes.append(
            Note(code="gpu_unnamed", text="neither index nor uuid was queried: taken as one GPU 0")
        )
    return tuple(notes)
