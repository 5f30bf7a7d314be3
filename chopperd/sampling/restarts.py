"""When a sampler process that ended is followed by the next; nothing is started here.

Loads no numpy: the agent starts its first sampler before it imports what takes long.
"""

from dataclasses import dataclass
from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses of a sampler process that ends on purpose.

    `CHANGED`: GPUs came or went. `NO_ROOM`: there are more than the shared memory has room for.
    """

    CHANGED = 75
    NO_ROOM = 76


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a sampler counts as hung, and how soon its successor starts.

    Attributes:
        start_s: Most time to the first sign of life.
        hung_s: Age of driver calls on all GPUs, or of the last sign of life, that means hung.
        longest_pause_s: Pauses before restarts double from 1 s up to this; the first is none.
        steady_s: A process that lasted this long is followed by one without pause.
        unavailable_pause_s: Pause after a process that found no GPU, where none ever did.
    """

    start_s: float = 10.0
    hung_s: float = 5.0
    longest_pause_s: float = 30.0
    steady_s: float = 60.0
    unavailable_pause_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerFailure:
    """Why the last process could not sample, its exit status, and how many in a row failed."""

    reason: str
    exit_status: int
    count: int


class Restarts:
    """How the processes so far have ended, and the pause before the next."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._quick_ends = 0
        self._failures = 0
        self.has_run = False
        self.failure: SamplerFailure | None = None

    def reset(self) -> None:
        """Forget the ends so far: a start was requested."""
        self._quick_ends = 0

    def note_running(self) -> None:
        """A process samples."""
        self.has_run = True
        self.failure = None

    def note_failure(self, reason: str, exit_status: int, lasted_s: float) -> None:
        """Count a process that reported a failure and ended; one that lasted begins the count."""
        self._failures = self._failures + 1 if lasted_s < self._policy.steady_s else 1
        self.failure = SamplerFailure(reason=reason, exit_status=exit_status, count=self._failures)

    def pause_s(self, lasted_s: float) -> float:
        """The pause after a process that ended after this time."""
        self._quick_ends = self._quick_ends + 1 if lasted_s < self._policy.steady_s else 0
        if self.failure is not None and not self.has_run:
            return self._policy.unavailable_pause_s
        if self._quick_ends <= 1:
            return 0.0
        return float(min(2.0 ** (self._quick_ends - 2), self._policy.longest_pause_s))
