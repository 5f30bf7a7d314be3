"""Findings on rows, ranks and the measurement: when each fires, by documents made by hand."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from chopperd.model.answers import ChopperTimes, Finding, Held, RankLine, RanksSummary
from chopperd.model.kinds import MemoryVerdict
from chopperd.model.report import Profiler, ReportDocument
from chopperd.model.report_rows import CollectiveTraffic, ExposedComm, ExposedCopy
from chopperd.report.findings.catalogue import MOST_FINDINGS, findings_of
from chopperd.report.findings.explanations import EXPLANATIONS, explained
from tests.unit.report.build.test_memory import memory, step
from tests.unit.report.documents import MS, eight_gpus, single_gpu


def with_rows(
    *, held: Sequence[Held] = (), kernels: int | None = 1000, **rows_ms: float
) -> ReportDocument:
    """A document whose mean step of 100 ms, of 3, has these rows, and compute for the rest.

    Times of `held` are those of one step, their counts those of all three.
    """
    document = single_gpu()
    assert document.summary is not None
    rows = dict.fromkeys(document.summary.waterfall_ns, 0.0)
    rows |= {name: each * MS for name, each in rows_ms.items()}
    rows["compute_unsampled"] = 100.0 * MS - sum(rows.values())
    summary = replace(
        document.summary,
        step_ns=100.0 * MS,
        waterfall_ns=rows,
        coverage_ratio=None,
        gap_low=None,
        gpus=(),
        held=tuple(
            replace(each, time_ns=3 * each.time_ns, late_host_ns=3 * each.late_host_ns)
            for each in held
        ),
    )
    changed = {
        "chopper": None if kernels is None else chopper(kernels),
        "overlap_ratio": None,
        "collectives": (),
    }
    return replace(
        document,
        summary=summary,
        totals=tuple(replace(row, **changed) for row in document.totals),
        steps=tuple(replace(row, **changed) for row in document.steps),
    )


def chopper(kernels: int) -> ChopperTimes:
    return ChopperTimes(
        kernel_count=kernels,
        kernel_ns=0,
        launch_ns=0,
        prep_ns=0,
        call_ns=0,
        first_launch_ns=0,
        first_call_ns=0,
        overlap_ratio=None,
    )


def holder(
    name: str,
    ms: float,
    *,
    row: str = "idle_launch_prep",
    kind: str = "operator",
    whole: str | None = None,
    region: str | None = None,
    count: int = 100,
    late_ms: float = 0.0,
) -> Held:
    return Held(
        row=row,
        name=name,
        kind=kind,  # type: ignore[arg-type]
        inner=None,
        whole=whole,
        region=region,
        count=count,
        time_ns=round(ms * MS),
        in_call_ns=0,
        late_host_ns=round(late_ms * MS),
    )


def changed_rows(document: ReportDocument, **changes: object) -> ReportDocument:
    return replace(document, steps=tuple(replace(row, **changes) for row in document.steps))


def only(found: Sequence[Finding]) -> Finding:
    (one,) = found
    assert one.code in EXPLANATIONS
    return one


@pytest.mark.parametrize(
    ("row", "code", "too_little_ms", "enough_ms"),
    [
        ("idle_data", "data.wait", 1.9, 2.0),
        ("idle_launch_prep", "launch.bound", 9.9, 10.0),
        ("idle_sync", "host.sync", 1.9, 2.0),
        ("exposed_comm", "comm.exposed", 4.9, 5.0),
        ("exposed_copy", "copy.exposed", 1.9, 2.0),
    ],
)
def test_a_row_is_a_finding_from_its_share_of_the_step_on(
    row: str, code: str, too_little_ms: float, enough_ms: float
) -> None:
    assert findings_of(with_rows(**{row: too_little_ms})) == ()  # type: ignore[arg-type]
    found = only(findings_of(with_rows(**{row: enough_ms})))  # type: ignore[arg-type]
    assert (found.code, found.bound_ns, found.basis) == (code, int(enough_ms * MS), "row")
    assert f"({enough_ms:.1f} %)" in found.evidence[0]


@pytest.mark.parametrize(
    ("verdict", "idle_ms", "found"),
    [("churns", 2.0, True), ("churns", 1.9, False), ("deterministic", 9.0, False)],
)
def test_segment_calls_after_warm_up_are_a_finding_where_they_come_again(
    verdict: MemoryVerdict, idle_ms: float, *, found: bool
) -> None:
    """The first step, of 50 ms in such calls, is warm-up; the mean of the others counts."""
    document = with_rows(idle_allocator=20)
    row = next(row for row in document.steps if row.is_critical)
    first, second, third = (
        replace(step(nth), idle_allocator_ns=round(ms * MS))
        for nth, ms in enumerate((50, idle_ms - 1, idle_ms + 1))
    )
    own = memory(
        rank=row.rank, device=row.device, steps=(first, second, third), warm_up_steps=1,
        verdict=verdict,
    )  # fmt: skip
    findings = findings_of(replace(document, memory=(own, replace(own, rank=99))))
    assert [(each.code, each.bound_ns) for each in findings] == (
        [("alloc.churn", 2 * MS)] if found else []
    )
    if found:
        assert "2.0 ms (2.0 %) idle" in findings[0].evidence[0]
        assert findings[0].action.startswith("try leave memory free")
        unknown = replace(document, memory=(replace(own, reasons=()),))
        assert only(findings_of(unknown)).action == findings[0].action
        # A step without a row in the waterfall is unknown, not free of such calls.
        more = replace(own, steps=(*own.steps, step(3)))
        assert only(findings_of(replace(document, memory=(more,)))).bound_ns == 2 * MS


def test_the_largest_comes_first_and_five_at_most() -> None:
    document = with_rows(idle_data=4, idle_launch_prep=30, exposed_copy=5, idle_sync=6)
    document = with_ranks(document, straggler(0, 7.0), straggler(1, 3.0))
    found = findings_of(document)
    assert [each.code for each in found] == [
        *("launch.bound", "rank.straggler", "host.sync", "copy.exposed", "data.wait")
    ]
    assert len(found) == MOST_FINDINGS


def test_nothing_is_found_without_a_summary_a_step_or_a_row() -> None:
    document = with_rows(idle_data=50)
    assert document.summary is not None
    assert findings_of(replace(document, summary=None)) == ()
    assert findings_of(replace(document, summary=replace(document.summary, step_ns=None))) == ()
    assert findings_of(replace(document, steps=(), totals=())) == ()


def test_without_complete_steps_the_whole_file_counts() -> None:
    document = with_rows(idle_data=50)
    tails = tuple(replace(row, tail=True) for row in document.steps)
    assert only(findings_of(replace(document, steps=tails))).code == "data.wait"


def test_a_command_names_the_critical_devices_file_or_the_agents_job() -> None:
    document = with_rows(idle_data=50)
    path = "a folder/rank0.json"
    document = replace(document, traces=(replace(document.trace, path=path),))
    assert only(findings_of(document)).command == "chopperd report 'a folder/rank0.json' --by idle"
    in_agent = only(findings_of(document, in_agent=True))
    assert in_agent.command == "chopperd report --job llama --by idle"
    nameless = replace(document, trace=replace(document.trace, job=None))
    assert only(findings_of(nameless, in_agent=True)).command == "chopperd report --by idle"


def test_a_finding_on_one_device_names_it_and_one_on_several_does_not() -> None:
    document = with_rows(idle_data=50)
    assert only(findings_of(document)).gpu == "0"
    one, *others = document.steps
    several = replace(document, steps=(replace(one, rank=3, device=3, gpu="3"), *others))
    assert only(findings_of(several)).gpu is None


# Who held the GPU.


def test_a_loader_that_launches_nothing_is_a_wait_for_data() -> None:
    """2 ms of its row and 6 of a loader that the row does not know, in each of 3 steps."""
    held = [
        holder("next_sample", 6, whole="my_data.py(12): MyLoader.__next__"),
        holder("enumerate", 2, row="idle_data", whole="enumerate(DataLoader)#next"),
        holder("aten::mm", 1),
    ]
    found = only(findings_of(with_rows(held=held, idle_data=2, idle_launch_prep=7)))
    assert (found.code, found.bound_ns) == ("data.wait", 8 * MS)
    assert "MyLoader.__next__ (6.0 ms)" in found.evidence[1]


def test_one_thing_that_holds_half_of_the_hosts_time_is_named() -> None:
    """Of 40 ms the optimizer has 24 in 300 stretches, i.e. 100 a step; the rest is launches."""
    held = [
        holder("aten::add_", 24, whole="optim.py(3): cpu_step", count=300),
        holder("aten::mm", 16, region="## forward ##"),
    ]
    found = findings_of(with_rows(held=held, idle_launch_prep=40))
    assert [(each.code, each.bound_ns) for each in found] == [
        ("host.holder", 24 * MS),
        ("launch.bound", 16 * MS),
    ]
    assert found[0].title == "optim.py(3): cpu_step keeps the GPU idle"
    assert found[0].evidence[0] == "24 ms (24.0 %) of a step in 100 stretches"
    assert "for ## forward ##" in found[1].action


def test_a_long_stretch_is_named_though_most_time_is_elsewhere() -> None:
    """One stretch of 8 ms a step among 40 ms of short ones; at 4 ms it is not worth it."""
    spread = [holder(f"aten::op{n}", 4) for n in range(10)]
    for ms, codes in ((8, ["launch.bound", "host.holder"]), (4, ["launch.bound"])):
        gc = holder("gc.collect", ms, whole="gc.collect", count=1)
        found = findings_of(with_rows(held=[gc, *spread], idle_launch_prep=40 + ms))
        assert [each.code for each in found] == codes


def test_time_inside_launch_calls_is_said() -> None:
    """9 of 10 ms in one stretch; of short stretches in another step nothing is said."""
    first = replace(holder("aten::add_", 10, count=3), in_call_ns=27 * MS)
    found = only(findings_of(with_rows(held=[first], idle_launch_call=10)))
    assert found.code == "host.holder"
    assert found.evidence[1].startswith("9.0 ms of it inside launch calls")
    assert "warm-up" in found.action
    less = replace(first, in_call_ns=12 * MS)
    outside = only(findings_of(with_rows(held=[less], idle_launch_call=10)))
    assert outside.action.startswith("make aten::add_ faster")


def test_launches_of_many_kernels_and_code_that_launches_few_are_different_findings() -> None:
    """30 ms of idle time: 0.03 ms for each of 1000 kernels, 10 ms for each of 3."""
    assert only(findings_of(with_rows(idle_launch_prep=30))).code == "launch.bound"
    unseen = only(findings_of(with_rows(idle_launch_prep=30, kernels=3)))
    assert unseen.code == "host.holder"
    assert "with_stack=True" in unseen.action
    assert unseen.evidence[1] == "3 compute kernels a step"
    unknown = only(findings_of(with_rows(idle_launch_prep=30, kernels=None)))
    assert (unknown.code, len(unknown.evidence)) == ("host.holder", 1)


def test_waits_of_the_device_and_launch_latency_are_never_the_hosts() -> None:
    held = [
        holder("(device waits)", 30, row="idle_launch_call", kind="none"),
        holder("(launch latency)", 20, row="idle_launch_call", kind="none"),
        holder("aten::mm", 9, row="idle_launch_call"),
    ]
    assert findings_of(with_rows(held=held, idle_launch_call=59)) == ()
    more = [*held, holder("aten::mm", 2, row="idle_launch_call")]
    found = only(findings_of(with_rows(held=more, idle_launch_call=61)))
    assert (found.code, found.bound_ns) == ("launch.bound", 11 * MS)


def test_a_synchronise_call_names_what_was_in_it() -> None:
    held = [holder("aten::item", 5, row="idle_sync")]
    found = only(findings_of(with_rows(held=held, idle_sync=5)))
    assert found.evidence[1] == "longest in aten::item (5.0 ms)"


# Communication and copies.


def test_time_for_which_the_host_is_late_is_no_faster_networks() -> None:
    """20 ms exposed, of which the host is late in 14: 6 are left; at 16 ms, 4 are too little."""
    for late_ms, bounds in ((14, [6 * MS]), (16, [])):
        held = [holder("x", 20, row="exposed_comm", late_ms=late_ms)]
        document = with_rows(held=held, exposed_comm=20)
        assert [each.bound_ns for each in findings_of(document)] == bounds


def test_a_wait_for_other_ranks_is_the_stragglers() -> None:
    split = ExposedComm(wait=12 * MS, transfer=8 * MS)
    document = changed_rows(with_rows(exposed_comm=20), exposed_comm_ns=split, overlap_ratio=0.25)
    found = only(findings_of(document))
    assert found.bound_ns == 8 * MS
    assert "12 ms of it is waiting for other ranks" in found.evidence
    assert "25 % of communication is overlapped" in found.evidence
    few = ExposedComm(wait=16 * MS, transfer=4 * MS)
    assert findings_of(changed_rows(with_rows(exposed_comm=20), exposed_comm_ns=few)) == ()


@pytest.mark.parametrize(
    ("framework", "action"), [("fsdp2", "prefetch"), ("ddp", "bucket"), ("none", "overlap")]
)
def test_what_to_do_about_communication_depends_on_the_framework(
    framework: str, action: str
) -> None:
    document = with_rows(exposed_comm=20)
    document = replace(document, framework=replace(document.framework, name=framework))
    document = with_collectives(document, traffic("0-3", 10.0))
    found = only(findings_of(document))
    assert action in found.action
    assert "allreduce (10 times, 30 ms)" in found.evidence[-1]


def traffic(ranks: str | None, bus_gb: float | None, *, mib: float = 8.0) -> CollectiveTraffic:
    """Ten all-reduces of one group of four, 30 ms in all."""
    return CollectiveTraffic(
        name="allreduce",
        group="1",
        group_description=None,
        group_size=4,
        group_ranks=ranks,
        count=10,
        time_ns=30 * MS,
        sized_count=10,
        bytes=round(10 * mib * 2**20),
        algorithm_bytes_per_s=None,
        bus_bytes_per_s=None if bus_gb is None else bus_gb * 1e9,
    )


def with_collectives(document: ReportDocument, *several: CollectiveTraffic) -> ReportDocument:
    (total,) = document.totals
    return replace(document, totals=(replace(total, collectives=several),))


def test_links_much_slower_than_those_of_groups_alike_are_named() -> None:
    """40 of the others' 200 GB/s: four fifths of 30 ms over 3 steps, 8 ms a step."""
    groups = [traffic("0-3", 200.0), traffic("4-7", 210.0), traffic("8-11", 190.0)]
    document = with_rows(exposed_comm=20)
    slow = traffic("12-15", 40.0)
    found = findings_of(with_collectives(document, *groups, slow))
    assert [each.code for each in found] == ["comm.exposed", "comm.slow_bus"]
    assert found[1].bound_ns == 8 * MS
    assert "ranks 12-15" in found[1].title


