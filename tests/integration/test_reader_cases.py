"""Public cases about what traces hold, from the file to the document: figures of `expected.md`."""

from pathlib import Path

import pytest

from chopperd.errors import TraceFormatError
from chopperd.model.report import ReportDocument
from chopperd.model.trace import Damage
from chopperd.traces.read.reader import read_trace
from tests.decoders import read_without_scanner
from tests.integration.cases import Cases, codes

pytestmark = pytest.mark.corpus

US = 1000


@pytest.fixture
def cases(shared: Path) -> Cases:
    return Cases(shared)


def windows_us(document: ReportDocument) -> list[tuple[int | None, float, float, bool]]:
    """Number, window, busy time and whether it is a tail, of the steps with a device row."""
    return [
        (row.step, row.window_ns / US, row.busy_ns / US, row.tail)
        for row in document.steps
        if row.window_ns is not None and row.busy_ns is not None
    ]


def mean_step_ns(document: ReportDocument) -> float | None:
    return None if document.summary is None else document.summary.step_ns


def note(document: ReportDocument, code: str) -> str:
    (text,) = (note.text for note in document.notes if note.code == code)
    return text


PREFILL, DECODE = "execute_context_1(512)_generation_0(0)", "execute_context_0(0)_generation_1(1)"


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("trtllm.json", [(14, "step[14]"), (15, "step[15]"), (16, "step[16]")]),
        ("vllm.json", [(0, PREFILL), (1, DECODE), (2, DECODE)]),
    ],
)
def test_case_52_iterations_of_serving_are_steps_with_the_names_of_their_annotations(
    cases: Cases, name: str, steps: list[tuple[int, str]]
) -> None:
    document = cases.report(52, name)
    (total,) = document.totals
    assert (total.window_ns, total.busy_ns) == (1_100 * US, 850 * US)
    assert [(row.step, row.step_name) for row in document.steps] == steps
    assert {row.step_source for row in document.steps} == {"step_marker"}
    assert [row.busy_ns for row in document.steps] == [300 * US, 250 * US, 300 * US]
    assert [row.window_ns for row in document.steps] == [400 * US, 400 * US, 300 * US]
    assert "serving engine" in note(document, "steps_of_engine")


def test_case_53_words_and_numbers_as_texts_in_args_are_read(cases: Cases) -> None:
    document = cases.report(53)
    (total,) = document.totals
    assert (total.compute_ns, total.comm_ns, total.overlap_ns) == (600 * US, 100 * US, 50 * US)
    assert total.busy_ns == 650 * US
    assert total.waterfall_ns is not None
    assert total.waterfall_ns.exposed_comm == 50 * US
    (collective,) = total.collectives or ()
    assert (collective.name, collective.group_size) == ("allgather", 8)
    assert collective.bus_bytes_per_s == pytest.approx(146.8e9, rel=1e-3)
    assert {family.name for family in total.families} >= {"nvjet_hsh_128x256_64x4_TNT"}
    assert {each.name: each.time_ns for each in total.by_layer} == {
        "layers.0.attention.wq": 200 * US,
        "layers.0.feed_forward.w1": 400 * US,
        "(unknown)": 100 * US,
    }
    assert {each.name: each.time_ns for each in total.by_phase} == {
        "forward": 450 * US,
        "backward": 150 * US,
        "(unknown)": 100 * US,
    }
    assert {each.name: each.time_ns for each in total.by_annotation} == {
        "layers.0.attention.wq": 200 * US,
        "layers.0.feed_forward.w1": 400 * US,
        "all_gather": 100 * US,
    }


@pytest.mark.parametrize(
    ("prefix", "end", "devices"),
    [("1760012345.67", "-DP-0-PP-0-EP-0", [0, 1]), ("each_sees_one_gpu", "-DP-0", [0, 0])],
)
def test_case_54_a_place_in_the_job_is_no_rank_and_two_files_are_two_devices(
    cases: Cases, prefix: str, end: str, devices: list[int]
) -> None:
    document = cases.report(54, *(f"{prefix}-TP-{n}{end}.trace.json.gz" for n in (0, 1)))
    assert [(row.rank, row.device, row.compute_ns, row.comm_ns) for row in document.totals] == [
        (None, devices[0], 300 * US, 80 * US),
        (None, devices[1], 260 * US, 100 * US),
    ]
    assert "rank0" in note(document, "rank_unknown")
    assert not any("conflict" in code for code in codes(document))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("rank0.pftrace", "is a Perfetto trace (protobuf)"),
        ("rank0.pftrace.gz", "is a Perfetto trace (protobuf)"),
        ("report1.nsys-rep", "is an Nsight Systems report"),
        ("report1.sqlite", "is an SQLite database"),
    ],
)
def test_case_61_other_formats_are_named_and_what_to_write_instead(
    shared: Path, name: str, what: str
) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(shared / "cases/61-perfetto-native-file" / name)
    assert what in str(caught.value)
    assert "export_chrome_trace('trace.json')" in str(caught.value)


