"""The whole page: width, order of sections, unknowns, and the mark of simulated data."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from chopperd.model.report import By, Note, ReportDocument, Summary
from chopperd.report.text.report import render_text
from tests.unit.report.documents import (
    MS,
    classes_of,
    eight_gpus,
    family,
    host_only,
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
    return re.findall(r"^[A-Z]{4,}", text, flags=re.MULTILINE)


@EVERY_DOCUMENT
def test_every_page_fits_100_columns_and_has_no_escape_codes(
    build: Callable[[], ReportDocument],
) -> None:
    text = page(build, by="family")
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "\x1b" not in text
    assert "nan" not in text.lower()
    assert "None" not in text


@EVERY_DOCUMENT
def test_the_first_line_is_the_cost_and_the_page_is_deterministic(
    build: Callable[[], ReportDocument],
) -> None:
    assert page(build).startswith(" CLOCK COST  ")
    assert render_text(build()) == page(build)


def test_the_first_screen_of_the_full_document_reads_as_designed() -> None:
    assert page(eight_gpus).split("\n\n")[0] == (
        " CLOCK COST  at most 131 of each 1412 ms step (9.3 % [9.0, 9.6]);\n"
        "             86 to 98 ms by measured sensitivity; 53 ms more than peers\n"
        " CAUSE       power cap 90 %   thermal 7 %   unexplained 3 %   "
        "reference 1980 MHz (device max)\n"
        " LOOK AT     GPU 5: 89 MHz below its 7 peers, 87 C, slowest in 10 of 10 steps"
        " -> at most 53 ms/step\n"
        " TRUST       99.8 Hz kept, 1,240 samples in compute, coverage 99.6 %,\n"
        "             time join ±0.40 ms (lag not measurable), profiler slows a step by 1.8 %"
    )


def test_sections_come_in_order_and_empty_ones_are_left_out() -> None:
    assert titles(page(eight_gpus)) == ["WHERE", "STEPS", "GPUS", "NEXT", "NOTES", "FROM"]
    assert titles(page(totals_only)) == ["WHERE", "GPUS", "NOTES", "FROM"]
    assert titles(page(host_only)) == ["STEPS", "FROM"]


def test_the_waterfall_shows_every_row_and_sums_to_the_window() -> None:
    lines = section(page(eight_gpus), "WHERE THE STEP WENT")
    values = [float(re.findall(r"  ([\d.]+)", line)[0]) for line in lines[1:]]
    assert len(values) == 13
    assert sum(values[:-1]) == values[-1] == 1412.0
    assert any(line.startswith("clock loss (ceiling)") and " 131.0    9.3  ███" in line
               for line in lines)  # fmt: skip


def test_an_unknown_loss_is_a_dash_in_waterfall_and_steps() -> None:
    text = page(without_clocks)
    loss = [line for line in section(text, "WHERE") if line.startswith("clock loss")]
    assert [line.split()[-2:] for line in loss] == [["-", "-"]]
    step = section(text, "STEPS")[1]
    assert step.split() == ["0", "dev", "0", "1412", "1004", "208", "180", "-", "-", "-", "-"]


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
    assert [line.split()[1] for line in shown] == [str(device) for device in range(8)]


def test_a_step_that_the_rate_does_not_resolve_shows_the_pooled_share_below() -> None:
    document = single_gpu()
    wide = replace(document.steps[0].dvfs, gap_low=0.05, gap_high=0.20)
    steps = (replace(document.steps[0], dvfs=wide), *document.steps[1:])
    lines = section(render_text(replace(document, steps=steps)), "STEPS")
    assert " n.r. " in lines[1]
    assert " 9.3 [9.0, 9.6] " in lines[2]
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
    assert host[1].endswith("  host only, marker 1400 ms")


def test_steps_of_many_minutes_keep_all_their_digits() -> None:
    document = single_gpu()
    long = replace(document.steps[0], window_ns=987_654 * MS, compute_ns=987_000 * MS)
    lines = section(render_text(replace(document, steps=(long,))), "STEPS")
    assert " 987,654 " in lines[1]
    assert " 987,000 " in lines[1]
    assert "…" not in lines[1]


def test_gpus_stand_beside_classes_worst_excess_first() -> None:
    lines = section(page(eight_gpus), "GPUS")
    assert lines[0].split() == [
        *("gpu", "rank", "MHz", "peers", "gap", "%", "excess", "ms", "C", "slowest"),
        *("class", "ms", "%", "lost", "ms"),
    ]
    # gemm: 8 devices x 7000 ms of 8 x 14000 ms, 8 x 950 ms lost
    assert lines[1].split() == [
        *("5", "5", "1721", "1810", "13.1", "53.0", "87", "10"),
        *("gemm", "56,000", "50.0", "7600", "±152"),
    ]


def test_a_class_whose_loss_one_device_does_not_know_is_a_lower_bound() -> None:
    document = single_gpu()
    kernels = (family("a", "gemm", 100, 10),), (family("b", "gemm", 50, None),)
    totals = [
        replace(document.totals[0], families=each, classes=classes_of(each)) for each in kernels
    ]
    text = render_text(replace(document, totals=tuple(totals)), by="family")
    assert re.search(r"gemm +150 +100\.0 +≥ 10\.0 ±0\.200", text)
    assert [line.split()[0] for line in section(text, "FAMILIES")[1:3]] == ["a", "b"]


def test_a_reason_that_no_family_has_a_beta_for_stands_once_below_them() -> None:
    document = single_gpu()
    kernels = (family("a", "gemm", 100, 10), family("b", "gemm", 50, None))
    totals = (replace(document.totals[0], families=kernels),)
    lines = section(render_text(replace(document, totals=totals), by="family"), "FAMILIES")
    assert [line.split()[-1] for line in lines[1:3]] == ["-", "-"]
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
    assert lines[1].startswith("sm90_xmma_g…ze128x128x64  gemm ")
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
        section(page(eight_gpus), "STEPS")
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
    long = replace(document.notes[0], text="because of (these three words) " + "word " * 30)
    lines = render_text(replace(document, notes=(long,))).splitlines()
    assert lines[0].startswith(" CLOCK COST  unknown: because of (these three words) word")
    assert lines[1].startswith(" " * 13 + "word word")


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
