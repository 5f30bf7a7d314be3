"""Driver calls for one GPU, made so that one that hangs does not hold up the others."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class CallsHangError(Exception):
    """The calls for a GPU do not return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a GPU is waited for.

    Attributes:
        first_s: While none has hung.
        later_s: Once another one has: all of it together has to fit into the time of the whole.
    """

    first_s: float
    later_s: float


class PatientCalls:
    """Makes the calls for each GPU in a thread of its own; by one thread.

    Args:
        what: Names the calls, for people.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._hung: list[threading.Thread] = []

    @property
    def hang(self) -> bool:
        """Whether any that were given up have still not returned; for any thread."""
        return any(thread.is_alive() for thread in self._hung)

    def answer(self, ask: Callable[[], T], patience: Patience) -> T:
        """What the calls give; what they still give after they were given up is of no use.

        Raises:
            CallsHangError: They do not return.
            Exception: What they raise.
        """
        answers: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(ask())
            except BaseException as error:  # noqa: BLE001 - raised below, by who asked
                errors.append(error)

        # Not a daemon: the process must not end inside a driver call.
        thread = threading.Thread(target=run, name="chopperd-patient-calls")
        thread.start()
        thread.join(patience.later_s if self._hung else patience.first_s)
        if thread.is_alive():
            self._hung.append(thread)
            raise CallsHangError(f"{self._what} do not return")
        for error in errors:
            raise error
        return answers[0]

    def wait(self) -> None:
        """Wait until all have returned."""
        for thread in self._hung:
            thread.join()
