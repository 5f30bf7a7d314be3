"""Findings: when each rule fires, by documents made by hand."""

from dataclasses import replace

import pytest

from chopperd.model.report import GpuLine, ReportDocument
from chopperd.report.build.findings import MOST_FINDINGS, RULES, findings_of
from tests.unit.report.documents import MS, eight_gpus, single_gpu


def with_rows(**rows_ms: float) -> ReportDocument:
    """A document whose mean step of 100 ms has these rows, and compute for the rest."""
    document = single_gpu()
    assert document.summary is not None
    rows = dict.fromkeys(document.summary.waterfall_ns, 0.0)
    rows |= {name: each * MS for name, each in rows_ms.items()}
    rows["compute_unsampled"] = 100.0 * MS - sum(rows.values())
    summary = replace(
        document.summary,
        basis="critical_steps",
        step_ns=100.0 * MS,
        waterfall_ns=rows,
        coverage_ratio=None,
        gpus=(),
    )
    return replace(document, summary=summary)


@pytest.mark.parametrize(
    ("row", "code", "too_little_ms", "enough_ms"),
    [
        ("idle_data", "data.wait", 2.9, 3.0),
        ("idle_launch_prep", "launch.bound", 9.9, 10.0),
        ("idle_sync", "host.sync", 2.9, 3.0),
        ("exposed_comm", "comm.exposed", 4.9, 5.0),
        ("exposed_copy", "copy.exposed", 2.9, 3.0),
    ],
)
def test_a_row_is_a_finding_from_its_share_of_the_step_on(
    row: str, code: str, too_little_ms: float, enough_ms: float
) -> None:
    assert findings_of(with_rows(**{row: too_little_ms})) == ()
    (found,) = findings_of(with_rows(**{row: enough_ms}))
    assert (found.code, found.bound_ns, found.basis) == (code, int(enough_ms * MS), "row")
    assert found.evidence == (f"{enough_ms:.1f} ms of each step, {enough_ms:.1f}%",)


def test_the_largest_comes_first_and_of_traced_time_without_steps() -> None:
    document = with_rows(idle_data=4.0, idle_launch_prep=30.0, exposed_copy=5.0)
    assert document.summary is not None
    document = replace(document, summary=replace(document.summary, basis="totals"))
    found = findings_of(document)
    assert [each.code for each in found] == ["launch.bound", "copy.exposed", "data.wait"]
    assert found[0].evidence == ("30.0 ms of the traced time, 30.0%",)
    assert len(found) <= MOST_FINDINGS


def test_nothing_is_found_without_a_summary_or_a_step() -> None:
    document = with_rows(idle_data=50.0)
    assert document.summary is not None
    assert findings_of(replace(document, summary=None)) == ()
    assert findings_of(replace(document, summary=replace(document.summary, step_ns=None))) == ()


def test_low_coverage_is_a_finding_without_a_bound() -> None:
    document = with_rows()
    assert document.summary is not None
    low = replace(document.summary, coverage_ratio=0.5)
    (found,) = findings_of(replace(document, summary=low))
    assert (found.code, found.bound_ns, found.evidence) == (
        "quality.low_coverage",
        None,
        ("50% of compute has a clock",),
    )
    full = replace(document.summary, coverage_ratio=0.81)
    assert findings_of(replace(document, summary=full)) == ()


def line(gpu: str, temperature_c: float | None, *, stands_out: bool = False) -> GpuLine:
    return GpuLine(
        gpu=gpu,
        device=0,
        rank=int(gpu),
        mean_mhz=1476.0 if stands_out else 1616.0,
        peers_median_mhz=1616.0,
        gap_ratio=None,
        excess_ns_per_step=44.0 * MS if stands_out else 0.0,
        temperature_mean_c=temperature_c,
        slowest_steps=0,
        stands_out=stands_out,
    )


def with_gpu_5(
    by_cause_ns: dict[str, int], temperature_c: float | None, *, stands_out: bool = True
) -> ReportDocument:
    """Four GPUs at 70 C, and GPU 5 with these losses."""
    document = with_rows()
    assert document.summary is not None
    lines = (
        *(line(str(n), 70.0) for n in range(4)),
        line("5", temperature_c, stands_out=stands_out),
    )
    total = eight_gpus().totals[0]
    total = replace(total, gpu="5", rank=5, dvfs=replace(total.dvfs, by_cause_ns=by_cause_ns))
    summary = replace(document.summary, gpus=lines)
    return replace(document, summary=summary, totals=(eight_gpus().totals[1], total))


def test_a_slow_gpu_is_named_by_its_main_cause() -> None:
    (hot,) = findings_of(with_gpu_5({"thermal": 60, "power_cap": 40}, 88.0))
    assert (hot.code, hot.gpu, hot.rank, hot.bound_ns, hot.basis) == (
        "cooling.hot_gpu",
        "5",
        5,
        44 * MS,
        "peers",
    )
    assert hot.evidence == (
        "GPU 5 runs 140 MHz below its peers' 1616",
        "60% of its loss by hw_thermal and thermal",
        "18 C hotter than the median of the others",
    )
    (braked,) = findings_of(with_gpu_5({"power_brake": 60, "power_cap": 40}, 70.0))
    assert braked.code == "hw.slowdown_or_brake"
    (unexplained,) = findings_of(with_gpu_5({"unexplained": 10}, None))
    assert unexplained.code == "clock.unexplained_low"


@pytest.mark.parametrize(
    ("causes", "temperature_c", "stands_out"),
    [
        ({"thermal": 100}, 88.0, False),  # within the spread of its peers
        ({"thermal": 100}, 77.9, True),  # as hot as others may be
        ({"thermal": 100}, None, True),  # how hot is unknown
        ({"thermal": 49, "power_cap": 51}, 88.0, True),  # mostly another cause
        ({}, 88.0, True),  # causes unknown
    ],
)
def test_a_gpu_is_not_accused_without_all_of_the_evidence(
    causes: dict[str, int], temperature_c: float | None, stands_out: bool
) -> None:
    assert findings_of(with_gpu_5(causes, temperature_c, stands_out=stands_out)) == ()


def test_a_gpu_of_unknown_clock_is_said_to_be_below_its_peers() -> None:
    document = with_gpu_5({"unexplained": 10}, None)
    assert document.summary is not None
    *others, last = document.summary.gpus
    unknown = replace(last, mean_mhz=None)
    summary = replace(document.summary, gpus=(*others, unknown))
    (found,) = findings_of(replace(document, summary=summary))
    assert found.evidence[0] == "its clock is below its peers'"


def test_every_rule_says_what_to_do() -> None:
    for code, rule in RULES.items():
        assert rule.code == code
        assert all((rule.title, rule.meaning, rule.fires, rule.action))
