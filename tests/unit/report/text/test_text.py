"""The whole page: width, order of sections, unknowns, and the mark of simulated data."""

import re
from collections.abc import Callable
from functools import cache

import pytest
from msgspec.structs import replace

from chopperd.model.answers import DropShare, Held, RankLine, RanksSummary, TracedDrop
from chopperd.model.report import By, Note, ReportDocument, Summary
from chopperd.model.report_rows import ClassTotal, ExposedComm
from chopperd.report.text.page import page_text
from chopperd.report.text.report import render_rich, render_text
from tests.unit.report.documents import (
    MS,
    classes_of,
    eight_gpus,
    family,
    host_only,
    host_timed,
    row,
    single_gpu,
    totals_only,
    without_clocks,
)

DOCUMENTS: tuple[Callable[[], ReportDocument], ...] = (
    eight_gpus,
    single_gpu,
    without_clocks,
    totals_only,
    host_only,
)
EVERY_DOCUMENT = pytest.mark.parametrize("build", DOCUMENTS)


@cache
def page(build: Callable[[], ReportDocument], *, by: By | None = None) -> str:
    """The page of a document, each rendered once."""
    return render_text(build(), by=by)


def section(text: str, title: str) -> list[str]:
    """The lines of the section whose title starts so, without the title."""
    blocks = [block.splitlines() for block in text.split("\n\n")]
    (found,) = [block for block in blocks if block[0].startswith(title)]
    return found[1:]


def titles(text: str) -> list[str]:
    return re.findall(r"^[A-Z]{4,}(?= |$)", text, flags=re.MULTILINE)


