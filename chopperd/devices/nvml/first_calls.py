"""What is first asked of each GPU, made so that one that hangs does not hold up the others."""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: How long a GPU is waited for, and how long once another of them has hung: all of it together has
#: to fit into the time in which a process must come up.
_PATIENCE_S: Final = 2.0
_LATER_PATIENCE_S: Final = 0.5


class FirstCallsHangError(Exception):
    """The first calls on a GPU do not return."""


class FirstCalls:
    """Makes the first calls on each GPU in a thread of its own; by one thread."""

    def __init__(self) -> None:
        self._hung: list[threading.Thread] = []

    @property
    def hang(self) -> bool:
        """Whether any that were given up have still not returned; for any thread."""
        return any(thread.is_alive() for thread in self._hung)

    def answer(self, ask: Callable[[], T]) -> T:
        """What the calls give; what they still give after they were given up is of no use.

        Raises:
            FirstCallsHangError: They do not return.
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
        thread = threading.Thread(target=run, name="chopperd-first-calls")
        thread.start()
        thread.join(_LATER_PATIENCE_S if self._hung else _PATIENCE_S)
        if thread.is_alive():
            self._hung.append(thread)
            raise FirstCallsHangError("its first calls do not return")
        for error in errors:
            raise error
        return answers[0]

    def wait(self) -> None:
        """Wait until all have returned."""
        for thread in self._hung:
            thread.join()
