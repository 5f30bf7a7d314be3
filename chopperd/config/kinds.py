"""The values that a key of the configuration may have, and their description for people."""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from chopperd.errors import ConfigError
from chopperd.model.kinds import KERNEL_CLASSES
from chopperd.model.run import device_map_of

_LAST_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a key may have."""

    type: Any  # their type with its limits, as msgspec checks them
    allowed: str  # the allowed values, for people
    #: whether a value of that type is one; none is one that it fails on
    is_allowed: Callable[[Any], bool] = lambda _value: True

    def accepts(self, value: object) -> bool:
        """Whether `value`, as TOML gives it, is allowed."""
        try:
            msgspec.convert(value, self.type)
            return self.is_allowed(value)
        except (ValueError, OverflowError, re.error, ConfigError):
            return False

    def why_not(self, value: object) -> str:
        """What is wrong with a value, as a text that follows the key's name."""
        return f" = {value!r} is not allowed: {self.allowed}"


def number(low: float, high: float, unit: str = "") -> Kind:
    """A number in a closed range."""
    allowed = f"a number from {low:g} to {high:g} {unit}".rstrip()
    return Kind(Annotated[float, Meta(ge=low, le=high)], allowed)


def whole(low: int, high: int, what: str = "number") -> Kind:
    """A whole number in a closed range."""
    allowed = f"a whole {what} from {low} to {high}"
    return Kind(Annotated[int, Meta(ge=low, le=high)], allowed)


def size(low: int, high: int) -> Kind:
    """A whole number of bytes in a closed range."""
    return whole(low, high, "number of bytes")


def choice(*options: str) -> Kind:
    """One of a closed set of words."""
    return Kind(Literal[options], " | ".join(options))


def listed(each: Kind) -> Kind:
    """A list with entries of one kind."""
    return Kind(
        list[each.type],  # type: ignore[name-defined]
        f"a list, each entry {each.allowed}",
        lambda value: all(map(each.is_allowed, value)),
    )


def per_model(each: Kind) -> Kind:
    """A table of GPU product names and a value for each."""
    return Kind(dict[str, each.type], f'a table "GPU name" = {each.allowed}')  # type: ignore[name-defined]


def _is_listen(value: str) -> bool:
    """Whether it is an IPv4 address or an IPv6 one in brackets, and a port; or empty."""
    if value == "":
        return True
    address, _, port = value.rpartition(":")
    bare = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    is_ip = (ip_address(bare).version == 6) is (bare != address)
    return is_ip and port.isdecimal() and int(port) <= _LAST_PORT


FLAG: Final = Kind(bool, "true or false")
#: Path of a folder or a file.
FOLDER: Final = Kind(Annotated[str, Meta(pattern="^/")], "an absolute path")
NAME: Final = Kind(Annotated[str, Meta(pattern=r"\S")], "a name in quotes")
LISTEN: Final = Kind(
    str, '"ADDRESS:PORT" such as "127.0.0.1:9469" or "[::]:9469", or "" for none', _is_listen
)
PATTERNS: Final = Kind(
    list[str], "a list of regular expressions", lambda value: all(map(re.compile, value))
)
DEVICE_MAPS: Final = Kind(
    str,
    'a text such as "0=GPU-uuid,3:0=1" ([RANK:]DEVICE=GPU) or "pci"',
    lambda value: bool(device_map_of(value, "")),
)


LONGEST_PATTERN: Final = 200
#: With so few, and names cut to 256 characters, the slowest expressions take about 1 s for a name.
MOST_REPETITIONS: Final = 3

_CLASSES: Final = tuple(each.label for each in KERNEL_CLASSES)
_KEYS: Final = {"class", "pattern"}
#: An escape, a set of characters, a repetition (`open`: of no fixed number), or a group's end.
_TOKEN: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]"
    r"|(?P<repetition>(?P<open>[*+]|\{\d*,\d*\})|\{\d+\})[?+]?|\)",
    re.DOTALL,
)


class _ClassRules(Kind):
    """A list of tables `{class, pattern}`, the rules of `traces.classes`, without slow patterns."""

    def why_not(self, value: object) -> str:
        """What is wrong with the first rule that is not allowed."""
        if not isinstance(value, list):
            return Kind.why_not(self, value)
        whys = ((number, _why_not(entry)) for number, entry in enumerate(value, start=1))
        return next(f", rule {number}: {why}" for number, why in whys if why)


def _why_not(entry: object) -> str | None:
    """What is wrong with a rule; None if it is valid."""
    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        return f"{entry!r} must have class and pattern, and nothing else"
    if entry["class"] not in _CLASSES:
        return f"class {entry['class']!r} is none of {' | '.join(_CLASSES)}"
    why = _why_no_pattern(entry["pattern"])
    return None if why is None else f"pattern {entry['pattern']!r} {why}"


def _why_no_pattern(pattern: object) -> str | None:
    """What is wrong with a pattern; None if it is valid."""
    if not isinstance(pattern, str) or not pattern:
        return "is not a text"
    if len(pattern) > LONGEST_PATTERN:
        return f"has more than {LONGEST_PATTERN} characters"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # syntax that Python will interpret differently later
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        return f"is not a regular expression: {error}"
    return _why_slow(pattern)


def _why_slow(pattern: str) -> str | None:
    """Why an expression may take very long on a name that it does not match; None if it does not.

    A repeated group can double the time with every character. If only single characters are
    repeated, it grows with the name's length to the power of the number of repetitions.
    """
    repetitions = 0
    before: re.Match[str] | None = None
    for token in _TOKEN.finditer(pattern):
        behind = before is not None and before.end() == token.start() and before.group()
        if token["repetition"] and behind == ")":
            return "repeats a group, which can take forever: repeat single characters"
        repetitions += token["open"] is not None
        before = token
    if repetitions > MOST_REPETITIONS:
        return f"has more than {MOST_REPETITIONS} repetitions, which can take very long"
    return None


CLASS_RULES: Final = _ClassRules(
    list[Any],
    'a list of {class = "comm", pattern = "regular expression"}',
    lambda value: not any(map(_why_not, value)),
)
