"""A drop in a traced job: a simulated GPU is braked at a known time, and the report must say so.

The truth is the simulation's own: when its clock was low, and its power, exactly. Beside the traced
drop, the agent's detector over the same samples must find the same.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from chopperd.cli.demo import demo_spec, simulated_traces
from chopperd.model.answers import TracedDrop
from chopperd.model.report import ReportDocument
from chopperd.model.samples import SampleSet
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.pipeline.sampled import report_samples
from chopperd.report.text.report import render_text
from chopperd.simulation.node import SimulatedNode
from chopperd.units import NS_PER_S
from tests.fakes.simulated_job import START_UNIX_NS, sampled

#: The demo's second capture, of the usual length.
CAPTURE_S = (30.0, 33.0)
#: The samples begin so long after the job, and end so long after the capture.
SAMPLED_S = (12.0, 41.0)
HZ = 50.0
CAUSES = {"fsdp2-h100": "power_brake", "fsdp2-mi300x": "power_cap"}


def unix_ns(second: float) -> int:
    return START_UNIX_NS + round(second * NS_PER_S)


@dataclass(frozen=True)
class Braked:
    """The demo's job, its samples, and the report on its second capture."""

    node: SimulatedNode
    samples: SampleSet
    paths: Sequence[Path]
    document: ReportDocument

    @property
    def drop(self) -> TracedDrop:
        """The only drop."""
        (found,) = self.document.drops
        return found

    def true_span(self) -> tuple[int, int]:
        """From the start of the first braked step to that of the first one after the brake."""
        brake = self.node.spec.brake
        assert brake is not None
        runs = self.node.steps(0, self.node.step_at(unix_ns(SAMPLED_S[1])))
        begins = [int(run.before.free_ns[brake.gpu]) for run in runs]
        ends = (brake.start_unix_ns, brake.end_unix_ns)
        first_ns, last_ns = (next(t for t in begins if t >= end_ns) for end_ns in ends)
        return first_ns, last_ns


@pytest.fixture(scope="module", params=CAUSES)
def braked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Braked:
    folder: Path = tmp_path_factory.mktemp("job")
    spec = demo_spec(1, request.param, START_UNIX_NS, seconds=CAPTURE_S[1] - CAPTURE_S[0])
    node = SimulatedNode(spec)
    begin_ns, end_ns = map(unix_ns, SAMPLED_S)
    gpus = tuple(sampled(node, index, begin_ns, end_ns, HZ) for index in range(len(node.gpus)))
    samples = SampleSet(gpus=gpus, asked_hz=HZ, simulated=True, backend="simulated", source="test")
    paths = []
    for name, content in simulated_traces(node, *map(unix_ns, CAPTURE_S)):
        paths.append(folder / name)
        paths[-1].write_bytes(b"".join(content))
    document = report_files(paths, samples=samples, options=ReportOptions())
    return Braked(node, samples, paths, document)


def test_the_one_drop_is_on_the_braked_gpu_at_its_time(braked: Braked) -> None:
    """To a step of half a second, as the clock swings with its phases; on MI300X by 15 %."""
    assert braked.node.spec.brake is not None
    assert braked.drop.gpu == str(braked.node.spec.brake.gpu)
    begin_ns, end_ns = braked.true_span()
    assert braked.drop.start_unix_ns == pytest.approx(begin_ns, abs=0.6 * NS_PER_S)
    within_s = 0.6 if braked.node.spec.preset == "fsdp2-h100" else 1.6
    assert braked.drop.end_unix_ns == pytest.approx(end_ns, abs=within_s * NS_PER_S)


def test_its_cause_is_the_brake(braked: Braked) -> None:
    cause = CAUSES[braked.node.spec.preset]
    lost = braked.drop.by_cause_ns
    assert max(lost, key=lost.__getitem__) == cause
    assert lost[cause] > 0.95 * braked.drop.lost_ns


