"""Kernel families: one name for all launches of one kernel, whatever its parameters' types."""

import re
import zlib
from typing import Final

LONGEST_NAME: Final = 200

_CLONE: Final = re.compile(r"(?:\.kd| \[clone [^\]]*\]| const)+$")
_BRACKET: Final = re.compile(r"[()<> ]")
_ANONYMOUS: Final = "(anonymous namespace)"
_INDUCTOR_NUMBER: Final = re.compile(r"^(triton_.*?)_\d+$")
_TRITON_SIGNATURE: Final = re.compile(r"^(\w+?)_(?:\d+(?:d|de|c))+(?:\d+)?$")


def family(kernel_name: str) -> str:
    """The normalised name of a kernel; what differs only in what is dropped here is one family.

    Dropped: the return type, the parameter list, `(anonymous namespace)::`, a compiler's clone
    marks, the running number that Inductor appends (`triton_poi_fused_add_3`) and the signature
    that old Triton appends (`attn_fwd_0d1d2de`). Template arguments stay, as they hold the functor
    (and dtype) that tells one elementwise kernel from another. A name longer than `LONGEST_NAME`
    characters is cut there and told from its like by a checksum of the whole.
    """
    name = bare_name(kernel_name).replace(_ANONYMOUS + "::", "")
    name = _INDUCTOR_NUMBER.sub(r"\1", name)
    name = _TRITON_SIGNATURE.sub(r"\1", name)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}~{zlib.crc32(name.encode()):08x}"


def bare_name(kernel_name: str) -> str:
    """A demangled C++ name without return type, parameter list and clone marks; others as is."""
    name = _CLONE.sub("", kernel_name)
    if "(" not in name and "<" not in name:
        return name
    name = name[: _end_of_name(name)]
    return name[_start_of_name(name) :]


def _end_of_name(name: str) -> int:
    """Where the parameter list opens; the name's length if it ends in none."""
    if not name.endswith(")"):
        return len(name)
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            return at if at > 0 and not name.endswith("operator()") else len(name)
    return len(name)


def _start_of_name(name: str) -> int:
    """Behind the return type: after the last space outside all brackets."""
    parentheses = angles = start = 0
    for found in _BRACKET.finditer(name):
        match found.group():
            case "(":
                parentheses += 1
            case ")":
                parentheses -= 1
            case "<" if not parentheses:
                angles += 1
            case ">" if not parentheses:
                angles -= 1
            case " " if not parentheses and not angles:
                start = found.end()
    return start
