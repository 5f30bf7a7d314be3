"""The four lines of hand-built documents, word for word."""

from dataclasses import replace

import pytest

from chopperd.model.report import CauseShare, Note, Reference, ReportDocument, Summary
from chopperd.report.text.headline import headline
from tests.unit.report.documents import (
    MS,
    eight_gpus,
    host_only,
    single_gpu,
    totals_only,
    without_clocks,
)


def line(document: ReportDocument, label: str) -> str:
    (row,) = [row for row in headline(document) if row.label == label]
    return row.separator.join(row.clauses)


def with_summary(document: ReportDocument, **changes: object) -> ReportDocument:
    assert isinstance(document.summary, Summary)
    return replace(document, summary=replace(document.summary, **changes))  # type: ignore[arg-type]


def test_the_cost_has_its_ceiling_interval_measured_part_and_excess() -> None:
    assert line(eight_gpus(), "CLOCK COST") == (
        "at most 131 of each 1412 ms step (9.3 % [9.0, 9.6]); "
        "86 to 98 ms by measured sensitivity; 53 ms more than peers"
    )


def test_without_peers_there_is_no_excess_clause() -> None:
    assert line(single_gpu(), "CLOCK COST") == (
        "at most 131 of each 1412 ms step (9.3 % [9.0, 9.6]); sensitivity not measured"
    )


def test_an_excess_of_zero_is_said_in_words() -> None:
    document = with_summary(eight_gpus(), excess_ns=0.0)
    assert line(document, "CLOCK COST").endswith("; no more than peers")


def test_without_complete_steps_the_cost_is_of_the_file() -> None:
    assert line(totals_only(), "CLOCK COST").startswith(
        "at most 131 of 1412 ms traced, no complete step (9.3 % [9.0, 9.6])"
    )


@pytest.mark.parametrize(
    ("code", "lag_ms", "cost", "cause"),
    [
        ("samples_contradict_trace", None, "unknown: why", "unknown"),
        ("time_axes_differ", None, "unknown: why", "unknown"),
        (
            "time_axes_differ",
            700,
            "at most 131 of each 1412 ms step (9.3 %, interval unknown); not certain: why; "
            "sensitivity not measured",
            "power cap 90 %",
        ),
        (
            "reference_doubtful",
            None,
            "at most 131 of each 1412 ms step (9.3 %, interval unknown); not certain: why; "
            "sensitivity not measured",
            "power cap 90 %",
        ),
    ],
)
def test_a_doubtful_cost_is_said_to_be_so(
    code: str, lag_ms: int | None, cost: str, cause: str
) -> None:
    document = with_summary(single_gpu(), gap_low=None, gap_high=None)
    lag = replace(document.alignment, lag_ns=None if lag_ms is None else lag_ms * MS)
    document = replace(document, notes=(Note(code=code, text="why"),), alignment=lag)
    assert line(document, "CLOCK COST") == cost
    assert line(document, "CAUSE").startswith(cause)


def test_a_doubt_about_a_gpu_that_is_not_critical_leaves_the_cost() -> None:
    document = replace(single_gpu(), notes=(Note(code="time_axes_differ", text="why"),))
    assert "why" not in line(document, "CLOCK COST")


def test_an_unknown_cost_gives_the_notes_reason() -> None:
    assert line(without_clocks(), "CLOCK COST") == (
        "unknown: no clock samples were given (--samples F)"
    )


def test_the_most_basic_reason_is_given_first() -> None:
    notes = (
        Note(code="no_reference", text="no reference clock: give --reference-mhz"),
        Note(code="device_unmapped", text="device 0 is mapped to no GPU"),
    )
    document = replace(without_clocks(), notes=notes)
    assert line(document, "CLOCK COST") == "GPU unknown: device 0 is mapped to no GPU"
    assert line(document, "TRUST").startswith("clock samples of no known GPU")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (host_only(), "the trace has no device records"),
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
    assert line(document, "CLOCK COST") == f"unknown: {reason}"


def test_a_wide_interval_is_replaced_by_the_files_pooled_share() -> None:
    # the totals' rows: 131/1412 = 9.3 %, ±0.004 x 1000/1412 = ±0.3 points
    document = with_summary(eight_gpus(), gap_low=0.05, gap_high=0.14)
    assert line(document, "CLOCK COST").startswith(
        "at most 131 of each 1412 ms step, "
        "not resolved at this rate; pooled over the run: 9.3 ± 0.3 %; "
    )


