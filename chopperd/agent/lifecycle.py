"""The agent's process: its folders and their lock, systemd, signals, end of threads, health.

A back end that never started, or a full disk, is no problem of the agent itself.
"""

import fcntl
import logging
import os
import select
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from chopperd.clock import Clock, RepeatLimiter
from chopperd.config.paths import ServiceManager
from chopperd.errors import ConfigError
from chopperd.model.live import GuardedPart
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

_LOCK_NAME: Final = "lock"
_FOLDER_MODE: Final = 0o755
#: Anyone may drop a trace, nobody may list or remove another's.
_INBOX_MODE: Final = 0o1733
_PRIVATE_MODE: Final = 0o700
_STATE_MODES: Final[Mapping[str, int]] = {
    "inbox": _INBOX_MODE,
    "traces": _PRIVATE_MODE,
    "rejected": _PRIVATE_MODE,
    "recorder": _FOLDER_MODE,
}


@contextmanager
def claimed_state(path: Path) -> Iterator[str | None]:
    """Make the state folder with its subfolders, and lock it for this process during the block.

    Gives None, or the reason why nothing can be stored there: the agent works without it.

    Raises:
        ConfigError: Another agent has it; names its pid.
    """
    with ExitStack() as stack:
        problem = None
        try:
            _make(path, _FOLDER_MODE)
            stack.callback(os.close, _locked(path))
            for name, mode in _STATE_MODES.items():
                _make(path / name, mode)
        except OSError as error:
            stack.close()
            problem = _problem("state", path, error)
        yield problem


def made_runtime(path: Path) -> str | None:
    """Make the runtime folder; return the reason why it can't be used, or None."""
    try:
        _make(path, _FOLDER_MODE)
    except OSError as error:
        return _problem("runtime", path, error)
    if not os.access(path, os.W_OK | os.X_OK):
        return f"the runtime folder {path} can't be written to"
    return None


def _make(path: Path, mode: int) -> None:
    """Make a folder with this mode; an existing one stays as it is."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(mode)


def _locked(folder: Path) -> int:
    """Lock the folder; return a descriptor that holds the lock until it is closed."""
    lock_fd = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        pid = os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock_fd)
        problem = f"paths.state: {folder} is used by another agent (pid {pid}); stop it first"
        raise ConfigError([problem]) from error
    except OSError:
        os.close(lock_fd)
        raise
    return lock_fd


def _problem(which: str, path: Path, error: OSError) -> str:
    return f"the {which} folder {path} can't be used: {error.strerror or error}"


#: Each message while starting extends the service manager's timeout by this; and how often.
_STARTING_S: Final = 30
_STARTING_EVERY_NS: Final = 5 * NS_PER_S


class Notifier:
    """Sends notifications to systemd, if it started the agent; a lost message is no error.

    Source: sd_notify(3).
    """

    def __init__(self, manager: ServiceManager, clock: Clock) -> None:
        given = manager.notify_address or ""
        self._address = f"\0{given[1:]}" if given.startswith("@") else given
        # The watchdog is reset twice in the period that systemd asks for.
        self._watchdog_ns = manager.watchdog_s and manager.watchdog_s * NS_PER_S / 2
        self._clock = clock
        self._due_ns = 0
        self._starting_due_ns = 0
        self._status = ""

    def starting(self) -> None:
        """Extend the start timeout: opening a large or damaged store takes long.

        Source: sd_notify(3), EXTEND_TIMEOUT_USEC.
        """
        now_ns = self._clock.mono_ns()
        if now_ns >= self._starting_due_ns:
            self._starting_due_ns = now_ns + _STARTING_EVERY_NS
            self._send(f"EXTEND_TIMEOUT_USEC={_STARTING_S * 1_000_000}")

    def ready(self) -> None:
        """Report to systemd that the agent serves."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report to systemd that the agent is about to end."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the line in `systemctl status`; sent only if it has changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={' '.join(text.splitlines())}")

    def alive(self) -> None:
        """Reset the watchdog when that is due; call it only while the agent is healthy."""
        now_ns = self._clock.mono_ns()
        if self._watchdog_ns and now_ns >= self._due_ns:
            self._due_ns = now_ns + round(self._watchdog_ns)
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address.startswith(("\0", "/")):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(message.encode(), self._address)
            except OSError as error:
                logger.debug("the service manager does not listen: %s", error)


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Wake:
    """A wait until a deadline, which `call` ends early from any thread or signal handler.

    An Event is unsuitable: setting it in a signal handler can deadlock with the wait.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def call(self) -> None:
        """End the present wait, or the next."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def wait_until(self, deadline_mono_ns: int, clock: Clock) -> None:
        """Return at the deadline, or earlier when called."""
        remaining_s = max(0.0, (deadline_mono_ns - clock.mono_ns()) / NS_PER_S)
        if select.select([self._fd], [], [], remaining_s)[0]:
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Release the wait's descriptor; `call` does nothing afterwards."""
        fd, self._fd = self._fd, -1
        os.close(fd)


