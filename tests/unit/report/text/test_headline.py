"""The first screen of hand-built documents, word for word."""

import pytest
from msgspec.structs import replace

from chopperd.model.answers import Held, RankLine, RanksSummary
from chopperd.model.report import CauseShare, Note, Reference, ReportDocument, Summary
from chopperd.model.report_rows import ExposedComm
from chopperd.report.text.headline import headline
from tests.unit.report.documents import (
    MS,
    eight_gpus,
    host_only,
    host_timed,
    single_gpu,
    totals_only,
    without_clocks,
)


def line(document: ReportDocument, label: str) -> str:
    (row,) = [row for row in headline(document) if row.label == label]
    return row.separator.join(row.clauses)


def with_summary(document: ReportDocument, **changes: object) -> ReportDocument:
    assert isinstance(document.summary, Summary)
    return replace(document, summary=replace(document.summary, **changes))


UNCERTAIN = (
    "at most 131 ms (9.3 %, interval unknown) below 1980 MHz (device max); not certain: why; "
    "power cap 90 %, thermal 7 %, unexplained 3 %"
)


def first(document: ReportDocument) -> str:
    row = headline(document)[0]
    return f"{row.label}: {row.separator.join(row.clauses)}"


def test_the_largest_cost_comes_first_and_what_is_next_after_it() -> None:
    """Of 1412 ms: communication 208 (14.7 %), launch latency 100, GPU 5 53, data 40."""
    assert first(eight_gpus()) == "COMMUNICATION: 208 of each 1412 ms step (14.7 %)"
    assert (
        line(eight_gpus(), "THEN") == "launch latency 100 ms · GPU 5 is slow 53 ms [49, 57] · "
        "waiting for data 40.0 ms"
    )


def test_without_complete_steps_the_costs_are_of_the_file() -> None:
    assert first(totals_only()) == ("COMMUNICATION: 208 of the 1412 ms of the whole file (14.7 %)")


def waiting(**rows_ms: float) -> ReportDocument:
    """A step of 1000 ms, of which these rows; the rest is compute of unknown clock."""
    rest_ms = 1000.0 - sum(rows_ms.values())
    waterfall_ns = {row: ms * MS for row, ms in rows_ms.items()} | {
        "compute_unsampled": rest_ms * MS
    }
    return with_summary(without_clocks(), step_ns=1000.0 * MS, waterfall_ns=waterfall_ns)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("idle_launch_prep", "WAITING FOR THE HOST"),
        ("idle_data", "WAITING FOR DATA"),
        ("idle_sync", "SYNCHRONISING"),
        ("idle_allocator", "DEVICE MEMORY CALLS"),
        ("idle_launch_call", "LAUNCH LATENCY"),
        ("exposed_comm", "COMMUNICATION"),
    ],
)
def test_each_row_that_somebody_can_act_on_has_its_label(row: str, says: str) -> None:
    assert first(waiting(**{row: 216.0})) == f"{says}: 216 of each 1000 ms step (21.6 %)"


def test_copies_say_in_which_direction_most_were() -> None:
    """The steps of the document copy 20 ms each, all of it from host to device."""
    assert first(waiting(exposed_copy=60.0)) == (
        "COPIES: 60.0 of each 1000 ms step (6.0 %), host to device 20.0"
    )


def test_where_nothing_is_large_the_page_says_so_calmly() -> None:
    document = waiting(idle_launch_call=14.0, idle_other=20.0)
    row = headline(document)[0]
    assert first(document) == "NOTHING LARGE: compute takes 966 of each 1000 ms step (96.6 %)"
    assert row.style == "bold green"
    assert line(document, "THEN") == (
        "launch latency 14.0 ms · idle with no next launch known 20.0 ms"
    )
    assert line(document, "DO").endswith("the same command with --by family")
    assert line(waiting(idle_sync=9.0), "THEN") == "nothing else takes 1 % of it"


