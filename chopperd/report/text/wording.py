"""Format numbers for people: ms, percent, MHz, and "-" for what is not known.

A value that is known but too small to print is written `<0.1`, never `0.0`; unknown is never `0`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from re import compile as pattern
from typing import Final, TypeGuard

from chopperd.units import NS_PER_S, ms_from_ns

UNKNOWN: Final = "-"
ELLIPSIS: Final = "…"
#: What the names of holders begin with while no operator is open.
NOTHING_OPEN: Final = "(nothing open) "
_HOLDER_WIDTH: Final = 44
_EIGHTHS: Final = "▏▎▍▌▋▊▉"
#: A Python frame of a function in C.
_BUILT_IN: Final = pattern(r"^<built-in (?:method|function) (\w+)(?: of [^>]*)?>$")
#: What all names of a library begin with, and torch's frames around a backward operator.
_NAMESPACES: Final = pattern(
    r"autograd::engine::evaluate_function: |\(anonymous namespace\)::|"
    r"\b(?:at::native::|at::detail::|at::|c10::|std::|torch::autograd::|cutlass::|pytorch_flash::)"
)
#: The mark of a name that was too long: a hash of it.
_CUT: Final = pattern(r"~[0-9a-f]{8}$")
_IDENTIFIER: Final = pattern(r"[A-Za-z_]\w{3,}")
#: Identifiers that say what a kernel computes, and those that only wrap it.
_DOES: Final = pattern(r"Functor|_kernel|Ops?$|_add$|gemm|conv|_impl$")
_WRAPPERS: Final = frozenset(
    {
        *("gpu_kernel_impl_nocast", "gpu_kernel_impl", "elementwise_kernel", "BinaryFunctor"),
        *("AUnaryFunctor", "BUnaryFunctor", "UnaryFunctor", "ReduceOp", "func_wrapper_t"),
    }
)


def known(value: float | None) -> TypeGuard[float]:
    """Whether a value was reported: neither None nor NaN."""
    return value is not None and isfinite(value)


def decimal(value: float | None, digits: int) -> str:
    """Format with `digits` decimals and thousands separators; `<0.1` instead of a false 0."""
    if not known(value):
        return UNKNOWN
    if value == 0:
        return "0"
    smallest = 10.0**-digits
    if abs(value) < smallest / 2:
        return f"{'-' if value < 0 else ''}<{smallest:.{digits}f}"
    separator = "," if abs(value) >= 10_000 else ""
    return f"{value:{separator}.{digits}f}"


def milliseconds(value_ns: float | None) -> str:
    """Format ns as ms for a table, without unit: at least three significant digits."""
    return fixed_ms(value_ns, ms_digits(value_ns, significant=3))


def brief_ms(value_ns: float | None) -> str:
    """Format ns as ms for a sentence, without unit: at least two significant digits."""
    return fixed_ms(value_ns, ms_digits(value_ns, significant=2))


def short_ms(value_ns: float | None) -> str:
    """Format ns as ms for a sentence: whole from 100 ms on, with two decimals below 1 ms."""
    size_ms = abs(ms_from_ns(value_ns)) if known(value_ns) else 0.0
    return fixed_ms(value_ns, 0 if size_ms >= 99.95 else 1 if size_ms >= 0.995 else 2)


def fixed_ms(value_ns: float | None, digits: int) -> str:
    """Format ns as ms with `digits` decimals, without unit: for columns that are compared."""
    return decimal(ms_from_ns(value_ns), digits) if known(value_ns) else UNKNOWN


def ms_interval(low_ns: float | None, high_ns: float | None) -> str:
    """Format an interval in ns as ms, "[1.2, 3.4]"; empty where an end is unknown."""
    both = known(low_ns) and known(high_ns)
    return f"[{brief_ms(low_ns)}, {brief_ms(high_ns)}]" if both else ""


def share_of(name: str, ratio: float) -> str:
    """Format a published name and its share: "power cap 83 %"."""
    return f"{words(name)} {percent(ratio, 0)} %"


def largest_shares(values: Mapping[str, float], most: int, least_ratio: float = 0.0) -> str:
    """Format the largest shares of a sum by published name; empty where the sum is 0."""
    whole_of_all = sum(values.values())
    largest = sorted(values.items(), key=lambda each: -each[1])[:most]
    return ", ".join(
        share_of(name, value / whole_of_all)
        for name, value in largest
        if value and value >= least_ratio * whole_of_all
    )


def ms_digits(value_ns: float | None, *, significant: int) -> int:
    """Return the decimals that give a time in ms `significant` digits; 0 if it is long."""
    size_ms = abs(ms_from_ns(value_ns)) if known(value_ns) else 0.0
    whole_digits = len(str(int(size_ms))) if size_ms >= 1 else 0
    return max(significant - whole_digits, 0)


def percent(ratio: float | None, digits: int = 1) -> str:
    """Format a ratio 0..1 in percent, without the % sign."""
    return decimal(100 * ratio, digits) if known(ratio) else UNKNOWN


def whole(value: float | None) -> str:
    """Format a number without decimals."""
    return decimal(value, 0)


def count(value: int) -> str:
    """Format a count with thousands separators."""
    return f"{value:,}"


def plural(value: int, noun: str, nouns: str | None = None) -> str:
    """Format a count and its noun: "1 step", "2 steps"; `nouns` is an irregular plural."""
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {nouns or f'{noun}s'}"


def words(name: str) -> str:
    """Return a published name as words: `power_cap` is "power cap"."""
    return name.replace("_", " ")


def shorten(text: str, width: int) -> str:
    """Cut the text to `width` characters, its middle left out: names differ at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return text[:head] + ELLIPSIS + text[len(text) - (width - 1 - head) :]


