"""Documents of one and of several traces: selection, notes, and what is common to all."""

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from chopperd.errors import StepNotFoundError
from chopperd.model.report import Note
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.document import StepSelection, build_document, with_selection
from chopperd.report.build.rows import DraftRow
from chopperd.report.text.headline import headline
from tests.document_checks import check_document
from tests.unit.report.traced import Job, document, node, reported, sample_set, sampled


@pytest.mark.parametrize(
    ("selection", "steps"),
    [
        (StepSelection(), [1, 1, 2, 2, 3, 3]),
        (StepSelection(step=2), [2, 2]),
        (StepSelection(last=2), [2, 2, 3, 3]),
        (StepSelection(last=9), [1, 1, 2, 2, 3, 3]),
        (StepSelection(step=1, last=1), [1, 1]),
    ],
)
def test_the_selection_shows_steps_and_leaves_the_summary(
    selection: StepSelection, steps: list[int]
) -> None:
    jobs = [Job(rank=0), Job(rank=1)]
    made = document(jobs, selection=selection)
    assert [row.step for row in made.steps] == steps
    assert made.summary == document(jobs).summary
    assert len(made.totals) == 2
    check_document(made)


@pytest.mark.parametrize("selection", [StepSelection(last=2), StepSelection(step=3)])
def test_selecting_later_gives_the_same_document(selection: StepSelection) -> None:
    jobs = [Job(rank=0), Job(rank=1)]
    assert with_selection(document(jobs), selection) == document(jobs, selection=selection)


@pytest.mark.parametrize(
    ("steps", "there"),
    [
        ([1, 2, 3], "the steps are 1 to 3"),
        ([5], "the steps are 5"),
        ([1, 3, 4, 8], "the steps are 1, 3 to 4, 8"),
        (range(2, 18, 2), "the steps are 2, 4, 6, 8, 10, ... 16"),
        ([], "no steps are marked in what the traces hold"),
    ],
)
def test_a_step_that_is_not_there_is_refused_and_those_there_are_named(
    steps: Sequence[int], there: str
) -> None:
    reports = [replace(reported(Job(steps=(0,), host_only_steps=tuple(steps))), steps=())]
    with pytest.raises(StepNotFoundError) as refused:
        build_document(reports, version="", time="", selection=StepSelection(step=9))
    assert str(refused.value) == f"there is no step 9: {there}"


def test_rows_come_by_step_rank_and_device() -> None:
    made = document([Job(rank=1, devices=(0, 1)), Job(rank=0, host_only_steps=(4,))])
    order = [(row.step, row.rank, row.device) for row in made.steps]
    assert order[:3] == [(1, 0, 0), (1, 1, 0), (1, 1, 1)]
    assert order[-1] == (4, 0, None)


class Watched(tuple[DraftRow, ...]):
    """Rows that count how often they are gone through."""

    __slots__ = ()
    passes = 0

    def __iter__(self) -> Iterator[DraftRow]:
        Watched.passes += 1
        return super().__iter__()


@pytest.mark.parametrize("host_steps", [0, 200])
def test_the_work_grows_with_the_steps_and_not_with_their_square(host_steps: int) -> None:
    """60,000 steps took minutes when each row went through all of them again."""
    report = reported(Job(host_only_steps=tuple(range(10, 10 + host_steps))))
    many = Watched(report.steps * (1 + host_steps))
    Watched.passes = 0
    build_document([replace(report, steps=many)], version="", time="", selection=StepSelection())
    assert Watched.passes < 10


def test_a_note_of_all_traces_comes_once_and_others_say_whose_they_are() -> None:
    jobs = [Job(rank=0), Job(rank=1, lost_launch_in=1), Job(rank=2, lost_launch_in=1)]
    notes = [(note.code, note.text) for note in document(jobs).notes]
    assert notes[0] == ("no_samples", "no clock samples of its time")
    assert [text for code, text in notes if code == "launches_without_record"] == [
        "ranks 1, 2: 1 of 7 launches left no record: dropped by the profiler; the time in which "
        "their work may have run is unknown, not idle"
    ]


