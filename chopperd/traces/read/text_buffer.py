"""Text that waits to be scanned, in memory that is used again and again."""

from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

_END: Final = 1
"""A NUL behind the text, which stands in no JSON value: the scanner stops there."""
_SPARE_BYTES: Final = 1 << 16


class TextBuffer:
    """Text at the front of a piece of memory; behind it a NUL.

    Fresh memory costs as much as reading into it: it is grown, and never given back.

    Attributes:
        memory: The text and the room behind it. It moves where the text outgrows it, which can't be
            while somebody holds a view of it.
        size_bytes: How much of it is text.

    Args:
        data: The first text.
    """

    def __init__(self, data: Buffer = b"") -> None:
        self.memory = bytearray(_END)
        self.size_bytes = 0
        self.append(data)

    def __len__(self) -> int:
        """How much text there is."""
        return self.size_bytes

    def append(self, data: Buffer) -> None:
        """Put text behind the rest."""
        end = self.size_bytes + len(data)
        if end + _END > len(self.memory):
            self.memory.extend(bytes(end + end // 4 + _SPARE_BYTES - len(self.memory)))
        self.memory[self.size_bytes : end] = data
        self._ends_at(end)

    def text(self, start: int = 0, end: int | None = None) -> bytes:
        """A copy of the text between two places."""
        with memoryview(self.memory) as memory:
            return bytes(memory[start : self.size_bytes if end is None else end])

    def drop(self, count: int) -> None:
        """Take so much off the front."""
        rest = self.size_bytes - count
        self.memory[:rest] = self.memory[count : self.size_bytes]
        self._ends_at(rest)

    def clear(self) -> None:
        """Take everything off."""
        self._ends_at(0)

    def _ends_at(self, end: int) -> None:
        self.size_bytes = end
        self.memory[end] = 0
