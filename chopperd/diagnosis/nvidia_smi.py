"""nvidia-smi's own numbers beside ours, from one call of it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from chopperd.model.inventory import Inventory

#: Its fields, in the order of the query, each with the field of ours that it is and the factor
#: from its unit. `power.draw` is a mean of 1 s since Ampere; `memory.used` is without the reserve.
#: Source: `nvidia-smi --help-query-gpu`; all are there since driver 450.
_FIELDS: Final[Mapping[str, tuple[str, float]]] = {
    "clocks.sm": ("sm_clock_mhz", 1.0),
    "clocks.mem": ("mem_clock_mhz", 1.0),
    "power.draw": ("power_average_w", 1.0),
    "temperature.gpu": ("temperature_c", 1.0),
    "memory.used": ("memory_used_bytes", float(1 << 20)),
    "utilization.gpu": ("activity_ratio", 0.01),
    "enforced.power.limit": ("power_limit_w", 1.0),
    "power.default_limit": ("power_limit_default_w", 1.0),
    "clocks.max.sm": ("sm_clock_max_mhz", 1.0),
    "clocks.max.mem": ("mem_clock_max_mhz", 1.0),
    "memory.total": ("memory_size_bytes", float(1 << 20)),
}
QUERY: Final = (f"--query-gpu=uuid,{','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")


def numbers_of(text: str) -> dict[str, dict[str, float]]:
    """The fields of each GPU in our units, by its UUID, from the answer to `QUERY`.

    What is no number ("[N/A]", "[Not Supported]", "[GPU is lost]") is left out, and so are lines
    that are not of this form.
    """
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        uuid, *cells = (cell.strip() for cell in line.split(","))
        if len(cells) != len(_FIELDS):
            continue
        found[uuid] = {
            name: float(cell) * factor
            for cell, (name, factor) in zip(cells, _FIELDS.values(), strict=True)
            if _NUMBER.fullmatch(cell)
        }
    return found


def beside(inventory: Inventory, numbers: Mapping[str, Mapping[str, float]]) -> Inventory:
    """The inventory with nvidia-smi's numbers at the GPUs that it knows."""
    return replace(
        inventory,
        gpus=tuple(
            replace(entry, nvidia_smi=numbers.get(entry.info.uuid)) for entry in inventory.gpus
        ),
    )
