"""Render the GPUs of a node and the values of their fields: `chopperd devices`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType

from chopperd.model.devices import DeviceReading, FieldProbe, Inventory, InventoryEntry, ProcessView
from chopperd.model.kinds import CAUSES, Cause
from chopperd.report.text.page import table
from chopperd.report.text.wording import UNKNOWN, decimal, shorten, whole
from chopperd.units import NS_PER_MS, NS_PER_S, NS_PER_US

#: By how much two programs that read a sensor a moment apart may differ: a share of the larger
#: value, or an amount. Fields that don't change have room for rounding only.
_TOLERANCES: Final[Mapping[str, tuple[float, float]]] = {
    "sm_clock_mhz": (0.1, 60.0),
    "mem_clock_mhz": (0.02, 30.0),
    "power_average_w": (0.1, 10.0),
    "power_w": (0.25, 25.0),
    "temperature_c": (0.0, 3.0),
    "memory_used_bytes": (0.02, 64 * 2**20),
    "activity_ratio": (0.0, 0.3),
}
_ROUNDING: Final = (0.005, 1.0)


def differs(name: str, ours: float, theirs: float) -> bool:
    """Whether two values of a field are further apart than the time between the reads explains."""
    ratio, amount = _TOLERANCES.get(name, _ROUNDING)
    return abs(ours - theirs) > max(amount, ratio * max(abs(ours), abs(theirs)))


#: Constant numbers of a GPU, shown with those of a reading.
_FIXED: Final = (
    "sm_clock_max_mhz",
    "sm_clock_limit_mhz",
    "mem_clock_max_mhz",
    "power_limit_default_w",
    "memory_size_bytes",
    "temperature_slowdown_c",
    "temperature_shutdown_c",
    "temperature_memory_max_c",
)
_UNITS: Final = ("mhz", "w", "j", "c", "bytes", "ns", "ratio")


class FieldAnswer(Struct, frozen=True, kw_only=True):
    """The value of one field of a GPU, and the driver calls for it."""

    name: str
    value: float | str | None  # None where the driver does not report it
    used: FieldProbe | None = None  # the call for it; None where the back end does not say
    others: tuple[FieldProbe, ...] = ()  # calls that are not used, or fail
    nvidia_smi: float | None = None  # the same by nvidia-smi
    buffered_period_ns: int | None = None  # between two values that the driver itself buffers

    @property
    def differs(self) -> bool | None:
        """Whether nvidia-smi's number differs from ours; None where one of the two is unknown."""
        if self.nvidia_smi is None or not isinstance(self.value, int | float):
            return None
        return differs(self.name, self.value, self.nvidia_smi)


def field_answers(entry: InventoryEntry) -> Iterator[FieldAnswer]:
    """Yield each field of a GPU, those of its reading first, then the constant ones."""
    calls: dict[str, list[FieldProbe]] = {}
    for probe in entry.probes:
        if probe.feeds is not None:
            calls.setdefault(probe.feeds, []).append(probe)
    fixed = ((name, getattr(entry.info, name)) for name in _FIXED)
    for name, value in (*_reading_values(entry.reading, calls), *fixed):
        asked = calls.get(name, [])
        used = next((each for each in asked if each.used), None)
        yield FieldAnswer(
            name=name,
            value=value,
            used=used,
            others=tuple(each for each in asked if each is not used),
            nvidia_smi=_theirs(name, entry.nvidia_smi or {}, entry),
            buffered_period_ns=entry.buffered_period_ns.get(name),
        )


def _reading_values(
    reading: DeviceReading | None, asked: Collection[str]
) -> Iterator[tuple[str, float | str | None]]:
    for name in DeviceReading.__struct_fields__:
        value = getattr(reading, name) if reading else None
        if isinstance(value, frozenset):
            yield name, "+".join(sorted(cause.label for cause in value)) or "none set"
        elif name == "limited_ns":
            yield from _counters(name, value or {}, asked)
        elif name == "die_clocks_mhz":  # in one line
            shown = [UNKNOWN if each is None else f"{each:g}" for each in value or ()]
            yield from [(name, " ".join(shown))] if shown else []
        else:
            yield name, value