@pytest.mark.parametrize(
    "others",
    [
        [traffic("12-15", 150.0)],  # within the spread
        [traffic("12-15", 40.0), traffic("12-15", 150.0)],  # one rank of it waited
        [traffic("12-15", 150.0), traffic("12-15", 40.0)],
        [traffic("12-15", 40.0, mib=32.0)],  # messages of another size
        [traffic("12-15", 40.0, mib=0.5)],  # latency decides
        [traffic("12-15", None), traffic(None, 40.0)],  # not known
    ],
)
def test_links_are_not_accused_without_groups_alike(others: list[CollectiveTraffic]) -> None:
    groups = [traffic("0-3", 200.0), traffic("4-7", 210.0), traffic("8-11", 190.0)]
    document = with_collectives(with_rows(exposed_comm=20), *groups, *others)
    assert [each.code for each in findings_of(document)] == ["comm.exposed"]


def test_slow_links_of_hidden_communication_cost_nothing() -> None:
    groups = [traffic(f"{n}-{n + 3}", 200.0) for n in (0, 4, 8)]
    document = with_collectives(with_rows(exposed_comm=1), *groups, traffic("12-15", 40.0))
    assert findings_of(document) == ()


def test_a_copys_direction_decides_what_to_do() -> None:
    none = ExposedCopy(h2d=0, d2h=0, d2d=0, memset=0)
    for way, action in (("h2d", "pinned"), ("d2h", ".cpu()"), ("d2d", ".contiguous()")):
        copies = replace(none, **{way: 5 * MS})
        document = changed_rows(with_rows(exposed_copy=5), exposed_copy_ns=copies)
        found = only(findings_of(document))
        assert action in found.action
        assert found.evidence[1] == f"5.0 ms {way}"


