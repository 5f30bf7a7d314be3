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
    step_row,
    totals_row,
)

ROWS = 40


def store_capture(store: CaptureStore, number: int, rows: int = ROWS) -> int | None:
    """A capture of its own with so many rows of the step that is numbered as it.

    None where its trace waits for the disk: `store_late` does the rest.
    """
    name = f"{number}"
    store.put_trace(entry(name))
    span_s = (100.0 * number, 100.0 * number + 50)
    filed = store.file_analysed(analysed(name, span_s))
    if not filed:
        return None
    put_document(store, filed[0].entry.id, number, rows)
    return filed[0].entry.id


def store_late(store: CaptureStore) -> list[int]:
    """Documents of the captures that had to wait for the disk, as the agent makes them; numbers."""
    _, filed = store.take_filed()
    numbers = [int(report) for each in filed for report in each.reports]
    for each, number in zip(filed, numbers, strict=True):
        put_document(store, each.entry.id, number)
    return numbers


def put_document(store: CaptureStore, capture_id: int, number: int, rows: int = ROWS) -> None:
    steps = [step_row(number, device=k, start_s=100.0 * number + k) for k in range(rows)]
    store.put_document(capture_id, document(steps, [totals_row()]))


def main() -> None:
    path, first = Path(sys.argv[1]), int(sys.argv[2])
    with closing(CaptureStore(path, limits=LIMITS, clock=SystemClock())) as store:
        if len(sys.argv) > 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
        for number in count(first):
            store_capture(store, number)
            print(store.live().trouble or number, flush=True)


if __name__ == "__main__":
    main()