def _counters(
    field: str, limited_ns: Mapping[Cause, int], asked: Collection[str]
) -> Iterator[tuple[str, int | None]]:
    """Yield a field for each cause that has a counter or was asked for; if none, a single one."""
    by_name = {f"{field}.{cause.label}": limited_ns.get(cause) for cause in CAUSES}
    named = {name: v for name, v in by_name.items() if v is not None or name in asked}
    yield from (named or {field: None}).items()


def _theirs(name: str, numbers: Mapping[str, float], entry: InventoryEntry) -> float | None:
    """Return nvidia-smi's number for a field; its average power where ours is one too."""
    if name == "power_w" and entry.info.power_source == "average_1s":
        return numbers.get("power_average_w")
    return numbers.get(name)


def unit_of(name: str) -> str | None:
    """Return the unit in a field's name; None if it has none."""
    suffix = name.partition(".")[0].rpartition("_")[2]
    return suffix if suffix in _UNITS else None


_GPUS_A_TABLE: Final = 4
_NAME_WIDTH: Final = 22
_REASON_WIDTH: Final = 30
_BYTES_PER_MIB: Final = 1 << 20
_COLUMNS: Final = ("<", "value", "nvidia-smi", "p50/p99 us", "<by")
_CAPTION: Final = (
    "! differs from nvidia-smi's by more than two moments explain; -: does not answer; "
    "* not used\n"
    "p50/p99: time of one driver call; kept every: how far apart the driver's own values are"
)
_OPERATION_PREFIXES: Final = ("nvmlDevice", "nvml")


def encode_inventory(inventory: Inventory) -> bytes:
    """Encode the inventory as indented JSON; a field that does not answer is `null`."""
    facts = ("backend", "driver", "chosen", "simulated", "processes")
    document = {name: getattr(inventory, name) for name in facts}
    document["gpus"] = [
        {
            "info": entry.info,
            "reading": _named_causes(entry.reading),
            "error": entry.error,
            "fields": [_described(answer) for answer in field_answers(entry)],
            "calls": entry.probes,
        }
        for entry in inventory.gpus
    ]
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _described(answer: FieldAnswer) -> dict[str, object]:
    failed = [f"{each.operation}: {each.error}" for each in answer.others if each.error]
    return {
        "name": answer.name,
        "value": answer.value,
        "unit": unit_of(answer.name),
        "source": answer.used.operation if answer.used else None,
        "reason": "; ".join(failed) or None if answer.value is None else None,
        "nvidia_smi": answer.nvidia_smi,
        "differs": answer.differs,
        "call_p50_ns": answer.used.call_p50_ns if answer.used else None,
        "call_p99_ns": answer.used.call_p99_ns if answer.used else None,
        "buffered_period_ns": answer.buffered_period_ns,
    }


def _named_causes(reading: DeviceReading | None) -> dict[str, object] | None:
    if reading is None:
        return None
    values = {name: getattr(reading, name) for name in reading.__struct_fields__}
    values["limited_ns"] = {cause.label: ns for cause, ns in reading.limited_ns.items()}
    if reading.causes is not None:
        values["causes"] = sorted(cause.label for cause in reading.causes)
    return values


def process_words(view: ProcessView) -> str:
    """Return one line on the visibility of the processes on the GPUs."""
    if view.listed_count is None:
        listed = "the driver lists none for this user"
    elif not view.listed_count:
        listed = "the driver lists none now"
    else:
        listed = f"the driver lists {view.listed_count}, {view.seen_count} of them seen in /proc"
    if view.own_namespace:
        listed += "; a pid namespace of its own: processes outside it are not seen"
    read = "can" if view.environments else "can't"
    return f"{listed}; environments of others {read} be read"


def render_inventory(inventory: Inventory) -> Group:
    """Render a table of the GPUs, partitions below their card, then the fields of each."""
    mark = "  SIMULATED" if inventory.simulated else ""
    title = f"GPUS  {inventory.backend}, driver {inventory.driver or 'version unknown'}{mark}"
    columns = ("<gpu", "<name", "<uuid", "max MHz", "cap W", "default W")
    entries = tuple(_in_families(inventory))
    parts: list[RenderableType] = [table(title, columns, map(_identity, entries))]
    if any(entry.probes or entry.nvidia_smi for entry in entries):
        for entry in entries:
            parts += ["", _fields_table(entry)]
        parts.append(_CAPTION)
    else:
        for first in range(0, len(entries), _GPUS_A_TABLE):
            parts += ["", _side_by_side(entries[first : first + _GPUS_A_TABLE])]
    errors = [entry.failure for entry in entries if entry.failure]
    if inventory.chosen:
        parts += ["", inventory.chosen]
    if inventory.processes is not None:
        parts += ["", f"PROCESSES  {process_words(inventory.processes)}"]
    return Group(*parts, *([""] if errors else []), *errors)


