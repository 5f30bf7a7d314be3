"""Which GPUs and steps of reports are compared, and what is refused: documents built by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.compared_reports import compare
from chopperd.errors import IncomparableError
from chopperd.model.comparison import ComparisonDocument, Difference
from chopperd.model.report import ReportDocument
from tests.unit.correlate.compared_runs import run_of, with_memory, with_totals
from tests.unit.report.documents import family

STEPS = np.random.default_rng(2).normal(1500.0, 15.0, 80).tolist()
LONGER = [ms * 1.03 for ms in STEPS[::-1]]


def compared(*sides: ReportDocument | list[ReportDocument], **how: object) -> ComparisonDocument:
    lists = [side if isinstance(side, list) else [side] for side in sides]
    return compare(lists, version="1", **how)  # type: ignore[arg-type]


def figure(document: ComparisonDocument, name: str) -> Difference:
    (found,) = (each for each in document.comparisons[0].figures if each.name == name)
    return found


def test_the_steps_of_the_same_gpus_are_compared() -> None:
    """Without the partial and the last step, of 9000 ms; B's steps are 3 % longer, in idle time."""
    found = compared(run_of(STEPS), run_of(LONGER))
    (only,) = found.comparisons
    assert (only.name, only.paired_by, only.by_runs, only.record_times) == (
        "B",
        "uuid",
        False,
        None,
    )
    assert only.step.a == pytest.approx(np.mean(STEPS) * 1e6, rel=1e-6)
    assert only.step.verdict == "higher"
    assert only.step.change == pytest.approx(0.03, abs=1e-6)
    first = found.sides[0]
    assert (first.steps, first.warm_up_steps, first.partial_steps, first.gpus) == (80, 0, 2, 2)
    assert (first.reference_mhz, first.power_limit_w, first.runs) == (1980.0, 700.0, 1)
    assert figure(found, "waterfall_ns/idle_launch_prep").change == pytest.approx(0.03, abs=1e-6)
    assert figure(found, "waterfall_ns/dvfs_loss").verdict == "same"
    assert figure(found, "busy_mhz").a == 1730.0
    assert [(gpu.uuid, gpu.gpu_a, gpu.busy_mhz_b) for gpu in only.gpus] == [
        ("GPU-a", "0", 1730.0),
        ("GPU-b", "1", 1730.0),
    ]


def test_a_gpu_is_the_same_under_another_rank_and_others_are_left_out() -> None:
    found = compared(run_of(STEPS, uuids=["x", "y", "z"]), run_of(LONGER, uuids=["z", "x"]))
    (only,) = found.comparisons
    assert [gpu.uuid for gpu in only.gpus] == ["x", "z"]
    (note,) = found.notes
    assert note.text == "only 2 of 3 GPUs are in all runs: only these are compared"


def test_different_gpus_are_refused_unless_asked() -> None:
    a, b = run_of(STEPS), run_of(LONGER, uuids=["GPU-c", "GPU-d"])
    with pytest.raises(IncomparableError, match=r"^different GPUs") as caught:
        compared(a, b)
    assert (caught.value.allow, caught.value.exit_code) == ("gpus", 2)
    found = compared(a, b, allow=["gpus"])
    assert (found.comparisons[0].paired_by, found.comparisons[0].gpus) == ("none", ())
    assert [note.code for note in found.notes] == ["different_gpus"]


def test_unknown_gpus_are_paired_by_rank_and_said_to_be_unknown() -> None:
    a, b = (run_of(ms, uuids=[None, None]) for ms in (STEPS, LONGER))
    found = compared(a, b)
    assert (found.comparisons[0].paired_by, found.notes[0].code) == ("rank", "gpus_unknown")
    with pytest.raises(IncomparableError, match=r"^different GPUs"):
        compared(a, run_of(LONGER, uuids=[None, None], name="H200"))
    less = compared(a, run_of(LONGER, uuids=[None]))
    assert [side.gpus for side in less.sides] == [1, 1]


def test_other_reference_clocks_and_power_limits_are_refused_unless_asked() -> None:
    a, lower = run_of(STEPS), run_of(STEPS, reference_mhz=1755)
    for name, what, b in (
        ("reference", "reference clocks: A 1980 MHz, B 1755 MHz", lower),
        ("power-limit", "power limits: A 700 W, B 500 W", run_of(STEPS, limit_w=500)),
    ):
        with pytest.raises(IncomparableError, match=rf"^other {what}$") as caught:
            compared(a, b)
        assert caught.value.allow == name
        (note,) = compared(a, b, allow=[name]).notes
        assert note.text == f"other {what}"
    assert compared(a, run_of(STEPS, limit_w=None, reference_mhz=None)).notes == ()


def test_what_has_no_step_is_refused() -> None:
    with pytest.raises(IncomparableError, match=r"^B has no complete step: "):
        compared(run_of(STEPS), run_of([]))
    apart = run_of(STEPS)
    steps = [replace(each, step=(each.step or 0) + 1000 * (each.rank or 0)) for each in apart.steps]
    with pytest.raises(IncomparableError, match=r"^A has no step that all of its GPUs completed$"):
        compared(replace(apart, steps=tuple(steps)), run_of(STEPS))
    with pytest.raises(IncomparableError, match=r"^26 sides at most$"):
        compared(*[run_of(STEPS[:2])] * 27)


def test_steps_of_several_files_of_a_rank_that_each_count_from_0_are_all_compared() -> None:
    first, second = run_of(STEPS[:40]), run_of(STEPS[40:])
    both = replace(first, steps=(*first.steps, *second.steps))
    found = compared(both, run_of(STEPS))
    assert [side.steps for side in found.sides] == [80, 80]
    assert found.sides[0].partial_steps == 4
    assert found.comparisons[0].step.a == pytest.approx(np.mean(STEPS) * 1e6, rel=1e-6)


