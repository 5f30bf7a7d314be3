"""Self-contained chunks of a node's samples, encoded as bytes and decoded."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from io import BytesIO
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct, field

from chopperd.correlate.timebase import unix_from_mono
from chopperd.errors import StoreError
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import MOST_DIES, GpuInfo
from chopperd.model.samples import LIMITED_COLUMNS, VALUE_COLUMNS, ProcessRow
from chopperd.sampling.memory.layout import NO_DIE, RECORD, Records
from chopperd.sampling.process_table import merged_processes
from chopperd.store.recorder.codec import (
    Column,
    compressed,
    decoded_columns,
    encoded_columns,
    expanded,
)
from chopperd.units import NS_PER_S, NS_PER_US, TimeTriple

_TRIPLE_NAMES: Final = ("mono_ns", "unix_less_mono_ns", "boot_less_mono_ns")
#: By die: how much its clock is above the sample's own, which takes fewer bits than the clock.
_DIE_NAMES: Final = tuple(f"die_{die}_above_mhz" for die in range(MOST_DIES))


class Origin(Struct, frozen=True, kw_only=True):
    """Where samples come from: the GPU of each slot, and more as in `SampleSet`.

    `boot_id` is the start of the machine that MONOTONIC times count from.
    """

    gpus: tuple[GpuInfo, ...]
    backend: str
    driver: str | None = None
    simulated: bool = False
    node: str
    asked_hz: float
    boot_id: str


def identity(gpu: GpuInfo) -> str:
    """Lasting identity of a GPU: its UUID; without one, its index and name."""
    return gpu.uuid or f"{gpu.index} {gpu.name}"


class SampleChunk(Struct, frozen=True, kw_only=True):
    """Samples of all GPUs over some time."""

    origin: Origin
    #: (n,) of `RECORD` by slot, in whole us, times strictly rising; slots may be missing.
    records: Mapping[int, Records] = field(default_factory=dict)
    #: Clock triples, rising; where there are records, at least one, and one at or before the first
    #: of them if it is known.
    triples: tuple[TimeTriple, ...] = ()
    lost_count: int = 0  # samples of that time that are known to be missing
    processes: tuple[ProcessRow, ...] = ()  # processes that held the GPUs about that time

    @property
    def row_count(self) -> int:
        """Number of samples in the chunk."""
        return sum(map(len, self.records.values()))

    def span_ns(self) -> tuple[int, int]:
        """Return Unix times in ns of the first and last sample; the last triple's without any."""
        times = [records["t_mono_ns"] for records in self.records.values() if len(records)]
        if not times:
            last_ns = self.triples[-1].unix_ns if self.triples else 0
            return last_ns, last_ns
        unix_ns = unix_from_mono(np.concatenate(times), self.triples)
        return int(unix_ns.min()), int(unix_ns.max())


class _Payload(msgspec.Struct, array_like=True):
    """A chunk as bytes, the rows of all slots in sequence."""

    origin: bytes
    slots: list[tuple[int, int]]
    lost_count: int
    rows: bytes
    triples: bytes
    is_quick: bool
    processes: bytes = b""


