"""The protocol of the self-test's load: its command line, and the lines that it prints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from chopperd.errors import BackendUnavailableError


class Ready(msgspec.Struct, frozen=True, tag_field="event", tag="ready"):
    """Message: the load is ready, on this device, with this data type and matrix size."""

    device: str
    torch: str
    dtype: str
    size: int


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """Message: there is no load, for this reason."""

    reason: str


class Begin(msgspec.Struct, frozen=True, tag_field="event", tag="begin"):
    """Message: a phase begins with its warm-up."""

    operand: str
    round: int


class Phase(msgspec.Struct, frozen=True, tag_field="event", tag="phase"):
    """Message: a phase is over; has its times."""

    operand: str  # "zeros" or "random"
    round: int  # number of the round, from 0
    products_a_batch: int  # matrix products between two edges
    edge_mono_ns: list[int]  # CLOCK_MONOTONIC of the first batch's start and of each batch's end


class Pulses(msgspec.Struct, frozen=True, tag_field="event", tag="pulses"):
    """Message: start and end of each pulse of load, CLOCK_MONOTONIC in ns."""

    start_mono_ns: list[int]
    end_mono_ns: list[int]


class Done(msgspec.Struct, frozen=True, tag_field="event", tag="done"):
    """Message: all phases are over."""


Said: TypeAlias = Ready | Failed | Begin | Phase | Pulses | Done

_DECODER: Final[msgspec.json.Decoder[Said]] = msgspec.json.Decoder(Said)


def decoded(line: str) -> Said:
    """Decode a line that the load printed.

    Raises:
        BackendUnavailableError: The line is not a message of the load.
    """
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise BackendUnavailableError(f"the load said {line.strip()[:200]!r}: {error}") from error


class LoadLog(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a load that ran to its end."""

    ready: Ready
    phases: list[Phase]
    pulses: Pulses


def log_of(said: list[Said]) -> LoadLog:
    """Collect the messages of a load into its log.

    Raises:
        BackendUnavailableError: The load failed, with its reason, or ended early.
    """
    failed = [each.reason for each in said if isinstance(each, Failed)]
    if failed:
        raise BackendUnavailableError(f"no load: {failed[0]}")
    ready = [each for each in said if isinstance(each, Ready)]
    pulses = [each for each in said if isinstance(each, Pulses)]
    if not (ready and pulses and any(isinstance(each, Done) for each in said)):
        raise BackendUnavailableError("the load ended before it was done")
    return LoadLog(
        ready=ready[0], phases=[each for each in said if isinstance(each, Phase)], pulses=pulses[0]
    )


#: A script of its own, that some other Python may run: it imports torch and nothing of ours.
LOAD_SCRIPT: Final = Path(__file__).with_name("load.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load: rounds of zeros, then random data, then pulses of random data."""

    device: str = "cuda"  # "cuda", or "cpu" in tests
    uuid: str | None = None  # the driver's UUID of the GPU; None takes torch's first device
    rounds: int = 2  # how often both operands run in turn, so that a slow drift (heat) cancels
    #: How long each phase runs before it is timed: the clock follows the load late.
    warm_up_s: float = 2.0
    seconds: float = 10.0  # how long each phase is timed
    pulses: int = 12  # how often the load goes on and off
    pulse_s: float = 0.3  # length of the shortest pulse

    @property
    def lasts_s(self) -> float:
        """About how long the load runs, s, without the start of torch."""
        return 2 * self.rounds * (self.warm_up_s + self.seconds) + self.pulses * self.pulse_s * 2.6

    def to_argv(self, python: str, script: Path = LOAD_SCRIPT) -> list[str]:
        """Return the command that runs the load.

        -P: files next to the script must not shadow a module.
        """
        named = {
            "--device": self.device,
            "--rounds": self.rounds,
            "--warm-up-s": self.warm_up_s,
            "--seconds": self.seconds,
            "--pulses": self.pulses,
            "--pulse-s": self.pulse_s,
            **({"--uuid": self.uuid} if self.uuid else {}),
        }
        flat = [str(part) for pair in named.items() for part in pair]
        return [python, "-P", str(script), *flat]
