"""The public cases, from the file to the document: every number is its `expected.md`'s.

Percentages of a step are of its marker (`busy_ns / marker_ns`) where the cases' README says so, of
the device window elsewhere.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from chopperd.errors import TraceFormatError
from chopperd.model.report import ReportDocument, Row
from chopperd.model.samples import SampleSet
from chopperd.pipeline import ReportOptions, report_files
from chopperd.report.formats import formatted
from chopperd.report.trace_report import JoinOptions
from chopperd.store.samples import read_samples
from tests.document_checks import check_document, leaves

pytestmark = pytest.mark.corpus

Case = Callable[..., ReportDocument]
BASE_NS = 1_750_000_000_000_000_000


@pytest.fixture
def case(shared: Path) -> Case:
    """The report on files of a case, checked for what holds for all reports."""

    def reported(
        number: int,
        *names: str,
        samples: SampleSet | None = None,
        join: JoinOptions | None = None,
    ) -> ReportDocument:
        paths = [folder(shared, number) / name for name in names or ("trace.json",)]
        options = ReportOptions(join=join or JoinOptions())
        document = report_files(paths, samples=samples, options=options)
        check_document(document)
        return document

    return reported


def folder(shared: Path, number: int) -> Path:
    (found,) = (shared / "cases").glob(f"{number:02d}-*")
    return found


def codes(document: ReportDocument) -> set[str]:
    return {note.code for note in document.notes}


def busy_us(document: ReportDocument) -> list[float]:
    """Busy time of the steps with a device row."""
    return [row.busy_ns / 1000 for row in document.steps if row.busy_ns is not None]


def of_marker(row: Row) -> float:
    """Busy time in percent of the CPU marker."""
    assert row.busy_ns is not None
    assert row.marker_ns is not None
    return 100 * row.busy_ns / row.marker_ns


def of_window(row: Row) -> float:
    """Busy time in percent of the device window."""
    assert row.busy_ns is not None
    assert row.window_ns is not None
    return 100 * row.busy_ns / row.window_ns


def clocks_are_unknown(document: ReportDocument) -> bool:
    """Whether no row has a clock, a loss, or anything that takes one."""
    return all(
        row.clock is None
        and row.gpu is None
        and all(value is None for _, value in leaves(row.dvfs))
        for row in (*document.steps, *document.totals)
    )


def test_case_01_damaged_names_cost_their_rows_and_nothing_else(case: Case) -> None:
    document = case(1)
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


def test_case_01_big_ids_and_foreign_bytes_are_read(case: Case) -> None:
    document = case(1, "bigint-and-badutf8.json")
    (step,) = document.steps
    assert (step.marker_ns, step.busy_ns, step.comm_ns) == (100_000, 40_000, 40_000)
    assert of_marker(step) == 40.0
    assert [family.class_ for family in document.totals[0].families] == ["comm"]


@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz"])
def test_case_03_whole_events_of_a_cut_file_are_used(case: Case, name: str) -> None:
    document = case(3, name)
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
    case: Case, name: str, noted: bool
) -> None:
    document = case(3, name)
    assert busy_us(document) == [30, 40, 50]
    assert document.trace.complete
    assert document.trace.events == 9
    assert ("not_closed" in codes(document)) == noted
    assert "incomplete" not in codes(document)


@pytest.mark.parametrize("name", ["empty.json.gz", "zero-bytes.json"])
def test_case_03_empty_files_are_refused_as_such(
    case: Case, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TraceFormatError, match="is an empty trace"), caplog.at_level("ERROR"):
        case(3, name)


def test_case_05_invalid_records_are_counted_and_in_no_number(case: Case) -> None:
    document = case(5)
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


def test_case_06_parts_of_a_microsecond_count(case: Case) -> None:
    document = case(6, "sub_us.json")
    (step,) = document.steps
    assert (step.busy_ns, step.marker_ns) == (1_100, 10_000)
    assert of_marker(step) == pytest.approx(11.0)
    families = {family.name: family.time_ns for family in document.totals[0].families}
    assert families == {"a": 200, "b": 400, "c": 500}  # sum 1.1 us, mean 0.3667 us
    assert document.trace.complete


def test_case_06_absolute_times_with_fractions_do_not_overlap(case: Case) -> None:
    document = case(6, "absolute_fraction.json")
    (step,) = document.steps
    assert (step.busy_ns, step.window_ns) == (30_990, 30_994)  # the gap is 4 ns
    assert of_marker(step) == pytest.approx(30.99)
    assert codes(document) == {"no_samples"}


def test_case_08_all_ranks_lie_on_one_wall_clock(case: Case) -> None:
    document = case(8, "rank0.json", "rank1.json", "rank2.json")
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


def test_case_08_the_clock_under_the_kernel_is_that_of_its_sample(case: Case, shared: Path) -> None:
    samples = read_samples(folder(shared, 8) / "samples.csv")
    document = case(8, "rank0.json", samples=samples)
    (step,) = document.steps
    assert step.clock is not None
    clock = step.clock.compute
    assert clock is not None
    assert (clock.samples, clock.p05_mhz, clock.p95_mhz) == (1, 1700, 1700)
    # The integral, by hand: 1980 falls to 1700 MHz in 9.5 ms, then to 345 in 15 ms; the kernel
    # runs from 0.5 ms after the first sample to 1 ms after the second.
    at_start_mhz, at_end_mhz = 1980 - 280 * 0.5 / 9.5, 1700 - 1355 * 1 / 15
    expected_mhz = (9 * (at_start_mhz + 1700) / 2 + 1 * (1700 + at_end_mhz) / 2) / 10
    assert clock.mean_mhz == pytest.approx(expected_mhz)
    # The file has no reference clock: losses are unknown, and said to be.
    assert step.dvfs.lost_ns is None
    assert step.waterfall_ns is not None
    assert step.waterfall_ns.compute_unsampled == 10_000_000
    assert "no_reference" in codes(document)


def test_case_08_without_an_anchor_clocks_are_unknown_and_it_is_said(
    case: Case, shared: Path
) -> None:
    samples = read_samples(folder(shared, 8) / "samples.csv")
    document = case(8, "no_anchor.json", samples=samples)
    (step,) = document.steps
    assert (step.step, step.busy_ns, step.marker_ns) == (5, 10_000_000, 20_000_000)
    assert of_marker(step) == 50.0
    assert (step.start, step.start_unix_ns, step.marker_start_unix_ns) == (None, None, None)
    assert clocks_are_unknown(document)
    (reason,) = (note.text for note in document.notes if note.code == "no_timebase")
    assert "no wall-clock anchor" in reason


def test_case_08_a_missing_anchor_is_noted_without_samples_too(case: Case) -> None:
    assert {"no_timebase", "no_samples"} <= codes(case(8, "no_anchor.json"))


def test_case_09_no_step_is_invented_and_totals_stay(case: Case) -> None:
    document = case(9)
    assert document.steps == ()
    (total,) = document.totals
    assert (total.busy_ns, total.window_ns, total.step) == (140_000, 200_000, None)
    assert of_window(total) == 70.0
    assert sum(family.count for family in total.families) == 3
    assert "no_steps" in codes(document)
    assert document.summary is not None
    assert document.summary.basis == "totals"


def test_case_10_a_graph_launch_owns_all_its_kernels(case: Case) -> None:
    document = case(10)
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
    case: Case, name: str, rank: int | None, source: str | None, busy_ns: int
) -> None:
    document = case(12, name)
    assert (document.trace.rank, document.trace.rank_source) == (rank, source)
    assert [(row.rank, row.busy_ns) for row in document.steps] == [(rank, busy_ns)]


def sampled_pair(path: Path, names: tuple[str, str]) -> SampleSet:
    """The two GPUs of case 24's `nvml.json`, each at its clock throughout, named at will."""
    gpus = [
        {"index": index, "uuid": uuid, "name": name, "vendor": "nvidia", "sm_clock_max_mhz": 1980}
        for index, uuid, name in zip((0, 1), ("GPU-small", "GPU-big"), names, strict=True)
    ]
    lines = [f"# chopperd-samples/1 {json.dumps({'gpus': gpus})}", "t_unix_ns,gpu,sm_clock_mhz"]
    for tick in range(11):
        lines += [f"{BASE_NS + tick * 100_000},0,1560", f"{BASE_NS + tick * 100_000},1,1980"]
    path.write_text("\n".join([*lines, ""]))
    return read_samples(path)


