"""Decides when the next sampler process starts after one ended; starts nothing itself.

Loads no numpy: the agent starts its first sampler before it imports what takes long.
"""

from enum import IntEnum

from msgspec import Struct


class ExitStatus(IntEnum):
    """Exit statuses of a sampler process that ends on purpose.

    `CHANGED`: GPUs came or went. `NO_ROOM`: there are more than the shared memory has room for.
    """

    CHANGED = 75
    NO_ROOM = 76


class RestartPolicy(Struct, frozen=True, kw_only=True):
    """Limits for when a sampler counts as hung, and how soon its successor starts."""

    start_s: float = 10.0  # most time to the first sign of life
    #: Age of driver calls on all GPUs, or of the last sign of life, that means hung.
    hung_s: float = 5.0
    #: Pauses before restarts double from 1 s up to this; the first is none.
    longest_pause_s: float = 30.0
    steady_s: float = 60.0  # a process that lasted this long is followed by one without pause
    #: Pause after a process that found no GPU, where none ever did.
    unavailable_pause_s: float = 60.0


class SamplerFailure(Struct, frozen=True, kw_only=True):
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