def test_the_samples_own_notes_are_passed_on() -> None:
    note = Note(code="reads_missed", text="GPU 0: 3 of 100 reads missed")
    samples = replace(sample_set(sampled()), notes=(note,))
    assert note in document([Job()], samples).notes


def test_two_files_of_one_rank_and_step_stand_side_by_side_and_are_named() -> None:
    made = document([Job(path="node-a.json"), Job(path="node-b.json", compute_ms=60)])
    assert [row.compute_ns for row in made.steps if row.step == 1] == [80_000_000, 60_000_000]
    (conflict,) = [note.text for note in made.notes if note.code == "rank_conflict"]
    assert conflict == "rank 0 is claimed by node-a.json and by node-b.json: both are shown"
    assert made.summary is not None
    assert len(made.summary.gpus) == 2
    check_document(made)


def test_the_reference_is_that_of_the_gpus_which_have_one() -> None:
    jobs, samples = node([1500, 1500])
    made = document(jobs, replace(samples, gpus=samples.gpus[:1]))
    assert made.summary is not None
    assert (made.summary.reference_mhz, made.summary.reference_source) == (2000.0, "device_max")


def test_different_references_are_no_common_one_and_leave_the_interval() -> None:
    slower = sampled(1, 1400.0, top_mhz=1800.0)
    jobs = [Job(rank=rank, uuid=f"GPU-{rank}") for rank in (0, 1)]
    made = document(jobs, sample_set(sampled(0), slower))
    assert made.summary is not None
    assert (made.summary.reference_mhz, made.summary.reference_source) == (None, None)
    assert made.summary.gap_ratio == pytest.approx(0.2)
    assert made.summary.gap_low is not None
    (clock,) = [row for row in headline(made) if row.label == "CLOCK"]
    assert "below 1800-2000 MHz (device max)" in clock.clauses[0]


def test_sampling_and_alignment_are_of_the_worst_gpu() -> None:
    jobs, samples = node([1500, 1500])
    made = document(jobs, samples)
    assert (made.sampling.asked_hz, made.sampling.kept_hz) == (100.0, 100.0)
    # 8 samples a step, and the first of step 1 lies just before it.
    assert made.sampling.samples_in_compute == 48
    assert made.alignment.check == "not measurable"
    assert made.alignment.offset_uncertainty_ns == 2_000
    assert document(jobs).alignment.check == "no samples"


def test_samples_that_do_not_reach_the_trace_are_not_no_samples() -> None:
    made = document([Job()], sample_set(sampled(start_ms=-9000, end_ms=-8000)))
    assert made.alignment.check == "not measurable"
    assert made.sampling.kept_hz is None
    assert made.sampling.asked_hz == 100.0


def test_the_document_says_who_made_it_from_what() -> None:
    made = document([Job()], sample_set(sampled()))
    assert (made.generated.node, made.generated.backend) == ("n1", "nvml")
    assert not made.generated.simulated
    pretended = document([Job()], replace(sample_set(sampled()), simulated=True))
    assert pretended.generated.simulated
    bare = document([Job()])
    assert (bare.generated.node, bare.generated.backend, bare.generated.driver) == (None,) * 3


def test_a_document_of_a_whole_node_holds_together() -> None:
    jobs, samples = node([1500, 1500, 1500, 1500, 1400], compute_ms=90)
    made = document(jobs, samples, JoinOptions(limit_mhz=1900.0))
    check_document(made)
    assert made.trace == made.traces[0]
    assert made.summary is not None
    assert made.summary.basis == "critical_steps"
    # Critical is rank 4: (1 - 0.7) of 90 ms in each of two complete steps.
    assert made.summary.lost_ns == pytest.approx(27_000_000)
    assert made.summary.excess_ns == pytest.approx(6_000_000)
    worst = max(made.summary.gpus, key=lambda line: line.excess_ns_per_step or 0)
    assert (worst.rank, worst.slowest_steps) == (4, 2)