def test_case_24_a_device_is_the_gpu_of_its_name_not_of_its_number(
    case: Case, tmp_path: Path
) -> None:
    samples = sampled_pair(tmp_path / "s.csv", ("NVIDIA RTX A4000", "NVIDIA H100 80GB HBM3"))
    document = case(24, samples=samples)
    (device,) = document.devices
    assert (device.device, device.gpu, device.uuid) == (0, "1", "GPU-big")
    assert device.mapping == "unique_name"
    (step,) = document.steps
    assert step.clock is not None
    assert step.clock.compute is not None
    assert step.clock.compute.mean_mhz == pytest.approx(1980)
    assert step.dvfs.lost_ns == 0


def test_case_24_where_names_repeat_clocks_are_unknown(case: Case, tmp_path: Path) -> None:
    name = "NVIDIA H100 80GB HBM3"
    document = case(24, samples=sampled_pair(tmp_path / "s.csv", (name, name)))
    assert clocks_are_unknown(document)
    assert document.devices[0].mapping is None
    assert "device_unmapped" in codes(document)


def test_case_40_samples_and_work_go_to_the_step_that_launched_it(case: Case, shared: Path) -> None:
    samples = read_samples(folder(shared, 40) / "samples.csv")
    document = case(40, samples=samples)
    assert [row.launched_ns for row in document.steps] == [200_000, 80_000, 70_000]
    assert [row.start_unix_ns for row in document.steps] == [
        BASE_NS + start_us * 1000 for start_us in (50, 250, 330)
    ]
    assert [row.window_ns for row in document.steps] == [200_000, 80_000, 70_000]
    assert [of_window(row) for row in document.steps] == [100, 100, 100]
    assert document.totals[0].busy_ns == 350_000
    medians = [
        row.clock.compute.p05_mhz for row in document.steps if row.clock and row.clock.compute
    ]
    assert medians == [1900, 1500, 1980]
    assert document.totals[0].clock is not None
    # 120 us to 350 us lie between samples, of 50 us to 400 us: nothing is extrapolated.
    assert document.totals[0].clock.coverage_ratio == pytest.approx(230 / 350)