def test_low_coverage_is_part_of_the_cost() -> None:
    document = with_summary(eight_gpus(), coverage_ratio=0.62)
    assert line(document, "CLOCK COST").startswith(
        "at most 131 of each 1412 ms step (9.3 % [9.0, 9.6]); "
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
    assert line(mixed, "CAUSE").endswith("reference 1755-1980 MHz (device max and spec)")


def test_causes_come_with_the_reference_and_its_source() -> None:
    assert line(eight_gpus(), "CAUSE") == (
        "power cap 90 %   thermal 7 %   unexplained 3 %   reference 1980 MHz (device max)"
    )
    assert line(without_clocks(), "CAUSE") == "unknown   reference unknown"


@pytest.mark.parametrize(
    ("power_w", "limit_w", "says"),
    [
        (240.0, 400.0, "power cap 100 % (at 240 of 400 W: not by this limit)   reference"),
        (361.0, 400.0, "power cap 100 %   reference"),
        (None, 400.0, "power cap 100 %   reference"),
        (240.0, None, "power cap 100 %   reference"),
    ],
)
def test_a_power_cap_far_below_the_limit_has_power_and_limit_beside_it(
    power_w: float | None, limit_w: float | None, says: str
) -> None:
    cap = CauseShare(
        cause="power_cap", lost_ns=1, share=1.0, power_w=power_w, power_limit_w=limit_w
    )
    assert line(with_summary(eight_gpus(), causes=(cap,)), "CAUSE").startswith(says)


def test_no_loss_is_not_unknown() -> None:
    document = with_summary(eight_gpus(), lost_ns=0.0, causes=())
    assert line(document, "CAUSE").startswith("no loss to explain   reference 1980")


def test_the_worst_gpu_by_excess_is_the_one_to_look_at() -> None:
    assert line(eight_gpus(), "LOOK AT") == (
        "GPU 5: 89 MHz below its 7 peers, 87 C, slowest in 10 of 10 steps -> at most 53 ms/step"
    )


def with_lines(**changes: object) -> ReportDocument:
    """The document with all of its GPUs changed."""
    document = eight_gpus()
    assert document.summary is not None
    lines = tuple(replace(each, **changes) for each in document.summary.gpus)  # type: ignore[arg-type]
    return with_summary(document, gpus=lines)


def test_a_gpu_whose_excess_does_not_stand_out_is_not_named() -> None:
    assert line(with_lines(stands_out=False), "LOOK AT") == "no GPU stands out among 8"


def test_without_intervals_no_gpu_is_singled_out() -> None:
    assert line(with_lines(stands_out=None), "LOOK AT") == (
        "no GPU can be singled out: the intervals of their clocks are unknown"
    )


def test_further_gpus_that_stand_out_come_after_the_worst() -> None:
    said = line(with_lines(stands_out=True, excess_ns_per_step=53.0 * MS), "LOOK AT")
    assert said.startswith("GPU 0: 0 MHz below")
    assert said.endswith(
        "at most 53 ms/step, also GPU 1 (53), also GPU 2 (53), also GPU 3 (53), and 4 more (GPUS)"
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
    assert line(document, "CLOCK COST").endswith(f"; {says}")


def test_without_peers_no_gpu_is_singled_out() -> None:
    assert line(single_gpu(), "LOOK AT") == ("GPU 0: the only one traced, no peers to compare with")
    document = eight_gpus()
    assert document.summary is not None
    lines = tuple(replace(g, excess_ns_per_step=None) for g in document.summary.gpus)
    assert line(with_summary(document, gpus=lines), "LOOK AT") == (
        "no GPU can be singled out: no peers to compare with"
    )


def test_unknown_facts_of_the_worst_gpu_are_left_out() -> None:
    document = eight_gpus()
    assert document.summary is not None
    lines = tuple(
        replace(g, temperature_mean_c=None, slowest_steps=None, mean_mhz=None)
        for g in document.summary.gpus
    )
    assert line(with_summary(document, gpus=lines), "LOOK AT") == (
        "GPU 5: slower than its peers -> at most 53 ms/step"
    )


def test_trust_names_rate_coverage_join_and_the_profilers_own_cost() -> None:
    assert line(eight_gpus(), "TRUST") == (
        "99.8 Hz kept, 1,240 samples in compute, coverage 99.6 %, "
        "time join ±0.40 ms (lag not measurable), profiler slows a step by 1.8 %"
    )
    assert line(without_clocks(), "TRUST") == "no clock samples, profiler's own cost not measured"


def test_a_rate_that_was_not_kept_is_spelled_out() -> None:
    document = eight_gpus()
    document = replace(document, sampling=replace(document.sampling, kept_hz=61.3))
    assert line(document, "TRUST").startswith("61.3 of 100 Hz kept, ")


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
    hurt = replace(document.trace, complete=False, damaged_events=3, invalid_records=1)
    document = replace(
        document,
        traces=(hurt, *document.traces[1:]),
        alignment=replace(document.alignment, realtime_step=True),
    )
    trust = line(document, "TRUST")
    assert "wall clock was stepped inside the window" in trust
    assert trust.endswith("1 trace incomplete, 3 damaged events, 1 invalid record left out")
