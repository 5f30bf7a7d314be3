"""What is printed of compared runs, of hand-made comparisons: no more than may be said."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.compared_reports import compare
from chopperd.model.comparison import ComparisonDocument, Difference
from chopperd.model.report import ReportDocument
from chopperd.report.text.comparison import (
    comparison_line,
    comparison_markdown,
    comparison_page,
    encode_comparison,
)
from chopperd.report.text.page import page_text
from tests.unit.correlate.compared_runs import run_of, with_memory

STEPS = np.random.default_rng(2).normal(1500.0, 15.0, 80).tolist()


def compared(*sides: ReportDocument | list[ReportDocument]) -> ComparisonDocument:
    lists = [side if isinstance(side, list) else [side] for side in sides]
    return compare(lists, version="1", allow=["gpus"])


def longer() -> ComparisonDocument:
    """Communication takes 30 ms longer, of 1500."""
    return compared(
        run_of(STEPS, communication_ms=200), run_of([ms + 30 for ms in STEPS], communication_ms=230)
    )


def text(document: ComparisonDocument) -> str:
    return page_text(comparison_page(document), width=80)


def test_one_line_says_how_much_and_in_which_part() -> None:
    """30 of 1500 ms are 2.0 %, all of it communication."""
    (line,) = comparison_line(longer()).splitlines()
    assert line.startswith("+2.0 % [")
    assert line.endswith("] slower: communication 2.0")


def test_the_page_is_within_eighty_columns_and_names_no_cause() -> None:
    page = text(longer())
    assert max(map(len, page.splitlines())) <= 80
    assert "B IS SLOWER" in page
    assert "for these two runs, 80 and 80 steps" in page
    assert "the same 2 GPUs" in " ".join(page.split())
    assert "because" not in page
    row = next(line for line in page.splitlines() if line.startswith("communication"))
    assert row.split()[1:4] == ["200", "230", "+2.0"]
    assert row.split()[-1] == "higher"


def test_markdown_has_the_same_tables() -> None:
    lines = comparison_markdown(longer()).splitlines()
    assert lines[0].startswith("**B IS SLOWER** +2.0 %")
    assert any(line.startswith("| `communication` | 200 | 230 | +2.0") for line in lines)


def test_simulated_data_are_marked_everywhere() -> None:
    document = replace(longer(), simulated=True)
    assert "SIMULATED DATA" in text(document)
    assert "SIMULATED DATA" in comparison_markdown(document)
    assert comparison_line(document).endswith("(simulated data)\n")
    assert msgspec.json.decode(encode_comparison(document))["simulated"] is True


@pytest.mark.parametrize(
    ("factor", "answer", "label"),
    [
        (0.95, "-5.0 % [-5.2, -4.8] faster", "B IS FASTER"),
        (1.0, "0 % [-0.2, 0.2] same within 0.5 %", "B IS AS FAST"),
    ],
)
def test_what_is_not_slower(factor: float, answer: str, label: str) -> None:
    document = compared(run_of(STEPS), run_of([ms * factor for ms in STEPS]))
    assert comparison_line(document).startswith(answer)
    assert label in text(document)


def with_step(document: ComparisonDocument, **changed: object) -> ComparisonDocument:
    first = document.comparisons[0]
    step: Difference = replace(first.step, **changed)
    return replace(document, comparisons=(replace(first, step=step),))


def test_what_is_not_told_is_said_with_its_reason() -> None:
    unsure = with_step(longer(), verdict="unresolved", change=0.004, low=-0.001, high=0.009)
    assert comparison_line(unsure) == "+0.4 % [-0.1, 0.9] no difference found\n"
    drifts = with_step(longer(), verdict="unresolved", change=0.02, floor=0.03)
    assert "no difference found: halves of A differ by 3.0 %" in comparison_line(drifts)
    assert "B AND A NOT TOLD APART" in text(drifts)


def test_too_few_steps_say_how_much_longer_to_record() -> None:
    document = compared(run_of(STEPS[:10]), run_of(STEPS[:10]))
    times = document.comparisons[0].record_times
    assert comparison_line(document).endswith(
        f"too few steps to tell: record about {times}x longer\n"
    )
    one = compared(run_of(STEPS[:1]), run_of(STEPS[:1]))
    assert comparison_line(one) == "0 % too few steps to tell: record about 50x longer\n"
    page = text(one)
    assert "halves" not in page
    assert "CLASSES" not in page
    bare = run_of(STEPS[:9], waterfall_ns=None, exposed_comm_ns=None)
    assert "WHERE" not in text(compared(bare, bare))


def test_parts_of_too_few_steps_are_told_apart_from_those_that_are_sure() -> None:
    """Waits that drift by 40 ms, and are 60 ms longer in B, have few effective steps."""
    drift = np.linspace(0.0, 40.0, 80)
    comm = [run_of([ms], communication_ms=208 + d) for ms, d in zip(STEPS, drift, strict=True)]
    steps = [each.steps[0].waterfall_ns for each in comm]
    base, more = run_of(STEPS), run_of([ms + 60 for ms in STEPS])
    rows = [
        replace(row, waterfall_ns=None if nth >= 80 else steps[nth])
        for nth, row in enumerate(more.steps[: len(more.steps) // 2])
    ]
    one = replace(base, devices=base.devices[:1], steps=base.steps[: len(base.steps) // 2])
    line = comparison_line(
        compared(one, replace(more, devices=more.devices[:1], steps=tuple(rows)))
    )
    assert "slower: too few steps to tell: communication 1.3" in line


def test_three_runs_a_side_speak_for_such_runs() -> None:
    scales = (0.999, 1.0, 1.001)
    a, b = ([run_of([ms * s * f for ms in STEPS]) for s in scales] for f in (1.0, 1.05))
    assert "for runs like these, 3 of A and 3 of B" in text(compared(a, b))
    assert "for these runs, 160 and 80 steps" in text(compared(a[:2], b[0]))


def test_gpus_that_are_not_the_same_are_said_so() -> None:
    other = run_of(STEPS, uuids=["x", "y"])
    assert "different GPUs" in text(compared(run_of(STEPS), other))
    unknown = run_of(STEPS, uuids=[None, None])
    page = " ".join(text(compared(unknown, unknown)).split())
    assert "2 GPUs paired by rank: not known to be the same" in page


def test_memory_and_many_gpus() -> None:
    uuids = [f"GPU-{nth}" for nth in range(18)]
    a, b = (
        with_memory(run_of(STEPS[:6], uuids=uuids), 0, peak_reserved_bytes=size << 30)
        for size in (60, 70)
    )
    page = text(compared(a, b))
    assert "60.0 GiB  70.0 GiB" in page
    assert "and 2 more (--format json)" in page


def test_several_sides_are_a_table_of_power_limits() -> None:
    """700 W first; the knee, far below the line from 700 to 400 W, at 500 W."""
    sides = [
        run_of([ms * factor for ms in STEPS], limit_w=watts, energy_j=watts * factor)
        for watts, factor in ((500, 1.04), (700, 1.0), (600, 1.01), (400, 1.3))
    ]
    document = compared(*sides)
    page = text(document)
    table = page[page.index("RUNS") :].splitlines()
    assert [line.split()[:2] for line in table[2:6]] == [
        *(["B", "700"], ["C", "600"], ["A", "500"], ["D", "400"])
    ]
    assert [line.split()[-1] for line in table[2:6]].count("knee") == 1
    assert table[4].endswith("knee")
    assert "520.0" in table[4]
    assert max(map(len, page.splitlines())) <= 80
    names = [line.partition(":")[0] for line in comparison_line(document).splitlines()]
    assert names == ["B", "C", "D"]
