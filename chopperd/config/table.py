"""The table of configuration keys: type, allowed values, default and help; and their checks."""

import re
import warnings
from collections.abc import Callable
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from chopperd.errors import ConfigError
from chopperd.model.kinds import KERNEL_CLASSES
from chopperd.model.run import device_map_of

# The values that a key of the configuration may have, and their description for people.

_LAST_PORT: Final = 65535


class Kind(Struct, frozen=True):
    """The values that a key may have."""

    type: Any  # their type with its limits, as msgspec checks them
    allowed: str  # the allowed values, for people
    #: whether a value of that type is one; none is one that it fails on
    is_allowed: Callable[[Any], bool] = lambda _value: True
    #: what is wrong with a value, as a text that follows the key's name; None: by `allowed`
    why: Callable[[object], str | None] = lambda _value: None

    def accepts(self, value: object) -> bool:
        """Whether `value`, as TOML gives it, is allowed."""
        try:
            msgspec.convert(value, self.type)
            return self.is_allowed(value)
        except (ValueError, OverflowError, re.error, ConfigError):
            return False

    def why_not(self, value: object) -> str:
        """What is wrong with a value, as a text that follows the key's name."""
        return self.why(value) or f" = {value!r} is not allowed: {self.allowed}"


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


def _why_no_rules(value: object) -> str | None:
    """What is wrong with the first rule of `traces.classes` that is not allowed."""
    if not isinstance(value, list):
        return None
    whys = ((number, _why_not(entry)) for number, entry in enumerate(value, start=1))
    return next(f", rule {number}: {why}" for number, why in whys if why)


def _why_not(entry: object) -> str | None:
    """What is wrong with a rule; None if it is valid."""
    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        return f"{entry!r} must have class and pattern, and nothing else"
    if entry["class"] not in _CLASSES:
        return f"class {entry['class']!r} is none of {' | '.join(_CLASSES)}"
    why = why_no_pattern(entry["pattern"])
    return None if why is None else f"pattern {entry['pattern']!r} {why}"


def why_no_pattern(pattern: object) -> str | None:
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


PATTERN: Final = Kind(
    str,
    f"a regular expression of at most {LONGEST_PATTERN} characters",
    lambda value: why_no_pattern(value) is None,
    lambda value: f" {why_no_pattern(value)}",
)
CLASS_RULES: Final = Kind(
    list[Any],
    'a list of {class = "comm", pattern = "regular expression"}',
    lambda value: not any(map(_why_not, value)),
    _why_no_rules,
)


# The one table of all keys: type, allowed values, default and help.


class Setting(Struct, frozen=True, kw_only=True):
    """A key of the configuration; `default` None means "not set"."""

    key: str
    kind: Kind
    default: object
    help: str


_RATE: Final = number(0.1, 1000, "Hz")
_BUDGET: Final = number(0.0001, 0.5)
_CLOCK: Final = number(100, 10_000, "MHz")
_SIZE: Final = size(1024, 2**42)
_DAYS: Final = number(0.01, 3650, "days")
_MIB: Final = 2**20
_GIB: Final = 2**30

