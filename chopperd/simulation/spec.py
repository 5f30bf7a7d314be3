"""What names a simulation; everything else about it follows."""

from dataclasses import dataclass

import msgspec

from chopperd.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """Which simulated node: everything about it follows from these three."""

    seed: int = 0
    preset: str = "fsdp2-h100"
    start_unix_ns: int = 0

    def to_json(self) -> str:
        """The spec as it travels on a command line."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> "SimulationSpec":
        """The spec that `to_json` wrote.

        Raises:
            ConfigError: It is not what `to_json` writes.
        """
        try:
            return msgspec.json.decode(text, type=SimulationSpec)
        except msgspec.MsgspecError as error:
            raise ConfigError([f"--simulation: {error}"]) from error
