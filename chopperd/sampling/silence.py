"""Whether any GPU answers at all: where none does, the driver is gone, and not a GPU."""

from collections.abc import Sequence
from typing import Final, Protocol

from chopperd.clock import Clock
from chopperd.units import NS_PER_S

#: A process to which no GPU has answered for so long ends; a new one may find the driver again.
GIVE_UP_NS: Final = 10 * NS_PER_S


class Heard(Protocol):
    """A GPU of which the looks are followed."""

    @property
    def silence(self) -> str | None:
        """Why the last look failed as a whole; None if it did not."""
        ...


class Silence:
    """Follows whether any of the GPUs answers.

    One whose call hangs is not silent: it has not answered "no".

    Args:
        gpus: All GPUs.
        clock: Tells the time.
    """

    def __init__(self, gpus: Sequence[Heard], clock: Clock) -> None:
        self._gpus = tuple(gpus)
        self._clock = clock
        self._since_ns = 0
        self.reason: str | None = None

    def look(self) -> bool:
        """Look at them now; whether it is otherwise than at the last look."""
        before = self.reason
        reasons = [gpu.silence for gpu in self._gpus]
        self.reason = reasons[0] if reasons and None not in reasons else None
        if (before is None) == (self.reason is None):
            return False
        self._since_ns = self._clock.mono_ns()
        return True

    @property
    def is_final(self) -> bool:
        """Whether none has answered for so long that a new process is to try."""
        return self.reason is not None and self._clock.mono_ns() - self._since_ns > GIVE_UP_NS