SETTINGS: Final = tuple(
    Setting(key=key, kind=kind, default=default, help=help_text)
    for key, kind, default, help_text in (
        ("node.name", NAME, None, "name of this node; default: its host name"),
        ("paths.state", FOLDER, None, "inbox, store, recorder; /var/lib/chopperd if writable"),
        ("paths.runtime", FOLDER, None, "socket and pause file; /run/chopperd if writable"),
        ("sampling.backend", NAME, "auto", "driver to read GPUs through; auto: one that works"),
        ("sampling.hz", _RATE, 10.0, "reads of clock and limits a second"),
        ("sampling.slow_hz", number(0.1, 10, "Hz"), 1.0, "reads of everything else a second"),
        ("sampling.record_hz", _RATE, 100.0, "reads a second under `chopperd record`"),
        ("sampling.record_slow_hz", _RATE, 10.0, "reads of everything else a second under it"),
        ("sampling.driver_budget_ratio", _BUDGET, 0.002, "most time in driver calls, per GPU"),
        ("sampling.record_driver_budget_ratio", _BUDGET, 0.02, "the same under `record`"),
        ("sampling.idle_hz", _RATE, 1.0, "reads a second of a GPU that is idle for 10 s"),
        ("sampling.record_idle_hz", _RATE, None, "the same under `record`; default: as if busy"),
        ("sampling.burst_hz", _RATE, 100.0, "no effect yet: reads a second during captures"),
        (
            "sampling.burst_max_s",
            number(1, 60, "s"),
            60.0,
            "no effect yet: longest time at that rate",
        ),
        (
            "sampling.burst_driver_budget_ratio",
            _BUDGET,
            0.02,
            "no effect yet: most time in calls at that rate",
        ),
        (
            "sampling.self_test_ratio",
            number(0, 0.1),
            0.02,
            "no effect yet: share of time without sampling; 0: never",
        ),
        ("ingest.max_stored_bytes", _SIZE, 8 * _GIB, "largest trace file, as stored"),
        ("ingest.max_decompressed_bytes", _SIZE, 32 * _GIB, "largest trace, decompressed"),
        ("ingest.roots", listed(FOLDER), [], "folders of files for POST /traces?path="),
        ("ingest.settle_s", number(0.1, 3600, "s"), 2.0, "a file is read when unchanged so long"),
        ("ingest.keep_failed", whole(0, 1000), 5, "newest rejected traces to retain, with reason"),
        ("analysis.mode", choice("here", "off", "spool"), "here", "what is done with traces"),
        ("analysis.memory_max_bytes", size(64 * _MIB, 2**42), _GIB, "most memory of the worker"),
        ("analysis.timeout_s", number(1, 86_400, "s"), 900.0, "longest time for one trace"),
        ("analysis.idle_s", number(0, 3600, "s"), 30.0, "idle time after which the worker ends"),
        ("analysis.keep_traces", FLAG, False, "retain traces after their analysis"),
        ("analysis.spool_max_bytes", _SIZE, 2 * _GIB, "most disk for pending and retained traces"),
        ("store.max_bytes", size(_MIB, 2**42), 512 * _MIB, "most disk for steps and reports"),
        ("store.max_days", _DAYS, 14.0, "how long steps and reports are stored"),
        ("store.min_free_ratio", number(0, 0.5), 0.05, "share of the disk that must stay free"),
        ("recorder.max_bytes", size(_MIB, 2**42), 512 * _MIB, "most disk for samples"),
        ("recorder.max_days", _DAYS, 7.0, "how long samples are stored"),
        ("metrics.listen", LISTEN, "127.0.0.1:9469", "where Prometheus scrapes /metrics"),
        ("metrics.profile", choice("minimal", "standard", "full"), "standard", "which metrics"),
        ("api.listen", LISTEN, "127.0.0.1:9470", "address of the API, next to its socket"),
        ("api.admin_group", NAME, "chopperd", "group that may see all jobs, pause and upload"),
        ("api.token_file", FOLDER, None, "file with a token that makes its bearer an admin"),
        ("api.allowed_hosts", listed(NAME), [], "host names to answer to, besides localhost"),
        ("api.insecure", FLAG, False, "let the API listen beyond loopback without TLS"),
        ("health.fail_on_lost_driver", FLAG, False, "unhealthy when a driver stays lost"),
        (
            "traces.device_map",
            DEVICE_MAPS,
            None,
            "GPU of each device in traces: [RANK:]DEVICE=GPU,... or pci",
        ),
        ("traces.data_wait_patterns", PATTERNS, [], "more spans that wait for data"),
        ("traces.step_marker", PATTERN, None, "annotations that mark steps, before any others"),
        ("traces.classes", CLASS_RULES, [], "classes of own kernels, before the built-in ones"),
        ("reference.sm_clock_mhz", _CLOCK, None, "reference clock of every GPU"),
        ("reference.limit_mhz", _CLOCK, None, "clock that the GPUs are locked or limited to"),
        ("reference.models", per_model(_CLOCK), {}, "reference clock by product name"),
        ("privacy.names", choice("full", "hashed", "classes"), "full", "names in what is shown"),
    )
)
