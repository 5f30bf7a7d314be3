"""Settings of the sampler process, and their form on its command line."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec
from msgspec import Struct

from chopperd.errors import ConfigError

_OPTION: Final = "--settings"
#: The lowest rate of a fast loop.
LOWEST_HZ: Final = 0.1


class SamplerSettings(Struct, frozen=True, kw_only=True):
    """Rates, budgets and intervals of the sampler."""

    hz: float = 10.0  # rate of the fast loop (clock and limit reasons)
    slow_hz: float = 1.0  # rate of the slow loop (everything the device answers)
    #: Share of time that driver calls on one GPU may take before its loop slows.
    budget_ratio: float = 0.02
    #: Rate of all reads of a GPU that has been idle for `idle_after_s`; None: as any.
    idle_hz: float | None = None
    idle_after_s: float = 10.0
    history_s: float = 30.0  # how long the ring retains samples for a reader that is late
    probe_every_s: float = 60.0  # how often a lost GPU is probed
    #: How often sensors of unknown update period are probed; None: never.
    sensors_every_s: float | None = 600.0
    seed: int = 0  # draws the point of each read in its period
    processes_every_s: float = 10.0  # how often the processes on each GPU are listed
    #: How often the driver is asked for faults, and which GPUs came or went.
    watch_every_s: float = 60.0

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value}: must be {least} to {most}"
            for name, value, least, most in (
                ("hz", self.hz, LOWEST_HZ, 1000.0),
                ("slow_hz", self.slow_hz, 0.01, 1000.0),
                ("budget_ratio", self.budget_ratio, 0.0001, 1.0),
                ("idle_hz", self.idle_hz or 1.0, 0.01, 1000.0),
                ("idle_after_s", self.idle_after_s, 0.1, 3600.0),
                ("history_s", self.history_s, 1.0, 3600.0),
                ("probe_every_s", self.probe_every_s, 0.1, 3600.0),
                ("sensors_every_s", self.sensors_every_s or 600.0, 1.0, 86_400.0),
                ("processes_every_s", self.processes_every_s, 0.1, 3600.0),
                ("watch_every_s", self.watch_every_s, 0.1, 3600.0),
            )
            if not least <= value <= most
        ]
        if problems:
            raise ConfigError(problems)

    @property
    def capacity(self) -> int:
        """Number of records of each GPU in the ring: enough for `history_s`."""
        return max(256, round(self.hz * self.history_s))

    def to_argv(self) -> list[str]:
        """Encode the settings as command line arguments: `--settings JSON`."""
        return [_OPTION, msgspec.json.encode(self).decode()]

    @staticmethod
    def from_json(text: str) -> "SamplerSettings":
        """Decode the settings from the value of `--settings`.

        Raises:
            ConfigError: The text does not have the form that `to_argv` writes.
        """
        try:
            return msgspec.json.decode(text, type=SamplerSettings)
        except msgspec.DecodeError as error:
            raise ConfigError([f"{_OPTION}: {error}"]) from error


class ExitStatus(IntEnum):
    """Exit statuses of a sampler process that ends on purpose.

    `CHANGED`: GPUs came or went. `NO_ROOM`: there are more than the shared memory has room for.
    """

    CHANGED = 75
    NO_ROOM = 76


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Limits for when a sampler counts as hung, and how soon its successor starts."""

    start_s: float = 10.0  # most time to the first sign of life
    #: Age of driver calls on all GPUs, or of the last sign of life, that means hung.
    hung_s: float = 5.0
    #: Pauses before restarts double from 1 s up to this; the first is none.
    longest_pause_s: float = 30.0
    steady_s: float = 60.0  # a process that lasted this long is followed by one without pause
    #: Pause after a process that found no GPU, where none ever did.
    unavailable_pause_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerFailure:
    """Why the last process could not sample, its exit status, and how many failed in a row."""

    reason: str
    exit_status: int
    count: int


class Restarts:
    """Counts how sampler processes ended, and computes the pause before the next."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._quick_ends = 0
        self._failures = 0
        self.has_run = False
        self.failure: SamplerFailure | None = None

    def reset(self) -> None:
        """Forget the quick ends so far, since a start was requested."""
        self._quick_ends = 0

    def note_running(self) -> None:
        """Note that a process samples: sets `has_run`, clears `failure`."""
        self.has_run = True
        self.failure = None

    def note_failure(self, reason: str, exit_status: int, lasted_s: float) -> None:
        """Store why a process failed and count it; one that lasted `steady_s` restarts at 1."""
        self._failures = self._failures + 1 if lasted_s < self._policy.steady_s else 1
        self.failure = SamplerFailure(reason=reason, exit_status=exit_status, count=self._failures)

    def pause_s(self, lasted_s: float) -> float:
        """Count the end of a process that ran this long; return the pause before the next, s."""
        self._quick_ends = self._quick_ends + 1 if lasted_s < self._policy.steady_s else 0
        if self.failure is not None and not self.has_run:
            return self._policy.unavailable_pause_s
        if self._quick_ends <= 1:
            return 0.0
        return float(min(2.0 ** (self._quick_ends - 2), self._policy.longest_pause_s))
