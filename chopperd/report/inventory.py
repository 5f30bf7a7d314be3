"""The GPUs of a node and which of their fields answer: what `chopperd devices` shows."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

import msgspec
from rich.console import Group, RenderableType

from chopperd.model.devices import DeviceReading
from chopperd.model.inventory import Inventory, InventoryEntry
from chopperd.report.sections import table
from chopperd.report.wording import UNKNOWN, decimal, shorten, whole

_GPUS_A_TABLE: Final = 4
_NAME_WIDTH: Final = 26


def encode_inventory(inventory: Inventory) -> bytes:
    """The inventory as indented JSON; a field that does not answer is `null`."""
    document = {
        "backend": inventory.backend,
        "driver": inventory.driver,
        "simulated": inventory.simulated,
        "gpus": [
            {"info": entry.info, "reading": _named_causes(entry.reading), "error": entry.error}
            for entry in inventory.gpus
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _named_causes(reading: DeviceReading | None) -> dict[str, object] | None:
    """A reading with its causes by label, as everywhere outside."""
    if reading is None:
        return None
    values = {field.name: getattr(reading, field.name) for field in fields(reading)}
    values["limited_ns"] = {cause.label: ns for cause, ns in reading.limited_ns.items()}
    if reading.causes is not None:
        values["causes"] = sorted(cause.label for cause in reading.causes)
    return values


def render_inventory(inventory: Inventory) -> Group:
    """A table of the GPUs, then what each field answers, for a rich console."""
    mark = "  SIMULATED" if inventory.simulated else ""
    title = f"GPUS  {inventory.backend}, driver {inventory.driver or 'version unknown'}{mark}"
    columns = ("<gpu", "<name", "<uuid", "max MHz", "limit MHz", "cap W")
    parts: list[RenderableType] = [table(title, columns, map(_identity, inventory.gpus))]
    for first in range(0, len(inventory.gpus), _GPUS_A_TABLE):
        entries = inventory.gpus[first : first + _GPUS_A_TABLE]
        names = (f"GPU {entry.info.gpu}" for entry in entries)
        parts += ["", table("FIELDS", ("<", *names), _answers(entries))]
    errors = [f"GPU {entry.info.gpu}: {entry.error}" for entry in inventory.gpus if entry.error]
    return Group(*parts, *([""] if errors else []), *errors)


def _identity(entry: InventoryEntry) -> tuple[str, ...]:
    info = entry.info
    return (
        info.gpu,
        shorten(info.name, _NAME_WIDTH),
        info.uuid,
        whole(info.sm_clock_max_mhz),
        whole(info.sm_clock_limit_mhz),
        whole(info.power_limit_w),
    )


def _answers(entries: tuple[InventoryEntry, ...]) -> Iterator[tuple[str, ...]]:
    """A row a field of a reading, a column a GPU; a dash where it does not answer."""
    for field in fields(DeviceReading):
        yield (
            field.name,
            *(_answer(getattr(e.reading, field.name) if e.reading else None) for e in entries),
        )


def _answer(value: object) -> str:
    if isinstance(value, int | float):
        return decimal(value, 0 if abs(value) >= 100 else 2)
    if isinstance(value, frozenset):
        return "+".join(sorted(cause.label for cause in value)) or "none set"
    if value:
        return "answers"
    return UNKNOWN
