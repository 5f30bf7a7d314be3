"""`record` and `devices` on a fake NVIDIA driver, through the real binding in the real sampler.

The driver's clocks are a function of CLOCK_REALTIME and the job's traces lie on the same axis, so
that every figure of the report can be worked out by hand (`EXPECTED`).
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from chopperd.model.samples import SampleSet
from chopperd.store.samples import read_samples
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.e2e.jobs.gpu_job import COMPUTE_NS, STEP_NS
from tests.e2e.running import PYTHON, SLACK, Chopperd, wait_for
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import GPU_IS_LOST, Scenario, Segment

JOB: Final = str(Path(__file__).parent / "jobs" / "gpu_job.py")
REFERENCE_MHZ: Final = 1980
#: The GPU with a lower clock than its peers while the power cap holds.
SLOW: Final = 3
POWER_CAP, THERMAL = 0x4, 0x20


@dataclass(frozen=True, slots=True)
class FakeNode:
    """chopperd on a machine with fake NVIDIA GPUs."""

    chopperd: Chopperd
    scenario: Scenario

    @property
    def uuids(self) -> list[str]:
        """The GPUs' UUIDs, in the driver's order."""
        return [gpu.uuid.decode() for gpu in self.scenario.gpus]

    def record(self, *options: str) -> Any:
        """Record the stand-in job, and what was printed."""
        job = (PYTHON, JOB, str(self.scenario.path), "traces", *self.uuids)
        return self.chopperd.run("record", "-o", "samples.csv", *options, "--", *job)

    def samples(self) -> SampleSet:
        """What the last recording kept."""
        return read_samples(self.chopperd.folder / "samples.csv")

    def traces(self) -> list[Path]:
        """The traces that the job wrote."""
        return sorted(self.chopperd.folder.glob("traces/*.json"))


@pytest.fixture
def make_node(
    nvml_library: Callable[[], Path], tmp_path: Path
) -> Iterator[Callable[[int], FakeNode]]:
    """A machine with so many GPUs; afterwards nothing of chopperd may be left on it."""
    made: list[FakeNode] = []

    def make(gpu_count: int) -> FakeNode:
        scenario = Scenario(tmp_path / "scenario.bin", gpu_count)
        environment = {
            "LD_LIBRARY_PATH": str(nvml_library().parent),
            SCENARIO_VARIABLE: str(scenario.path),
            # A busy machine makes driver calls look long; the rate must not fall for that here.
            "CHOPPERD_SAMPLING__RECORD_DRIVER_BUDGET_RATIO": "0.5",
            # For the stand-in job, which imports this tree's tests.
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2])]),
        }
        made.append(FakeNode(Chopperd.under(tmp_path, environment), scenario))
        return made[-1]

    yield make
    for node in made:
        node.chopperd.nothing_left(within_s=2 * SLACK)


def course(capped_mhz: int) -> tuple[Segment, ...]:
    """Clocks from the job's start on: full, power-capped, warm, full again.

    Steps are 500 ms, of which the first 400 ms compute:
    0: full speed. 1: capped. 2: capped for 200 ms of compute, then warm. 3: warm. 4 (tail): full.
    """
    return (
        Segment(length_ns=STEP_NS, sm_clock_mhz=REFERENCE_MHZ),
        Segment(length_ns=700 * NS_PER_MS, sm_clock_mhz=capped_mhz, reasons=POWER_CAP),
        Segment(length_ns=800 * NS_PER_MS, sm_clock_mhz=1782, reasons=THERMAL),
        Segment(sm_clock_mhz=REFERENCE_MHZ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One step of one GPU by hand: mean clock over compute, and what was lost to which cause.

    Attributes:
        jump_ratio: The clock's jumps at the edges of and inside the step's compute, added up,
            over the reference: what a misplaced moment of each of them costs.
    """

    mean_mhz: float
    by_cause_ns: dict[str, float]
    jump_ratio: float

    @property
    def lost_ns(self) -> float:
        return sum(self.by_cause_ns.values())


def expected(capped_mhz: int) -> list[Expected]:
    """The complete steps of `course`: a clock f loses (1 - f / 1980) of the time it holds."""
    capped, warm = 1 - capped_mhz / REFERENCE_MHZ, 1 - 1782 / REFERENCE_MHZ
    half_ns = COMPUTE_NS / 2
    return [
        Expected(mean_mhz=REFERENCE_MHZ, by_cause_ns={}, jump_ratio=capped),
        Expected(
            mean_mhz=capped_mhz, by_cause_ns={"power_cap": capped * COMPUTE_NS}, jump_ratio=capped
        ),
        Expected(
            mean_mhz=(capped_mhz + 1782) / 2,
            by_cause_ns={"power_cap": capped * half_ns, "thermal": warm * half_ns},
            jump_ratio=capped - warm,
        ),
        Expected(mean_mhz=1782, by_cause_ns={"thermal": warm * COMPUTE_NS}, jump_ratio=warm),
    ]


