"""What names a simulation; everything else about it follows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """Which simulated node: everything about it follows from these three."""

    seed: int = 0
    preset: str = "fsdp2-h100"
    start_unix_ns: int = 0
