"""Rows of one trace: identities, lengths, clocks, and None for all that is not known."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.model.report_rows import UNKNOWN_PART, Row
from chopperd.report.build.rows import rfc3339
from tests.document_checks import check_document, check_row, leaves
from tests.unit.report.traced import MS, T0_NS, Job, document, reported, sample_set, sampled

#: What a row may hold of sensors; without samples all of it is unknown.
SENSED = (
    *("clock", "mem_clock_mhz", "dvfs", "peers", "energy_j", "energy_error_j", "power_limit_w"),
    *("temperature_c", "tokens", "memory", "phases"),
)


def test_a_row_has_its_identity_and_its_lengths() -> None:
    first, second, tail = (draft.row for draft in reported(Job(rank=3)).steps)
    assert (first.rank, first.step, first.device, first.step_source) == (3, 1, 0, "profiler_step")
    assert (first.start_unix_ns, first.window_ns) == (T0_NS + 1000, 100 * MS)
    assert (first.marker_start_unix_ns, first.marker_ns) == (T0_NS, 100 * MS)
    assert (first.compute_ns, first.comm_ns, first.copy_ns) == (80 * MS, 20 * MS, 0)
    assert (first.busy_ns, first.launched_ns, first.foreign_ns) == (100 * MS, 100 * MS, 0)
    assert (first.overlap_ns, first.overlap_ratio) == (0, 0.0)
    assert (first.tail, second.tail, tail.tail) == (False, False, True)


def test_times_of_day_are_exact_to_the_nanosecond() -> None:
    assert rfc3339(T0_NS + 1) == "2025-06-15T15:06:40.000000001Z"


def test_without_an_anchor_no_row_has_a_time_of_day() -> None:
    report = reported(Job(anchored=False), sample_set(sampled()))
    rows = [draft.row for draft in (*report.steps, *report.totals)]
    assert {(row.start_unix_ns, row.start, row.marker_start_unix_ns) for row in rows} == {
        (None, None, None)
    }
    assert {row.clock for row in rows} == {None}
    assert rows[0].window_ns == 100 * MS


def test_the_total_is_of_the_whole_file_and_owns_no_launches() -> None:
    (total,) = (draft.row for draft in reported(Job()).totals)
    assert (total.step, total.window_ns, total.busy_ns) == (None, 300 * MS, 300 * MS)
    assert (total.launched_ns, total.foreign_ns) == (None, None)
    assert {(f.name, f.class_, f.count, f.time_ns) for f in total.families} == {
        ("gemm", "gemm", 3, 240 * MS),
        ("ncclDevKernel_AllReduce", "comm", 3, 60 * MS),
    }


def test_a_step_has_the_families_of_its_own_launches() -> None:
    """Of three steps with 80 ms of compute and 20 ms of communication each."""
    for step in (draft.row for draft in reported(Job()).steps):
        assert {(f.name, f.class_, f.count, f.time_ns) for f in step.families} == {
            ("gemm", "gemm", 1, 80 * MS),
            ("ncclDevKernel_AllReduce", "comm", 1, 20 * MS),
        }
        for parts in (step.by_operation, step.by_layer, step.by_phase, step.by_annotation):
            assert [(each.count, each.time_ns) for each in parts] == [(2, 100 * MS)]


def test_what_launched_the_work_is_unknown_where_the_trace_does_not_tell() -> None:
    """3 x 100 ms by bare runtime calls: no operator, no module, no backward pass."""
    (total,) = (draft.row for draft in reported(Job()).totals)
    for parts in (total.by_operation, total.by_layer, total.by_phase):
        assert [(each.name, each.count, each.time_ns) for each in parts] == [
            (UNKNOWN_PART, 6, 300 * MS)
        ]
    assert total.phases is None


def test_a_step_without_work_on_any_device_is_a_host_row() -> None:
    report = reported(Job(steps=(1, 2), host_only_steps=(3,)), sample_set(sampled()))
    (row,) = report.host_steps
    assert (row.step, row.device, row.gpu, row.host_only) == (3, None, None, True)
    assert row.marker_ns == 100 * MS
    measured = {name for name in Row.__struct_fields__} - {
        *("job", "run", "rank", "step", "step_source", "partial", "partial_reasons", "host_only"),
        *("tail", "accumulation", "micro_steps", "marker_start_unix_ns", "marker_ns", "families"),
    }
    assert all(value is None for name in measured for _, value in leaves(getattr(row, name), name))


def test_a_lost_launch_makes_its_step_partial() -> None:
    rows = [draft.row for draft in reported(Job(lost_launch_in=2)).steps]
    assert [(row.partial, row.partial_reasons) for row in rows] == [
        (False, ()),
        (True, ("launches_without_record",)),
        (False, ()),
    ]


def test_a_constant_clock_gives_its_mean_gap_and_loss() -> None:
    # 1500 of 2000 MHz: a quarter of 80 ms of compute is lost.
    row = reported(Job(), sample_set(sampled(clock_mhz=1500.0))).steps[1].row
    assert row.clock is not None
    assert row.clock.compute is not None
    assert row.clock.compute.mean_mhz == pytest.approx(1500.0)
    assert row.clock.compute.samples == 8  # at 110, 120, ... 180 ms
    assert (row.clock.basis, row.clock.coverage_ratio) == ("in_class", 1.0)
    assert row.dvfs.lost_ns == 20 * MS
    assert row.dvfs.gap_ratio == pytest.approx(0.25)
    assert row.dvfs.overhead_factor == pytest.approx(2000 / 1500)
    assert row.dvfs.by_cause_ns == {"unexplained": 20 * MS}
    assert row.waterfall_ns is not None
    assert (row.waterfall_ns.compute_at_ref, row.waterfall_ns.dvfs_loss) == (60 * MS, 20 * MS)
    assert row.waterfall_ns.compute_unsampled == 0
    assert row.temperature_c is None
    assert (row.energy_j, row.energy_error_j, row.power_limit_w) == (None, None, None)
    check_row(row)


def test_compute_that_no_sample_covers_is_unsampled_and_its_loss_unknown() -> None:
    # Samples end 30 ms into step 2: 30 of its 80 ms of compute are covered, none of step 3's.
    report = reported(Job(), sample_set(sampled(end_ms=131)))
    first, second, third = (draft.row for draft in report.steps)
    assert first.clock is not None
    assert first.clock.coverage_ratio == 1.0
    assert second.clock is not None
    assert second.clock.coverage_ratio == pytest.approx(30 / 80, abs=1e-4)
    assert second.dvfs.gap_ratio == pytest.approx(0.25)
    assert second.waterfall_ns is not None
    assert second.waterfall_ns.compute_unsampled == pytest.approx(50 * MS, abs=2000)
    assert all(value is None for _, value in leaves(third.dvfs))
    assert third.waterfall_ns is not None
    assert third.waterfall_ns.compute_at_ref is None
    assert third.waterfall_ns.compute_unsampled == 80 * MS
    for draft in (*report.steps, *report.totals):
        check_row(draft.row)


def test_without_a_reference_there_is_a_clock_and_no_loss() -> None:
    row = reported(Job(), sample_set(sampled(top_mhz=None))).steps[0].row
    assert row.clock is not None
    assert row.clock.compute is not None
    assert row.clock.compute.mean_mhz == pytest.approx(1500.0)
    assert all(value is None for _, value in leaves(row.dvfs))
    assert row.waterfall_ns is not None
    assert row.waterfall_ns.compute_at_ref is None
    assert row.waterfall_ns.compute_unsampled == 80 * MS


def test_temperature_is_that_of_the_rows_samples() -> None:
    row = reported(Job(), sample_set(sampled(temperature_c=71.0))).steps[0].row
    assert row.temperature_c is not None
    assert (row.temperature_c.mean, row.temperature_c.max) == (71.0, 71.0)


def test_nothing_sensed_is_shown_as_zero_without_samples() -> None:
    made = document([Job()])
    check_document(made)
    for row in (*made.steps, *made.totals):
        for name in SENSED:
            assert {value for _, value in leaves(getattr(row, name), name)} <= {None}
    assert made.summary is not None
    unknown = ("lost_ns", "gap_ratio", "gap_low", "gap_high", "excess_ns", "coverage_ratio")
    assert [getattr(made.summary, name) for name in unknown] == [None] * len(unknown)
    assert not {"compute_at_ref", "dvfs_loss"} & set(made.summary.waterfall_ns)
    assert made.summary.causes == ()
    (line,) = made.summary.gpus
    assert (line.mean_mhz, line.gap_ratio, line.excess_ns_per_step) == (None, None, None)
    assert (made.sampling.asked_hz, made.sampling.kept_hz) == (None, None)
    assert (made.alignment.realtime_step, made.alignment.offset_uncertainty_ns) == (None, None)


def test_energy_of_a_row_is_the_rise_of_the_counter_over_its_window() -> None:
    """5 J every 10 ms, so 50 J in a step of 100 ms; the window's edges lie 1 us past a read."""
    samples = sampled()
    counting = replace(samples, energy_j=np.linspace(0.0, 5.0 * (len(samples) - 1), len(samples)))
    row = reported(Job(), sample_set(counting)).steps[0].row
    assert row.energy_j == pytest.approx(50.0)
    assert row.energy_error_j == pytest.approx(0.0, abs=1.0)