# Ranks.


def straggler(rank: int | None, late_ms: float, **changes: object) -> RankLine:
    line = RankLine(
        rank=rank,
        device=0,
        gpu=None if rank is None else str(rank),
        steps=10,
        late_ns=round(late_ms * MS),
        late_steps=9,
        verdict="straggler",
        cause="idle_data",
        cause_ns=round(late_ms * MS),
        wait_caused_ns=21 * MS,
    )
    return replace(line, **changes)


def with_ranks(document: ReportDocument, *lines: RankLine) -> ReportDocument:
    return replace(document, ranks=RanksSummary(lines=lines))


def test_a_straggler_is_named_with_its_cause() -> None:
    found = only(findings_of(with_ranks(with_rows(), straggler(3, 5.0))))
    assert (found.code, found.rank, found.bound_ns, found.basis) == (
        *("rank.straggler", 3, 5 * MS),
        "peers",
    )
    assert found.evidence == (
        "5.0 ms a step later than the median rank, late in 9 of 10 steps",
        "the others wait 21 ms a step for it, in sum",
        "most of it in idle data: 5.0 ms more than the median rank",
    )
    assert "data of rank 3" in found.action


def test_a_rank_without_number_or_cause_is_named_by_its_device() -> None:
    line = straggler(None, 5.0, cause=None, cause_ns=None, wait_caused_ns=None)
    found = only(findings_of(with_ranks(with_rows(), line)))
    assert found.title == "the job waits for device 0"
    assert len(found.evidence) == 1


