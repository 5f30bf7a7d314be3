"""Ending several things at once, in a time that none of them can draw out."""

import logging
import threading
from collections.abc import Callable, Mapping

from chopperd.clock import Clock
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)


def end_within(
    ends: Mapping[str, Callable[[], object]], timeout_s: float, clock: Clock
) -> tuple[str, ...]:
    """Call all at once, and wait until they return; the names of those that did not in time.

    Args:
        ends: By name, what ends each thing.
        timeout_s: How long to wait for all of them together.
        clock: Tells the time.
    """
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
