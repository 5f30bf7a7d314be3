"""Findings on clocks: who is accused, of what and on which evidence, by documents made by hand.

Eight GPUs lose 10 ms of a 100 ms step to their power cap; GPU 5 may lose 6 ms more than they do.
"""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from chopperd.model.answers import Finding
from chopperd.model.report import CauseShare, GpuLine, Note, ReportDocument
from chopperd.model.report_rows import Dvfs
from chopperd.report.findings.clocks import clock_findings
from chopperd.report.findings.explanations import EXPLANATIONS
from tests.unit.report.documents import MS, eight_gpus

STEP_MS = 100
CAP = {"power_cap": 10}


def gpu_line(index: int, *, slow: bool) -> GpuLine:
    return GpuLine(
        gpu=str(index),
        device=index,
        rank=index,
        mean_mhz=1600.0 if slow else 1700.0,
        peers_median_mhz=1700.0,
        gap_ratio=None,
        excess_ns_per_step=6.0 * MS if slow else 0.0,
        temperature_mean_c=88.0 if slow else 70.0,
        slowest_steps=10 if slow else 0,
        excess_low_ns_per_step=5.0 * MS if slow else 0.0,
        excess_high_ns_per_step=7.0 * MS if slow else 1.0 * MS,
        stands_out=slow,
    )


def node(
    lost_ms: Mapping[int, Mapping[str, int]] | None = None,
    *,
    others: Mapping[str, int] = CAP,
    slow: int | None = 5,
    limits_w: Mapping[int, float] | None = None,
    default_w: float | None = 700.0,
    vendor: str = "nvidia",
) -> ReportDocument:
    """Eight GPUs: loss by cause and power limit of each, by its number; 700 W for the others."""
    document = eight_gpus()
    assert document.summary is not None
    of_each = {index: (lost_ms or {}).get(index, others) for index in range(8)}
    steps = tuple(
        replace(
            row,
            dvfs=Dvfs(by_cause_ns={k: v * MS for k, v in of_each[row.device or 0].items()}),
            power_w=650.0,
            power_limit_w=(limits_w or {}).get(row.device or 0, 700.0),
        )
        for row in document.steps
    )
    summary = replace(
        document.summary,
        step_ns=float(STEP_MS * MS),
        gpus=tuple(gpu_line(index, slow=index == slow) for index in range(8)),
        causes=(),
    )
    devices = tuple(
        replace(each, power_limit_default_w=default_w, vendor=vendor) for each in document.devices
    )
    return replace(document, summary=summary, steps=steps, devices=devices, notes=())


def only(found: list[Finding]) -> Finding:
    (one,) = found
    assert one.code in EXPLANATIONS
    return one


@pytest.mark.parametrize(
    ("lost_ms", "code", "section"),
    [
        ({"power_cap": 10, "thermal": 6}, "cooling.hot_gpu", "PERFORMANCE,TEMPERATURE"),
        ({"power_cap": 11, "hw_thermal": 5}, "cooling.hot_gpu", "PERFORMANCE,TEMPERATURE"),
        ({"power_cap": 10, "power_brake": 4}, "hw.slowdown_or_brake", "PERFORMANCE"),
        ({"power_cap": 10, "hw_slowdown": 6}, "hw.slowdown_or_brake", "PERFORMANCE"),
        ({"power_cap": 10, "user_limit": 6}, "clock.locked", "CLOCK"),
        ({"power_cap": 16}, "power.at_cap", "POWER"),
        ({"power_cap": 10, "unexplained": 6}, "clock.unexplained_low", "PERFORMANCE"),
        ({"power_cap": 12, "thermal": 2, "unknown": 2}, "clock.unexplained_low", "PERFORMANCE"),
    ],
)
def test_a_gpu_that_stands_out_is_named_by_what_its_peers_do_not_lose(
    lost_ms: dict[str, int], code: str, section: str
) -> None:
    found = only(clock_findings(node({5: lost_ms})))
    assert (found.code, found.gpu, found.rank, found.bound_ns, found.basis) == (
        *(code, "5", 5, 6 * MS),
        "peers",
    )
    assert found.command == f"nvidia-smi -q -d {section} -i 5"
    assert found.evidence[:3] == (
        "1600 MHz in compute, its peers 1700: 6.0 ms a step [5.0, 7.0]",
        "88 C, its peers 70 C",
        "650 W on average, limit 700 W, 700 W by default",
    )


def little_below(document: ReportDocument, temperature_c: float | None) -> ReportDocument:
    """GPU 5 at 1660 of 1700 MHz, 2.4 % below: the low end is 2 %."""
    assert document.summary is not None
    lines = tuple(
        replace(line, mean_mhz=1660.0, temperature_mean_c=temperature_c)
        if line.stands_out
        else line
        for line in document.summary.gpus
    )
    return replace(document, summary=replace(document.summary, gpus=lines))


def test_a_gpu_little_below_its_peers_needs_a_second_witness() -> None:
    heat = node({5: {"power_cap": 10, "thermal": 6}})
    assert only(clock_findings(little_below(heat, 78.0))).code == "cooling.hot_gpu"
    assert clock_findings(little_below(heat, 77.0)) == []
    assert clock_findings(little_below(heat, None)) == []
    assert clock_findings(little_below(node({5: {"power_cap": 16}}), 90.0)) == []
    lowered = node({5: {"power_cap": 16}}, limits_w={5: 500.0})
    assert only(clock_findings(little_below(lowered, None))).code == "power.cap_lowered"


def test_the_causes_of_its_loss_are_evidence() -> None:
    found = only(clock_findings(node({5: {"power_cap": 6, "thermal": 14}})))
    assert found.evidence[3] == "causes of its loss: thermal 70 %, power cap 30 %"