@pytest.mark.parametrize("name", ["merged_intpid.json", "merged_strpid.json"])
def test_case_51_two_ranks_on_one_device_number_are_refused_with_what_to_do(
    shared: Path, name: str
) -> None:
    with pytest.raises(TraceFormatError, match=r"several processes on device 0.*own file$"):
        read_trace(shared / "cases/51-merged-ranks" / name)


def test_case_66_an_empty_value_in_args_is_null_and_costs_nothing(
    cases: Cases, shared: Path
) -> None:
    path = shared / "cases/66-all-comm-rows-damaged/trace.json"
    assert read_trace(path).damage == Damage()
    with pytest.raises(TraceFormatError, match="no native scanner"):  # not strict JSON
        read_without_scanner(path)
    document = cases.report(66)
    assert [(row.compute_ns, row.comm_ns, row.busy_ns, row.partial) for row in document.steps] == [
        (500 * US, 400 * US, 900 * US, False)
    ] * 4
    assert {row.waterfall_ns.exposed_comm for row in document.steps if row.waterfall_ns} == {
        400 * US
    }
    assert codes(document) == {"no_samples"}


def test_case_67_a_step_whose_optimizer_was_skipped_is_in_no_mean(cases: Cases) -> None:
    document = cases.report(67)
    assert windows_us(document) == [
        *((1, 1000, 500, False), (2, 1000, 500, False), (4, 2000, 1000, False)),
        *((5, 1000, 500, False), (6, 500, 500, True)),
    ]
    assert [row.partial_reasons for row in document.steps] == [
        *((), (), ("accumulation_irregular",), (), ())
    ]
    assert mean_step_ns(document) == 1000 * US
    assert "accumulation_irregular" in codes(document)


def test_case_72_two_profiler_cycles_are_six_steps(cases: Cases) -> None:
    document = cases.report(72)
    assert windows_us(document) == [
        *((1, 1000, 500, False), (2, 1000, 500, False), (3, 500, 500, True)),
        *((4, 1000, 500, False), (5, 1000, 500, False), (6, 500, 500, True)),
    ]
    assert mean_step_ns(document) == 1000 * US
    assert "step_numbers_again" in codes(document)


def test_case_74_each_device_has_the_steps_of_its_own_process(cases: Cases) -> None:
    document = cases.report(74)
    started_us = [
        (row.device, row.step, (row.start_unix_ns or 0) // US % 1_000_000, row.tail)
        for row in document.steps
    ]
    assert sorted(started_us) == [
        *((0, 1, 1050, False), (0, 2, 2050, False), (0, 3, 3050, False), (0, 4, 4050, True)),
        *((1, 1, 1350, False), (1, 2, 2360, False), (1, 3, 3370, False), (1, 4, 4380, True)),
    ]
    assert "several_processes" in codes(document)


def test_case_69_kernels_a_us_before_their_launch_are_launched_by_it(cases: Cases) -> None:
    document = cases.report(69)
    assert windows_us(document) == [(n, 1000, 400, False) for n in (1, 2, 3)] + [
        (4, 491, 400, True)  # from 4009 to the end of the last kernel at 4500
    ]
    assert not any(row.partial for row in document.steps)
    assert document.trace.unlinked_kernels == 0
    assert codes(document).isdisjoint({"unlinked_records", "launches_without_record"})


def test_case_70_a_record_that_outlasts_29_later_ones_ends_where_the_next_starts(
    cases: Cases,
) -> None:
    document = cases.report(70)
    assert windows_us(document) == [
        *((1, 1000, 800, False), (2, 1000, 810, False), (3, 1000, 800, False)),
        *((4, 1000, 800, False), (5, 870, 800, True)),
    ]
    (total,) = document.totals
    assert (total.window_ns, total.busy_ns) == (4_870 * US, 4_010 * US)
    assert sum(family.time_ns for family in total.families) == 4_010 * US
    assert document.trace.lost == {"cut_records": 1}
    assert "cut_records" in codes(document)