def test_clock_power_and_loss_are_the_truth(braked: Braked) -> None:
    """Over the time found; power is read once a second: six readings know it to 15 %.

    It swings with the phases of a step.
    """
    gpu = int(braked.drop.gpu or -1)
    begin_ns, end_ns = braked.drop.start_unix_ns, braked.drop.end_unix_ns or 0
    tracks, t_ns = [], begin_ns
    while t_ns < end_ns:
        tracks.append(braked.node.track(gpu, t_ns))
        t_ns = tracks[-1].end_ns
    clock, power, busy, lengths = (
        np.concatenate(parts)
        for parts in (
            [each.truth.clock.value for each in tracks],
            [each.power.value for each in tracks],
            [each.busy.value for each in tracks],
            [np.diff(each.power.edges_ns) for each in tracks],
        )
    )
    edges_ns = np.concatenate([each.power.edges_ns[:-1] for each in tracks])
    lengths = np.minimum(edges_ns + lengths, end_ns) - np.maximum(edges_ns, begin_ns)
    lengths = np.maximum(lengths, 0)
    mean_mhz = float(np.average(clock, weights=lengths * busy))
    assert braked.drop.mean_mhz == pytest.approx(mean_mhz, rel=0.02)
    assert braked.drop.power_w == pytest.approx(np.average(power, weights=lengths), rel=0.15)
    depth = 1 - braked.drop.mean_mhz / braked.drop.reference_mhz
    assert braked.drop.lost_ns == pytest.approx(depth * braked.drop.duration_ns, rel=0.05)
    assert depth > 0.15


def test_what_ran_is_that_of_a_brute_force(braked: Braked) -> None:
    """Over the trace's plain rows, one by one; communication is told by its names."""
    gpu, start_ns = int(braked.drop.gpu or -1), braked.drop.start_unix_ns
    trace = json.loads(braked.paths[gpu].read_bytes())
    origin_ns = trace["baseTimeNanoseconds"]
    sums = {True: [0, 0], False: [0, 0]}
    for event in trace["traceEvents"]:
        if event.get("cat") not in {"kernel", "gpu_memcpy", "gpu_memset"}:
            continue
        begin_ns = origin_ns + round(event["ts"] * 1000)
        end_ns = begin_ns + round(event["dur"] * 1000)
        inside_ns = max(end_ns - max(begin_ns, start_ns), 0)
        is_comm = event["name"].startswith("nccl")
        sums[is_comm][0] += inside_ns
        sums[is_comm][1] += end_ns - begin_ns - inside_ns
    comm = next(each for each in braked.drop.classes if each.name == "comm")
    inside, outside = (sums[True][k] / (sums[True][k] + sums[False][k]) for k in (0, 1))
    assert comm.inside_ratio == pytest.approx(inside, abs=1e-5)
    assert comm.outside_ratio == pytest.approx(outside, abs=1e-5)
    assert inside < outside  # it is late itself, and does not wait for others


def test_its_steps_are_those_from_the_brake_on(braked: Braked) -> None:
    assert braked.drop.steps is not None
    own = [row for row in braked.document.steps if row.gpu == braked.drop.gpu]
    begun = [
        row.step or 0
        for row in own
        if (row.start_unix_ns or 0) + (row.window_ns or 0) > braked.true_span()[0]
    ]
    assert set(braked.drop.steps) <= {row.step for row in own}
    assert abs(braked.drop.steps[0] - begun[0]) <= 1
    assert braked.drop.steps[1] == begun[-1]


def test_the_agents_detector_finds_the_same_in_the_samples(braked: Braked) -> None:
    (live,) = report_samples(braked.samples, unix_ns=0).drops
    assert live.gpu == braked.drop.gpu
    assert live.cause == CAUSES[braked.node.spec.preset]
    assert live.begin_unix_ns == pytest.approx(braked.drop.start_unix_ns, abs=0.05 * NS_PER_S)
    assert live.mean_power_w == pytest.approx(braked.drop.power_w, rel=0.02)


def test_the_report_shows_it_within_80_columns(braked: Braked) -> None:
    lines = render_text(braked.document, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    (title,) = [place for place, line in enumerate(lines) if line.startswith("DROPS")]
    assert lines[title + 2].split()[0] == braked.drop.gpu
    assert CAUSES[braked.node.spec.preset].replace("_", " ") in lines[title + 2]
