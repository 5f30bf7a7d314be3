"""Times of the store at two weeks' worth: 20,000 captures of 8 ranks and 3 steps.

`python -m bench.store` stores some captures as the agent would, multiplies them in the file, and
times what the API, the metrics and the worker ask of the whole; the least and most of some runs.
"""

import argparse
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec.structs import replace

from bench.markdown import median_and_range, table
from chopperd.clock import SystemClock
from chopperd.model.captures import AnalysedTrace, StepQuery, TraceEntry, TraceState, Viewer
from chopperd.model.report import ReportDocument
from chopperd.model.run import RunIdentity
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.disk import DiskLimits
from chopperd.units import NS_PER_S
from tests.unit.report.documents import eight_gpus

RANKS: Final = 8
STEPS: Final = 3
MADE: Final = 20
JOBS: Final = 10
SPACING_NS: Final = 60 * NS_PER_S
ADMIN: Final = Viewer(uid=0, is_admin=True)
LIMITS: Final = DiskLimits(max_bytes=2**40, max_days=14, min_free_ratio=0.0)

_COPY_STEPS: Final = """
    INSERT INTO steps SELECT capture - :shift_ms, order_unix_ns - :shift, timed, step, rank, device,
        twin, 'job' || (:n % 10), run, gpu, owner_uid, body FROM steps WHERE capture >= :first
"""
_COPY_CAPTURES: Final = """
    INSERT INTO captures SELECT id - :shift_ms, 'job' || (:n % 10), run, owner_uid, note,
        begin_unix_ns - :shift, end_unix_ns - :shift, newest_unix_ns - :shift,
        changed_unix_ns - :shift, step_count FROM captures WHERE id >= :first
"""
_COPY_TRACES: Final = """
    INSERT INTO traces SELECT id || '-' || :n, name, 'job' || (:n % 10), owner_uid, state, reason,
        stored_bytes, received_unix_ns - :shift, finished_unix_ns, rank, run, capture - :shift_ms,
        begin_unix_ns - :shift, end_unix_ns - :shift, identity FROM traces WHERE capture >= :first
"""
_COPY_BODIES: Final = (
    "INSERT INTO reports SELECT trace || '-' || :n, capture - :shift_ms, body FROM reports "
    "WHERE capture >= :first",
    "INSERT INTO documents SELECT capture - :shift_ms, body FROM documents WHERE capture >= :first",
    "INSERT INTO totals SELECT capture - :shift_ms, rank, device, gpu, owner_uid, body FROM totals "
    "WHERE capture >= :first",
)


def document(number: int, start_unix_ns: int) -> ReportDocument:
    """Three steps of eight ranks from a time on; no two rows alike."""
    full = eight_gpus()
    rows = [row for row in full.steps if row.step is not None and row.step < STEPS]
    return replace(
        full,
        steps=tuple(
            replace(
                row,
                step=number * STEPS + (row.step or 0),
                start_unix_ns=start_unix_ns + (row.step or 0) * NS_PER_S + (row.rank or 0),
                window_ns=1_412_000_000 + 7919 * index * (number + 1),
                energy_j=900.0 + 1.37 * index,
            )
            for index, row in enumerate(rows)
        ),
    )


def store_one(store: CaptureStore, number: int, start_unix_ns: int) -> None:
    """A capture as the agent stores it, rank by rank."""
    for rank in range(RANKS):
        trace_id = f"{number:08x}{rank:08x}"
        store.put_trace(
            TraceEntry(
                id=trace_id,
                name=f"rank{rank}.json",
                job="job0",
                owner_uid=1000,
                state=TraceState.ANALYSED,
                reason=None,
                stored_bytes=10**7,
                received_unix_ns=start_unix_ns,
            )
        )
        identity = RunIdentity(
            run="r1",
            rank=rank,
            begin_unix_ns=start_unix_ns,
            end_unix_ns=start_unix_ns + STEPS * NS_PER_S,
        )
        (filed,) = store.file_analysed(
            AnalysedTrace(id=trace_id, job="job0", identity=identity, report=bytes(range(256)) * 8)
        )
    store.put_document(filed.entry.id, document(number, start_unix_ns))


