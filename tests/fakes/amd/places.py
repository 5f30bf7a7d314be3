"""Where a number stands in a structure, by its name."""

import ctypes
from typing import Any


def place_in(
    structure: type[ctypes.Structure], name: str, place: int = 0
) -> tuple[int, int] | None:
    """Offset and width of a number in a structure; `a.0.b` is b in the first of a."""
    offset: int = 0
    kind: Any = structure
    for part in name.split("."):
        if part.isdigit():
            kind = kind._type_
            offset += int(part) * ctypes.sizeof(kind)
            continue
        if not hasattr(kind, part):
            return None
        offset += getattr(kind, part).offset
        kind = {field[0]: field[1] for field in kind._fields_}[part]
    if hasattr(kind, "_length_"):
        if place >= kind._length_:
            return None
        kind = kind._type_
        offset += place * ctypes.sizeof(kind)
    elif place:
        return None
    return offset, ctypes.sizeof(kind)