def test_where_nothing_is_large_the_largest_class_is_named() -> None:
    """Of 9000 ms of compute 7000 are gemm: 78 %; a file has a higher threshold than steps."""
    document = with_summary(eight_gpus(), waterfall_ns={"compute_unsampled": 1412.0 * MS}, gpus=())
    assert first(document).endswith("(100.0 %), 78 % of it in gemm kernels")
    file = waiting(idle_data=90.0)
    assert first(file).startswith("WAITING FOR DATA")
    assert first(with_summary(file, basis="totals", steps=0)).startswith("NOTHING LARGE")


def test_time_that_nobody_can_act_on_yet_is_not_called_nothing() -> None:
    document = waiting(idle_other=400.0, idle_data=20.0)
    assert first(document) == (
        "TIME UNEXPLAINED: 400 of each 1000 ms step (40.0 %), idle with no next launch known"
    )
    assert line(document, "THEN") == "waiting for data 20.0 ms"
    assert first(waiting(unknown=60.0)).endswith("(6.0 %), unknown (launches without record)")
    assert first(waiting(unknown=600.0, idle_data=100.0)).startswith("WAITING FOR DATA: 100")


def test_a_larger_share_has_a_stronger_colour() -> None:
    styles = [headline(waiting(idle_data=ms))[0].style for ms in (49.0, 50.0, 199.0, 200.0)]
    assert styles == ["bold green", "bold yellow", "bold yellow", "bold red"]


def test_the_first_finding_says_what_to_do_and_how_to_verify_it() -> None:
    assert line(eight_gpus(), "DO") == (
        "check airflow and seating of GPU 5 (cooling.hot_gpu, at most 53 ms); "
        "check: chopperd devices"
    )
    assert line(waiting(idle_data=216.0), "DO").endswith("the same command with --by operation")


def held(row: str, name: str, ms: float, **more: object) -> Held:
    fields: dict[str, object] = {"kind": "operator", "inner": None, "whole": None, "region": None}
    fields |= {"count": 1, "in_call_ns": 0}
    return Held(row=row, name=name, time_ns=round(ms * MS), **{**fields, **more})  # type: ignore[arg-type]


def held_by(*each: Held, **rows_ms: float) -> ReportDocument:
    """The step of `waiting`, each of whose three has these holders."""
    return with_summary(waiting(**rows_ms), held=each * 3)


def test_the_narrowest_thing_that_holds_half_is_named_then_the_longest() -> None:
    """Of 200 ms: 120 in the region, at most 60 in one name, 9 below 1 % of the step."""
    document = held_by(
        held("idle_launch_prep", "aten::mm", 60, region="forward"),
        held("idle_launch_prep", "aten::add", 60, region="forward"),
        held("idle_launch_prep", "autograd::engine::evaluate_function: MulBackward0", 71),
        held("idle_launch_prep", "aten::copy_", 9),
        idle_launch_prep=200.0,
    )
    assert first(document).endswith(
        " (20.0 %), 60 % of it in forward; longest: MulBackward0 (71.0), aten::mm (60.0), "
        "aten::add (60.0)"
    )


def test_a_whole_thing_that_launches_nothing_goes_before_names() -> None:
    document = held_by(
        held("idle_data", "aten::stack", 110, whole="DataLoader.__next__"),
        held("idle_data", "aten::to", 90, whole="DataLoader.__next__"),
        idle_data=200.0,
    )
    assert "100 % of it in DataLoader.__next__; longest: aten::stack (110), aten::to (90.0)" in (
        first(document)
    )


def test_where_none_holds_half_the_row_is_spread() -> None:
    names = [held("idle_sync", f"aten::op{n}", 50) for n in range(4)]
    assert first(held_by(*names, idle_sync=200.0)).endswith(
        "spread: aten::op0 (50.0), aten::op1 (50.0), aten::op2 (50.0)"
    )


def test_what_is_between_operators_and_the_rest_of_many_are_told_as_such() -> None:
    document = held_by(
        held("idle_launch_prep", "(nothing open) before aten::mm", 120, kind="none"),
        held("idle_launch_prep", "(other)", 80),
        idle_launch_prep=200.0,
    )
    assert first(document).endswith(" (20.0 %), ≥ 60 % of it before aten::mm (no operator open)")
    rest = held_by(held("idle_sync", "(other)", 200), idle_sync=200.0)
    assert first(rest) == "SYNCHRONISING: 200 of each 1000 ms step (20.0 %)"


