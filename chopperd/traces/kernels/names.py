"""Names: kernels without decoration, families, frameworks, the host's, and which match a pattern.

Each name is matched once, not once a row.
"""

import re
import sys
import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int32s
from chopperd.model.timeline import Framework

#: Source: names in PyTorch's FSDP1 (`FullyShardedDataParallel.*` annotations), FSDP2 (`FSDP::*`
#: annotations, `fsdp::*` operators) and DDP; DeepSpeed's and Megatron's own class and module names.
SIGNS: Final = (
    ("fsdp1", re.compile(r"^FullyShardedDataParallel\.")),
    ("fsdp2", re.compile(r"^FSDP::|^fsdp::")),
    ("ddp", re.compile(r"^DistributedDataParallel\.")),
    ("deepspeed", re.compile(r"deepspeed", re.IGNORECASE)),
    ("megatron", re.compile(r"megatron", re.IGNORECASE)),
)

EXAMPLES_EACH: Final = 3
UNNAMED: Final = "(no name)"

#: Kinds of kernels as Inductor writes them: pointwise, reductions, templates, foreach, mixed.
_INDUCTOR_NUMBER: Final = re.compile(
    r"^(triton_(?:poi|red|per|tem|for|mix|unk|spl|split_scan)_.*?)(?:_\d+)+$"
)
_TRITON_SIGNATURE: Final = re.compile(r"^(\w+?)_(0[dec]*1[dec\d]*)$")
_SIGNATURE_LETTERS: Final = re.compile(r"[dec]+")
_SHORTENED: Final = re.compile(r"~[0-9a-f]{8}$")
_CHECKSUM_LENGTH: Final = 9
#: Only so much of a longer name is read; names of templates are far shorter.
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

#: What tells one call or request from another in names on the host.
_ADDRESS: Final = re.compile(r"(?: object)? at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{4,}")
_REQUEST: Final = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|(?<![0-9a-z.])(?=[a-f]*\d)[0-9a-f]{12,}(?![0-9a-z])"
    r"|(?<=req)[-_ #:=]*\d+|(?<=request)[-_ #:=]*\d+|(?<=_id)[-_ #:=]+\d+|(?<=\bid)[-_ #:=]+\d+"
    # serving engines: execute_context_1(128_7)_generation_3(3)
    r"|(?<=_)\d+(?=\()|(?<=\()\d+(?:_\d+)*(?=\)(?!:))"
    r"|(?<![0-9a-z.(])\d{5,}(?![0-9a-z])",
    re.IGNORECASE,
)
_FILE: Final = re.compile(r"^(?P<path>[^<].*?)\(\d+\): ")
_PACKAGES: Final = re.compile(r"^.*/(?:site|dist)-packages/")
_LIBRARY: Final = re.compile(r"/python3(?:\.\d+)?/")

#: Most characters of a name in a report.
LONGEST_NAME: Final = 200

_LONGEST_SEARCHED: Final = 1 << 13


def bounded(name: str) -> str:
    """Replace the middle of a name beyond `LONGEST_NAME` by a checksum; its ends are kept."""
    if len(name) <= LONGEST_NAME:
        return name
    half = LONGEST_NAME // 2
    return f"{name[:half]}~{checksum(name)}~{name[-half:]}"


def checksum(text: str) -> str:
    """Return a text's CRC-32 as eight hexadecimal digits; it distinguishes long names."""
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def names_matching(names: tuple[str, ...], pattern: re.Pattern[str]) -> Bools:
    """Return which names a pattern is found in, by their beginnings: (len(names),) bool."""
    found = (pattern.search(name, 0, _LONGEST_SEARCHED) is not None for name in names)
    return np.fromiter(found, np.bool_, count=len(names))


def any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the given ones, in any case; without any, nothing."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)", re.IGNORECASE)


def used_names(column: Int32s, count: int) -> Int32s:
    """Return the distinct name indices in a column, ascending; `count` is the number of names."""
    return np.flatnonzero(np.bincount(column, minlength=count)).astype(np.int32)


