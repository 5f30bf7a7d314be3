"""A process that stores captures until it is killed, and says what the store has acknowledged.

`python -m tests.integration.store.storing FILE FIRST [LIMIT_BYTES]`: prints a line for each capture
once `put_document` has returned and the store says that the disk took it, else what it says.
"""

import resource
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

from chopperd.clock import SystemClock
from chopperd.store.captures.capture_store import CaptureStore
from tests.unit.store.captures.examples import (
    LIMITS,
    analysed,
    document,
    entry,
    file_one,
    step_row,
    totals_row,
)

ROWS = 40


def store_capture(store: CaptureStore, number: int, rows: int = ROWS) -> int:
    """A capture of its own with so many rows of the step that is numbered as it."""
    name = f"{number}"
    store.put_trace(entry(name))
    span_s = (100.0 * number, 100.0 * number + 50)
    capture, _ = file_one(store, analysed(name, span_s))
    steps = [step_row(number, device=k, start_s=100.0 * number + k) for k in range(rows)]
    store.put_document(capture.id, document(steps, [totals_row()]))
    return capture.id


def main() -> None:
    path, first = Path(sys.argv[1]), int(sys.argv[2])
    with closing(CaptureStore.open(path, limits=LIMITS, clock=SystemClock())) as store:
        if len(sys.argv) > 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
        for number in count(first):
            store_capture(store, number)
            print(store.live().trouble or number, flush=True)


if __name__ == "__main__":
    main()