@EVERY_DOCUMENT
@pytest.mark.parametrize("width", [80, 100, 140])
def test_every_page_fits_its_width_whole_and_has_no_escape_codes(
    build: Callable[[], ReportDocument], width: int
) -> None:
    text = render_text(build(), by="family", width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    assert "nan" not in text.lower()
    assert "None" not in text


@EVERY_DOCUMENT
def test_the_first_line_is_the_cost_and_the_page_is_deterministic(
    build: Callable[[], ReportDocument],
) -> None:
    label = "HOST TIME ONLY" if build is host_only else "COMMUNICATION"
    assert page(build).startswith(f" {label}   ")
    assert render_text(build()) == page(build)


def test_the_first_screen_of_the_full_document_reads_as_designed() -> None:
    assert page(eight_gpus).split("\n\n")[0] == (
        " COMMUNICATION   208 of each 1412 ms step (14.7 %)\n"
        " THEN    launch latency 100 ms · GPU 5 is slow 53 ms [49, 57] · "
        "waiting for data 40.0 ms\n"
        " DO      check airflow and seating of GPU 5 (cooling.hot_gpu, at most 53 ms); check:"
        " chopperd\n         devices\n"
        " CLOCK   at most 131 ms (9.3 % [9.0, 9.6]) below 1980 MHz (device max), most of it"
        " physics; power\n"
        "         cap 90 %, thermal 7 %, unexplained 3 %; 86 to 98 ms by measured sensitivity;"
        " 53 ms more\n         than peers\n"
        " TRUST   10 complete steps, nothing lost, 99.8 Hz kept, 1,240 samples in compute,"
        " coverage 99.6 %,\n"
        "         time join ±0.40 ms (lag not measurable), profiler slows a step by 1.8 %"
    )


@pytest.mark.parametrize("width", [80, 140])
def test_at_any_width_intervals_and_causes_are_there_and_nothing_is_cut(width: int) -> None:
    text = render_text(eight_gpus(), width=width)
    assert "…" not in text
    assert "9.3 [9.0, 9.6]" in section(text, "STEPS")[1]
    gpu_5 = section(text, "GPUS")[1]
    assert "[49, 57]" in gpu_5
    assert "power cap 90 %" in gpu_5


def test_bars_and_secondary_columns_give_way_first() -> None:
    """At 80 columns `lost` goes, as its share stays; wider pages have both."""
    narrow, wide = (render_text(eight_gpus(), width=width) for width in (80, 140))
    assert "lost" in section(wide, "STEPS")[0].replace("lost %", "")
    assert "lost" not in section(narrow, "STEPS")[0].replace("lost %", "")
    bars = [line.count("█") for line in (section(wide, "WHERE")[1], section(narrow, "WHERE")[1])]
    assert bars[0] > bars[1] > 0


def test_on_a_terminal_severity_has_a_colour() -> None:
    text = page_text(render_rich(eight_gpus()), styled=True)
    assert "\x1b[1;33m COMMUNICATION" in text  # 14.7 % of the step: bold yellow
    assert "\x1b[1;31m5 " in text  # the GPU that stands out: bold red


def test_sections_come_in_order_and_empty_ones_are_left_out() -> None:
    assert titles(page(eight_gpus)) == [
        *("WHERE", "STEPS", "GPUS", "CLASSES", "FSDP", "NEXT", "NOTES", "FROM")
    ]
    assert titles(page(totals_only)) == ["WHERE", "GPUS", "FSDP", "NOTES", "FROM"]
    assert titles(page(host_only)) == ["STEPS", "FSDP", "FROM"]
    assert titles(render_text(host_timed())) == ["OPERATIONS", "STEPS", "FSDP", "FROM"]


def test_the_waterfall_shows_every_row_with_time_and_sums_to_the_window() -> None:
    lines = section(page(eight_gpus), "WHERE THE STEP WENT")
    values = [float(re.findall(r"  ([\d.]+)", line)[0]) for line in lines[1:]]
    assert len(values) == 12  # no launch lacks its record: 11 of 12 rows, and the window
    assert sum(values[:-1]) == values[-1] == 1412.0
    assert any(line.startswith("clock loss (ceiling)") and " 131.0    9.3  ███" in line
               for line in lines)  # fmt: skip


def test_what_is_unknown_has_no_row_and_no_column() -> None:
    text = page(without_clocks)
    waterfall = section(text, "WHERE")
    assert waterfall[1].split()[:6] == [
        "compute,",
        "clock",
        "unknown",
        "1004.0",
        "71.1",
        "█" * 28 + "▌",
    ]
    assert not any("loss" in line for line in waterfall)
    head, step = section(text, "STEPS")[:2]
    assert head.split() == ["step", "rank", "gpu", "window", "compute", "comm*", "idle"]
    assert step.split() == ["0", "0", "dev", "0", "1412", "1004", "208", "180"]


def held(row: str, name: str, ms: int, in_call_ms: int = 0) -> Held:
    return Held(
        row=row, name=name, kind="operator", inner=None, whole="loader", region="## forward ##",
        count=1, time_ns=ms * MS, in_call_ns=in_call_ms * MS, late_host_ns=0,
    )  # fmt: skip


def held_document() -> ReportDocument:
    document = single_gpu()
    holders = (
        held("idle_data", "aten::stack", 30),
        held("idle_data", "aten::to", 10),  # 0.7 % of 1412 ms
        held("idle_launch_call", "(device waits)", 60),
        held("idle_launch_call", "(launch latency)", 10),
        held("idle_launch_call", "aten::mm", 30, in_call_ms=30),
    )
    split = ExposedComm(wait=200 * MS, transfer=8 * MS)
    steps = tuple(replace(each, exposed_comm_ns=split) for each in document.steps)
    assert document.summary is not None
    return replace(document, steps=steps, summary=replace(document.summary, held=holders * 3))


def test_parts_of_a_row_stand_below_it_where_they_are_known() -> None:
    lines = [line.strip() for line in section(render_text(held_document()), "WHERE")]
    assert [line.split("  ")[0] for line in lines[4:11]] == [
        *("exposed communication", "waiting for other ranks", "transfer", "exposed copies"),
        *("idle, launch latency", "in launch calls", "after the call has returned"),
    ]
    assert lines[5].split()[-2:] == ["200.0", "14.2"]
    assert lines[11].split() == ["the", "device", "waits", "60.0", "4.2"]


def test_holders_are_listed_by_row_the_largest_first_from_1_percent_on() -> None:
    """30 of 1412 ms are 2.1 %, 60 are 4.2 %."""
    text = render_text(held_document(), width=140)
    lines = [line.split("  ") for line in section(text, "WHO HELD IT")]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        ["while", "held by", "ms", "%", "whole", "region"],
        ["launch", "(device waits)", "60.0", "4.2", "loader", "## forward ##"],
        ["launch", "aten::mm", "30.0", "2.1", "loader", "## forward ##"],
        ["data", "aten::stack", "30.0", "2.1", "loader", "## forward ##"],
    ]
    assert "WHO HELD IT" not in page(single_gpu)


