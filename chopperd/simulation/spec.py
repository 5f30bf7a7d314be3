"""What names a simulation; everything else about it follows."""

from dataclasses import dataclass

import msgspec

from chopperd.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """Which simulated node: everything about it follows from the first three.

    Attributes:
        seed, preset, start_unix_ns: Which course of events, on which node, from when.
        host: What the job's processes call the machine.
        pids: Real processes that stand for the job's ranks, in their order: the back end lists them
            and the traces bear their numbers, so that a rank's GPU is found as of any job. Without
            any the traces name it themselves, as the job hook writes it.
    """

    seed: int = 0
    preset: str = "fsdp2-h100"
    start_unix_ns: int = 0
    host: str = "simulated-node"
    pids: tuple[int, ...] = ()

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
