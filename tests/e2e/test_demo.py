"""`demo` as a user runs it: quick, marked as simulated, and near the simulation's truth."""

import csv
import time
from io import StringIO

import numpy as np
import pytest

from bench.truth import RankTruth, rank_truth
from chopperd.model.report_rows import Row
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from tests.e2e.running import SLACK, Chopperd, complaints
from tests.fakes.simulated_job import START_UNIX_NS

#: `demo --seconds 3` shall have shown its report after so long.
DEMO_S = 10.0


def test_the_text_comes_soon_and_is_marked_as_simulated(chopperd: Chopperd) -> None:
    begin = time.monotonic()
    done = chopperd.run("demo", "--seconds", "3")
    assert time.monotonic() - begin < DEMO_S * SLACK
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    first, *lines = done.stdout.splitlines()
    assert first.startswith(" SIMULATED DATA: ")
    headline = lines[: lines.index("")]
    headings = [line[1:].split("  ")[0] for line in headline if line[1] != " "]
    assert headings == ["GPU 5 IS SLOW", "THEN", "DO", "CLOCK", "TRUST"]
    assert "rank7.pt.trace.json" in done.stdout
    assert max(map(len, lines)) <= 100


def test_every_line_of_the_csv_is_marked_as_simulated(chopperd: Chopperd) -> None:
    done = chopperd.run("demo", "--seconds", "1", "--format", "csv")
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    rows = list(csv.DictReader(StringIO(done.stdout)))
    assert len(rows) >= 8 * 2  # a step and a total of each GPU, at least
    assert {row["simulated"] for row in rows} == {"true"}


@pytest.mark.parametrize("preset", ["fsdp2-h100", "fsdp2-mi300x"])
def test_the_document_is_near_the_truth_of_the_simulation(preset: str, chopperd: Chopperd) -> None:
    document = chopperd.document("demo", "--seconds", "3", "--preset", preset, "--seed", "4")
    assert document.generated.simulated
    assert document.sampling.asked_hz == 100
    gaps, true_gaps = [], []
    for rank in range(8):
        rows = [row for row in document.steps if row.rank == rank]
        truth = truth_of(preset, 4, rank, rows)
        _check_lengths(rows, truth)
        gaps += [row.dvfs.gap_ratio or np.nan for row in rows]
        true_gaps += (truth.lost_ns / truth.compute_ns).tolist()
        causes = {cause for row in rows for cause in row.dvfs.by_cause_ns or {}}
        assert {cause.label for cause in truth.by_cause_ns} <= causes
    error = np.array(gaps) - np.array(true_gaps)
    # On a busy machine samples are missed; the deterministic test holds the tighter bounds.
    assert np.abs(error.mean()) <= 0.005
    assert np.abs(error).max() <= 0.03
    assert {row.rank for row in document.steps if row.is_critical} == {5}


def truth_of(preset: str, seed: int, rank: int, rows: list[Row]) -> RankTruth:
    """The truth of these steps, from a node of the same course that began at another time."""
    node = SimulatedNode(SimulationSpec(preset=preset, seed=seed, start_unix_ns=START_UNIX_NS))
    steps = [row.step for row in rows if row.step is not None]
    assert len(steps) >= 3
    return rank_truth(node, rank, steps[0], steps[-1])


def _check_lengths(rows: list[Row], truth: RankTruth) -> None:
    """To the nanosecond, up to when the simulation began."""
    starts = np.array([row.start_unix_ns for row in rows])
    assert np.diff(starts).tolist() == np.diff(truth.windows.start_ns).tolist()
    lengths_ns = truth.windows.end_ns - truth.windows.start_ns
    assert [row.window_ns for row in rows] == lengths_ns.tolist()
    assert [row.compute_ns for row in rows] == truth.compute_ns.tolist()