def _in_families(inventory: Inventory) -> Iterator[InventoryEntry]:
    """Yield the GPUs, each followed by its partitions; those of unlisted cards in their place."""
    labels = {entry.info.gpu for entry in inventory.gpus}
    for entry in inventory.gpus:
        if entry.info.parent not in labels:
            yield entry
            yield from (e for e in inventory.gpus if e.info.parent == entry.info.gpu)


def _identity(entry: InventoryEntry) -> tuple[str, ...]:
    info = entry.info
    return (
        info.gpu if info.parent is None else f"  {info.gpu}",
        shorten(info.name, _NAME_WIDTH),
        info.uuid,
        whole(info.sm_clock_max_mhz),
        whole(info.power_limit_w),
        whole(info.power_limit_default_w),
    )


def _side_by_side(entries: Sequence[InventoryEntry]) -> RenderableType:
    """Render a row per field, a column per GPU: for a back end without sources of its values."""
    values = [{each.name: each.value for each in field_answers(entry)} for entry in entries]
    names = list(dict.fromkeys(name for each in values for name in each))
    columns = ("<", *(f"GPU {entry.info.gpu}" for entry in entries))
    rows = ((name, *(_shown(name, each.get(name)) for each in values)) for name in names)
    return table("FIELDS", columns, rows)


def _fields_table(entry: InventoryEntry) -> RenderableType:
    info = entry.info
    if entry.reading is None:
        return f"GPU {info.gpu}  does not answer"
    facts = (
        f"GPU {info.gpu}",
        f"part of GPU {info.parent}, with its clock" if info.parent is not None else "",
        f"power {info.power_source}" if info.power_source else "",
        f"memory {info.memory_source}" if info.memory_source else "",
    )
    return table("  ".join(filter(None, facts)), _COLUMNS, _field_rows(entry))


def _field_rows(entry: InventoryEntry) -> Iterator[tuple[str, ...]]:
    for answer in field_answers(entry):
        others = list(answer.others)
        first = answer.used or (others.pop(0) if others else None)
        period_ns = answer.buffered_period_ns
        every = f", kept every {decimal(period_ns / NS_PER_MS, 1)} ms" if period_ns else ""
        yield (
            answer.name,
            _shown(answer.name, answer.value),
            _shown(answer.name, answer.nvidia_smi) + (" !" if answer.differs else ""),
            _costs(first),
            _call(first) + every,
        )
        yield from (("", "", "", _costs(other), _call(other)) for other in others)
    other_calls = (call for call in entry.probes if call.feeds is None)
    yield from (("", "", "", _costs(call), _call(call)) for call in other_calls)


def _shown(name: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or UNKNOWN
    if unit_of(name) == "bytes":
        return f"{decimal(value / _BYTES_PER_MIB, 0)} MiB"
    if unit_of(name) == "ns":
        return f"{decimal(value / NS_PER_S, 3)} s"
    return decimal(value, 0 if abs(value) >= 100 or value == int(value) else 2)


def _costs(probe: FieldProbe | None) -> str:
    """Format median and 99th percentile of a call's time, in us."""
    if probe is None or probe.call_p50_ns is None or probe.call_p99_ns is None:
        return UNKNOWN
    p50_us, p99_us = probe.call_p50_ns / NS_PER_US, probe.call_p99_ns / NS_PER_US
    return f"{decimal(p50_us, 1)}/{decimal(p99_us, 1)}"


def _call(probe: FieldProbe | None) -> str:
    if probe is None:
        return UNKNOWN
    name = probe.operation
    for prefix in _OPERATION_PREFIXES:
        name = name.removeprefix(prefix)
    source = f" ({probe.source})" if probe.source else ""
    if probe.error is not None:
        return f"{name}: {shorten(probe.error, _REASON_WIDTH)}"
    return f"{'' if probe.used else '* '}{name}{source}"