def test_pauses_count_by_their_mean_over_the_steps() -> None:
    """20 ms in 2 of 10 steps are 2 ms a step."""
    pauses = straggler(3, 0.0, verdict="pauses", pause_ns=20 * MS, late_steps=2)
    found = only(findings_of(with_ranks(with_rows(), pauses)))
    assert (found.title, found.bound_ns) == ("rank 3 pauses, and the job waits", 2 * MS)


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "even"},
        {"verdict": None},
        {"verdict": "straggler", "late_ns": None},
        {"verdict": "pauses", "pause_ns": None},
        {"verdict": "pauses", "pause_ns": 9 * MS},  # less than 1 % of a step in the mean
    ],
)
def test_a_rank_is_not_accused_without_a_verdict_and_a_cost(changes: dict[str, object]) -> None:
    document = with_ranks(with_rows(), straggler(3, 5.0, **changes))
    assert findings_of(document) == ()


# The measurement.


def test_low_coverage_is_a_finding_without_a_bound() -> None:
    document = with_rows()
    assert document.summary is not None
    low = replace(document.summary, coverage_ratio=0.5)
    found = only(findings_of(replace(document, summary=low)))
    assert (found.code, found.bound_ns, found.evidence) == (
        *("quality.low_coverage", None),
        ("50 % of compute covered, 99.8 Hz kept",),
    )
    full = replace(document.summary, coverage_ratio=0.81)
    assert findings_of(replace(document, summary=full)) == ()


def test_a_profiler_that_slows_the_steps_is_a_finding() -> None:
    slowed = replace(with_rows(), profiler=Profiler(profiled_step_ratio=1.25))
    assert only(findings_of(slowed)).evidence == ("25.0 % longer than the steps around them",)
    little = replace(with_rows(), profiler=Profiler(profiled_step_ratio=1.05))
    assert findings_of(little) == ()


# What they are called.


def test_every_code_is_explained_with_what_to_do() -> None:
    for code, each in EXPLANATIONS.items():
        text = explained(code)
        assert text is not None
        assert text.startswith(f"{code}: {each.title}\n")
        assert all(len(line) <= 80 for line in text.splitlines())
        assert all((each.meaning, each.fires, each.do, each.check))


def test_the_list_names_all_codes_and_the_profiler() -> None:
    text = explained(None)
    assert text is not None
    assert [line.split()[0] for line in text.splitlines()] == [*EXPLANATIONS, "profiler"]
    assert "torch.profiler" in (explained("profiler") or "")
    assert explained("no.finding") is None


def test_the_documents_of_other_tests_have_no_unknown_code() -> None:
    assert {each.code for each in findings_of(eight_gpus())} <= set(EXPLANATIONS)
