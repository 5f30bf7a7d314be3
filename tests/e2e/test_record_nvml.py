"""`record` and `devices` on a fake NVIDIA driver, through the real binding in the real sampler.

The driver's clocks are a function of CLOCK_REALTIME and the job's traces lie on the same axis, so
that every figure of the report can be worked out by hand (`EXPECTED`).
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final, TypeAlias

import numpy as np
import pytest

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.store.samples.files import read_samples
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.e2e.jobs.gpu_job import COMM_NS, COMPUTE_NS, LAUNCH_NS, STEP_NS
from tests.e2e.running import PYTHON, SLACK, Chopperd
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import GPU_IS_LOST, GpuLayout, Scenario, Segment
from tests.waiting import wait_for

JOB: Final = str(Path(__file__).parent / "jobs" / "gpu_job.py")
REFERENCE_MHZ: Final = 1980
WARM_MHZ: Final = 1782
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

    def record(self, *options: str) -> "CompletedProcess[str]":
        """Record the stand-in job, and what was printed."""
        job = (PYTHON, JOB, str(self.scenario.path), "traces", *self.uuids)
        return self.chopperd.run("record", "-o", "samples.csv", *options, "--", *job)

    def samples(self) -> SampleSet:
        """What the last recording kept."""
        return read_samples(self.chopperd.folder / "samples.csv")

    def traces(self) -> list[Path]:
        """The traces that the job wrote."""
        return sorted(self.chopperd.folder.glob("traces/*.json"))


MakeNode: TypeAlias = Callable[[int], FakeNode]


@pytest.fixture
def make_node(nvml_library: Callable[[], Path], tmp_path: Path) -> Iterator[MakeNode]:
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
        Segment(length_ns=800 * NS_PER_MS, sm_clock_mhz=WARM_MHZ, reasons=THERMAL),
        Segment(sm_clock_mhz=REFERENCE_MHZ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One step of one GPU by hand: mean clock over compute, and what was lost to which cause.

    Attributes:
        jump_ratio: The clock's jump beside or inside the step's compute, over the reference.
        all_jumps_ratio: All jumps of the run, added up.
    """

    mean_mhz: float
    by_cause_ns: dict[str, float]
    jump_ratio: float
    all_jumps_ratio: float

    @property
    def lost_ns(self) -> float:
        return sum(self.by_cause_ns.values())


def expected(capped_mhz: int) -> list[Expected]:
    """The complete steps of `course`: a clock f loses (1 - f / 1980) of the time it holds."""
    capped, warm = 1 - capped_mhz / REFERENCE_MHZ, 1 - WARM_MHZ / REFERENCE_MHZ
    half_ns = COMPUTE_NS / 2
    steps: list[tuple[float, dict[str, float], float]] = [
        (REFERENCE_MHZ, {}, capped),
        (capped_mhz, {"power_cap": capped * COMPUTE_NS}, capped),
        (
            (capped_mhz + WARM_MHZ) / 2,
            {"power_cap": capped * half_ns, "thermal": warm * half_ns},
            capped - warm,
        ),
        (WARM_MHZ, {"thermal": warm * COMPUTE_NS}, warm),
    ]
    return [
        Expected(mean_mhz=mhz, by_cause_ns=lost, jump_ratio=jump, all_jumps_ratio=2 * capped)
        for mhz, lost, jump in steps
    ]


@pytest.fixture
def recorded(make_node: MakeNode) -> FakeNode:
    """Four GPUs, one of them slower under its cap, recorded at 100 Hz."""
    node = make_node(4)
    for index, gpu in enumerate(node.scenario.gpus):
        # The job moves the start to its own.
        later_ns = time.time_ns() + 3600 * NS_PER_S
        gpu.plays(*course(990 if index == SLOW else 1386), origin_unix_ns=later_ns)
    done = node.record("--backend", "nvml", "--hz", "100")
    assert done.returncode == 0, done.stderr
    # What was printed is the report: the slow GPU, its excess, the traces.
    assert f"GPU {SLOW} is slow".lower() in done.stdout.lower().split("\n\n")[0]
    assert " CLOCK   at most " in done.stdout
    assert done.stdout.count("rank3.pt.trace.json") == 1
    return node


