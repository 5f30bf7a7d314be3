"""Reports on a simulated job, stored rank by rank as the agent does it."""

from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from chopperd.model.captures import AnalysedTrace
from chopperd.model.run import RunIdentity
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.simulated_job import START_UNIX_NS, play
from tests.unit.store.captures.examples import (
    ADMIN,
    EVERYTHING,
    all_steps,
    entry,
    file_one,
    opened,
    trace_id,
)


def test_a_simulated_job_is_stored_rank_by_rank_and_comes_back_whole(tmp_path: Path) -> None:
    """The last document is over all ranks; rows and sums are worked out from it here."""
    job = play("fsdp2-h100", tmp_path, seconds=4.0, hz=10.0)
    clock = ScriptedClock(unix_ns=START_UNIX_NS + 10 * NS_PER_S)
    with closing(opened(tmp_path / "store.sqlite", clock)) as store:
        for count in range(1, len(job.paths) + 1):
            path = job.paths[count - 1]
            document = report_files(job.paths[:count], samples=job.samples, options=ReportOptions())
            totals = document.totals[-1]
            assert totals.start_unix_ns is not None
            assert totals.window_ns is not None
            store.put_trace(entry(path.name, received_unix_ns=clock.unix_ns() + count))
            identity = RunIdentity(
                run=totals.run,
                rank=totals.rank,
                begin_unix_ns=totals.start_unix_ns,
                end_unix_ns=totals.start_unix_ns + totals.window_ns,
            )
            trace = AnalysedTrace(
                id=trace_id(path.name), job=totals.job, identity=identity, report=path.name.encode()
            )
            capture, reports = file_one(store, trace)
            assert reports == tuple(each.name.encode() for each in job.paths[:count])
            store.put_document(capture.id, document)
    with closing(opened(tmp_path / "store.sqlite", clock)) as store:
        assert store.latest_document(None, ADMIN) == document
        stored = [replace(row, held=()) for row in document.steps]
        assert sorted(map(str, all_steps(store))) == sorted(map(str, stored))
        step = document.steps[0].step
        assert step is not None
        expected = [row for row in stored if row.step == step]
        assert list(store.step(step, EVERYTHING, ADMIN)) == expected
        for number in {row.step for row in stored if row.step is not None}:
            rows = [row for row in stored if row.step == number]
            kernels = store.kernels(number, EVERYTHING, ADMIN)
            assert [each.families for each in kernels] == [row.families for row in rows]
            assert [each.by_phase for each in kernels] == [row.by_phase for row in rows]
            assert all(each.by_operation and each.by_layer for each in kernels)