def brief_name(name: str) -> str:
    """Return the telling parts of a kernel's or operator's name: its head, and what it computes.

    Namespaces, the wrappers of elementwise kernels and template arguments that only size a launch
    are left out, as is the mark of a name that was cut; of a frame in C its function stays.
    """
    if built_in := _BUILT_IN.match(name):
        return built_in[1]
    text = _NAMESPACES.sub("", _CUT.sub("", name.removeprefix("void ")))
    head, bracket, rest = text.partition("<")
    if not bracket or not head:
        return text
    inner = (i for i in _IDENTIFIER.findall(rest) if i not in _WRAPPERS and _DOES.search(i))
    return next((f"{head}<{each}>" for each in inner), text)


def holder_name(name: str) -> str:
    """Return the name of a holder as a sentence has it."""
    if name.startswith(NOTHING_OPEN):
        return f"{holder_name(name.removeprefix(NOTHING_OPEN))} (no operator open)"
    return shorten(brief_name(name), _HOLDER_WIDTH)


def spread(values: list[float], digits: int = 0) -> str:
    """Format one figure where all agree as printed, else lowest and highest: "1410-1480"."""
    if not values:
        return UNKNOWN
    low, high = decimal(min(values), digits), decimal(max(values), digits)
    return low if low == high else f"{low}-{high}"


def bar(share: float | None, width: int) -> str:
    """Draw a bar of `share` x `width` characters, in eighths; a share above 0 gets at least one."""
    if not known(share) or share <= 0:
        return ""
    eighths = min(max(round(share * width * 8), 1), width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest - 1] if rest else "")


def size(value_bytes: int) -> str:
    """Format bytes in the largest unit of which it is one: "512 B", "1.5 KiB", "70.0 GiB"."""
    value, unit = float(value_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 - (0.5 if unit == "B" else 0.05):  # as it would be printed
            break
        value, unit = value / 1024, larger
    return f"{decimal(value, 0 if unit == 'B' else 1)} {unit}"


def duration(value_s: float) -> str:
    """Format a time in s in its largest unit and the next: "3 d 4 h", "12 min 5 s", "8 s"."""
    rest_s = max(round(value_s), 0)
    parts: list[str] = []
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        number, rest_s = divmod(rest_s, length_s)
        if parts or number or unit == "s":
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])


def moment(unix_ns: int) -> str:
    """Format a Unix time as date and time to the second, UTC."""
    return f"{datetime.fromtimestamp(unix_ns // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"
