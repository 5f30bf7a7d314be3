"""Standing back: what a process of no hurry does so that nobody near it feels it."""

import ctypes
import logging
import os
import platform
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_NICEST: Final = 19
_FIRST_TO_GO: Final = "1000"
#: Source: ioprio_set(2): which = process, who = 0 (self), class 3 (idle) in the upper bits.
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS: Final = 1
_IOPRIO_IDLE: Final = 3 << 13


def stand_back() -> None:
    """Take what CPU and disk nobody else wants, and be the first to go when memory runs out.

    Each is asked for by itself; what is not allowed here is left as it is.
    """
    _try("nice", lambda: os.nice(_NICEST))
    _try("SCHED_IDLE", lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)))
    _try("oom_score_adj", lambda: Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO))
    _try("idle I/O", _idle_io)


def cap_memory(limit_bytes: int) -> None:
    """Let allocations fail beyond a limit.

    The limit is on writable private memory (RLIMIT_DATA): code mapped from libraries, which all
    processes share, and the address space that allocators reserve without using do not count.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def one_thread_each() -> None:
    """Keep numpy's linear algebra from starting a thread, with buffers, for each core.

    Nothing here uses it. To be called before numpy is imported.
    """
    os.putenv("OPENBLAS_NUM_THREADS", "1")


def _idle_io() -> None:
    number = _IOPRIO_SET[platform.machine()]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _try(what: str, ask: Callable[[], object]) -> None:
    try:
        ask()
    except (OSError, LookupError) as error:
        logger.info("%s is not allowed here: %s", what, error)