def test_case_42_busy_is_a_union_on_each_device(case: Case) -> None:
    document = case(42)
    assert [(row.device, row.busy_ns) for row in document.steps] == [(0, 150_000), (1, 160_000)]
    assert [of_marker(row) for row in document.steps] == [75.0, 80.0]
    assert [total.busy_ns for total in document.totals] == [150_000, 160_000]
    summed_ns = [sum(family.time_ns for family in row.families) for row in document.totals]
    assert summed_ns == [200_000, 160_000]
    # One GPU alone needs the longest: device 1.
    assert [row.is_critical for row in document.steps] == [False, True]


def test_case_43_kernels_are_classed_by_what_they_do(case: Case) -> None:
    document = case(43)
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


def test_case_43_without_communication_the_overlap_is_unknown(case: Case) -> None:
    (step,) = case(42).steps[:1]
    assert (step.comm_ns, step.overlap_ratio) == (0, None)


def test_case_45_accumulated_markers_are_one_step(case: Case) -> None:
    document = case(45)
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


def test_case_45_without_optimizers_markers_stay_markers(shared: Path, tmp_path: Path) -> None:
    trace = json.loads((folder(shared, 45) / "trace.json").read_text())
    trace["traceEvents"] = [e for e in trace["traceEvents"] if "Optimizer" not in e["name"]]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    document = report_files([path], samples=None, options=ReportOptions())
    assert [row.step for row in document.steps] == list(range(8))
    assert {row.accumulation for row in document.steps} == {None}
    assert {row.micro_steps for row in document.steps} == {()}


def test_case_46_edge_steps_are_told_apart(case: Case) -> None:
    document = case(46)
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


def test_case_48_is_fsdp1_with_host_only_steps(case: Case) -> None:
    document = case(48)
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