def test_a_file_without_host_spans_names_nobody() -> None:
    document = held_by(
        held("idle_launch_prep", "(no host spans)", 200, kind="none"), idle_launch_prep=200.0
    )
    assert first(document).endswith("(20.0 %), the file has no host spans")


def test_waits_of_the_device_are_never_the_hosts() -> None:
    document = held_by(
        held("idle_launch_call", "(device waits)", 120, kind="none"),
        held("idle_launch_call", "(launch latency)", 30, kind="none"),
        held("idle_launch_call", "aten::mm", 50, in_call_ns=50 * MS),
        idle_launch_call=200.0,
    )
    assert first(document).startswith("THE DEVICE WAITS: 120 of each 1000 ms step (12.0 %), ")
    assert line(document, "THEN") == "in launch calls 50.0 ms · launch latency 30.0 ms"


def test_communication_for_which_the_host_is_late_is_not_the_networks() -> None:
    document = held_by(
        held("exposed_comm", "aten::mm", 90, late_host_ns=90 * MS),
        held("exposed_comm", "(the collective)", 10, kind="none"),
        exposed_comm=100.0,
    )
    assert first(document) == (
        "HOST LATE AT COMMUNICATION: 100 of each 1000 ms step (10.0 %), "
        "but the host is late in 90.0 of them: a faster network gives back 10.0"
    )


def test_wait_and_transfer_are_told_apart_where_known() -> None:
    document = waiting(exposed_comm=100.0)
    split = ExposedComm(wait=70 * MS, transfer=30 * MS)
    steps = tuple(replace(row, exposed_comm_ns=split) for row in document.steps)
    assert first(replace(document, steps=steps)).endswith(
        "70.0 of it waiting for other ranks, 30.0 in transfer"
    )


def test_without_holders_of_the_summary_those_of_its_rows_are_told_if_all_are_shown() -> None:
    document = waiting(idle_sync=200.0)
    item = held("idle_sync", "aten::item", 200)
    steps = tuple(replace(row, held=(item,)) for row in document.steps)
    assert first(replace(document, steps=steps)).endswith("100 % of it in aten::item")
    assert "aten::item" not in first(replace(document, steps=steps[:1]))


def test_a_rank_that_is_late_by_its_own_work_is_named() -> None:
    late = RankLine(
        rank=3, device=3, gpu="3", steps=10, late_ns=31 * MS, late_steps=9, verdict="straggler",
        cause="idle_data", cause_ns=29 * MS,
    )  # fmt: skip
    ranks = RanksSummary(lines=(late,))
    document = replace(waiting(idle_sync=10.0), ranks=ranks)
    assert first(document) == (
        "RANK 3 IS SLOW: 31.0 of each 1000 ms step later than the median rank in 9 of 10 steps: "
        "waiting for data +29.0"
    )
    by_clock = replace(document, ranks=RanksSummary(lines=(replace(late, cause="dvfs_loss"),)))
    assert "its clock +29.0" in first(by_clock)
    both = replace(eight_gpus(), ranks=by_clock.ranks)
    assert "rank 3" not in line(both, "THEN")


def test_a_trace_without_a_gpu_tells_the_hosts_time() -> None:
    assert first(host_timed()) == "HOST TIME ONLY: 1 step of 1400 ms, most in aten::mm (100 %)"
    assert line(host_timed(), "THEN") == "by phase: forward (100 %)"
    assert [row.label for row in headline(host_only())] == ["HOST TIME ONLY", "DO", "TRUST"]
    (row,) = host_only().steps
    two = replace(host_only(), steps=(row, replace(row, rank=1, marker_ns=1200 * MS)))
    assert first(two) == "HOST TIME ONLY: 1 step of 1300 ms"
    assert line(two, "TRUST").startswith("good: 1 complete step, ")
    bare = replace(host_only(), steps=())
    assert first(bare) == "HOST TIME ONLY: the trace has no work of a GPU"