def test_by_idle_lists_holders_of_the_whole_file_by_row_and_name() -> None:
    """Of one device's window of 1412 ms; what began in another row still is one stretch."""
    document = single_gpu()
    row = replace(document.totals[0], window_ns=1412 * MS)
    late = replace(held("exposed_comm", "aten::mm", 50, in_call_ms=5), late_host_ns=40 * MS)
    goes_on = replace(held("idle_launch_call", "aten::mm", 20, in_call_ms=20), count=0)
    mine = (held("idle_data", "aten::stack", 30), held("idle_data", "aten::stack", 10), late)
    totals = replace(row, held=(*mine, goes_on, held("unknown", "(launch without record)", 1)))
    text = render_text(replace(document, totals=(totals,)), by="idle", width=160)
    lines = [re.split(r"\s{2,}", line.strip()) for line in section(text, "IDLE")]
    assert lines == [
        ["while", "held by", "ms", "%", "count", "in call ms", "whole", "region", "late host ms"],
        ["communication", "aten::mm", "50.0", "3.5", "1", "5.00", "loader", "## forward ##",
         "40.0"],
        ["data", "aten::stack", "40.0", "2.8", "2", "-", "loader", "## forward ##", "-"],
        ["launch", "aten::mm", "20.0", "1.4", "1", "20.0", "loader", "## forward ##", "-"],
        ["record lost", "(launch without record)", "1.00", "0.1", "1", "-", "loader",
         "## forward ##", "-"],
        ["%: of the window"],
    ]  # fmt: skip
    many = tuple(held("idle_data", f"f{n}", 100 - n) for n in range(40))
    text = render_text(replace(document, totals=(replace(row, held=many),)), by="idle")
    assert "the 30 longest of 40 (--format json)" in text
    assert "not in this report" in render_text(document, by="idle")


RANKS = RanksSummary(
    lines=(
        RankLine(
            rank=0, device=0, gpu="0", steps=10, window_ns=500 * MS, wait_ns=40 * MS,
            transfer_ns=10 * MS, wait_caused_ns=MS, late_ns=0, late_steps=0, verdict="even",
        ),
        RankLine(
            rank=1, device=0, gpu="1", steps=10, window_ns=500 * MS, wait_ns=2 * MS,
            transfer_ns=10 * MS, wait_caused_ns=30 * MS, late_ns=31 * MS, late_steps=9,
            critical_steps=10, verdict="straggler", cause="idle_data", cause_ns=29 * MS,
        ),
    ),
    collectives=200, matched=198, missing_ranks=1, waits_are_bounds=True,
)  # fmt: skip


def test_ranks_come_with_the_latest_first_and_its_cause() -> None:
    text = render_text(replace(eight_gpus(), ranks=RANKS), width=140)
    lines = section(text, "RANKS  198 of 200 collectives matched")
    assert lines[1].split() == [
        *("1", "1", "500", "31.0", "straggler", "in", "9", "of", "10", "waiting", "for", "data"),
        *("+29", "2.00", "10.0", "30.0", "10"),
    ]
    assert lines[2].split() == ["0", "0", "500", "0", "even", "-", "40.0", "10.0", "1.00", "0"]
    assert lines[-1] == "waits are lower bounds: 1 rank missing"
    unknown = RanksSummary(lines=(RankLine(rank=None, device=2, gpu=None, steps=0),))
    assert "RANKS" not in render_text(replace(eight_gpus(), ranks=unknown))