@pytest.mark.parametrize(
    "document",
    [
        node(slow=None),  # all alike at their cap: physics
        node({5: {"power_cap": 10, "thermal": 6}}, slow=None),  # within the spread of its peers
        node({5: {"power_cap": 10, "low_utilization": 6}}),  # its work wants no more
        node({5: {"power_cap": 10, "sync_boost": 6}}),  # others hold it
    ],
)
def test_a_gpu_is_not_accused_of_physics_spread_or_its_work(document: ReportDocument) -> None:
    assert clock_findings(document) == []


def test_a_gpu_that_stands_out_with_its_peers_losses_is_unexplained() -> None:
    assert only(clock_findings(node())).code == "clock.unexplained_low"


def test_nothing_is_said_where_losses_are_in_doubt() -> None:
    document = node({5: {"power_cap": 10, "thermal": 6}})
    assert document.summary is not None
    assert clock_findings(replace(document, summary=None)) == []
    in_doubt = replace(document.summary, gap_low=None)
    assert clock_findings(replace(document, summary=in_doubt)) == []


def test_one_lower_power_limit_among_peers_was_lowered() -> None:
    for default_w in (700.0, None):  # below its default, or below its peers'
        document = node({5: {"power_cap": 16}}, limits_w={5: 500.0}, default_w=default_w)
        found = only(clock_findings(document))
        assert (found.code, found.gpu) == ("power.cap_lowered", "5")


def test_a_cap_far_below_its_limit_is_not_by_that_limit() -> None:
    """The driver says power cap at 500 of 700 W."""
    document = node({5: {"power_cap": 16}})
    assert document.summary is not None
    share = CauseShare(
        cause="power_cap", lost_ns=16 * MS, share=1.0, power_w=500.0, power_limit_w=700.0
    )
    below = replace(document, summary=replace(document.summary, causes=(share,)))
    assert only(clock_findings(below)).code == "clock.unexplained_low"
    near = replace(share, power_w=640.0)
    at_cap = replace(document, summary=replace(document.summary, causes=(near,)))
    assert only(clock_findings(at_cap)).code == "power.at_cap"


def test_a_gpu_at_one_clock_without_a_limit_seems_locked() -> None:
    note = Note(code="looks_locked", text="GPU 5 computes at 1600 MHz all the time, of 1980")
    document = replace(node({5: {"power_cap": 10, "unexplained": 6}}), notes=(note,))
    assert only(clock_findings(document)).code == "clock.locked"


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("thermal", "cooling.hot_node"),
        ("power_brake", "hw.slowdown_or_brake"),
        ("user_limit", "clock.locked"),
    ],
)
def test_a_limit_on_nearly_all_gpus_is_the_nodes(cause: str, code: str) -> None:
    """On six of eight it is; on five, or at less than 2 % of the step, it is not."""
    few = {index: CAP for index in range(2)}
    found = only(clock_findings(node(few, others={cause: 3}, slow=None)))
    assert (found.code, found.gpu, found.bound_ns, found.basis) == (code, None, 3 * MS, "row")
    assert found.evidence[0] == f"{cause.replace('_', ' ')}: 3.0 ms of a step, on 6 GPUs"
    assert "-i" not in found.command.split()
    more = {index: CAP for index in range(3)}
    assert clock_findings(node(more, others={cause: 3}, slow=None)) == []
    assert clock_findings(node(few, others={cause: 1}, slow=None)) == []


def test_a_hot_node_shows_its_temperatures() -> None:
    found = only(clock_findings(node(others={"thermal": 3}, slow=None)))
    assert found.title == "heat slows down nearly all GPUs of node1"
    assert found.evidence[1] == "70 to 70 C"


def test_a_power_limit_below_its_default_is_named_where_it_holds_the_clock() -> None:
    limits_w = dict.fromkeys(range(8), 500.0)
    found = only(clock_findings(node(slow=None, limits_w=limits_w)))
    assert (found.code, found.bound_ns) == ("power.cap_lowered", 10 * MS)
    assert "650 W on average, limit 500 W, 700 W by default" in found.evidence
    assert clock_findings(node(slow=None, limits_w=limits_w, default_w=None)) == []
    assert clock_findings(node(others={"thermal": 1}, slow=None, limits_w=limits_w)) == []


def test_one_gpu_alone_is_no_node_but_may_be_locked() -> None:
    document = node(others={"thermal": 10, "user_limit": 5}, slow=None)
    assert document.summary is not None
    alone = replace(document.summary, gpus=document.summary.gpus[:1])
    found = only(clock_findings(replace(document, summary=alone)))
    assert (found.code, found.gpu) == ("clock.locked", "0")
    assert found.command == "nvidia-smi -q -d CLOCK -i 0"


def test_amds_tool_is_named_for_its_gpus() -> None:
    document = node({5: {"power_cap": 10, "thermal": 6}}, vendor="amd")
    assert only(clock_findings(document)).command == (
        "amd-smi metric --clock --temperature --gpu 5"
    )


def test_what_is_unknown_is_left_out_of_the_evidence() -> None:
    """No step is complete and no row of totals has losses, powers or temperatures."""
    document = node({5: {"thermal": 6}})
    assert document.summary is not None
    lines = tuple(replace(each, temperature_mean_c=None) for each in document.summary.gpus)
    totals = tuple(
        replace(row, dvfs=Dvfs(), power_w=None, power_limit_w=None) for row in document.totals
    )
    unknown = replace(
        document, summary=replace(document.summary, gpus=lines), steps=(), totals=totals, devices=()
    )
    found = only(clock_findings(unknown))
    assert found.code == "clock.unexplained_low"
    assert len(found.evidence) == 1
