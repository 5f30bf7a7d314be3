"""What a kernel is called: its name without everything that a compiler or a profiler put around it.

The names of host spans and the interning of names are not here.
"""

import re
from typing import Final

#: Of a longer name only so much is looked at; whole names of templates end well below.
LONGEST_READ: Final = 8192

_CLONE: Final = re.compile(
    r"(?:\.(?:kd|cold|(?:isra|constprop|part|llvm)\.\d+)|\s*\[clone [^\]]*\]| const)+$"
)
_CLONE_ENDS: Final = (".kd", "]", " const", ".cold", *"0123456789")
_ANONYMOUS: Final = re.compile(
    r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\}|\b_(?:GLOBAL__N|INTERNAL)_\w+)::"
)
_ANONYMOUS_MARKS: Final = ("anonymous", "<unnamed>", "_GLOBAL__N_", "_INTERNAL_")
_RETURNS_NOTHING: Final = "void "
_BRACKET: Final = re.compile(r"[()<> ]")
_MANGLED: Final = re.compile(r"_ZL?(N[rVK]*[RO]?)?")
_MANGLED_PART: Final = re.compile(r"L?(?:St|(\d{1,4}))")


def bare_name(kernel_name: str) -> str:
    """A kernel's qualified name and template arguments; what is not C++ stays as it is.

    Dropped are the return type, the parameter list, unnamed namespaces in the spellings of the
    compilers, and marks of clones (`.kd` is how AMD's code objects end a kernel's name). Of a name
    that is still mangled the namespaces are read and the arguments stay mangled.
    """
    name = kernel_name[:LONGEST_READ]
    if name.endswith(_CLONE_ENDS):
        name = _CLONE.sub("", name)
    if name.startswith("_Z"):
        name = _unmangled(name)
    elif "(" in name or "<" in name:
        name = name[: _end_of_name(name)].rstrip()
        name = name[_start_of_name(name) :]
    if any(mark in name for mark in _ANONYMOUS_MARKS):
        return _ANONYMOUS.sub("", name)
    return name


def own_name(bare: str) -> str:
    """The last part of a bare name, without namespaces and template arguments; never empty."""
    path = bare.partition("<")[0].partition("(")[0]
    return path.rpartition("::")[2] or path or bare


def _unmangled(name: str) -> str:
    """The namespaces and the name of a mangled name, template arguments as they stand.

    Source: the Itanium C++ ABI, "External names": `_ZN`, then each part behind its length.
    """
    found = _MANGLED.match(name)
    if found is None:
        return name
    parts: list[str] = []
    at, nested = found.end(), found[1] is not None
    while part := _MANGLED_PART.match(name, at):
        at = part.end() + int(part[1] or 0)
        parts.append(name[part.end() : at] if part[1] else "std")
        if part[1] and not nested:
            break
    path = "::".join(each for each in parts if not each.startswith(("_GLOBAL__N_", "_INTERNAL_")))
    if not path or at > len(name):
        return name
    rest = name[at:]
    return f"{path}<{rest[1:]}>" if rest.startswith("I") else path


def _end_of_name(name: str) -> int:
    """Where the parameter list opens; the name's length if it ends in none."""
    if not name.endswith(")"):
        return len(name)
    at, depth = len(name) - 1, 1
    while depth:
        opened, closed = name.rfind("(", 0, at), name.rfind(")", 0, at)
        if opened < 0:
            return len(name)
        at = max(opened, closed)
        depth += 1 if closed > opened else -1
    return at if at > 0 and not name.endswith("operator()") else len(name)


def _start_of_name(name: str) -> int:
    """Behind the return type: after the last space outside all brackets."""
    if name.startswith(_RETURNS_NOTHING):  # as nearly all kernels: no need to count
        return len(_RETURNS_NOTHING)
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
    # Brackets that don't match, as of an operator, prove nothing.
    return 0 if angles or parentheses or name.startswith(">", start) else start