@pytest.fixture
def drop() -> TracedDrop:
    """A drop that starts at 22:13:20 UTC."""
    return TracedDrop(
        gpu="5", rank=5, device=5, start_unix_ns=1_700_000_000_000_000_000,
        end_unix_ns=1_700_000_001_500_000_000,
        duration_ns=1500 * MS, reference_mhz=1700.0, mean_mhz=1500.0, lowest_mhz=1400.0,
        lost_ns=80 * MS, by_cause_ns={"power_cap": 60 * MS, "thermal": 20 * MS}, power_w=690.0,
        steps=(3, 5),
        classes=(
            DropShare(name="comm_pack", inside_ratio=0.7, outside_ratio=0.5),
            DropShare(name="norm", inside_ratio=0.1, outside_ratio=0.3),
        ),
        families=(
            DropShare(name="pack_kernel", inside_ratio=0.7, outside_ratio=0.5),
            DropShare(name="norm_kernel", inside_ratio=0.1, outside_ratio=None),
        ),
    )  # fmt: skip


def test_drops_say_when_how_deep_why_and_what_ran(drop: TracedDrop) -> None:
    """60 of 80 ms lost by power: 75 %."""
    other = replace(drop, gpu=None, rank=None, lost_ns=0, by_cause_ns={}, steps=(7, 7), classes=())
    document = replace(eight_gpus(), drops=(other, drop))
    lines = section(render_text(document, width=140), "DROPS")
    assert lines[1].split() == [
        *("5", "5", "22:13:20", "1.5", "3-5", "1500", "1700", "80.0", "690", "power", "cap"),
        *("75", "%", "comm", "pack", "70", "%", "(50)"),
    ]
    assert lines[2].split()[:6] == ["dev", "5", "-", "22:13:20", "1.5", "7"]
    many = replace(document, drops=(drop,) * 9)
    assert "DROPS  of a GPU's busy clock, 8 that lost most of 9" in render_text(many)


def test_a_drop_without_an_end_or_an_outside_says_so(drop: TracedDrop) -> None:
    whole = tuple(replace(each, outside_ratio=None) for each in drop.classes)
    open_ = replace(drop, end_unix_ns=None, classes=whole)
    lines = section(render_text(replace(eight_gpus(), drops=(open_,)), width=140), "DROPS")
    assert lines[1].split()[3] == ">1.5"
    assert lines[1].endswith("comm pack 70 % (-), norm 10 % (-)")


def test_the_families_in_drops_are_a_table_of_their_own(drop: TracedDrop) -> None:
    document = replace(eight_gpus(), drops=(drop, replace(drop, gpu=None, rank=None)))
    lines = section(render_text(document, by="drop"), "WORK IN DROPS")
    assert [line.split() for line in lines[1:]] == [
        ["5", "5", "22:13:20", "pack_kernel", "70.0", "50.0"],
        ["5", "5", "22:13:20", "norm_kernel", "10.0", "-"],
        ["dev", "5", "-", "22:13:20", "pack_kernel", "70.0", "50.0"],
        ["dev", "5", "-", "22:13:20", "norm_kernel", "10.0", "-"],
    ]


def test_without_a_drop_there_is_no_table_of_them_and_one_asked_for_says_why(
    drop: TracedDrop,
) -> None:
    assert "DROPS" not in page(eight_gpus)
    asked = section(render_text(eight_gpus(), by="drop"), "WORK IN DROPS")
    assert asked == ["no drop of a GPU's busy clock in the traces' time, or no samples of it"]
    hidden = replace(eight_gpus(), drops=(replace(drop, families=()),))
    assert section(render_text(hidden, by="drop"), "WORK IN DROPS") == ["-"]