def test_a_recorded_job_has_the_figures_worked_out_by_hand(recorded: FakeNode) -> None:
    document = recorded.chopperd.document(
        "report", *recorded.traces(), "--samples", recorded.chopperd.folder / "samples.csv"
    )
    assert not document.generated.simulated
    assert document.trace.world_size == 4
    samples = recorded.samples()
    for rank in range(4):
        rows = [row for row in document.steps if row.rank == rank and not row.tail]
        spacing_ns = longest_spacing_ns(samples.gpus[rank], rows)
        by_hand = expected(990 if rank == SLOW else 1386)
        assert [row.step for row in rows] == [0, 1, 2, 3]
        for row, step in zip(rows, by_hand, strict=True):
            _check_lengths(row)
            _check_clock(row, step, spacing_ns)
    _check_excess(document, samples)


def _check_lengths(row: Row) -> None:
    """To the nanosecond: nothing in them is sampled."""
    assert (row.window_ns, row.compute_ns) == (STEP_NS, COMPUTE_NS)
    assert row.waterfall_ns is not None
    assert row.waterfall_ns.exposed_comm == COMM_NS
    # The next GEMM's launch began 1 ms before it; before that the host did nothing we know of.
    assert row.waterfall_ns.idle_launch_call == LAUNCH_NS
    assert row.waterfall_ns.idle_launch_prep == STEP_NS - COMPUTE_NS - COMM_NS - LAUNCH_NS


def _check_clock(row: Row, step: Expected, spacing_ns: int) -> None:
    """The clock and its cost against the figures by hand.

    Where a clock jumps, the line between the samples around the jump misplaces at most half the
    jump times their spacing. The correction of borders spreads as much of all the run's jumps over
    its five steps. Time without samples can have cost anything.
    """
    assert row.clock is not None
    assert row.clock.coverage_ratio is not None
    assert row.clock.coverage_ratio >= 0.8
    uncovered_ns = (1 - row.clock.coverage_ratio) * COMPUTE_NS
    misplaced_ns = (step.jump_ratio / 2 + step.all_jumps_ratio / 5) * spacing_ns
    tolerance_ns = misplaced_ns + uncovered_ns + 1e-3 * COMPUTE_NS
    tolerance_ratio = tolerance_ns / COMPUTE_NS
    assert row.clock.compute is not None
    by_hand_mhz = pytest.approx(step.mean_mhz, abs=tolerance_ratio * REFERENCE_MHZ)
    assert row.clock.compute.mean_mhz == by_hand_mhz
    loss = row.dvfs
    assert loss.lost_ns == pytest.approx(step.lost_ns, abs=tolerance_ns)
    assert loss.gap_ratio == pytest.approx(step.lost_ns / COMPUTE_NS, abs=tolerance_ratio)
    assert loss.by_cause_ns is not None
    assert sum(loss.by_cause_ns.values()) == loss.lost_ns
    for cause in loss.by_cause_ns.keys() | step.by_cause_ns.keys():
        by_hand_ns = pytest.approx(step.by_cause_ns.get(cause, 0.0), abs=tolerance_ns)
        assert loss.by_cause_ns.get(cause, 0) == by_hand_ns, cause


def _check_excess(document: ReportDocument, samples: SampleSet) -> None:
    """Under the cap the slow GPU runs at 990 of its peers' 1386 MHz for 400 ms: 114.3 ms.

    Its own clock and the median of all are misplaced by less than half a spacing each.
    """
    capped = {row.rank: row for row in document.steps if row.step == 1}
    for rank, row in capped.items():
        by_hand_ns = (1 - 990 / 1386) * COMPUTE_NS if rank == SLOW else 0.0
        assert row.peers is not None
        assert row.peers.n == 4
        tolerance_ns = max(longest_spacing_ns(gpu, [row]) for gpu in samples.gpus)
        assert row.dvfs.excess_ns == pytest.approx(by_hand_ns, abs=tolerance_ns), rank
    assert document.summary is not None
    worst = max(document.summary.gpus, key=lambda line: line.excess_ns_per_step or 0.0)
    assert worst.gpu == str(SLOW)