def test_the_clocks_cost_has_its_ceiling_interval_causes_measured_part_and_excess() -> None:
    assert line(eight_gpus(), "CLOCK") == (
        "at most 131 ms (9.3 % [9.0, 9.6]) below 1980 MHz (device max), most of it physics; "
        "power cap 90 %, thermal 7 %, unexplained 3 %; "
        "86 to 98 ms by measured sensitivity; 53 ms more than peers"
    )


def test_without_peers_there_is_no_excess_clause() -> None:
    assert line(single_gpu(), "CLOCK").endswith("power cap 90 %, thermal 7 %, unexplained 3 %")


def test_an_excess_of_zero_is_said_in_words() -> None:
    document = with_summary(eight_gpus(), excess_ns=0.0)
    assert line(document, "CLOCK").endswith("; no more than peers")


@pytest.mark.parametrize(
    ("code", "lag_ms", "cost"),
    [
        ("samples_contradict_trace", None, "unknown: why"),
        ("time_axes_differ", None, "unknown: why"),
        ("time_axes_differ", 700, UNCERTAIN),
        ("reference_doubtful", None, UNCERTAIN),
    ],
)
def test_a_doubtful_cost_is_said_to_be_so(code: str, lag_ms: int | None, cost: str) -> None:
    document = with_summary(single_gpu(), gap_low=None, gap_high=None)
    lag = replace(document.alignment, lag_ns=None if lag_ms is None else lag_ms * MS)
    document = replace(document, notes=(Note(code=code, text="why"),), alignment=lag)
    assert line(document, "CLOCK") == cost


def test_a_doubt_about_a_gpu_that_is_not_critical_leaves_the_cost() -> None:
    document = replace(single_gpu(), notes=(Note(code="time_axes_differ", text="why"),))
    assert "why" not in line(document, "CLOCK")


def test_an_unknown_cost_gives_the_notes_reason() -> None:
    assert line(without_clocks(), "CLOCK") == (
        "unknown, no samples: next time  chopperd record -- CMD   or  --samples FILE"
    )
    notes = (Note(code="no_overlap", text="trace and samples do not overlap"),)
    assert line(replace(without_clocks(), notes=notes), "CLOCK") == (
        "unknown: trace and samples do not overlap"
    )


def test_the_most_basic_reason_is_given_first() -> None:
    notes = (
        Note(code="no_reference", text="no reference clock: give --reference-mhz"),
        Note(code="device_unmapped", text="device 0 is mapped to no GPU"),
    )
    document = replace(without_clocks(), notes=notes)
    assert line(document, "CLOCK") == "GPU unknown: device 0 is mapped to no GPU"
    assert "clock samples of no known GPU" in line(document, "TRUST")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (replace(without_clocks(), notes=()), "no clock samples while compute ran"),
        (
            with_summary(replace(single_gpu(), notes=()), lost_ns=None),
            "no compute is covered by clock samples",
        ),
    ],
)
def test_without_a_note_the_reason_comes_from_the_document(
    document: ReportDocument, reason: str
) -> None:
    assert line(document, "CLOCK") == f"unknown: {reason}"


def test_a_wide_interval_is_replaced_by_the_files_pooled_share() -> None:
    # the totals' rows: 131/1412 = 9.3 %, ±0.004 x 1000/1412 = ±0.3 points
    document = with_summary(eight_gpus(), gap_low=0.05, gap_high=0.14)
    assert line(document, "CLOCK").startswith(
        "at most 131 ms below 1980 MHz (device max), "
        "not resolved at this rate; pooled over the run: 9.3 ± 0.3 %; "
    )


def test_low_coverage_is_part_of_the_cost() -> None:
    document = with_summary(eight_gpus(), coverage_ratio=0.62)
    assert line(document, "CLOCK").startswith(
        "at most 131 ms (9.3 % [9.0, 9.6]) below 1980 MHz (device max), most of it physics; "
        "only 62 % of compute was sampled, the rest adds to it; "
    )


