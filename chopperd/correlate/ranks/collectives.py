"""The collectives of one rank as columns: taken from a timeline, and packed for storage.

Only what a comparison with other ranks needs. Names of groups are kept as digests, so that stored
columns reveal none.
"""

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate.intervals import EMPTY, union
from chopperd.correlate.waterfall import is_class
from chopperd.model.arrays import Int64s, Timed
from chopperd.model.kinds import COMM_CLASSES
from chopperd.model.timeline import DeviceTimeline, Intervals, Timeline
from chopperd.model.trace import Collective

#: Collectives of one file that are compared, the first of each device: a hundred steps of large
#: jobs have fewer. With the next, at most some MB are stored of a file.
MOST_COLLECTIVES: Final = 1 << 16
#: Pieces of exposed communication, of which each compute kernel under a collective makes one.
MOST_PIECES: Final = 1 << 17

#: Nobody ends these before all have come, and all end together.
_SYMMETRIC: Final = frozenset({"allreduce", "allgather", "reducescatter", "barrier"})
#: Between two ranks, or not told apart from what is: NCCL's kernel SendRecv serves all-to-alls too.
_PAIRWISE: Final = frozenset({"send", "recv", "isend", "irecv", "sendrecv", "batchisendirecv"})
_COLUMNS: Final = ("kind", "step", "seq", "comms_id", "start_ns", "end_ns")
_LITTLE_ENDIAN: Final = "<i8"


class CollectiveKind(Struct, frozen=True, kw_only=True):
    """What a rank's collective is, for comparison with those of other ranks."""

    name: str  # in one spelling ("allreduce")
    group: int = 0  # digest of the group's name and its ranks; 0 unknown
    group_size: int | None = None
    shape: int = 0  # digest of element type and sizes; 0 unknown

    @property
    def is_symmetric(self) -> bool:
        """Whether all ranks of the group end it together, and none before all have come."""
        return self.name in _SYMMETRIC

    @property
    def is_pairwise(self) -> bool:
        """Whether it is, or may be, between two ranks only."""
        return self.name in _PAIRWISE


class RankCollectives(Timed, frozen=True, kw_only=True):
    """Communication kernels of one device, (n,) each, sorted by (start_ns, end_ns); Unix ns."""

    kinds: tuple[CollectiveKind, ...]  # what `kind` indexes
    kind: Int64s  # -1 unknown
    step: Int64s  # number of the step that launched it; -1 none
    seq: Int64s  # torch's number of the collective in its group; -1 unknown
    comms_id: Int64s  # torch's hash of it, the same on all its ranks; -1 unknown
    exposed: Intervals  # when communication ran and no compute
    until_ns: int  # the columns are complete up to this time
    left_out: int = 0  # kernels after it


class PackedCollectives(Struct, frozen=True, kw_only=True):
    """`RankCollectives` in some bytes a value; `device` is the trace's device number."""

    device: int
    kinds: tuple[CollectiveKind, ...]
    # `_COLUMNS`, starts and ends of exposed pieces: differences of successive values, int64,
    # compressed with zlib
    columns: tuple[bytes, ...]
    until_ns: int
    left_out: int