@pytest.fixture
def recorded(make_node: Callable[[int], FakeNode]) -> tuple[FakeNode, Any]:
    """Four GPUs, one of them slower under its cap, recorded at 100 Hz; and what was printed."""
    node = make_node(4)
    in_an_hour_ns = node_time_ns() + 3600 * NS_PER_S
    for index, gpu in enumerate(node.scenario.gpus):
        # The job moves the start to its own.
        gpu.plays(*course(1188 if index == SLOW else 1386), origin_unix_ns=in_an_hour_ns)
    done = node.record("--backend", "nvml", "--hz", "100")
    assert done.returncode == 0, done.stderr
    return node, done


def node_time_ns() -> int:
    """CLOCK_REALTIME, which the fake driver goes by."""
    return time.time_ns()


def test_a_recorded_job_has_the_clocks_and_losses_worked_out_by_hand(
    recorded: tuple[FakeNode, Any],
) -> None:
    node, _ = recorded
    document = node.chopperd.report(*node.traces(), "--samples", "samples.csv")
    assert not document["generated"]["simulated"]
    assert document["generated"]["backend"] == "nvml"
    samples = node.samples()
    for rank in range(4):
        rows = [row for row in document["steps"] if row["rank"] == rank and not row["tail"]]
        by_hand = expected(1188 if rank == SLOW else 1386)
        spacing_ns = longest_spacing_ns(samples, rank, rows)
        assert [row["step"] for row in rows] == [0, 1, 2, 3]
        for row, step in zip(rows, by_hand, strict=True):
            _check(row, step, spacing_ns)
    _check_excess(document, longest_spacing_ns(samples, SLOW, document["steps"]))


def _check(row: dict[str, Any], step: Expected, spacing_ns: int) -> None:
    """The row against the figures by hand.

    The line between the two samples around a jump misplaces at most the jump times their spacing;
    the pooled border correction moves the run's clocks by no more than one such piece.
    """
    tolerance_ns = 2 * step.jump_ratio * spacing_ns + 1e-4 * COMPUTE_NS
    tolerance_ratio = tolerance_ns / COMPUTE_NS
    assert row["compute_ns"] == COMPUTE_NS
    assert row["window_ns"] == STEP_NS
    assert row["clock"]["coverage_ratio"] == 1
    mean_mhz = row["clock"]["compute"]["mean_mhz"]
    assert mean_mhz == pytest.approx(step.mean_mhz, abs=tolerance_ratio * REFERENCE_MHZ)
    loss = row["dvfs"]
    assert loss["lost_ns"] == pytest.approx(step.lost_ns, abs=tolerance_ns)
    assert loss["gap_ratio"] == pytest.approx(step.lost_ns / COMPUTE_NS, abs=tolerance_ratio)
    assert sum(loss["by_cause_ns"].values()) == loss["lost_ns"]
    for cause, lost_ns in loss["by_cause_ns"].items():
        by_hand_ns = step.by_cause_ns.get(cause, 0.0)
        assert lost_ns == pytest.approx(by_hand_ns, abs=tolerance_ns), cause


def _check_excess(document: dict[str, Any], spacing_ns: int) -> None:
    """Under the cap the slow GPU runs at 1188 of its peers' 1386 MHz for 400 ms: 57.1 ms."""
    rows = {(row["rank"], row["step"]): row for row in document["steps"]}
    tolerance_ns = 2 * spacing_ns
    for rank in range(4):
        excess_ns = rows[rank, 1]["dvfs"]["excess_ns"]
        by_hand_ns = (1 - 1188 / 1386) * COMPUTE_NS if rank == SLOW else 0.0
        assert excess_ns == pytest.approx(by_hand_ns, abs=tolerance_ns)
        assert rows[rank, 1]["peers"]["n"] == 4
    slow = next(line for line in document["summary"]["gpus"] if line["gpu"] == str(SLOW))
    assert slow["excess_ns_per_step"] == max(
        line["excess_ns_per_step"] for line in document["summary"]["gpus"]
    )


def longest_spacing_ns(samples: SampleSet, rank: int, rows: list[dict[str, Any]]) -> int:
    """The longest time between two of a GPU's samples around the steps."""
    t_ns = samples.gpus[rank].t_unix_ns
    start_ns = rows[0]["start_unix_ns"]
    end_ns = rows[-1]["start_unix_ns"] + STEP_NS
    inside = (t_ns > start_ns - NS_PER_S // 10) & (t_ns < end_ns + NS_PER_S // 10)
    return int(np.diff(t_ns[inside]).max())