def test_references_that_differ_are_given_as_a_range() -> None:
    document = eight_gpus()
    assert document.summary is not None
    slower = replace(document.devices[0], reference=Reference(sm_clock_mhz=1755.0, source="spec"))
    mixed = with_summary(
        replace(document, devices=(slower, *document.devices[1:])),
        reference_mhz=None,
        reference_source=None,
    )
    assert "below 1755-1980 MHz (device max and spec)" in line(mixed, "CLOCK")


def test_an_unknown_reference_and_unknown_causes_are_said() -> None:
    document = with_summary(
        replace(single_gpu(), devices=()), reference_mhz=None, reference_source=None, causes=()
    )
    assert line(document, "CLOCK") == (
        "at most 131 ms (9.3 % [9.0, 9.6]) below an unknown reference clock; cause unknown"
    )
    bare = with_summary(single_gpu(), gap_ratio=None)
    assert line(bare, "CLOCK").startswith("at most 131 ms below 1980 MHz (device max); ")


@pytest.mark.parametrize(
    ("power_w", "limit_w", "says"),
    [
        (240.0, 400.0, "power cap 100 % (at 240 of 400 W: not by this limit);"),
        (361.0, 400.0, "power cap 100 %;"),
        (None, 400.0, "power cap 100 %;"),
        (240.0, None, "power cap 100 %;"),
    ],
)
def test_a_power_cap_far_below_the_limit_has_power_and_limit_beside_it(
    power_w: float | None, limit_w: float | None, says: str
) -> None:
    cap = CauseShare(
        cause="power_cap", lost_ns=1, share=1.0, power_w=power_w, power_limit_w=limit_w
    )
    assert f"; {says}" in line(with_summary(eight_gpus(), causes=(cap,)), "CLOCK")


def test_no_loss_is_not_unknown() -> None:
    document = with_summary(eight_gpus(), lost_ns=0.0, causes=())
    assert "unknown" not in line(document, "CLOCK")


def calm(document: ReportDocument) -> ReportDocument:
    """The document with no cost but that of slow GPUs."""
    assert document.summary is not None
    waterfall_ns = {"compute_at_ref": 1281.0 * MS, "dvfs_loss": 131.0 * MS}
    return with_summary(document, waterfall_ns=waterfall_ns)


def test_a_gpu_that_stands_out_is_the_first_line_where_it_costs_most() -> None:
    """Its causes over the whole file: 118 of 131 ms are 90 %."""
    assert first(calm(eight_gpus())) == (
        "GPU 5 IS SLOW: 53 of each 1412 ms step [49, 57]: it runs 89 MHz below its 7 peers, "
        "at 87 C (peers 70), power cap in 90 % of its loss"
    )


def with_lines(**changes: object) -> ReportDocument:
    """The document with all of its GPUs changed."""
    document = eight_gpus()
    assert document.summary is not None
    lines = tuple(replace(each, **changes) for each in document.summary.gpus)
    return with_summary(document, gpus=lines)


def test_a_gpu_whose_excess_does_not_stand_out_is_not_named() -> None:
    document = with_lines(stands_out=False)
    assert line(document, "THEN").endswith(" · no GPU stands out among 8")
    assert first(calm(document)).startswith("NOTHING LARGE: ")


def test_without_intervals_no_gpu_is_singled_out() -> None:
    assert line(with_lines(stands_out=None), "THEN").endswith(
        "no GPU can be singled out: the intervals of their clocks are unknown"
    )


