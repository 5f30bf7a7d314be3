"""Ranks compared from traces and samples of simulated jobs, whose waits and faults are known."""

from pathlib import Path

import numpy as np
import pytest

from chopperd.model.arrays import Bools, Int64s
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.simulation.job import kernel_columns, rank_step
from tests.fakes.simulated_job import SimulatedJob, play

SLOW_RANK = 5  # of the presets
CAUSES = {"slow-heat": "dvfs_loss", "slow-data": "idle_data", "slow-launch": "idle_launch_prep"}


def reported(preset: str, folder: Path, seed: int) -> tuple[SimulatedJob, ReportDocument]:
    """At least twenty complete steps, after the slow GPU has become hot."""
    job = play(preset, folder, seconds=4.2, warm_s=8.0, seed=seed)
    return job, report_files(job.paths, samples=job.samples, options=ReportOptions())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("preset", CAUSES)
def test_the_slow_rank_is_named_with_its_cause(preset: str, seed: int, tmp_path: Path) -> None:
    job, document = reported(preset, tmp_path, seed)
    ranks = document.ranks
    assert ranks is not None
    assert ranks.lines[0].steps >= 20
    assert (ranks.matched, ranks.matched_by) == (ranks.collectives, "seq")
    slow = ranks.lines[SLOW_RANK]
    assert (slow.verdict, slow.cause) == ("straggler", CAUSES[preset])
    assert (slow.cause_ns or 0) / (slow.window_ns or 1) == pytest.approx(0.05, abs=0.025)
    others = [line for line in ranks.lines if line.rank != SLOW_RANK]
    assert "straggler" not in {line.verdict for line in others}
    assert slow.critical_steps == slow.steps
    assert slow.wait_caused_ns == max(line.wait_caused_ns or 0 for line in ranks.lines)
    lost_ns = [row.dvfs.lost_ns for row in compared(document) if row.rank == SLOW_RANK]
    assert ranks.job_lost_ns == round(np.mean(np.array(lost_ns, np.float64)))
    check_waits(job, document)


@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_is_named_in_an_even_job(seed: int, tmp_path: Path) -> None:
    _, document = reported("even", tmp_path, seed)
    assert document.ranks is not None
    assert "straggler" not in {line.verdict for line in document.ranks.lines}


def test_without_one_trace_waits_are_lower_bounds(tmp_path: Path) -> None:
    job, whole = reported("slow-data", tmp_path, 1)
    paths = [path for nth, path in enumerate(job.paths) if nth != SLOW_RANK]
    part = report_files(paths, samples=job.samples, options=ReportOptions())
    assert part.ranks is not None
    assert (part.ranks.missing_ranks, part.ranks.waits_are_bounds) == (1, True)
    assert "ranks_missing" in {note.code for note in part.notes}
    every = {(row.rank, row.step): row for row in whole.steps}
    for row in part.steps:
        assert wait_ns(row) <= wait_ns(every[row.rank, row.step])


def compared(document: ReportDocument) -> list[Row]:
    return [row for row in document.steps if not (row.tail or row.partial)]


def wait_ns(row: Row) -> int:
    assert row.exposed_comm_ns is not None
    assert row.exposed_comm_ns.wait is not None
    return row.exposed_comm_ns.wait


def check_waits(job: SimulatedJob, document: ReportDocument) -> None:
    """Waits are the simulation's: before the last rank has come, no compute, nothing transferred.

    Counted over the pieces between all edges of the simulated kernels, without the program's own
    intervals.
    """
    for rank in (0, SLOW_RANK):
        rows = [row for row in compared(document) if row.rank == rank][:3]
        steps = [row.step for row in rows if row.step is not None]
        compute, comm, last_ns = kernels(job, rank, steps[0], steps[-1] + 1)
        edges = np.unique(np.concatenate((*compute, *comm, last_ns)))
        for row in rows:
            start_ns = row.start_unix_ns or 0
            window = (start_ns, start_ns + (row.window_ns or 0))
            cuts = np.unique(np.clip(np.append(edges, window), *window))
            at = cuts[:-1]
            waiting = inside(at, comm[0], last_ns)
            moving = inside(at, last_ns, comm[1])
            computing = inside(at, *compute)
            lengths_ns = np.diff(cuts)
            assert wait_ns(row) == lengths_ns[waiting & ~moving & ~computing].sum()
            exposed_ns = lengths_ns[(waiting | moving) & ~computing].sum()
            assert row.exposed_comm_ns is not None
            assert wait_ns(row) + (row.exposed_comm_ns.transfer or 0) == exposed_ns


def kernels(
    job: SimulatedJob, rank: int, first: int, last: int
) -> tuple[tuple[Int64s, Int64s], tuple[Int64s, Int64s], Int64s]:
    """Compute and communication kernels of a rank, and when the last rank came to each latter."""
    program = job.node.program
    assert program is not None
    columns = kernel_columns(program)
    max_mhz = job.node.preset.gpu.sm_clock_max_mhz
    compute: list[Int64s] = []
    comm: list[Int64s] = []
    last_ns: list[Int64s] = []
    for run in job.node.steps(max(first - 1, 0), last):
        every = [rank_step(columns, run, each, max_mhz) for each in range(len(job.node.gpus))]
        mine, is_comm = every[rank], columns.collective
        compute.append(np.stack((mine.start_ns, mine.end_ns))[:, columns.compute])
        comm.append(np.stack((mine.start_ns, mine.end_ns))[:, is_comm])
        last_ns.append(np.max([each.start_ns[is_comm] for each in every], axis=0))
    starts, ends = np.concatenate(compute, axis=1)
    begins, stops = np.concatenate(comm, axis=1)
    return (starts, ends), (begins, stops), np.concatenate(last_ns)


def inside(at: Int64s, start_ns: Int64s, end_ns: Int64s) -> Bools:
    """Whether each time lies in one of the intervals."""
    found: Bools = np.any((start_ns <= at[:, None]) & (at[:, None] < end_ns), axis=1)
    return found
