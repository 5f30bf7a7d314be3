"""The block of metrics as AMD SMI gives it: where what stands, by the binding's own structure."""

import ctypes
from collections.abc import Iterator
from ctypes import Structure, Union, memset, sizeof
from dataclasses import dataclass, replace
from typing import Final

from chopperd.devices.amd.block import MetricPlace, MetricsLayout
from chopperd.devices.amd.probe import Asker, block_probes
from chopperd.devices.amd.smi import calls
from chopperd.devices.amd.smi.codes import METRICS_CALL
from chopperd.devices.amd.smi.library import SPARE_BYTES, Library, Room, SmiError
from chopperd.devices.read_plan import Buffer, CallShape, NumberKind, PlannedCall
from chopperd.model.devices import FieldProbe

_STRUCTURE: Final = "amdsmi_gpu_metrics_t"
#: What each partition counts for each of its dies.
_PARTITIONS: Final = "xcp_stats"
_KINDS: Final = {2: NumberKind.UINT16, 4: NumberKind.UINT32, 8: NumberKind.UINT64}
_UNSIGNED: Final = (ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64)
#: What the buffer is filled with to see how far the library writes, once with each.
_CANARIES: Final = (0xA5, 0x5A)
#: What may be left unwritten at the end of a structure: padding.
_PADDING_BYTES: Final = 8
_ALL_ONES: Final = 0xFF


def layout_of(library: Library) -> MetricsLayout:
    """Where each metric stands; nothing where the binding has no such structure."""
    structure = library.binding.structure(_STRUCTURE)
    if structure is None:
        return MetricsLayout(version="none", size_bytes=0, places={})
    places: dict[str, MetricPlace] = {}
    for name, kind in _members(structure):
        offset = getattr(structure, name).offset
        if name == _PARTITIONS:
            places |= _of_partitions(kind, offset)
        elif (place := _place(kind, offset)) is not None:
            places[name] = place
    return MetricsLayout(
        version=f"amdsmi {library.version_text}", size_bytes=sizeof(structure), places=places
    )


def written_bytes(library: Library, handle: int, size_bytes: int) -> int:
    """How far the library writes when it is asked for the metrics.

    Raises:
        SmiError: It does not answer.
    """
    extent = 0
    for canary in _CANARIES:
        room = Room(library.binding.structure(_STRUCTURE))
        memset(room.address, canary, size_bytes + SPARE_BYTES)
        library.call(METRICS_CALL, handle, room.address)
        left = room.buffer.raw.rstrip(bytes([canary]))
        extent = max(extent, len(left))
    return extent


def check_size(library: Library, handle: int, layout: MetricsLayout) -> None:
    """Make sure that the library's metrics are as long as the binding's.

    A GPU that gives no metrics leaves it open: nothing is read of them either.

    Raises:
        BackendUnavailableError: They are not.
    """
    if not layout.places:
        return
    try:
        written = written_bytes(library, handle, layout.size_bytes)
    except SmiError:
        return
    if not layout.size_bytes - _PADDING_BYTES < written <= layout.size_bytes:
        detail = f", whose metrics have {written} bytes, not {layout.size_bytes}"
        raise library.mismatch(library.version, detail)


class SmiSource:
    """The block of one GPU, brought into a buffer that is used again.

    Before it was brought, all in it is "not reported".
    """

    operation = METRICS_CALL

    def __init__(self, library: Library, handle: int, layout: MetricsLayout) -> None:
        self.layout = layout
        self._library = library
        self._handle = handle
        self._room = Room(library.binding.structure(_STRUCTURE))
        memset(self._room.address, _ALL_ONES, layout.size_bytes)
        self.buffer: Buffer = self._room.buffer

    def fetch(self) -> None:
        """Bring it anew.

        Raises:
            SmiError: AMD SMI does not give it.
        """
        self._library.call(METRICS_CALL, self._handle, self._room.address)

    def planned_call(self) -> PlannedCall | None:
        """The same without Python."""
        address = self._library.binding.address(METRICS_CALL)
        if address is None:
            return None
        return PlannedCall(
            operation=METRICS_CALL,
            address=address,
            shape=CallShape.BUFFER,
            handle=self._handle,
            buffer=self._room.buffer,
            lock=self._library.lock,
        )


def _members(structure: type) -> list[tuple[str, type]]:
    """Names and kinds of a structure's members."""
    return [(member[0], member[1]) for member in getattr(structure, "_fields_", ())]


def _place(kind: type, offset: int) -> MetricPlace | None:
    """A number, or several in a row; None for what is neither, or has a sign."""
    count = getattr(kind, "_length_", 1)
    one = getattr(kind, "_type_", None) if hasattr(kind, "_length_") else kind
    size = next((sizeof(each) for each in _UNSIGNED if one is each), None)
    if size is None:
        return None
    return MetricPlace(
        kind=_KINDS[size], offsets=tuple(offset + size * each for each in range(count))
    )


def _of_partitions(kind: type, offset: int) -> dict[str, MetricPlace]:
    """What each partition counts, the dies of all in a row."""
    one = getattr(kind, "_type_", None)
    if not isinstance(one, type) or not issubclass(one, Structure | Union):
        return {}
    places: dict[str, MetricPlace] = {}
    for name, member in _members(one):
        for partition in range(getattr(kind, "_length_", 0)):
            start = offset + partition * sizeof(one) + getattr(one, name).offset
            place = _place(member, start)
            if place is None:
                continue
            before = places[name].offsets if name in places else ()
            places[name] = MetricPlace(kind=place.kind, offsets=before + place.offsets)
    return places


# What one GPU answers, metric by metric and call by call, and what each costs: for people.


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """Asks one GPU for everything that it might answer, into buffers of its own.

    Attributes:
        library: Answers.
        handle: Of the GPU.
        source: Its block, for nobody else.
        asker: Times the calls.
    """

    library: Library
    handle: int
    source: SmiSource
    asker: Asker

    def all(self) -> Iterator[FieldProbe]:
        """Metrics of the block, then what has a call of its own.

        Raises:
            DeviceLostError: The GPU is gone.
        """
        yield from block_probes(self.source, self.asker)
        for name, _bounds, questions in (*calls.STAND_INS, *calls.BESIDE):
            for question in questions:
                yield self._own(name, question, self._used(name, question))
        for name, _bounds, question in calls.FIXED:
            probe = self._own(name, question, used=False)
            yield replace(probe, used=probe.answers)

    def _used(self, name: str, question: calls.Question) -> bool:
        suffix = f".{question.member}" if question.source else ""
        return self.asker.faults.choices.kept.get(name) == question.call + suffix

    def _own(self, name: str, question: calls.Question, used: bool) -> FieldProbe:
        base = FieldProbe(
            operation=f"{question.call}{f'.{question.member}' if question.member else ''}",
            feeds=name,
            source=question.source,
            used=used,
            unit=question.unit,
        )
        try:
            number = calls.SmiNumber(self.library, self.handle, question)
        except LookupError as error:
            return replace(base, used=False, error=f"this version has no {error}")
        return self.asker.asked(base, number.raw)