def fill(path: Path, captures: int) -> None:
    """As many captures, the newest made by the store, the others copies of those in the past."""
    now_unix_ns = SystemClock().unix_ns()
    with closing(CaptureStore(path, limits=LIMITS, clock=SystemClock())) as store:
        for number in range(MADE):
            store_one(store, number, now_unix_ns - (MADE - number) * SPACING_NS)
    with closing(sqlite3.connect(path)) as copy:
        first = copy.execute("SELECT min(id) FROM captures").fetchone()[0]
        for n in range(1, captures // MADE):
            shift_ns = n * MADE * SPACING_NS
            values = {"n": n, "shift": shift_ns, "shift_ms": shift_ns // 10**6, "first": first}
            for statement in (_COPY_STEPS, _COPY_TRACES, *_COPY_BODIES, _COPY_CAPTURES):
                copy.execute(statement, values)
        copy.commit()


def measured_s(ask: Callable[[], object], runs: int) -> list[float]:
    taken = []
    for _ in range(runs):
        before = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - before)
    return taken


def deep_cursor(store: CaptureStore) -> str | None:
    """The cursor after 10,000 rows."""
    cursor = None
    for _ in range(10):
        cursor = store.steps(StepQuery(), ADMIN, limit=1000, cursor=cursor).cursor
    return cursor


def questions(store: CaptureStore) -> dict[str, Callable[[], object]]:
    """What is asked, by what it is called in the results."""
    owner, stranger = Viewer(uid=1000, is_admin=False), Viewer(uid=7, is_admin=False)
    now_unix_ns = SystemClock().unix_ns()
    cursor = deep_cursor(store)
    numbers = iter(range(MADE, 10**6))

    def page(query: StepQuery, viewer: Viewer = ADMIN, at: str | None = None) -> object:
        return store.steps(query, viewer, limit=100, cursor=at)

    return {
        "newest 100 steps": lambda: page(StepQuery()),
        "100 steps after 10,000": lambda: page(StepQuery(), at=cursor),
        "100 steps of a job, a GPU": lambda: page(StepQuery(job="job3", gpu="5")),
        "100 steps of an owner": lambda: page(StepQuery(), owner),
        "steps of a stranger (none)": lambda: page(StepQuery(), stranger),
        "steps of a rank that never was": lambda: page(StepQuery(rank=99)),
        "a step, in every job": lambda: store.step(4, StepQuery(), ADMIN),
        "kernels of a step of a job": lambda: store.kernels(4, StepQuery(job="job3"), ADMIN),
        "jobs": lambda: store.jobs(ADMIN),
        "newest report of a job": lambda: store.latest_document("job3", ADMIN),
        "newest 100 traces": lambda: store.traces(ADMIN, limit=100),
        "live": store.live,
        "one capture of 8 ranks stored": lambda: store_one(store, next(numbers), now_unix_ns),
        "prune, nothing to do": store.prune,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captures", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args()
    with TemporaryDirectory(prefix="chopperd-bench-") as folder:
        path = Path(folder) / "store.sqlite"
        fill(path, chosen.captures)
        before = time.perf_counter()
        with closing(CaptureStore(path, limits=LIMITS, clock=SystemClock())) as store:
            opened_s = time.perf_counter() - before
            rows = [
                (name, median_and_range([1e3 * s for s in measured_s(ask, chosen.runs)]))
                for name, ask in questions(store).items()
            ]
        size_bytes = path.stat().st_size
    print(
        f"{chosen.captures:,} captures, {chosen.captures * RANKS * STEPS:,} step rows, "
        f"{size_bytes / 2**20:.0f} MiB; opened (checked for at most 2 s) in {opened_s:.2f} s\n"
    )
    print(table(("what", "ms"), rows))


if __name__ == "__main__":
    main()
