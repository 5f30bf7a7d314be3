"""Traffic of a whole report's rows and its tables, from a trace whose figures are round."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import CollectiveTraffic, Contention, CopyTraffic, Family
from chopperd.model.trace import Collective, RecordKind
from chopperd.pipeline.reports import FileReport, composed
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.trace_report import report_trace
from chopperd.report.text.page import page_text
from chopperd.report.text.report import collectives, contention, copies, render_text
from chopperd.traces.timeline.layout import lay_out
from tests.fakes.clock import ScriptedClock
from tests.trace_building import TraceBuilder
from tests.unit.report.documents import totals_only
from tests.unit.report.traced import with_names

US = 1000
REDUCE = Collective(
    name="allreduce",
    dtype="Float",
    in_elements=1_000_000,
    out_elements=1_000_000,
    group="0",
    group_description="default_pg",
    group_size=4,
)


def document() -> ReportDocument:
    """Two steps of 1 ms: in step 1 a copy, a kernel, an all-reduce; in step 2 a kernel.

    The copy moves 1 MB in 100 us: 10 GB/s. The all-reduce, 4 MB in 400 us, makes 10 GB/s and, with
    2 * 3 / 4, 15 on the bus; another of unknown size takes 50 us.
    """
    made = TraceBuilder()
    made.span("ProfilerStep#1", 0, 1000 * US)
    made.call("hipMemcpyAsync", 10 * US, correlation=900, size_bytes=1_000_000)
    made.record("Memcpy HtoD", 20 * US, 100 * US, correlation=900, kind=RecordKind.MEMCPY)
    made.kernel("gemm", 100 * US, 200 * US, 100 * US)
    made.call("cudaLaunchKernel", 250 * US, correlation=901)
    made.record("ncclDevKernel_X", 300 * US, 400 * US, correlation=901, collective=REDUCE)
    made.call("cudaLaunchKernel", 260 * US, correlation=902)
    untold = replace(REDUCE, in_elements=None, out_elements=None)
    made.record("ncclDevKernel_X", 750 * US, 50 * US, correlation=902, collective=untold)
    made.span("ProfilerStep#2", 1000 * US, 1000 * US)
    made.kernel("gemm", 1100 * US, 1200 * US, 100 * US)
    trace = made.build()
    report = report_trace(trace, lay_out(trace), None, JoinOptions())
    return composed([FileReport(report=report)], ScriptedClock())


COPY = CopyTraffic(
    direction="h2d",
    count=1,
    time_ns=100 * US,
    sized_count=1,
    bytes=1_000_000,
    rate_bytes_per_s=10e9,
)
REDUCED = CollectiveTraffic(
    name="allreduce",
    group="0",
    group_description="default_pg",
    group_size=4,
    count=2,
    time_ns=450 * US,
    sized_count=1,
    bytes=4_000_000,
    algorithm_bytes_per_s=10e9,
    bus_bytes_per_s=15e9,
)


def test_rows_have_the_traffic_that_their_steps_launched() -> None:
    found = document()
    first, second = found.steps
    assert (first.copies, first.collectives) == ((COPY,), (REDUCED,))
    assert (second.copies, second.collectives) == ((), ())
    assert (found.totals[0].copies, found.totals[0].collectives) == ((COPY,), (REDUCED,))


def test_rows_have_chopper_s_times() -> None:
    """Step 1's first kernel of all is the one that computes; its call came 100 us before it."""
    found = document()
    assert found.steps[0].chopper is not None
    assert found.steps[0].chopper.kernel_count == 1
    assert found.steps[0].chopper.first_call_ns == 100 * US
    assert found.totals[0].chopper is not None
    assert found.totals[0].chopper.kernel_ns == 200 * US
    assert found.totals[0].chopper.overlap_ratio == 0


def test_a_family_that_computes_says_why_its_contention_is_unknown() -> None:
    by_name = {family.name: family for family in document().totals[0].families}
    assert by_name["gemm"].contention == Contention(
        factor=None, low=None, high=None, chopper_e50_e0=1.0, count=2, reason="fewer than 5 kernels"
    )
    assert by_name["ncclDevKernel_X"].contention is None


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_text_lists_copies_and_collectives_with_their_rates() -> None:
    text = lines(render_text(document()))
    assert ["h2d", "1", "0.100", "976.6", "KiB", "10.0"] in text
    assert ["allreduce", "default_pg", "4", "2", "0.450", "3.8", "MiB", "10.0", "15.0"] in text


