"""What values a key of the configuration takes, and how that is said to people."""

import re
import warnings
from dataclasses import dataclass
from ipaddress import ip_address
from math import isfinite
from pathlib import PurePosixPath
from typing import Final, Protocol, runtime_checkable

from chopperd.errors import ConfigError
from chopperd.model.kinds import KERNEL_CLASSES
from chopperd.model.run import device_map_of

_LAST_PORT: Final = 65535


class Kind(Protocol):
    """What values a key takes."""

    @property
    def allowed(self) -> str:
        """The allowed values, for people."""
        ...

    def accepts(self, value: object) -> bool:
        """Whether `value`, as TOML gives it, is allowed."""
        ...


@runtime_checkable
class Explaining(Protocol):
    """A kind that can say what is wrong with a value, where the allowed ones say too little."""

    def why_not(self, value: object) -> str | None:
        """What is wrong, to be put behind the key's name; None if nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a closed range."""

    low: float
    high: float
    unit: str = ""

    @property
    def allowed(self) -> str:
        """The range with its unit."""
        return f"a number from {self.low:g} to {self.high:g} {self.unit}".rstrip()

    def accepts(self, value: object) -> bool:
        """Whether it is a number, not a truth value, in the range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return isfinite(value) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Size:
    """A whole number of bytes in a closed range."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        """The range in bytes."""
        return f"a whole number of bytes from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        """Whether it is whole and in the range."""
        return type(value) is int and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number in a closed range."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        """The range."""
        return f"a whole number from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        """Whether it is whole and in the range."""
        return type(value) is int and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    allowed: str = "true or false"

    def accepts(self, value: object) -> bool:
        """Whether it is a truth value."""
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Folder:
    """The absolute path of a folder, or of a file in one."""

    allowed: str = "an absolute path"

    def accepts(self, value: object) -> bool:
        """Whether it is an absolute path."""
        return isinstance(value, str) and PurePosixPath(value).is_absolute()


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, every entry of which is of one kind."""

    each: Kind

    @property
    def allowed(self) -> str:
        """The form of the list."""
        return f"a list, each entry {self.each.allowed}"

    def accepts(self, value: object) -> bool:
        """Whether it is a list of allowed entries."""
        return isinstance(value, list) and all(map(self.each.accepts, value))


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen: `address:port` with a numeric address, port 0 for any; "" for nowhere."""

    allowed: str = '"ADDRESS:PORT" such as "127.0.0.1:9469" or "[::]:9469", or "" for none'

    def accepts(self, value: object) -> bool:
        """Whether it is an IP address and a port, or empty."""
        if not isinstance(value, str):
            return False
        address, _, port = value.rpartition(":")
        return value == "" or (_is_ip(address) and port.isdecimal() and int(port) <= _LAST_PORT)


@dataclass(frozen=True, slots=True)
class Name:
    """Any text that is not empty."""

    allowed: str = "a name in quotes"

    def accepts(self, value: object) -> bool:
        """Whether it is text with something in it."""
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a closed set of words."""

    options: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """The words."""
        return " | ".join(self.options)

    def accepts(self, value: object) -> bool:
        """Whether it is one of the words."""
        return value in self.options


@dataclass(frozen=True, slots=True)
class Patterns:
    """A list of regular expressions."""

    allowed: str = "a list of regular expressions"

    def accepts(self, value: object) -> bool:
        """Whether it is a list in which every entry compiles."""
        return isinstance(value, list) and all(map(_compiles, value))


@dataclass(frozen=True, slots=True)
class DeviceMaps:
    """Which GPU each device of a trace is."""

    allowed: str = 'a text such as "0=GPU-uuid,3:0=1" ([RANK:]DEVICE=GPU) or "pci"'

    def accepts(self, value: object) -> bool:
        """Whether every part of the text is understood."""
        try:
            return isinstance(value, str) and bool(device_map_of(value, ""))
        except ConfigError:
            return False


@dataclass(frozen=True, slots=True)
class PerModel:
    """A table of GPU product names and a number for each."""

    each: Number

    @property
    def allowed(self) -> str:
        """The form of the table."""
        return f'a table "GPU name" = {self.each.allowed}'

    def accepts(self, value: object) -> bool:
        """Whether every number of the table is allowed."""
        return isinstance(value, dict) and all(map(self.each.accepts, value.values()))


def _compiles(pattern: object) -> bool:
    try:
        return isinstance(pattern, str) and bool(re.compile(pattern))
    except re.error:
        return False


def _is_ip(text: str) -> bool:
    """Whether it is an IPv4 address, or an IPv6 address in brackets."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return (ip_address(bare).version == 6) is (bare != text)
    except ValueError:
        return False


# A site's own kernel classes in the configuration: which rules are taken, and why others are not.
#
# What the rules are good for is in `traces.class_table`, which this does not know.

LONGEST_PATTERN: Final = 200
#: With so few, and names cut to 256 characters, a slow expression takes about a second a name.
MOST_REPETITIONS: Final = 3

_CLASSES: Final = tuple(each.label for each in KERNEL_CLASSES)
_KEYS: Final = {"class", "pattern"}
#: An escape, a set of characters, a repetition (`open`: of no fixed number), or a group's end.
_TOKEN: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]"
    r"|(?P<repetition>(?P<open>[*+]|\{\d*,\d*\})|\{\d+\})[?+]?|\)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ClassRules:
    """A list of tables `{class, pattern}`; patterns known to take forever are refused."""

    allowed: str = 'a list of {class = "comm", pattern = "regular expression"}'

    def accepts(self, value: object) -> bool:
        """Whether every entry is a rule."""
        return self.why_not(value) is None

    def why_not(self, value: object) -> str | None:
        """What is wrong, to be put behind the key's name; None if nothing is."""
        if not isinstance(value, list):
            return f" = {value!r} is not allowed: {self.allowed}"
        whys = ((number, _why_not(entry)) for number, entry in enumerate(value, start=1))
        return next((f", rule {number}: {why}" for number, why in whys if why), None)


def _why_not(entry: object) -> str | None:
    """What is wrong with one rule; None if nothing is."""
    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        return f"{entry!r} does not have class and pattern, and nothing else"
    if entry["class"] not in _CLASSES:
        return f"class {entry['class']!r} is none of {' | '.join(_CLASSES)}"
    why = _why_no_pattern(entry["pattern"])
    return None if why is None else f"pattern {entry['pattern']!r} {why}"


def _why_no_pattern(pattern: object) -> str | None:
    """What is wrong with a pattern; None if nothing is."""
    if not isinstance(pattern, str) or not pattern:
        return "is no text"
    if len(pattern) > LONGEST_PATTERN:
        return f"has more than {LONGEST_PATTERN} characters"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python will read in another way one day
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        return f"is no regular expression: {error}"
    return _why_slow(pattern)


def _why_slow(pattern: str) -> str | None:
    """Why an expression may take very long on a name that it does not fit; None if no reason is.

    A repeated group can double the time with every character. Where only single characters are
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