def collectives_of_device(
    device: DeviceTimeline, timeline: Timeline, exposed: Intervals
) -> RankCollectives:
    """Return a device's communication kernels, the first of them if there are very many."""
    devices = max(len(timeline.devices), 1)
    every = np.flatnonzero(is_class(device.kernel_class, COMM_CLASSES))
    until_ns = min(
        _start_of(MOST_COLLECTIVES // devices, device.start_ns[every]),
        _start_of(MOST_PIECES // devices, exposed.start_ns),
    )
    rows = every[device.start_ns[every] < until_ns]
    pieces = exposed.start_ns < until_ns
    numbers = np.array([*(step.step for step in timeline.steps), -1], np.int64)
    used, kind = np.unique(device.collective[rows], return_inverse=True)
    unknown = int((used < 0).sum())  # -1 comes first
    return RankCollectives(
        kinds=tuple(_kind(timeline.collectives[each]) for each in used[unknown:].tolist()),
        kind=kind.astype(np.int64) - unknown,
        step=numbers[device.step[rows]],
        seq=device.seq[rows],
        comms_id=device.comms_id[rows],
        start_ns=device.start_ns[rows],
        end_ns=device.end_ns[rows],
        exposed=Intervals(start_ns=exposed.start_ns[pieces], end_ns=exposed.end_ns[pieces]),
        until_ns=until_ns,
        left_out=len(every) - len(rows),
    )


def _start_of(nth: int, start_ns: Int64s) -> int:
    """Return the start of one of these, (n,) rising; that of never if there are not so many."""
    return int(start_ns[nth]) if len(start_ns) > nth else int(np.iinfo(np.int64).max)


def joined(parts: Sequence[RankCollectives]) -> RankCollectives:
    """Return the collectives of one process that wrote several files, at least one, in order."""
    if len(parts) == 1:
        return parts[0]
    parts = sorted(parts, key=lambda each: int(each.start_ns[0]) if len(each) else 0)
    above = np.cumsum([0, *(len(each.kinds) for each in parts)])
    kinds = [np.where(p.kind < 0, -1, p.kind + n) for p, n in zip(parts, above[:-1], strict=True)]
    columns: dict[str, Int64s] = {
        name: np.concatenate([getattr(each, name) for each in parts]) for name in _COLUMNS[1:]
    }
    return RankCollectives(
        kinds=tuple(kind for each in parts for kind in each.kinds),
        kind=np.concatenate(kinds),
        exposed=union(
            np.concatenate([each.exposed.start_ns for each in parts]),
            np.concatenate([each.exposed.end_ns for each in parts]),
        ),
        until_ns=min(each.until_ns for each in parts),
        left_out=sum(each.left_out for each in parts),
        **columns,
    )


def _kind(collective: Collective) -> CollectiveKind:
    group = (collective.group, collective.ranks)
    shape = (collective.dtype, collective.in_elements, collective.out_elements)
    return CollectiveKind(
        name=collective.name,
        group=0 if group == (None, None) else _digest(group),
        group_size=collective.group_size,
        shape=0 if shape == (None, None, None) else _digest(shape),
    )


def _digest(values: tuple[object, ...]) -> int:
    """Return a number above 0 that is equal for equal values, in every process."""
    return 1 + zlib.crc32(repr(values).encode("utf-8", "replace"))


def pack(rank: RankCollectives, device: int) -> PackedCollectives:
    """Pack a rank's collectives for storage."""
    columns = [getattr(rank, name) for name in _COLUMNS]
    return PackedCollectives(
        device=device,
        kinds=rank.kinds,
        columns=tuple(map(_packed, (*columns, rank.exposed.start_ns, rank.exposed.end_ns))),
        until_ns=rank.until_ns,
        left_out=rank.left_out,
    )


def _packed(column: Int64s) -> bytes:
    return zlib.compress(np.diff(column, prepend=0).astype(_LITTLE_ENDIAN).tobytes(), 1)


def unpack(packed: PackedCollectives) -> RankCollectives:
    """Return the collectives that `pack` packed.

    Raises:
        ValueError: They were packed otherwise.
    """
    *columns, begins_ns, ends_ns = map(_unpacked, packed.columns)
    return RankCollectives(
        kinds=packed.kinds,
        exposed=Intervals(start_ns=begins_ns, end_ns=ends_ns) if len(begins_ns) else EMPTY,
        until_ns=packed.until_ns,
        left_out=packed.left_out,
        **dict(zip(_COLUMNS, columns, strict=True)),
    )


def _unpacked(data: bytes) -> Int64s:
    return np.cumsum(np.frombuffer(zlib.decompress(data), _LITTLE_ENDIAN))
