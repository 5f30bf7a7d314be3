"""A card's `gpu_metrics` as bytes, of any version, at any instant."""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.fakes.amd.cards import Values
from tests.fakes.amd.motion import Motion
from tests.fakes.amd.places import place_in
from tests.fakes.amd.sysfs.attributes import ALL_ATTRIBUTES, AttributeTable
from tests.fakes.amd.sysfs.tables import table

#: Offset and width of a number; None: the version lacks it.
PlaceOf: TypeAlias = Callable[[str, int], tuple[int, int] | None]
MS_NS = 10**6


@dataclass(slots=True)
class MetricsBlock:
    """The bytes of a table, in which numbers move.

    Attributes:
        block: As they were set.
        place_of: Where a number is.
        motions: How those move that do.
        held_ns: When the firmware measured last; 0: it goes on.
    """

    block: bytearray
    place_of: PlaceOf
    motions: dict[tuple[int, int], Motion] = field(default_factory=dict)
    held_ns: int = 0

    def shows(self, name: str, value: int | tuple[int, ...]) -> None:
        """A metric is this and does not move; one that the version lacks is left out."""
        for place, number in enumerate(value if isinstance(value, tuple) else (value,)):
            if (found := self.place_of(name, place)) is not None:
                self.motions.pop(found, None)
                self._write(self.block, found, number)

    def lacks(self, name: str) -> None:
        """A metric is all ones in each of its numbers."""
        place = 0
        while (found := self.place_of(name, place)) is not None:
            self.motions.pop(found, None)
            self._write(self.block, found, -1)
            place += 1
        assert place, name

    def plays(self, values: Values, motions: Iterable[Motion]) -> None:
        """All metrics are these, and move so."""
        self.motions.clear()
        for name, value in values.items():
            self.shows(name, value)
        for motion in motions:
            if (found := self.place_of(motion.name, motion.place)) is not None:
                self.motions[found] = motion

    def motion_of(self, name: str, place: int) -> Motion | None:
        """How a number moves."""
        found = self.place_of(name, place)
        return None if found is None else self.motions.get(found)

    def at(self, now_ns: int) -> bytes:
        """The table as it is read at an instant."""
        block = bytearray(self.block)
        measured_ns = self.held_ns or now_ns
        measured_ns -= measured_ns % MS_NS
        for found, motion in self.motions.items():
            self._write(block, found, motion.at(now_ns if motion.at_read else measured_ns))
        return bytes(block)

    @staticmethod
    def _write(block: bytearray, place: tuple[int, int], number: int) -> None:
        offset, width = place
        block[offset : offset + width] = (number % (1 << 8 * width)).to_bytes(width, "little")


def new_block(
    version: tuple[int, int], attributes: AttributeTable = ALL_ATTRIBUTES
) -> MetricsBlock:
    """A table of a version in which nothing is reported yet.

    Args:
        version: Of `gpu_metrics`.
        attributes: What stands in it where it is v1.9.
    """
    if version == (1, 9):
        return MetricsBlock(attributes.empty(), attributes.place_of)
    structure = table(version)
    block = bytearray(b"\xff" * ctypes.sizeof(structure))
    filled = structure.from_buffer(block)
    for name, value in (
        ("structure_size", ctypes.sizeof(structure)),
        ("format_revision", version[0]),
        ("content_revision", version[1]),
    ):
        setattr(filled, name, value)
    del filled
    return MetricsBlock(bytearray(block), lambda name, place: place_in(structure, name, place))