def test_devices_are_put_together_and_rates_keep_their_spread() -> None:
    """Two devices: copies 2 of 200 us in all, at 10 and 30 GB/s; unknown sizes stay unknown."""
    whole = totals_only()
    fast = replace(COPY, rate_bytes_per_s=30e9)
    fill = replace(COPY, direction="memset", sized_count=0, bytes=None, rate_bytes_per_s=None)
    rows = (
        replace(whole.totals[0], copies=(COPY, fill), collectives=(REDUCED,)),
        replace(
            whole.totals[0], copies=(fast,), collectives=(replace(REDUCED, bus_bytes_per_s=None),)
        ),
    )
    both = replace(whole, totals=rows)
    table, other = copies(both), collectives(both)
    assert table is not None
    assert other is not None
    text = lines(page_text(table))
    assert ["h2d", "2", "0.200", "1.9", "MiB", "10.0-30.0"] in text
    assert ["memset", "1", "0.100", "-", "-"] in text
    assert "moved, GB/s: of those whose size the trace gives" in page_text(table)
    reduced = ["allreduce", "default_pg", "4", "4", "0.900", "7.6", "MiB", "10.0", "15.0"]
    assert reduced in lines(page_text(other))


def test_collectives_of_unknown_size_say_why_they_have_no_rate() -> None:
    whole = totals_only()
    untold = replace(
        REDUCED, sized_count=0, bytes=None, algorithm_bytes_per_s=None, bus_bytes_per_s=None
    )
    table = collectives(replace(whole, totals=(replace(whole.totals[0], collectives=(untold,)),)))
    assert table is not None
    text = page_text(table)
    assert ["allreduce", "default_pg", "4", "2", "0.450", "-"] in lines(text)
    assert "moved, GB/s: of those whose size the trace gives" in text
    told = replace(REDUCED, sized_count=2)
    table = collectives(replace(whole, totals=(replace(whole.totals[0], collectives=(told,)),)))
    assert table is not None
    assert "whose size" not in page_text(table)


def test_of_many_groups_those_with_the_most_time_are_shown() -> None:
    whole = totals_only()
    many = tuple(
        replace(REDUCED, group=str(n), group_description=None, group_size=2 + n, time_ns=n * US)
        for n in range(12)
    )
    table = collectives(replace(whole, totals=(replace(whole.totals[0], collectives=many),)))
    assert table is not None
    text = page_text(table)
    assert "8 with the most time of 12" in text
    shown = [line[1] for line in lines(text) if line[:1] == ["allreduce"]]
    assert shown == [str(n) for n in range(11, 3, -1)]


def test_only_families_with_an_interval_are_shown_beside_communication() -> None:
    whole = totals_only()
    known = Contention(factor=1.25, low=1.1, high=1.42, chopper_e50_e0=1.3, count=40)
    unsure = replace(known, low=None, high=None, reason="no interval")
    families = (family("slowed", known), family("mixed", unsure), family("other", None))
    row = replace(whole.totals[0], families=families)
    table = contention(replace(whole, totals=(row,)))
    assert table is not None
    text = page_text(table)
    assert ["slowed", "gemm", "40", "0.300", "1.25", "[1.10,", "1.42]", "1.30"] in lines(text)
    assert "mixed" not in text
    assert "other" not in text


def family(name: str, known: Contention | None) -> Family:
    return Family(
        name=name,
        class_="gemm",
        count=40,
        time_ns=300 * US,
        mean_mhz=None,
        samples=0,
        lost_ns=None,
        contention=known,
    )


def test_a_document_without_traffic_has_no_tables_of_it() -> None:
    assert copies(totals_only()) is None
    assert collectives(totals_only()) is None
    assert contention(totals_only()) is None


@pytest.mark.parametrize("names", ["hashed", "classes"])
def test_what_a_program_calls_its_groups_is_hidden_with_names(names: str) -> None:
    hidden = with_names(document(), "hashed" if names == "hashed" else "classes")
    for row in (*hidden.steps, *hidden.totals):
        assert all(each.group_description is None for each in row.collectives)
    assert hidden.totals[0].collectives == (replace(REDUCED, group_description=None),)


@pytest.mark.parametrize(
    ("size", "ranks", "shown"),
    [
        (8, ("0-7",), ["8:", "0-7"]),
        (2, ("0-1", "2-3"), ["2"]),
        (8, (None,), ["8"]),
        (30, ("0-7, 16-23, 32-39, ...",), ["30"]),
        (None, ("0-3",), ["0-3"]),
        (None, (None,), []),
    ],
)
def test_the_ranks_of_a_group_stand_beside_its_size_where_they_are_one_groups(
    size: int | None, ranks: Sequence[str | None], shown: list[str]
) -> None:
    whole = totals_only()
    groups = tuple(replace(REDUCED, group_size=size, group_ranks=each) for each in ranks)
    table = collectives(replace(whole, totals=(replace(whole.totals[0], collectives=groups),)))
    assert table is not None
    (line,) = [each for each in lines(page_text(table)) if each[:1] == ["allreduce"]]
    assert line[2 : 2 + len(shown)] == shown
    assert line[2 + len(shown)] == str(2 * len(ranks))