def test_steps_show_the_critical_device_and_the_last_ones() -> None:
    document = eight_gpus()
    steps = tuple(row(d, step, critical=d == 5) for step in range(100) for d in range(8))
    text = render_text(replace(document, steps=steps))
    assert "STEPS  critical device of each  last 12 of 100 (" in text
    shown = [line.split()[:2] for line in section(text, "STEPS")[1:-1]]
    assert shown == [[str(step), "5"] for step in range(88, 100)]


def test_one_asked_step_shows_every_device() -> None:
    document = eight_gpus()
    steps = tuple(row(device, 7, critical=device == 5) for device in range(8))
    shown = section(render_text(replace(document, steps=steps)), "STEPS")[1:-1]
    assert [line.split()[2] for line in shown] == [str(device) for device in range(8)]


def test_a_step_that_the_rate_does_not_resolve_shows_the_pooled_share_below() -> None:
    document = single_gpu()
    wide = replace(document.steps[0].dvfs, gap_low=0.05, gap_high=0.20)
    steps = (replace(document.steps[0], dvfs=wide), *document.steps[1:])
    lines = section(render_text(replace(document, steps=steps)), "STEPS")
    assert lines[1].endswith(" n.r.")
    assert lines[2].endswith(" 9.3 [9.0, 9.6]")
    assert "n.r.: not resolved at this rate; pooled over the run: 9.3 ± 0.3 %" in lines[-1]


def test_steps_say_what_is_the_matter_with_them() -> None:
    document = single_gpu()
    steps = (
        replace(document.steps[0], partial=True, partial_reasons=("starts_before_trace",)),
        replace(document.steps[1], tail=True),
    )
    lines = section(render_text(replace(document, steps=steps)), "STEPS")
    assert lines[1].endswith("  partial")
    assert lines[2].endswith("  tail")
    host = section(page(host_only), "STEPS")
    assert host[:2] == ["step  rank  marker", "   0     0    1400  host only"]
    assert host[-1] == "times in ms, of the host's markers"


def test_steps_of_many_minutes_keep_all_their_digits() -> None:
    document = single_gpu()
    long = replace(document.steps[0], window_ns=987_654 * MS, compute_ns=987_000 * MS)
    lines = section(render_text(replace(document, steps=(long,))), "STEPS")
    assert " 987,654 " in lines[1]
    assert " 987,000 " in lines[1]
    assert "…" not in lines[1]


def test_gpus_are_listed_worst_excess_first() -> None:
    lines = section(page(eight_gpus), "GPUS")
    assert lines[0].split() == [
        *("gpu", "rank", "MHz", "peers", "gap", "%", "excess", "ms", "[95", "%]", "C", "cause"),
        "slowest",
    ]
    assert lines[1].split() == [
        *("5", "5", "1721", "1810", "13.1", "53.0", "[49,", "57]", "87", "power", "cap", "90"),
        *("%", "10"),
    ]


def test_classes_give_their_total_and_exposed_time_of_one_window() -> None:
    """Of three steps of 1412 ms with 300 ms of gemm each: 21.2 %; of the file without them."""
    document = single_gpu()
    kernels = classes_of((family("a", "gemm", 300, 10),))
    (exposed,) = (
        ClassTotal(**{**{f: getattr(c, f) for f in c.__struct_fields__}, "exposed_ns": 280 * MS})
        for c in kernels
    )
    steps = tuple(replace(each, classes=(exposed,)) for each in document.steps)
    lines = section(render_text(replace(document, steps=steps)), "CLASSES  critical device, a step")
    assert lines[0].split() == ["class", "total", "ms", "exposed", "ms", "%", "lost", "ms"]
    assert lines[1].split() == ["gemm", "300", "280", "21.2", "10.0", "±0.200"]
    totals = (replace(document.totals[0], classes=kernels),)
    lines = section(render_text(replace(document, totals=totals)), "CLASSES  whole file, critical")
    assert lines[1].split() == ["gemm", "300", "21.2", "10.0", "±0.200"]