def in_stored_resolution(records: Records, after_mono_ns: int) -> Records:
    """Copy records with times and call lengths rounded to whole us, as they are stored.

    A time is known to half the length of its driver call, some 10 us and more, so rounding it
    to the nearest us costs nothing; call lengths are rounded up, so that no time seems better
    known than it is. Of samples within one us only the first stays: times rise strictly. (n,)
    `RECORD`s up to `after_mono_ns` are left out.
    """
    t_ns = (records["t_mono_ns"] + NS_PER_US // 2) // NS_PER_US * NS_PER_US
    passed_ns = np.maximum.accumulate(np.concatenate([[after_mono_ns], t_ns]))
    kept: Records = records[t_ns > passed_ns[:-1]].copy()
    kept["t_mono_ns"] = t_ns[t_ns > passed_ns[:-1]]
    kept["span_ns"] = -(-kept["span_ns"] // NS_PER_US) * NS_PER_US
    return kept


def merged(chunks: Sequence[SampleChunk]) -> SampleChunk:
    """Merge chunks of one origin, in order of time, into one."""
    slots = sorted({slot for chunk in chunks for slot in chunk.records})
    return SampleChunk(
        origin=chunks[0].origin,
        records={
            slot: joined([c.records[slot] for c in chunks if slot in c.records]) for slot in slots
        },
        triples=rising_triples(chunks),
        lost_count=sum(chunk.lost_count for chunk in chunks),
        processes=merged_processes(row for chunk in chunks for row in chunk.processes),
    )


def rising_triples(chunks: Iterable[SampleChunk]) -> tuple[TimeTriple, ...]:
    """Return the clock triples of several chunks, each once, rising in time."""
    by_time = {triple.mono_ns: triple for chunk in chunks for triple in chunk.triples}
    return tuple(by_time[mono_ns] for mono_ns in sorted(by_time))


def joined(parts: Collection[Records]) -> Records:
    """Concatenate records; `np.concatenate` would compare the types of all fields each time."""
    rows: Records = np.empty(sum(map(len, parts)), RECORD)
    begin = 0
    for part in parts:
        rows[begin : begin + len(part)] = part
        begin += len(part)
    return rows


def encoded_chunk(chunk: SampleChunk, *, quick: bool = False) -> bytes:
    """Encode a chunk as bytes: quickly, or as few bytes as possible."""
    rows = joined(chunk.records.values())
    payload = _Payload(
        origin=compressed(msgspec.msgpack.encode(chunk.origin)),
        slots=[(slot, len(records)) for slot, records in chunk.records.items()],
        lost_count=chunk.lost_count,
        rows=_table(rows) if quick else encoded_columns(_columns(rows, _period_ns(chunk.origin))),
        triples=encoded_columns(_triple_columns(chunk.triples)),
        is_quick=quick,
        processes=compressed(msgspec.msgpack.encode(chunk.processes)) if chunk.processes else b"",
    )
    return msgspec.msgpack.encode(payload)


def decoded_chunk(data: bytes) -> SampleChunk:
    """Decode a chunk from the bytes of `encoded_chunk`.

    Raises:
        StoreError: The bytes are damaged.
    """
    try:
        payload = msgspec.msgpack.decode(data, type=_Payload)
        origin = msgspec.msgpack.decode(expanded(payload.origin), type=Origin)
        if payload.is_quick:
            rows = _rows_of_table(payload.rows)
        else:
            rows = _rows(decoded_columns(payload.rows), _period_ns(origin))
        columns = decoded_columns(payload.triples)
        held = expanded(payload.processes) if payload.processes else None
        processes = msgspec.msgpack.decode(held, type=tuple[ProcessRow, ...]) if held else ()
        mono_ns, *others = (columns[name].tolist() for name in _TRIPLE_NAMES)
    except (msgspec.MsgspecError, LookupError, ValueError) as error:
        raise StoreError(f"samples can't be decoded: {error}") from error
    ends = np.cumsum([0, *(count for _, count in payload.slots)]).tolist()
    return SampleChunk(
        origin=origin,
        records={
            slot: rows[begin : begin + count]
            for (slot, count), begin in zip(payload.slots, ends, strict=False)
        },
        triples=tuple(
            TimeTriple(unix_ns=mono + unix, mono_ns=mono, boot_ns=mono + boot)
            for mono, unix, boot in zip(mono_ns, *others, strict=True)
        ),
        lost_count=payload.lost_count,
        processes=processes,
    )


def _period_ns(origin: Origin) -> int:
    return max(round(NS_PER_S / origin.asked_hz), 1)


def _table(rows: Records) -> bytes:
    """Encode records as a compressed .npy file."""
    file = BytesIO()
    np.save(file, rows, allow_pickle=False)
    return compressed(file.getvalue())


def _rows_of_table(data: bytes) -> Records:
    """Decode records from `_table`, without fields that another version laid out differently."""
    table = np.load(BytesIO(expanded(data)), allow_pickle=False)
    if table.dtype == RECORD:
        rows: Records = table
        return rows
    rows = np.zeros(len(table), RECORD)
    for name in (*VALUE_COLUMNS, "limited_ns"):
        rows[name] = np.nan
    rows["die_clocks_mhz"] = NO_DIE
    for name in set(RECORD.names or ()) & set(table.dtype.names or ()):
        if table.dtype[name] == RECORD[name]:
            rows[name] = table[name]
    return rows


def _columns(rows: Records, period_ns: int) -> dict[str, Column]:
    """Split records into columns by their stored names.

    Reads fall at random points of their periods: the time is stored as the number of the period,
    which rises by ones, and the time within it, which alone can't be predicted.
    """
    t_ns: Int64s = rows["t_mono_ns"]
    columns: dict[str, Column] = {
        "period": t_ns // period_ns,
        "within_period_ns": t_ns % period_ns,
        "span_ns": rows["span_ns"],
        "causes": rows["causes"],
    }
    for name in VALUE_COLUMNS:
        columns[name] = rows[name]
    for cause, name in LIMITED_COLUMNS.items():
        if not np.isnan(limited_ns := rows["limited_ns"][:, cause]).all():
            columns[name] = limited_ns
    return columns | die_columns(rows)


def _rows(columns: Mapping[str, Column], period_ns: int) -> Records:
    """Build records from stored columns; NaN for values that have no column."""
    rows: Records = np.zeros(len(columns["period"]), RECORD)
    rows["t_mono_ns"] = columns["period"] * period_ns + columns["within_period_ns"]
    rows["span_ns"] = columns["span_ns"]
    rows["causes"] = columns["causes"]
    for name in VALUE_COLUMNS:
        rows[name] = columns.get(name, np.nan)
    for cause, name in LIMITED_COLUMNS.items():
        rows["limited_ns"][:, cause] = columns.get(name, np.nan)
    _put_dies(rows, columns)
    return rows


def _triple_columns(triples: Sequence[TimeTriple]) -> dict[str, Column]:
    """Convert triples to columns: MONOTONIC, and how far the other clocks are from it, in ns."""
    table = np.array(
        [(t.mono_ns, t.unix_ns - t.mono_ns, t.boot_ns - t.mono_ns) for t in triples], np.int64
    ).reshape(-1, 3)
    return {name: table[:, place] for place, name in enumerate(_TRIPLE_NAMES)}


def die_columns(rows: Records) -> dict[str, Column]:
    """Make a column for each die with clocks in (n,) of `RECORD`: MHz above the sample's own.

    NaN where the die has no clock.
    """
    clocks_mhz = rows["die_clocks_mhz"]
    is_there = clocks_mhz != NO_DIE
    if not is_there.any():
        return {}
    own_mhz = _own_mhz(rows["sm_clock_mhz"])
    return {
        name: np.where(is_there[:, die], clocks_mhz[:, die] - own_mhz, np.nan)
        for die, name in enumerate(_DIE_NAMES)
        if is_there[:, die].any()
    }


def _put_dies(rows: Records, columns: Mapping[str, Column]) -> None:
    """Fill in the clocks of dies from their columns, in records with their own clocks."""
    rows["die_clocks_mhz"] = NO_DIE
    own_mhz = _own_mhz(rows["sm_clock_mhz"])
    for die, name in enumerate(_DIE_NAMES):
        if name in columns:
            known = ~np.isnan(columns[name])
            rows["die_clocks_mhz"][known, die] = columns[name][known] + own_mhz[known]


def _own_mhz(clock_mhz: Float64s) -> Int64s:
    """Round the samples' own clocks to whole MHz; 0 where unknown."""
    return np.rint(np.nan_to_num(clock_mhz)).astype(np.int64)
