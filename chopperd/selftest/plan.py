"""How long the load of a self-test runs, and as what command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: A script of its own, that some other Python may run: it imports torch and nothing of ours.
LOAD_SCRIPT: Final = Path(__file__).with_name("load.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load: rounds of zeros, then random data, then pulses of random data.

    Attributes:
        device: "cuda", or "cpu" in tests.
        uuid: The driver's UUID of the GPU; None takes torch's first device.
        rounds: How often both operands have their turn, so that a slow drift (heat) cancels.
        warm_up_s: How long each phase runs before it is timed: the clock follows the load late.
        seconds: How long each phase is timed.
        pulses: How often the load goes on and off.
        pulse_s: The shortest of these pulses.
    """

    device: str = "cuda"
    uuid: str | None = None
    rounds: int = 2
    warm_up_s: float = 2.0
    seconds: float = 10.0
    pulses: int = 12
    pulse_s: float = 0.3

    @property
    def lasts_s(self) -> float:
        """About how long it runs, without the start of torch."""
        return 2 * self.rounds * (self.warm_up_s + self.seconds) + self.pulses * self.pulse_s * 2.6

    def to_argv(self, python: str, script: Path = LOAD_SCRIPT) -> list[str]:
        """What starts it. -P: what lies beside the script must not shadow a module."""
        named = {
            "--device": self.device,
            "--rounds": self.rounds,
            "--warm-up-s": self.warm_up_s,
            "--seconds": self.seconds,
            "--pulses": self.pulses,
            "--pulse-s": self.pulse_s,
            **({"--uuid": self.uuid} if self.uuid else {}),
        }
        return [python, "-P", str(script), *_flat(named)]


def _flat(named: dict[str, object]) -> Sequence[str]:
    return [str(part) for pair in named.items() for part in pair]
