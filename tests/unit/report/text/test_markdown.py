"""The report as Markdown: what GitHub renders of it, and that names cannot become markup."""

from msgspec.structs import replace

from chopperd.model.report import Note
from chopperd.report.text.report import escaped, render_markdown
from tests.unit.report.documents import eight_gpus, family, host_only, row, single_gpu


def test_the_first_screen_comes_first_a_line_each() -> None:
    lines = render_markdown(eight_gpus()).splitlines()
    assert lines[0] == "**COMMUNICATION** 208 of each 1412 ms step (14.7 %)  "
    assert [line.split("**")[1] for line in lines[1:5]] == ["THEN", "DO", "CLOCK", "TRUST"]
    assert lines[3].startswith("**CLOCK** at most 131 ms (9.3 % \\[9.0, 9.6]) below 1980 MHz")


def test_tables_have_a_header_alignment_and_no_bars() -> None:
    text = render_markdown(eight_gpus())
    assert "|  | ms | % |\n| :-- | --: | --: |\n" in text
    assert "| clock loss (ceiling) | 131.0 | 9.3 |\n" in text
    assert "█" not in text


def test_a_report_of_many_steps_and_gpus_stays_short_and_counts_what_it_leaves_out() -> None:
    document = eight_gpus()
    steps = tuple(row(d, step, critical=d == 5) for step in range(100) for d in range(8))
    many = tuple(Note(code=f"note_{n}", text="why") for n in range(60))
    text = render_markdown(replace(document, steps=steps, notes=many), by="family")
    assert len(text.splitlines()) <= 120
    assert "**NEXT**" in text
    assert "| and 50 more |" in text or "more tables (`--format text`)*" in text


def test_so_many_tables_that_some_have_no_room_are_counted() -> None:
    document = eight_gpus()
    kernels = tuple(family(f"k{n}", f"class{n}", 10 + n, None) for n in range(30))
    totals = tuple(replace(each, families=kernels) for each in document.totals)
    notes = tuple(Note(code=f"note_{n}", text="why") for n in range(60))
    long = replace(document, totals=totals, notes=notes, findings=document.findings * 5)
    text = render_markdown(long, by="family")
    assert len(text.splitlines()) <= 120
    assert text.endswith("more tables (`--format text`)*\n")
    assert "**NEXT**" in text


def test_names_stay_names() -> None:
    document = single_gpu()
    kernels = (family("f<a|b>`x`", "gemm", 100, None),)
    totals = (replace(document.totals[0], families=kernels),)
    text = render_markdown(replace(document, totals=totals), by="family")
    assert "| `f<a\\|b>'x'` |" in text
    note = Note(code="x", text="see [this](http://x) <img> @team *now*\nnext")
    text = render_markdown(replace(document, notes=(note,)))
    assert "see \\[this](http://x) &lt;img> &#64;team \\*now\\*" in text
    assert escaped("a_b") == "a_b"


def test_simulated_data_are_marked_first_and_unknown_is_a_dash() -> None:
    document = single_gpu()
    simulated = replace(document, generated=replace(document.generated, simulated=True))
    assert render_markdown(simulated).startswith("> **SIMULATED DATA: ")
    steps = (replace(document.steps[0], window_ns=None), *document.steps[1:])
    assert "| 0 | 0 | 0 | - | 1004 |" in render_markdown(replace(document, steps=steps))
    assert render_markdown(host_only()).startswith("**HOST TIME ONLY** 1 step of 1400 ms")
