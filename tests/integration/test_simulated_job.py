"""The whole way from traces and samples to the report, over simulated jobs whose truth is known.

The truth is the simulation's own: exact integrals of its clock, never seen by the way under test,
which has the Kineto files and what the simulated sensors answered at 100 Hz.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from chopperd.model.arrays import Float64s
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.pipeline.reports import ReportOptions, report_files
from tests.fakes.simulated_job import SimulatedJob, play

PRESETS = ("fsdp2-h100", "fsdp1-h100", "fsdp2-mi300x")
#: After so long the badly cooled GPU is hot enough to slow down.
WARM_S = 5.0
SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class Reported:
    """A simulated job and the report on it."""

    job: SimulatedJob
    document: ReportDocument

    def rows(self, rank: int) -> list[Row]:
        """A rank's steps in order, the tail included."""
        return [row for row in self.document.steps if row.rank == rank]

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(len(self.job.node.gpus))


@pytest.fixture(scope="module", params=PRESETS)
def reported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder: Path = tmp_path_factory.mktemp("job")
    job = play(request.param, folder, seconds=SECONDS, warm_s=WARM_S)
    options = ReportOptions()
    return Reported(job, report_files(job.paths, samples=job.samples, options=options))


def column(rows: list[Row], name: str) -> Float64s:
    return np.array([getattr(row.dvfs, name) for row in rows], np.float64)


def test_lengths_are_the_truth_to_the_nanosecond(reported: Reported) -> None:
    for rank in reported.ranks:
        truth, rows = reported.job.truth(rank), reported.rows(rank)
        assert [row.step for row in rows] == truth.steps.tolist()
        assert [row.compute_ns for row in rows] == truth.compute_ns.tolist()
        windows = truth.windows
        assert [row.start_unix_ns for row in rows] == windows.start_ns.tolist()
        lengths_ns = windows.end_ns - windows.start_ns
        assert [row.window_ns for row in rows] == lengths_ns.tolist()


def test_intervals_hold_the_true_gap(reported: Reported) -> None:
    held = []
    for rank in reported.ranks:
        truth, rows = reported.job.truth(rank), reported.rows(rank)
        gap = truth.lost_ns / truth.compute_ns
        held += ((column(rows, "gap_low") <= gap) & (gap <= column(rows, "gap_high"))).tolist()
    assert len(held) >= 8 * 18
    assert np.mean(held) >= 0.85


def test_nothing_is_said_against_samples_of_the_job_s_own_gpus(reported: Reported) -> None:
    codes = {note.code for note in reported.document.notes}
    assert not codes & {"time_axes_differ", "samples_contradict_trace", "reference_doubtful"}


def test_mean_gaps_are_near_the_truth(reported: Reported) -> None:
    for rank in reported.ranks:
        truth, rows = reported.job.truth(rank), reported.rows(rank)
        error = column(rows, "gap_ratio") - truth.lost_ns / truth.compute_ns
        assert abs(error.mean()) <= 0.003, f"rank {rank}"
        assert np.abs(error).max() <= 0.01, f"rank {rank}"


def test_causes_are_near_the_truth(reported: Reported) -> None:
    for rank in reported.ranks:
        truth, found = reported.job.truth(rank), Counter[str]()
        for row in reported.rows(rank):
            found.update(row.dvfs.by_cause_ns or {})
        true_ns = {cause.label: each.sum() for cause, each in truth.by_cause_ns.items()}
        for cause in found.keys() | true_ns.keys():
            share = found[cause] / found.total()
            true_share = true_ns.get(cause, 0.0) / sum(true_ns.values())
            assert abs(share - true_share) <= 0.02, f"rank {rank}: {cause}"


def test_the_hot_gpu_is_found_and_is_critical(reported: Reported) -> None:
    hot = reported.job.node.preset.badly_cooled
    assert hot is not None
    complete = [row for row in reported.document.steps if not row.tail]
    # The simulated job waits for its hot GPU in every step.
    assert {row.rank for row in complete if row.is_critical} == {hot}
    summary = reported.document.summary
    assert summary is not None
    worst = max(summary.gpus, key=lambda gpu: gpu.excess_ns_per_step or 0.0)
    assert worst.gpu == str(hot)
    assert summary.causes[0].cause == "thermal"


def test_the_excess_of_the_hot_gpu_is_the_truth_s(reported: Reported) -> None:
    """Mean clocks of all eight by the truth, their median, and what the hot one loses to it."""
    hot = reported.job.node.preset.badly_cooled
    assert hot is not None
    truths = [reported.job.truth(rank) for rank in reported.ranks]
    median_mhz = np.median([truth.mean_mhz for truth in truths], axis=0)
    excess_ratio = np.maximum(0.0, 1 - truths[hot].mean_mhz / median_mhz)
    found_ratio = column(reported.rows(hot), "excess_ns") / truths[hot].compute_ns
    assert abs((found_ratio - excess_ratio).mean()) <= 0.003


def test_dies_run_above_the_governing_one_and_only_where_there_are_several(
    reported: Reported,
) -> None:
    model = reported.job.node.preset.gpu.dies
    for row in reported.document.steps:
        assert row.clock is not None
        if model is None:
            assert row.clock.dies is None
            continue
        dies, compute = row.clock.dies, row.clock.compute
        assert dies is not None
        assert compute is not None
        assert (dies.running, dies.gated) == (model.count, 0)
        assert 0 < dies.mean_mhz / (compute.mean_mhz or 0) - 1 < model.spread_ratio
        assert 0 < (dies.spread_mhz or 0) < 1.5 * model.spread_ratio * dies.mean_mhz


def test_a_simulated_job_is_marked_as_such(reported: Reported) -> None:
    assert reported.document.generated.simulated
