"""The public cases, from the file to the document: every number is its `expected.md`'s.

Percentages of a step are of its marker (`busy_ns / marker_ns`) where the cases' README says so, of
the device window elsewhere.
"""

import json
from pathlib import Path

import pytest

from chopperd.errors import TraceFormatError
from chopperd.model.report import ReportDocument
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.report.forms.schema import formatted
from tests.integration.cases import Cases, codes, of_marker, of_window

pytestmark = pytest.mark.corpus


@pytest.fixture
def cases(shared: Path) -> Cases:
    return Cases(shared)


def busy_us(document: ReportDocument) -> list[float]:
    """Busy time of the steps with a device row."""
    return [row.busy_ns / 1000 for row in document.steps if row.busy_ns is not None]


def test_case_01_damaged_names_cost_their_rows_and_nothing_else(cases: Cases) -> None:
    document = cases.report(1)
    (step,) = document.steps
    assert (step.step, step.marker_ns, step.busy_ns) == (7, 500_000, 200_000)
    assert of_marker(step) == 40.0
    assert {family.name: family.count for family in document.totals[0].families} == {
        "gemm_a": 1,
        "relu_b": 1,
    }
    assert document.trace.damaged_events == 3
    assert not document.trace.complete
    assert "damaged_events" in codes(document)


def test_case_01_big_ids_and_foreign_bytes_are_read(cases: Cases) -> None:
    document = cases.report(1, "bigint-and-badutf8.json")
    (step,) = document.steps
    assert (step.marker_ns, step.busy_ns, step.comm_ns) == (100_000, 40_000, 40_000)
    assert of_marker(step) == 40.0
    assert [family.class_ for family in document.totals[0].families] == ["comm"]


@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz"])
def test_case_03_whole_events_of_a_cut_file_are_used(cases: Cases, name: str) -> None:
    document = cases.report(3, name)
    assert [(row.step, row.partial, row.host_only) for row in document.steps] == [
        (1, False, False),
        (2, False, False),
        (3, True, True),
    ]
    complete = [row for row in document.steps if not row.partial]
    assert [of_marker(row) for row in complete] == [30, 40]
    assert sum(row.busy_ns or 0 for row in complete) / len(complete) == 35_000
    assert not document.trace.complete
    assert "incomplete" in codes(document)


@pytest.mark.parametrize(
    ("name", "noted"), [("no-closing-bracket.json", True), ("plain-but-named.json.gz", False)]
)
def test_case_03_a_missing_bracket_and_a_wrong_suffix_are_accepted(
    cases: Cases, name: str, noted: bool
) -> None:
    document = cases.report(3, name)
    assert busy_us(document) == [30, 40, 50]
    assert document.trace.complete
    assert document.trace.events == 9
    assert ("not_closed" in codes(document)) == noted
    assert "incomplete" not in codes(document)


@pytest.mark.parametrize("name", ["empty.json.gz", "zero-bytes.json"])
def test_case_03_empty_files_are_refused_as_such(
    cases: Cases, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TraceFormatError, match="is an empty trace"), caplog.at_level("ERROR"):
        cases.report(3, name)


def test_case_05_invalid_records_are_counted_and_in_no_number(cases: Cases) -> None:
    document = cases.report(5)
    (step,) = document.steps
    assert (step.step, step.marker_ns, step.busy_ns) == (3, 600_000, 120_000)
    assert of_marker(step) == 20.0
    assert step.partial
    assert step.partial_reasons == ("launches_without_record",)
    (total,) = document.totals
    assert (total.start_unix_ns, total.window_ns) == (1_615_207_264_505_100_000, 270_000)
    assert step.marker_start_unix_ns == 1_615_207_264_505_000_000
    families = {family.name: family.time_ns for family in total.families}
    assert families == {"k1": 50_000, "k3": 70_000}  # mean 60 us
    assert document.trace.invalid_records == 2
    assert not document.trace.complete
    assert {"invalid_records", "launches_without_record"} <= codes(document)
    # "Kernel coverage 2 of 4 launches".
    assert any("2 of 4 launches" in note.text for note in document.notes)