def longest_spacing_ns(samples: GpuSamples, rows: list[Row]) -> int:
    """The longest time between two of a GPU's readings in these steps and 100 ms around them.

    A reading's instant lies somewhere in its driver call.
    """
    starts = [row.start_unix_ns for row in rows if row.start_unix_ns is not None]
    t_ns, around_ns = samples.t_unix_ns, 100 * NS_PER_MS
    inside = (t_ns > min(starts) - around_ns) & (t_ns < max(starts) + STEP_NS + around_ns)
    return int(np.diff(t_ns[inside]).max() + samples.read_span_ns[inside].max())


def test_devices_lists_the_driver_s_gpus(make_node: MakeNode) -> None:
    node = make_node(2)
    done = node.chopperd.run("devices", "--backend", "nvml", "--format", "json")
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert (listed["backend"], listed["driver"], listed["simulated"]) == (
        "nvml",
        "595.45.04",
        False,
    )
    assert [gpu["info"]["uuid"] for gpu in listed["gpus"]] == node.uuids
    assert [gpu["reading"]["sm_clock_mhz"] for gpu in listed["gpus"]] == [1980, 1980]
    text = node.chopperd.run("devices").stdout
    assert all(uuid in text for uuid in node.uuids)
    assert "SIMULATED" not in text


@pytest.mark.parametrize(
    "arguments", [("devices", "--backend", "nvml"), ("record", "--backend", "nvml", "--", "true")]
)
def test_no_gpu_is_exit_code_3_and_says_what_was_tried(
    arguments: tuple[str, ...], chopperd: Chopperd
) -> None:
    done = chopperd.run(*arguments)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("chopperd: nvml: libnvidia-ml.so.1 not found")


def test_a_driver_without_gpus_is_exit_code_3(make_node: MakeNode) -> None:
    done = make_node(0).chopperd.run("devices", "--backend", "nvml")
    assert done.returncode == 3
    assert done.stderr == "chopperd: nvml: there is no GPU\n"


def test_a_gpu_lost_meanwhile_leaves_the_others_sampled(make_node: MakeNode) -> None:
    node = make_node(3)
    until_told = ("sh", "-c", "until test -e enough; do sleep 0.05; done")
    job = node.chopperd.start("record", "-o", "samples.csv", "--", *until_told)
    first, lost, last = node.scenario.gpus
    wait_for(lambda: _reads(lost) > 20, "the sampler reads")
    lost.fails(GPU_IS_LOST)
    lost_unix_ns = time.time_ns()
    enough = min(_reads(first), _reads(last)) + 100
    wait_for(lambda: min(_reads(first), _reads(last)) > enough, "the others are read")
    read_unix_ns = time.time_ns()
    (node.chopperd.folder / "enough").touch()
    _, complaints = job.communicate(timeout=60)
    assert job.returncode == 0
    assert "GPU 1 is lost" in complaints
    kept = node.samples()
    assert [gpu.gpu.uuid for gpu in kept.gpus] == node.uuids
    last_unix_ns = [int(gpu.t_unix_ns[-1]) for gpu in kept.gpus]
    assert last_unix_ns[1] < lost_unix_ns + NS_PER_S // 10
    # What was read just before the end may be on its way into the record.
    assert min(last_unix_ns[0], last_unix_ns[2]) > read_unix_ns - NS_PER_S // 10


def _reads(gpu: GpuLayout) -> int:
    return gpu.calls_of("nvmlDeviceGetClockInfo")
