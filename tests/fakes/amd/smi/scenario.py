"""What the fake libamd_smi.so answers, as a file that tests change while it is in use.

The layout is that of `fake_amd_smi.h`; `build.py` checks that the two agree in size.
"""

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import Structure, c_char, c_int64, sizeof
from pathlib import Path
from typing import TypeVar

from tests.fakes.amd.motion import MOST_PIECES, Motion
from tests.fakes.amd.smi.calls import CALL_NAMES, SUCCESS

MAX_GPUS = 17
#: Stands for the library: calls that concern no GPU.
SYSTEM = MAX_GPUS - 1
MAX_ANSWERS = 96
MAX_MOTIONS = 640
HEAP_BYTES = 131072

Block = TypeVar("Block", bound=ctypes.Structure | ctypes.Union | ctypes.Array[c_char])


class MotionLayout(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("offset", "width", "counts", "numerator", "denominator")),
        *((name, c_int64) for name in ("base", "bits", "origin_ns", "repeats", "at_read")),
        ("piece_count", c_int64),
        ("levels", c_int64 * MOST_PIECES),
        ("lengths_ns", c_int64 * MOST_PIECES),
    ]


class AnswerLayout(Structure):
    """What a call answers for one key."""

    _fields_ = [
        (name, c_int64)
        for name in (
            *("call", "key", "offset", "bytes", "item_bytes", "first_motion"),
            *("motion_count", "motion_room"),
            *("refresh_ns", "held_ns", "short_bytes", "torn_at", "torn_lag_ns", "torn_offset"),
        )
    ]


class GpuLayout(Structure):
    _fields_ = [
        ("socket", c_int64),
        ("bdf", c_int64),
        ("code", c_int64 * len(CALL_NAMES)),
        ("delay_us", c_int64 * len(CALL_NAMES)),
        ("called", c_int64 * len(CALL_NAMES)),
        ("sequence", c_int64),
        ("answer_count", c_int64),
        ("motion_count", c_int64),
        ("heap_used", c_int64),
        ("answers", AnswerLayout * MAX_ANSWERS),
        ("motions", MotionLayout * MAX_MOTIONS),
        ("heap", c_char * HEAP_BYTES),
    ]


class ScenarioLayout(Structure):
    _fields_ = [
        ("gpu_count", c_int64),
        ("socket_count", c_int64),
        ("frozen_ns", c_int64),
        ("most_at_once", c_int64),
        ("unanswered", c_int64),
        ("gpus", GpuLayout * MAX_GPUS),
    ]