def test_case_06_parts_of_a_microsecond_count(cases: Cases) -> None:
    document = cases.report(6, "sub_us.json")
    (step,) = document.steps
    assert (step.busy_ns, step.marker_ns) == (1_100, 10_000)
    assert of_marker(step) == pytest.approx(11.0)
    families = {family.name: family.time_ns for family in document.totals[0].families}
    assert families == {"a": 200, "b": 400, "c": 500}  # sum 1.1 us, mean 0.3667 us
    assert document.trace.complete


def test_case_06_absolute_times_with_fractions_do_not_overlap(cases: Cases) -> None:
    document = cases.report(6, "absolute_fraction.json")
    (step,) = document.steps
    assert (step.busy_ns, step.window_ns) == (30_990, 30_994)  # the gap is 4 ns
    assert of_marker(step) == pytest.approx(30.99)
    assert codes(document) == {"no_samples"}


def test_case_08_all_ranks_lie_on_one_wall_clock(cases: Cases) -> None:
    document = cases.report(8, "rank0.json", "rank1.json", "rank2.json")
    starts_ns = {row.rank: row.marker_start_unix_ns for row in document.steps}
    assert starts_ns == {
        0: 1_700_000_005_000_000_000,
        1: 1_700_000_005_000_250_000,
        2: 1_700_000_005_000_100_500,
    }
    assert document.steps[0].start == "2023-11-14T22:13:25.001000000Z"
    assert [trace.rank for trace in document.traces] == [0, 1, 2]
    assert [trace.base_time_unix_ns for trace in document.traces] == [
        1_700_000_000_000_000_000,
        None,
        1_699_999_990_000_000_000,
    ]


def test_case_08_a_missing_anchor_is_noted_without_samples_too(cases: Cases) -> None:
    assert {"no_timebase", "no_samples"} <= codes(cases.report(8, "no_anchor.json"))


def test_case_09_no_step_is_invented_and_totals_stay(cases: Cases) -> None:
    document = cases.report(9)
    assert document.steps == ()
    (total,) = document.totals
    assert (total.busy_ns, total.window_ns, total.step) == (140_000, 200_000, None)
    assert of_window(total) == 70.0
    assert sum(family.count for family in total.families) == 3
    assert "no_steps" in codes(document)
    assert document.summary is not None
    assert document.summary.basis == "totals"


def test_case_10_a_graph_launch_owns_all_its_kernels(cases: Cases) -> None:
    document = cases.report(10)
    assert [row.step for row in document.steps] == [3, 4]
    assert [row.launched_ns for row in document.steps] == [100_000, 75_000]
    assert busy_us(document) == [100, 75]
    assert [row.window_ns for row in document.steps] == [120_000, 85_000]
    assert [round(of_window(row), 1) for row in document.steps] == [83.3, 88.2]
    families = {family.name: family.count for family in document.totals[0].families}
    assert families == {"n0": 2, "n1": 2, "n2": 2, "n3": 1}
    assert not any(row.partial for row in document.steps)


@pytest.mark.parametrize(
    ("name", "rank", "source", "busy_ns"),
    [
        ("node-a_rank0.json", 0, "distributedInfo", 30_000),
        ("node-b_rank0.json", 0, "distributedInfo", 60_000),
        ("job7_rank2.pt.trace.json", 2, "file name", 45_000),
        ("capture.json", None, None, 20_000),
    ],
)
def test_case_12_the_rank_is_said_with_its_source(
    cases: Cases, name: str, rank: int | None, source: str | None, busy_ns: int
) -> None:
    document = cases.report(12, name)
    assert (document.trace.rank, document.trace.rank_source) == (rank, source)
    assert [(row.rank, row.busy_ns) for row in document.steps] == [(rank, busy_ns)]


