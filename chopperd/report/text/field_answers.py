"""Field by field what a GPU answers: values, where they come from, and nvidia-smi's beside them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final

from chopperd.model.causes import CAUSES, Cause
from chopperd.model.devices import DeviceReading, FieldProbe
from chopperd.model.inventory import InventoryEntry
from chopperd.report.text.beside import differs

#: Numbers of a GPU that stand still, shown with those of a reading.
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
_UNKNOWN: Final = "-"
_UNITS: Final = ("mhz", "w", "j", "c", "bytes", "ns", "ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldAnswer:
    """One field of a GPU.

    Attributes:
        name: The field.
        value: A number, or text where it is none; None where it does not answer.
        unit: Of the number.
        used: The call that it comes from; None where the back end does not say.
        others: Other calls for it, that are not used or do not answer.
        nvidia_smi: The same by nvidia-smi.
        buffered_period_ns: How far apart the driver's own values of it are.
    """

    name: str
    value: float | str | None
    unit: str | None = None
    used: FieldProbe | None = None
    others: tuple[FieldProbe, ...] = ()
    nvidia_smi: float | None = None
    buffered_period_ns: int | None = None

    @property
    def differs(self) -> bool | None:
        """Whether nvidia-smi's number is another one; None where one of the two is not known."""
        if self.nvidia_smi is None or not isinstance(self.value, int | float):
            return None
        return differs(self.name, self.value, self.nvidia_smi)


def field_answers(entry: InventoryEntry) -> Iterator[FieldAnswer]:
    """Each field of a GPU, those of its reading first, then what stands still."""
    calls: dict[str, list[FieldProbe]] = {}
    for probe in entry.probes:
        if probe.feeds is not None:
            calls.setdefault(probe.feeds, []).append(probe)
    for name, value in (*_reading_values(entry.reading, calls), *_fixed_values(entry)):
        asked = calls.get(name, [])
        used = next((each for each in asked if each.used), None)
        yield FieldAnswer(
            name=name,
            value=value,
            unit=unit_of(name),
            used=used,
            others=tuple(each for each in asked if each is not used),
            nvidia_smi=_theirs(name, entry.nvidia_smi or {}, entry),
            buffered_period_ns=entry.buffered_period_ns.get(name),
        )


def other_calls(entry: InventoryEntry) -> tuple[FieldProbe, ...]:
    """Calls whose answers are for no field: only whether they answer is known."""
    return tuple(probe for probe in entry.probes if probe.feeds is None)


def _reading_values(
    reading: DeviceReading | None, asked: Collection[str]
) -> Iterator[tuple[str, float | str | None]]:
    for field in fields(DeviceReading):
        value = getattr(reading, field.name) if reading else None
        if isinstance(value, frozenset):
            yield field.name, "+".join(sorted(cause.label for cause in value)) or "none set"
        elif field.name == "limited_ns":
            yield from _counters(field.name, value or {}, asked)
        elif field.name == "die_clocks_mhz":
            yield from _dies(field.name, value or ())
        else:
            yield field.name, value


def _dies(field: str, clocks_mhz: tuple[float | None, ...]) -> Iterator[tuple[str, str]]:
    """The clocks of a GPU that has several dies, in one line; those it doesn't have hold a dash."""
    if clocks_mhz:
        shown = (_UNKNOWN if clock_mhz is None else f"{clock_mhz:g}" for clock_mhz in clocks_mhz)
        yield field, " ".join(shown)


def _counters(
    field: str, limited_ns: Mapping[Cause, int], asked: Collection[str]
) -> Iterator[tuple[str, int | None]]:
    """A field for each cause that has a counter or was asked for one; one in all if none has."""
    by_name = {f"{field}.{cause.label}": limited_ns.get(cause) for cause in CAUSES}
    named = [name for name, value in by_name.items() if value is not None or name in asked]
    yield from ((name, by_name[name]) for name in named)
    if not named:
        yield field, None


def _fixed_values(entry: InventoryEntry) -> Iterator[tuple[str, float | None]]:
    return ((name, getattr(entry.info, name)) for name in _FIXED)


def _theirs(name: str, numbers: Mapping[str, float], entry: InventoryEntry) -> float | None:
    """nvidia-smi's number of a field; its power is a mean, also where we have no other."""
    if name == "power_w" and entry.info.power_source == "average_1s":
        return numbers.get("power_average_w")
    return numbers.get(name)


def unit_of(name: str) -> str | None:
    """The unit in a field's name; None where it is no number."""
    suffix = name.partition(".")[0].rpartition("_")[2]
    return suffix if suffix in _UNITS else None
