"""How a sampler process ends by itself, and how its supervisor can tell."""

import threading
from dataclasses import dataclass

from chopperd.errors import BackendUnavailableError
from chopperd.sampling.memory.layout import SamplerState
from chopperd.sampling.restarts import ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfEnd:
    """An end that the sampler chose.

    Attributes:
        reason: Why, for people.
        status: What the process ends with.
        state: What it says of itself meanwhile.
    """

    reason: str
    status: int
    state: SamplerState


def changed(reason: str) -> SelfEnd:
    """The end of a process whose GPUs are not those that are there now."""
    return SelfEnd(reason=reason, status=ExitStatus.CHANGED, state=SamplerState.CHANGED)


def silent(reason: str) -> SelfEnd:
    """The end of a process to which no GPU answers; a new one may have more luck."""
    status = BackendUnavailableError.exit_code
    return SelfEnd(reason=reason, status=status, state=SamplerState.SILENT)


class Ending:
    """Whether sampling shall end by itself; the first reason stands. For any thread.

    Args:
        stop: Set when it shall.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self.chosen: SelfEnd | None = None

    def choose(self, end: SelfEnd) -> None:
        """End sampling, for this reason."""
        with self._lock:
            self.chosen = self.chosen or end
        self._stop.set()