def test_case_42_busy_is_a_union_on_each_device(cases: Cases) -> None:
    document = cases.report(42)
    assert [(row.device, row.busy_ns) for row in document.steps] == [(0, 150_000), (1, 160_000)]
    assert [of_marker(row) for row in document.steps] == [75.0, 80.0]
    assert [total.busy_ns for total in document.totals] == [150_000, 160_000]
    summed_ns = [sum(family.time_ns for family in row.families) for row in document.totals]
    assert summed_ns == [200_000, 160_000]
    # One GPU alone needs the longest: device 1.
    assert [row.is_critical for row in document.steps] == [False, True]


def test_case_43_kernels_are_classed_by_what_they_do(cases: Cases) -> None:
    document = cases.report(43)
    (step,) = document.steps
    assert (step.compute_ns, step.comm_ns, step.copy_ns) == (200_000, 220_000, 50_000)
    assert (step.overlap_ns, step.busy_ns) == (50_000, 420_000)
    assert step.overlap_ratio == pytest.approx(50 / 220)
    assert step.waterfall_ns is not None
    assert step.waterfall_ns.exposed_comm == 170_000
    assert step.exposed_copy_ns is not None
    assert step.exposed_copy_ns.h2d == 50_000
    assert of_marker(step) == 70.0
    assert sum(family.count for family in document.totals[0].families) == 4


def test_case_43_without_communication_the_overlap_is_unknown(cases: Cases) -> None:
    (step,) = cases.report(42).steps[:1]
    assert (step.comm_ns, step.overlap_ratio) == (0, None)


def test_case_45_accumulated_markers_are_one_step(cases: Cases) -> None:
    document = cases.report(45)
    assert [(row.step, row.accumulation) for row in document.steps] == [(3, 4), (7, 4)]
    assert [row.marker_ns for row in document.steps] == [430_000, 430_000]
    assert busy_us(document) == [260, 260]
    assert [round(of_marker(row), 1) for row in document.steps] == [60.5, 60.5]
    micro = [micro for row in document.steps for micro in row.micro_steps]
    assert [each.step for each in micro] == list(range(8))
    assert [each.marker_ns for each in micro] == [100_000, 100_000, 100_000, 130_000] * 2
    assert [each.busy_ns for each in micro] == [60_000, 60_000, 60_000, 80_000] * 2
    # The file has no wall-clock anchor.
    assert {each.marker_start_unix_ns for each in micro} == {None}
    assert not any(row.partial for row in document.steps)
    assert "outlier" not in formatted(document, "text")


def test_case_45_without_optimizers_markers_stay_markers(cases: Cases, tmp_path: Path) -> None:
    trace = json.loads((cases.folder(45) / "trace.json").read_text())
    trace["traceEvents"] = [e for e in trace["traceEvents"] if "Optimizer" not in e["name"]]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    document = report_files([path], samples=None, options=ReportOptions())
    assert [row.step for row in document.steps] == list(range(8))
    assert {row.accumulation for row in document.steps} == {None}
    assert {row.micro_steps for row in document.steps} == {()}


def test_case_46_edge_steps_are_told_apart(cases: Cases) -> None:
    document = cases.report(46)
    assert [(row.step, row.partial) for row in document.steps] == [
        (2, False),
        (3, False),
        (4, True),
    ]
    assert busy_us(document) == [40, 60]
    complete = [row.busy_ns or 0 for row in document.steps if not row.partial]
    assert sum(complete) / len(complete) == 50_000
    assert document.steps[2].host_only
    assert document.steps[2].busy_ns is None
    # The kernel from before the window: in no step, and in the totals.
    assert document.trace.unlinked_kernels == 1
    assert document.totals[0].busy_ns == 140_000
    assert [row.foreign_ns for row in document.steps[:2]] == [0, 0]


def test_case_48_is_fsdp1_with_host_only_steps(cases: Cases) -> None:
    document = cases.report(48)
    assert document.framework.name == "fsdp1"
    assert document.framework.evidence
    assert [(row.step, row.host_only, row.device) for row in document.steps] == [
        (0, True, None),
        (5, True, None),
        (6, True, None),
    ]
    assert {row.marker_ns for row in document.steps} == {20_000_000}
    assert document.totals == ()
    assert document.summary is None
    assert "no_device_records" in codes(document)
