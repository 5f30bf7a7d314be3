"""Tells systemd how the agent stands; does nothing where systemd did not start it."""

import logging
import socket
from typing import Final

from chopperd.clock import Clock
from chopperd.config.paths import ServiceManager
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: What each message while starting adds to the time that the service manager waits, and how often.
_STARTING_S: Final = 30
_STARTING_EVERY_NS: Final = 5 * NS_PER_S


class Notifier:
    """The way to the service manager. A message that does not get through is not an error.

    Source: sd_notify(3).

    Args:
        manager: Where it listens, if anywhere.
        clock: Tells when a sign of life is due.
    """

    def __init__(self, manager: ServiceManager, clock: Clock) -> None:
        self._address = _address(manager.notify_address)
        # Twice in the period that it asks for.
        self._watchdog_ns = manager.watchdog_s and manager.watchdog_s * NS_PER_S / 2
        self._clock = clock
        self._due_ns = 0
        self._starting_due_ns = 0
        self._status = ""

    def starting(self) -> None:
        """The agent is still starting, and alive: a large or damaged store takes its time.

        Source: sd_notify(3), EXTEND_TIMEOUT_USEC.
        """
        now_ns = self._clock.mono_ns()
        if now_ns >= self._starting_due_ns:
            self._starting_due_ns = now_ns + _STARTING_EVERY_NS
            self._send(f"EXTEND_TIMEOUT_USEC={_STARTING_S * 1_000_000}")

    def ready(self) -> None:
        """The agent serves."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The agent is about to end."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent where it is another than before."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={' '.join(text.splitlines())}")

    def alive(self) -> None:
        """A sign of life, if one is due. To be called only while the agent is well."""
        now_ns = self._clock.mono_ns()
        if self._watchdog_ns and now_ns >= self._due_ns:
            self._due_ns = now_ns + round(self._watchdog_ns)
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(message.encode(), self._address)
            except OSError as error:
                logger.debug("the service manager does not listen: %s", error)


def _address(given: str | None) -> str | None:
    if given is None or not given.startswith(("@", "/")):
        return None
    return f"\0{given[1:]}" if given.startswith("@") else given