def test_without_clocks_on_a_side_compute_is_one_row() -> None:
    """1004 ms on both sides; the clock's loss is not told from the rest where B has no clocks."""
    found = compared(run_of(STEPS), run_of(STEPS, clocked=False, limit_w=None))
    assert figure(found, "waterfall_ns/compute").a == 1004e6
    names = {each.name for each in found.comparisons[0].figures}
    assert not names & {"waterfall_ns/dvfs_loss", "waterfall_ns/compute_unsampled", "busy_mhz"}
    both = {each.name for each in compared(run_of(STEPS), run_of(STEPS)).comparisons[0].figures}
    assert "waterfall_ns/compute" not in both


def test_steps_of_unknown_parts_are_compared_as_a_whole() -> None:
    bare = run_of(STEPS, waterfall_ns=None, exposed_comm_ns=None)
    found = compared(bare, run_of(LONGER)).comparisons[0]
    assert found.step.verdict == "higher"
    assert not any(each.name.startswith("waterfall_ns/") for each in found.figures)


def test_communication_is_split_where_both_sides_know_waits() -> None:
    longer = [ms + 40 for ms in STEPS]
    found = compared(run_of(STEPS, split=True), run_of(longer, split=True, communication_ms=248))
    assert figure(found, "waterfall_ns/exposed_comm/wait").b == 240e6
    assert figure(found, "waterfall_ns/exposed_comm/transfer").verdict == "same"
    half = compared(run_of(STEPS), run_of(longer, split=True, communication_ms=248))
    moved = figure(half, "waterfall_ns/exposed_comm")
    assert moved.verdict == "higher"
    assert moved.change == pytest.approx(40 / np.mean(STEPS))


def test_a_class_without_kernels_in_a_step_has_no_time_there() -> None:
    """One step of 80 on one of two GPUs has 158 ms of norm: 1 ms a step; of the first no classes.

    79 steps have classes, 700 ms of gemm each.
    """
    plain = run_of(STEPS)
    steps = list(plain.steps)
    steps[5] = replace(steps[5], families=(*steps[5].families, family("n", "norm", 158, None)))
    found = compared(replace(plain, steps=tuple(steps)), replace(plain, steps=tuple(steps)))
    assert figure(found, "class/norm_ns").a == 1e6
    assert (figure(found, "class/gemm_ns").a, figure(found, "class/gemm_ns").change) == (700e6, 0.0)


def test_energy_is_of_the_whole_file_where_no_step_has_its_own() -> None:
    """5000 and 4500 J in 10 s are 500 and 450 W, of steps of the same length."""
    a, b = (with_totals(run_of(STEPS), joules) for joules in (5000.0, 4500.0))
    found = figure(compared(a, b), "power_w")
    assert (found.a, found.b, found.low, found.verdict) == (500.0, 450.0, None, "too_few")
    energy = figure(compared(a, b), "energy_j")
    assert energy.a == pytest.approx(0.5 * np.mean(STEPS))
    known = compared(run_of(STEPS, energy_j=900.0), run_of(STEPS, energy_j=990.0))
    assert figure(known, "energy_j").change == pytest.approx(0.1)


def test_memory_is_compared_where_reports_have_it() -> None:
    a = with_memory(run_of(STEPS), 1, peak_reserved_bytes=100, retries=0)
    b = with_memory(run_of(STEPS), 1, peak_reserved_bytes=120, retries=2)
    found = compared(a, b)
    assert found.sides[0].warm_up_steps == 1
    assert figure(found, "memory/peak_reserved_bytes").change == pytest.approx(0.2)
    assert figure(found, "memory/retries").verdict == "higher"
    names = {each.name for each in found.comparisons[0].figures}
    assert "memory/segment_ns" not in names


def test_three_runs_a_side_are_the_unit_and_reports_on_one_run_are_one() -> None:
    def runs(factor: float, *names: str | None) -> list[ReportDocument]:
        scales = (0.995, 1.0, 1.005, 1.002)
        return [
            run_of([ms * scale * factor for ms in STEPS], run=name)
            for scale, name in zip(scales, names, strict=False)
        ]

    found = compared(runs(1.0, None, None, None), runs(1.05, None, None, None))
    assert (found.comparisons[0].by_runs, found.comparisons[0].step.verdict) == (True, "higher")
    assert found.sides[1].runs == 3
    joined = compared(runs(1.0, "r", "r", "r", "s"), runs(1.05, None, None, None))
    assert (joined.comparisons[0].by_runs, joined.sides[0].runs) == (False, 2)
    assert joined.sides[0].steps == 320


def test_few_steps_are_said_to_be_too_few_and_how_many_more_it_takes() -> None:
    """9 steps, 50 are needed: at least 6 times as many."""
    found = compared(run_of(STEPS[:9]), run_of(LONGER[:9])).comparisons[0]
    assert found.step.verdict == "too_few"
    assert found.record_times is not None
    assert found.record_times >= 6


def test_several_sides_are_compared_with_the_first_and_the_knee_is_named() -> None:
    """Power limits may differ then. At 500 W the step lies far below the line from 700 to 400 W."""
    sides = [
        run_of([ms * factor for ms in STEPS], limit_w=watts, power_w=watts)
        for watts, factor in ((700, 1.0), (600, 1.01), (500, 1.04), (400, 1.3))
    ]
    found = compared(*sides)
    assert [each.name for each in found.comparisons] == ["B", "C", "D"]
    assert found.knee == "C"
    assert [side.figures["power_w"] for side in found.sides] == [700, 600, 500, 400]
    assert [each.step.verdict for each in found.comparisons][1:] == ["higher", "higher"]