class Answers:
    """What one GPU (or the library itself) answers, and how it fails."""

    def __init__(self, layout: GpuLayout) -> None:
        self.layout = layout

    # ---- answers --------------------------------------------------------------------------

    def answers(self, call: str, block: type[Block], key: int = 0, *, item_bytes: int = 0) -> Block:
        """A call answers for a key what stands in this block, which may be changed at any time."""
        place = self.layout.answer_count
        assert place < MAX_ANSWERS
        answer = self.layout.answers[place]
        answer.call, answer.key, answer.item_bytes = CALL_NAMES.index(call), key, item_bytes
        answer.bytes, answer.offset = sizeof(block), self._room(sizeof(block))
        answer.first_motion = answer.motion_count = answer.motion_room = 0
        answer.refresh_ns = answer.held_ns = 0
        answer.short_bytes = answer.torn_at = answer.torn_offset = -1
        self.layout.answer_count = place + 1
        return self.block(call, block, key)

    def block(self, call: str, block: type[Block], key: int = 0) -> Block:
        """The bytes that a call answers, as a structure or text."""
        offset = GpuLayout.heap.offset + self.answer(call, key).offset
        found = block.from_buffer(self.layout, offset)
        assert isinstance(found, block)
        return found

    def answer(self, call: str, key: int = 0) -> AnswerLayout:
        """How a call answers."""
        for place in range(self.layout.answer_count):
            answer: AnswerLayout = self.layout.answers[place]
            if answer.call == CALL_NAMES.index(call) and answer.key == key:
                return answer
        raise KeyError(call, key)

    def unanswers(self, *calls: str) -> None:
        """The calls are answered by "not supported" from now on."""
        for place in range(self.layout.answer_count):
            answer = self.layout.answers[place]
            if CALL_NAMES[max(answer.call, 0)] in calls:
                answer.call = -1

    def _room(self, size: int) -> int:
        offset = int(self.layout.heap_used)
        self.layout.heap_used = (offset + size + 7) // 8 * 8
        assert self.layout.heap_used <= HEAP_BYTES
        return offset

    # ---- numbers that move ----------------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Who reads meanwhile waits, and sees all that is changed."""
        outermost = self.layout.sequence % 2 == 0
        self.layout.sequence += outermost
        try:
            yield
        finally:
            self.layout.sequence += outermost

    def moves(self, call: str, motions: Sequence[tuple[int, int, Motion]], key: int = 0) -> None:
        """Numbers of an answer move: offset, width and how; in place of those that did."""
        answer = self.answer(call, key)
        with self.changing():
            if len(motions) > answer.motion_room:
                answer.motion_room = len(motions) * 3 // 2
                answer.first_motion = self.layout.motion_count
                self.layout.motion_count += answer.motion_room
                assert self.layout.motion_count <= MAX_MOTIONS
            for place, (offset, width, motion) in enumerate(motions, answer.first_motion):
                _write_motion(self.layout.motions[place], offset, width, motion)
            answer.motion_count = len(motions)

    def _moving(self, call: str, key: int) -> Iterator[MotionLayout]:
        answer = self.answer(call, key)
        for place in range(answer.first_motion, answer.first_motion + answer.motion_count):
            yield self.layout.motions[place]

    def motion_at(self, call: str, offset: int, key: int = 0) -> Motion | None:
        """How the number at an offset of an answer moves; None: not at all."""
        for layout in self._moving(call, key):
            if layout.offset == offset and layout.width:
                return _read_motion(layout)
        return None

    def stops(self, call: str, key: int = 0) -> None:
        """Nothing of an answer moves any more; its bytes are as they were set."""
        self.moves(call, (), key)

    def stops_at(self, call: str, offset: int, key: int = 0) -> None:
        """The number at an offset does not move any more."""
        for layout in self._moving(call, key):
            if layout.offset == offset:
                layout.width = 0

    # ---- faults ---------------------------------------------------------------------------

    def fails(self, code: int, *calls: str, delay_us: int | None = None) -> None:
        """The calls (all, if none is named) answer `code`; 0 heals them.

        Args:
            code: Also `HANGS` and `CRASHES`.
            calls: By their names in C.
            delay_us: How long they take from now on; as before where it is not given.
        """
        for call in calls or CALL_NAMES:
            place = CALL_NAMES.index(call)
            self.layout.code[place] = code
            if delay_us is not None:
                self.layout.delay_us[place] = delay_us

    def heals(self) -> None:
        """All calls succeed."""
        self.fails(SUCCESS)

    def takes(self, delay_us: int, *calls: str) -> None:
        """The calls (all, if none is named) take so long."""
        for call in calls or CALL_NAMES:
            self.layout.delay_us[CALL_NAMES.index(call)] = delay_us

    def holds(self, call: str, at_ns: int, key: int = 0) -> None:
        """An answer is that measured at an instant (CLOCK_BOOTTIME); 0: it goes on."""
        self.answer(call, key).held_ns = at_ns

    def tears(
        self, call: str, at: int, *, lag_ns: int = 0, older: bytes = b"", key: int = 0
    ) -> None:
        """From a byte on an answer is older: by `lag_ns`, or with other bytes; -1 heals it."""
        answer = self.answer(call, key)
        answer.torn_lag_ns, answer.torn_offset = lag_ns, -1
        if older:
            assert len(older) == answer.bytes
            answer.torn_offset = self._room(len(older))
            text = (c_char * len(older)).from_buffer(
                self.layout, GpuLayout.heap.offset + answer.torn_offset
            )
            text.raw = older
        answer.torn_at = at

    def cuts(self, call: str, to_bytes: int, key: int = 0) -> None:
        """No more than so many bytes of an answer are written; -1 heals it."""
        self.answer(call, key).short_bytes = to_bytes

    # ---- what was asked -------------------------------------------------------------------

    def calls_of(self, call: str) -> int:
        """How often this was called."""
        return int(self.layout.called[CALL_NAMES.index(call)])

    def calls_total(self) -> int:
        """How often anything was called."""
        return sum(self.layout.called)


def _write_motion(layout: MotionLayout, offset: int, width: int, motion: Motion) -> None:
    layout.offset, layout.width = offset, width
    for name in ("counts", "numerator", "denominator", "base", "bits", "origin_ns", "repeats"):
        setattr(layout, name, int(getattr(motion, name)))
    layout.at_read = int(motion.at_read)
    layout.piece_count = len(motion.levels)
    layout.levels[: len(motion.levels)] = list(motion.levels)
    layout.lengths_ns[: len(motion.levels)] = list(motion.lengths_ns)


def _read_motion(layout: MotionLayout) -> Motion:
    pieces = layout.piece_count
    return Motion(
        name="", levels=tuple(layout.levels[:pieces]), lengths_ns=tuple(layout.lengths_ns[:pieces]),
        counts=bool(layout.counts), numerator=layout.numerator, denominator=layout.denominator,
        base=layout.base, bits=layout.bits, origin_ns=layout.origin_ns,
        repeats=bool(layout.repeats), at_read=bool(layout.at_read),
    )  # fmt: skip


def new_layout(path: Path) -> ScenarioLayout:
    """A new scenario file, mapped."""
    with path.open("wb") as file:
        file.truncate(sizeof(ScenarioLayout))  # sparse
    return map_layout(path)


def map_layout(path: Path) -> ScenarioLayout:
    """A scenario file, mapped; it is unmapped when nothing refers to it any more."""
    with path.open("r+b") as file:
        return ScenarioLayout.from_buffer(mmap.mmap(file.fileno(), 0))