def bare_name(kernel_name: str) -> str:
    """Return a kernel's qualified name and template arguments; names that are not C++ as they are.

    Dropped are the return type, the parameter list, unnamed namespaces in all compilers' spellings,
    and marks of clones (`.kd` ends a kernel's name in AMD's code objects). Of a mangled name the
    namespaces are decoded.
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
    """Return a bare name's last part, without namespaces and template arguments; never empty."""
    path = bare.partition("<")[0].partition("(")[0]
    return path.rpartition("::")[2] or path or bare


def _unmangled(name: str) -> str:
    """Decode the namespaces and name of a mangled name; template arguments stay mangled.

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
    """Return the index where the parameter list opens; the name's length if it ends in none."""
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
    """Return the index behind the return type: after the last space outside all brackets."""
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


def family(kernel_name: str) -> str:
    """Return a kernel's normalised name; names that differ only in dropped parts are one family.

    Dropped, besides what `bare_name` drops: the running number that Inductor appends, which changes
    with any change to the model (`triton_poi_fused_add_3`), and the signature that Triton appended
    before its version 3 (`attn_fwd_0d1d2de`). Template arguments and lambda numbers stay: they are
    what distinguishes elementwise kernels and tiles. A name longer than `LONGEST_NAME` characters
    is cut there and gets a checksum of the whole.

    The family of a family is itself; a kernel without a name is of the family `UNNAMED`.
    """
    if len(kernel_name) == LONGEST_NAME + _CHECKSUM_LENGTH and _SHORTENED.search(kernel_name):
        return kernel_name
    name, before = kernel_name.strip(), ""
    while name != before:
        name, before = _without_numbers(bare_name(name).strip()) or name, name
    if len(name) <= LONGEST_NAME and len(kernel_name) <= LONGEST_READ:
        return name or UNNAMED
    whole = name if len(kernel_name) <= LONGEST_READ else kernel_name
    return f"{name[:LONGEST_NAME]}~{checksum(whole)}"


def _without_numbers(name: str) -> str:
    """Return a name without the suffixes of Inductor or Triton."""
    name = _INDUCTOR_NUMBER.sub(r"\1", name)
    signed = _TRITON_SIGNATURE.match(name)
    # All kernels of old Inductor are called `triton_`: only the signature distinguishes them.
    if signed is None or signed[1] == "triton_" or not _is_signature(signed[2]):
        return name
    return signed[1]


def _is_signature(text: str) -> bool:
    """Whether a text counts arguments from 0, marking some as divisible, equal to 1 or constant."""
    counted = _SIGNATURE_LETTERS.sub("", text)
    return counted != text and "".join(map(str, range(len(counted)))).startswith(counted)


def framework(names: Iterable[str]) -> Framework:
    """Return the framework that names show, "none" or "several", with up to three names each.

    Names are cut before those of modules, which reveal the model: "fsdp2: FSDP::pre_forward".
    """
    found: dict[str, dict[str, None]] = {}
    for name in names:
        for which, sign in SIGNS:
            if sign.search(name):
                found.setdefault(which, {})[name.split(" ")[0]] = None
    evidence = tuple(
        f"{which}: {example}"
        for which, _ in SIGNS
        for example in sorted(found.get(which, ()))[:EXAMPLES_EACH]
    )
    name = next(iter(found), "none") if len(found) < 2 else "several"
    return Framework(name=name, evidence=evidence)


def folded(name: str) -> str:
    """Return a name without addresses, its request numbers as `#`, and shortened if very long."""
    return bounded(_REQUEST.sub("#", _ADDRESS.sub("", name[:LONGEST_READ])))


def is_user_frame(name: str) -> bool:
    """Whether a Python frame is of the user's own code or packages, by its file.

    Not torch's, the standard library's, nor one without a file (`<built-in ...>`, `<string>`).
    """
    found = _FILE.match(name)
    if found is None:
        return False
    path = found["path"]
    inner = _PACKAGES.sub("", path)
    if inner == path and _LIBRARY.search(path):
        return False
    top = inner.lstrip("/").partition("/")[0].removesuffix(".py")
    return top != "torch" and top not in sys.stdlib_module_names