def test_tables_stand_next_to_each_other_where_there_is_room() -> None:
    assert "GPUS" in render_text(eight_gpus(), width=140).split("CLASSES")[0].splitlines()[-1]
    assert "GPUS" not in page(eight_gpus).split("CLASSES")[0].splitlines()[-1]


def test_a_class_whose_loss_one_device_does_not_know_is_a_lower_bound() -> None:
    document = single_gpu()
    kernels = (family("a", "gemm", 100, 10),), (family("b", "gemm", 50, None),)
    totals = [
        replace(document.totals[0], families=each, classes=classes_of(each)) for each in kernels
    ]
    totals = [replace(each, is_critical=None) for each in totals]
    text = render_text(replace(document, totals=tuple(totals)), by="family")
    assert re.search(r"gemm +150 +5\.3 +≥ 10\.0 ±0\.200", text)  # of 2 x 1412 ms
    assert [line.split()[0] for line in section(text, "FAMILIES")[1:3]] == ["a", "b"]


def test_a_reason_that_no_family_has_a_beta_for_stands_once_below_them() -> None:
    document = single_gpu()
    kernels = (family("a", "gemm", 100, 10), family("b", "gemm", 50, None))
    totals = (replace(document.totals[0], families=kernels),)
    lines = section(render_text(replace(document, totals=totals), by="family"), "FAMILIES")
    assert "beta" not in lines[0]
    assert lines[3] == "beta: fewer than 30 samples"


def test_reasons_that_differ_stand_beside_their_families() -> None:
    document = single_gpu()
    other = family("b", "gemm", 50, None)
    fields = {name: getattr(other, name) for name in other.__struct_fields__}
    other = type(other)(**{**fields, "beta_reason": "steady clock"})
    totals = (replace(document.totals[0], families=(family("a", "gemm", 100, 10), other)),)
    lines = section(render_text(replace(document, totals=totals), by="family"), "FAMILIES")
    assert lines[1].endswith("  fewer than 30 samples")
    assert lines[2].endswith("  steady clock")


def test_families_are_shown_on_request_with_names_shortened_in_the_middle() -> None:
    assert "FAMILIES" not in page(eight_gpus)
    lines = section(page(eight_gpus, by="family"), "FAMILIES")
    assert re.match(r"sm90_xmma_gemm_\S*…\S*128x128x64  gemm ", lines[1])
    wide = section(render_text(eight_gpus(), by="family", width=140), "FAMILIES")
    assert wide[1].startswith("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64  gemm ")
    assert any(line.startswith("flash_fwd_kernel[causal] ") for line in lines)


def test_a_measured_beta_has_its_interval_and_several_a_range() -> None:
    document = single_gpu()
    measured = family("a", "gemm", 100, 10)
    kernels = [
        type(measured)(**{
            **{f: getattr(measured, f) for f in measured.__struct_fields__},
            "beta": beta, "beta_low": beta - 0.05, "beta_high": beta + 0.05,
        })
        for beta in (0.7, 0.8)
    ]  # fmt: skip
    one = replace(document, totals=(replace(document.totals[0], families=(kernels[0],)),))
    assert "0.70 [0.65, 0.75]" in render_text(one, by="family")
    two = replace(document, totals=(replace(document.totals[0], families=tuple(kernels)),))
    assert section(render_text(two, by="family"), "FAMILIES")[1].endswith("  0.70-0.80")


def test_findings_give_bound_action_and_check() -> None:
    lines = section(page(eight_gpus), "NEXT")
    assert lines[0].endswith("GPU 5 runs 17 C hotter than the median of its peers (at most 53 ms)")
    assert lines[1].strip() == "88 C, its peers 71 C"
    assert lines[2].strip() == "do: check airflow and seating of GPU 5"
    assert lines[3].strip() == "check: chopperd devices"


def test_simulated_data_are_marked_before_anything_else() -> None:
    document = eight_gpus()
    simulated = replace(document, generated=replace(document.generated, simulated=True))
    assert render_text(simulated).startswith(" SIMULATED DATA: ")
    assert "SIMULATED" not in render_text(document)