@contextmanager
def stopped_by_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Let SIGTERM, SIGINT and SIGHUP call `stop` with their number, in the main thread.

    An ignored signal, as under `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop(number)

    handled = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_within(
    ends: Mapping[str, Callable[[], object]], timeout_s: float, clock: Clock
) -> tuple[str, ...]:
    """Call all `ends` in parallel and wait; return the names of those that did not end in time."""
    threads = {
        name: threading.Thread(target=end, name=f"chopperd-end-{name}", daemon=True)
        for name, end in ends.items()
    }
    deadline_ns = clock.mono_ns() + round(timeout_s * NS_PER_S)
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, (deadline_ns - clock.mono_ns()) / NS_PER_S))
    late = tuple(name for name, thread in threads.items() if thread.is_alive())
    if late:
        logger.warning("did not end within %.1f s and is left: %s", timeout_s, ", ".join(late))
    return late


#: A part that has not worked for this long has stalled.
_STALLED_NS: Final = 10 * NS_PER_S


class Health:
    """Collects signs of life and faults of the agent's parts (`model.services.Health`)."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        #: Why a driver that had worked stays lost; None if it does not.
        self.lost_driver: str | None = None
        self._worked_ns: dict[str, int] = {}
        self._alive: dict[str, Callable[[], bool]] = {}
        self._faults: Counter[GuardedPart] = Counter()
        self._lock = threading.Lock()

    def beat(self, part: str) -> None:
        """Store that a part of the main loop works now; after its first beat it must not stall."""
        self._worked_ns[part] = self.clock.mono_ns()

    def watch(self, part: str, is_alive: Callable[[], bool]) -> None:
        """Check from now on that a thread is alive."""
        self._alive[part] = is_alive

    def note_fault(self, part: GuardedPart) -> None:
        """Count an exception that a part survived; for any thread."""
        with self._lock:
            self._faults[part] += 1

    def faults(self) -> Mapping[GuardedPart, int]:
        """Return the counts of survived exceptions since the start, by part; for any thread."""
        with self._lock:
            return {part: self._faults[part] for part in GuardedPart}

    def trouble(self) -> str | None:
        """Return why the agent is not healthy, as text for people; None if it is."""
        now_ns = self.clock.mono_ns()
        for part, worked_ns in tuple(self._worked_ns.items()):
            if now_ns - worked_ns > _STALLED_NS:
                return f"{part} has not worked for {(now_ns - worked_ns) / NS_PER_S:.0f} s"
        for part, is_alive in tuple(self._alive.items()):
            if not is_alive():
                return f"the {part} thread has ended"
        return self.lost_driver


class Guard:
    """Runs a part of the main loop; its exceptions are counted, and logged once a minute."""

    def __init__(self, part: GuardedPart, name: str, health: Health) -> None:
        self._part, self._name, self._health = part, name, health
        self._logging = RepeatLimiter(health.clock)
        health.beat(name)

    def run(self, work: Callable[[], object]) -> bool:
        """Call `work` once; return whether it succeeded.

        Raises:
            ConfigError: The work raised it: only another configuration helps.
        """
        try:
            work()
        except ConfigError:
            raise
        except Exception:
            self._health.note_fault(self._part)
            if self._logging.is_due():
                count = self._health.faults()[self._part]
                logger.exception("%s failed (%d times so far)", self._name, count)
            return False
        self._health.beat(self._name)
        return True


@contextmanager
def guarded(
    message: str, *values: object, note_fault: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Log and count an exception in the block, which then ends."""
    try:
        yield
    except Exception:
        note_fault()
        logger.exception(message, *values)