def test_further_gpus_that_stand_out_come_after_the_worst() -> None:
    document = calm(with_lines(stands_out=True, excess_ns_per_step=53.0 * MS))
    assert first(document).startswith("GPU 0 IS SLOW: 53 of each 1412 ms step [0, 4.0]")
    assert line(document, "THEN") == (
        "GPU 1 is slow 53 ms [0, 4.0] · GPU 2 is slow 53 ms [0, 4.0] · GPU 3 is slow 53 ms [0, 4.0]"
    )


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "says"),
    [
        (49.0, 57.0, "53 ms more than peers [49, 57]"),
        (None, None, "53 ms more than peers"),
        (0.0, 106.0, "no more than peers"),
    ],
)
def test_the_excess_has_its_interval_and_is_none_where_that_holds_0(
    low_ms: float | None, high_ms: float | None, says: str
) -> None:
    low_ns, high_ns = (None if ms is None else ms * MS for ms in (low_ms, high_ms))
    document = with_summary(eight_gpus(), excess_low_ns=low_ns, excess_high_ns=high_ns)
    assert line(document, "CLOCK").endswith(f"; {says}")


def test_samples_of_something_else_accuse_nobody() -> None:
    notes = (Note(code="samples_contradict_trace", text="why"),)
    document = calm(with_summary(replace(eight_gpus(), notes=notes), gap_low=None, gap_high=None))
    assert first(document).startswith("NOTHING LARGE: ")
    assert "GPU" not in line(document, "THEN")


def test_unknown_facts_of_the_worst_gpu_are_left_out() -> None:
    document = eight_gpus()
    assert document.summary is not None
    lines = tuple(
        replace(g, temperature_mean_c=None, mean_mhz=None, gpu=None, excess_low_ns_per_step=None)
        for g in document.summary.gpus
    )
    unknown = with_summary(replace(document, totals=()), gpus=lines)
    assert first(calm(unknown)) == (
        "TRACE DEVICE 5 IS SLOW: 53 of each 1412 ms step: it runs slower than its peers"
    )


def test_trust_names_rate_coverage_join_and_the_profilers_own_cost() -> None:
    assert line(eight_gpus(), "TRUST") == (
        "10 complete steps, nothing lost, 99.8 Hz kept, 1,240 samples in compute, coverage 99.6 %, "
        "time join ±0.40 ms (lag not measurable), profiler slows a step by 1.8 %"
    )
    assert line(without_clocks(), "TRUST") == (
        "good: 3 complete steps, nothing lost, 1 of 8 ranks (waits for the others unknown)"
    )
    assert line(totals_only(), "TRUST").startswith("no complete step, nothing lost, ")


def test_a_rate_that_was_not_kept_is_spelled_out() -> None:
    document = eight_gpus()
    document = replace(document, sampling=replace(document.sampling, kept_hz=61.3))
    assert line(document, "TRUST").startswith(
        "10 complete steps, nothing lost, 61.3 of 100 Hz kept, "
    )


def test_a_clock_sensor_slower_than_every_other_read_is_said() -> None:
    document = eight_gpus()
    slow = replace(document, sampling=replace(document.sampling, sensor_period_ms=100.0))
    assert "clock sensor updates each 100 ms" in line(slow, "TRUST")
    unknown = replace(document, sampling=replace(document.sampling, sensor_period_ms=None))
    assert "sensor" not in line(document, "TRUST") + line(unknown, "TRUST")


def test_a_measured_lag_has_its_interval() -> None:
    document = eight_gpus()
    lag = replace(
        document.alignment,
        lag_ns=20 * MS,
        lag_low_ns=15 * MS,
        lag_high_ns=25 * MS,
        check="measured",
    )
    document = replace(document, alignment=lag)
    assert "time join ±0.40 ms (lag 20 ms [15, 25])" in line(document, "TRUST")


def test_damage_and_stepped_clocks_lower_the_trust() -> None:
    document = eight_gpus()
    hurt = replace(
        document.trace,
        complete=False,
        damaged_events=3,
        invalid_records=1,
        lost={"launches_without_record": 2},
    )
    document = replace(
        document,
        traces=(hurt, *document.traces[1:]),
        alignment=replace(document.alignment, realtime_step=True),
    )
    trust = line(document, "TRUST")
    assert "wall clock was stepped inside the window" in trust
    assert (
        "steps, 1 trace incomplete, 3 damaged events, 1 invalid record left out, "
        "2 launches without record, 99.8 Hz"
    ) in trust