def test_markup_in_names_is_printed_as_it_is() -> None:
    document = single_gpu()
    trace = replace(document.trace, path="runs/[bold]x[/bold]:smile:.json")
    text = render_text(replace(document, traces=(trace,)))
    assert "runs/[bold]x[/bold]:smile:.json" in text


def test_a_missing_waterfall_leaves_its_section_out() -> None:
    document = single_gpu()
    assert isinstance(document.summary, Summary)
    without = replace(document, summary=replace(document.summary, waterfall_ns={}))
    assert "WHERE" not in titles(render_text(without))


def test_many_ranks_are_counted_not_listed() -> None:
    document = eight_gpus()
    traces = tuple(replace(document.trace, rank=rank) for rank in range(64))
    assert "and 48 more" in render_text(replace(document, traces=traces))


def test_a_narrow_page_cuts_no_number() -> None:
    assert section(render_text(eight_gpus(), width=40), "STEPS") == (
        section(render_text(eight_gpus(), width=80), "STEPS")
    )


def test_no_line_of_the_headline_breaks_inside_brackets_or_a_figure() -> None:
    document = eight_gpus()
    assert document.summary is not None
    for summary in (
        replace(document.summary, gap_low=0.05, gap_high=0.14),
        replace(document.summary, coverage_ratio=0.62, excess_ns=53.0 * MS),
        replace(document.summary, basis="totals", steps=0, coverage_ratio=0.62),
    ):
        first_screen = render_text(replace(document, summary=summary)).split("\n\n")[0]
        for line in first_screen.splitlines():
            assert line.count("(") == line.count(")")
            assert line.count("[") == line.count("]")
            assert not line.endswith("±")


def test_a_clause_longer_than_a_line_is_wrapped_between_its_words() -> None:
    document = without_clocks()
    long = Note(code="no_overlap", text="because of (these three words) " + "word " * 30)
    lines = render_text(replace(document, notes=(long,))).splitlines()
    (nth,) = [n for n, line in enumerate(lines) if line.startswith(" CLOCK ")]
    assert lines[nth].startswith(" CLOCK   unknown: because of (these three words) word")
    assert lines[nth + 1].startswith(" " * 9 + "word word")


def test_a_trace_is_one_line_with_its_device() -> None:
    document = single_gpu()
    assert section(render_text(document), "FROM") == [
        "rank 0 of 8  GPU 0  NVIDIA H100 80GB HBM3  by chopperd devices  "
        "traces/rank0.pt.trace.json.gz"
    ]
    two = (document.devices[0], replace(document.devices[0], device=1, gpu=None, mapping=None))
    lines = section(render_text(replace(document, devices=two)), "FROM")
    assert [line.split()[0] for line in lines] == ["rank", "device"]
    assert lines[1].split()[-2:] == ["clocks", "unknown"]


def test_each_device_is_listed_under_its_own_file() -> None:
    """Three files of unknown rank: the first has no device, the others two and one."""
    document = single_gpu()
    device = replace(document.devices[0], rank=None)
    files = [replace(document.trace, path=f"{name}.json", rank=None) for name in "abc"]
    devices = [replace(device, trace=trace, device=n) for trace, n in ((1, 0), (1, 1), (2, 0))]
    page = replace(document, traces=tuple(files), devices=tuple(devices))
    lines = section(render_text(page), "FROM")
    assert [line.split()[-1] for line in lines] == ["a.json", "b.json", "devices", "c.json"]
    assert ["no device" in line for line in lines] == [True, False, False, False]


def test_of_many_notes_of_one_kind_the_first_three_are_shown_and_the_rest_counted() -> None:
    notes = tuple(Note(code="reads_missed", text=f"GPU {gpu}: 1 read missed") for gpu in range(8))
    text = render_text(replace(eight_gpus(), notes=notes))
    assert text.count("reads_missed") == 3
    assert "and 5 more like these" in text
