"""Print runs compared: one line for a machine, a page, Markdown.

Source: DESIGN.md section 2, "Comparing runs"; figures are those of `chopperd.model.comparison`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Group, RenderableType

from chopperd.model.comparison import (
    ROW,
    STEADY,
    STEP,
    ClaimName,
    Comparison,
    ComparisonDocument,
    Difference,
    Evidence,
    EvidenceSide,
    Side,
)
from chopperd.report.text.headline import HeadlineRow
from chopperd.report.text.page import SIMULATED, Section, plain, simulated_mark, table
from chopperd.report.text.report import FirstScreen, block, escaped
from chopperd.report.text.wording import (
    UNKNOWN,
    decimal,
    fixed_ms,
    milliseconds,
    ms_digits,
    percent,
    plural,
    size,
    whole,
    words,
)
from chopperd.safe_text import visible_json

#: Rows of the waterfall in the one line, and in tables.
_BRIEF: Final = {
    "compute_at_ref": "compute",
    "dvfs_loss": "clock",
    "compute_unsampled": "compute without clock",
    "compute": "compute",
    "exposed_comm": "communication",
    "exposed_comm/wait": "waiting for ranks",
    "exposed_comm/transfer": "transfer",
    "exposed_copy": "copies",
    "unknown": "unknown",
    "idle_launch_call": "launch latency",
    "idle_allocator": "device malloc",
    "idle_data": "data",
    "idle_sync": "synchronising",
    "idle_launch_prep": "host",
    "idle_other": "idle",
}
_LEAST_PART: Final = 0.0005
_SURE: Final = 0.05
_OTHERS: Final = {
    STEP: "step, ms",
    "busy_mhz": "busy clock, MHz",
    "energy_j": "energy a step, J",
    "power_w": "power, W",
    "memory/peak_allocated_bytes": "peak allocated",
    "memory/peak_reserved_bytes": "peak reserved",
    "memory/segment_ns": "segment calls, ms",
    "memory/retries": "retries a step",
    "memory/segment_calls": "segment calls a step",
    "busy_p05_mhz": "busy clock p05, MHz",
    "busy_std_mhz": "busy clock deviation, MHz",
}
#: Claims of the evidence, and figures of its sides.
_CLAIMS: Final[Mapping[ClaimName, str]] = {
    "steadier_allocation": "steadier allocation",
    "less_memory": "less memory",
    "higher_clock": "higher clock",
    "steadier_clock": "steadier clock",
    "shorter_step": "shorter step",
    "less_energy": "less energy",
    "memory_and_clock_move_together": "lower clock where memory churns",
}
_OF_SIDES: Final = {
    "cv_reserved": "CV of reserved peak, %",
    "determinism_ratio": "equal addresses, %",
}
_VERDICTS: Final = {"same": "same", "unresolved": "not resolved", "too_few": "too few steps"}
_MARKED: Final = {"higher": "bold", "lower": "bold"}
_MOST_GPUS: Final = 16


def comparison_line(document: ComparisonDocument) -> str:
    """Return one line for each side after the first: `+2.1 % [1.6, 2.6] slower: clock 0.3`."""
    mark = " (simulated data)" if document.simulated else ""
    several = len(document.comparisons) > 1
    lines = []
    for each in document.comparisons:
        change, answer, parts = _answer(each)
        name = f"{each.name}: " if several else ""
        lines.append(f"{name}{': '.join(filter(None, (f'{change} {answer}', parts)))}{mark}\n")
    return "".join(lines)


def encode_comparison(document: ComparisonDocument) -> bytes:
    """Encode the comparison as indented JSON; unknown is `null`."""
    return visible_json(msgspec.json.format(msgspec.json.encode(document), indent=2)) + b"\n"


def comparison_page(document: ComparisonDocument) -> Group:
    """Render the answer for each side, for what it holds, then the tables."""
    page: list[RenderableType] = [simulated_mark()] if document.simulated else []
    page.append(FirstScreen(tuple(_first_rows(document))))
    for section in _sections(document):
        page += ["", section]
    return Group(*page)


def comparison_markdown(document: ComparisonDocument) -> str:
    """Render the same as Markdown."""
    lines = [f"> **{SIMULATED}**", ""] if document.simulated else []
    lines += [
        f"**{row.label}** {escaped(row.separator.join(row.clauses))}  "
        for row in _first_rows(document)
    ]
    for section in _sections(document):
        lines += ["", *block(section)]
    return "\n".join(lines) + "\n"


def _answer(comparison: Comparison) -> tuple[str, str, str]:
    """Return the change of the step time, what it is in words, and the parts that it is made of."""
    step = comparison.step
    change = f"{signed(step.change)} %{_interval(step)}"
    if step.verdict == "too_few":
        times = f"record about {comparison.record_times}x longer"
        return change, "too few steps to tell", times
    if step.verdict == "same":
        return change, f"same within {percent(step.margin)} %", ""
    if step.verdict == "unresolved":
        floor = step.floor or 0.0
        beyond = floor > step.margin and abs(step.change or 0.0) < floor
        why = f"halves of A differ by {percent(floor)} %" if beyond else ""
        return change, "no difference found", why
    rows = [each for each in comparison.figures if each.name.startswith(ROW)]
    told = _parts(each for each in rows if each.differs)
    few = _parts(
        each for each in rows if each.verdict == "too_few" and (each.p_corrected or 0.0) < _SURE
    )
    parts = "; ".join(filter(None, (told, few and f"too few steps to tell: {few}")))
    return change, "slower" if step.verdict == "higher" else "faster", parts


def _parts(rows: Iterable[Difference]) -> str:
    """Name rows of the waterfall that differ by what is not printed as 0."""
    return ", ".join(
        f"{_BRIEF[each.name.removeprefix(ROW)]} {percent(each.change)}"
        for each in rows
        if abs(each.change or 0.0) >= _LEAST_PART
    )


def signed(ratio: float | None) -> str:
    """Format a change in percent, with its sign."""
    text = percent(ratio)
    return f"+{text}" if ratio is not None and ratio > 0 else text


def _interval(each: Difference) -> str:
    return f" [{percent(each.low)}, {percent(each.high)}]" if each.low is not None else ""


def _first_rows(document: ComparisonDocument) -> Iterator[HeadlineRow]:
    first = document.sides[0]
    for each, side in zip(document.comparisons, document.sides[1:], strict=True):
        change, answer, parts = _answer(each)
        step = each.step
        digits = ms_digits(step.a, significant=4)
        a, b = (fixed_ms(value, digits) for value in (step.a, step.b))
        verdicts = {"higher": "IS SLOWER", "lower": "IS FASTER", "same": "IS AS FAST"}
        label = verdicts.get(step.verdict, "AND A NOT TOLD APART")
        sentence = (change, f"{a} to {b} ms a step", *(() if step.differs else (answer,)))
        style = {"higher": "bold red", "lower": "bold green"}.get(step.verdict, "bold")
        yield HeadlineRow(
            label=f"{each.name} {label}",
            clauses=tuple(filter(None, (", ".join(sentence), parts))),
            separator=": ",
            style=style,
        )
        yield HeadlineRow(label="HOLDS", clauses=tuple(_holds(each, first, side)), separator=", ")
    yield HeadlineRow(label="TRUST", clauses=tuple(_trust(document)), separator=", ")


def _holds(each: Comparison, a: Side, b: Side) -> Iterator[str]:
    """Yield for what the answer holds."""
    if each.by_runs:
        yield f"for runs like these, {a.runs} of A and {b.runs} of {b.name}"
    else:
        yield "for these two runs" if a.runs == b.runs == 1 else "for these runs"
    step = each.step
    effective = f"{whole(step.effective_a)} and {whole(step.effective_b)} effective"
    yield f"{a.steps} and {b.steps} steps ({effective})"
    gpus = plural(b.gpus, "GPU")
    yield {
        "uuid": f"the same {gpus}",
        "rank": f"{gpus} paired by rank: not known to be the same",
        "none": "different GPUs",
    }[each.paired_by]


def _trust(document: ComparisonDocument) -> Iterator[str]:
    step = document.comparisons[0].step
    if step.floor is not None:
        yield f"halves of A differ by {percent(step.floor)} %"
    warm = sum(side.warm_up_steps for side in document.sides)
    partial = sum(side.partial_steps for side in document.sides)
    yield f"left out: {plural(warm, 'warm-up step')}, {partial} partial or last"


def _sections(document: ComparisonDocument) -> Iterator[Section]:
    if len(document.sides) > 2:
        yield _by_limit(document)
    else:
        (only,) = document.comparisons
        if only.evidence is not None:
            yield from _evidence(only, only.evidence)
        yield from _tables(only)
    if document.notes:
        yield plain("NOTES", [(note.text,) for note in document.notes])


def _evidence(each: Comparison, evidence: Evidence) -> Iterator[Section]:
    """Render what is for and against each claim, and what else differs: one page."""
    figures = {one.name: one for one in (each.step, *each.figures)}
    rows: list[tuple[str, ...]] = []
    for claim in evidence.claims:
        answers = {"for": claim.supports, "against": claim.contradicts, "open": claim.open}
        rows.append((_CLAIMS[claim.name], "", "", "", ""))
        for answer, names in answers.items():
            for name in names:
                figure, *values = _told(name, figures, evidence)
                rows.append((f"  {figure}", answer, *values))
    columns = ("<FSDPv2 has", "<", "FSDPv1", "FSDPv2", "% [95 %]")
    caption = "for, against, open: what each figure says of the claim; CV, addresses, rho (how a "
    caption += "figure goes with the clock over a run's own steps): medians of ranks"
    v1, v2 = evidence.fsdp1.side, evidence.fsdp2.side
    title = f"FSDPv1 ({v1}) AND FSDPv2 ({v2})  the evidence of these runs"
    yield table(title, columns, rows, caption=caption)
    confounders = [(note.text,) for note in evidence.confounders]
    yield plain(
        "ALSO DIFFERENT OR NOT KNOWN  no figure is shown to be the cause of another", confounders
    )


def _told(
    name: str, figures: Mapping[str, Difference], evidence: Evidence
) -> tuple[str, str, str, str]:
    """Return a figure of the evidence, its values with FSDPv1 and v2, and the change from A."""
    sides = evidence.fsdp1, evidence.fsdp2
    if name == "verdicts":
        return "steady ranks", _steady(sides[0]), _steady(sides[1]), ""
    if name in _OF_SIDES:
        a, b = (percent(getattr(side, name), 2) for side in sides)
        return _OF_SIDES[name], a, b, ""
    if name in figures:
        found = figures[name]
        values = [_value(name, each) for each in (found.a, found.b)]
        a, b = values if sides[0].side == "A" else reversed(values)
        is_sure = percent(found.low) == percent(found.high)
        interval = "" if is_sure else _interval(found)
        return _label(name), a, b, f"{signed(found.change)}{interval}"
    whose, _, figure = name.partition("/")
    a, b = (decimal(each.rho.get(figure), 2) if each.side == whose else "" for each in sides)
    return f"{figure.replace('_', ' ')}, rho", a, b, ""


def _steady(side: EvidenceSide) -> str:
    steady = sum(count for name, count in side.verdicts.items() if name in STEADY)
    return f"{steady} of {sum(side.verdicts.values())}"


def _by_limit(document: ComparisonDocument) -> Section:
    """Render a line for each side, highest power limit first, with the knee."""
    found = {each.name: each.step for each in document.comparisons}
    sides = sorted(document.sides, key=lambda side: -(side.power_limit_w or 0.0))
    rows = [
        (
            side.name,
            whole(side.power_limit_w),
            milliseconds(side.figures[STEP]),
            f"{signed(found[side.name].change)} %{_interval(found[side.name])}"
            if side.name in found
            else "",
            _verdict(found[side.name]) if side.name in found else "",
            decimal(side.figures.get("energy_j"), 1),
            whole(side.figures.get("power_w")),
            whole(side.figures.get("busy_mhz")),
            "knee" if side.name == document.knee else "",
        )
        for side in sides
    ]
    columns = (*("<run", "-limit W", "step ms", "against A", "<", "-J/step", "-?W", "-?MHz", "<"),)
    caption = "J, W, MHz: of a GPU, means; knee: a lower limit costs more from here on"
    styles = {nth: "bold" for nth, side in enumerate(sides) if side.name == document.knee}
    return table("RUNS", columns, rows, caption=caption, styles=styles)


def _tables(each: Comparison) -> Iterator[Section]:
    rows = [one for one in each.figures if one.name.startswith(ROW) and (one.a or one.b)]
    classes = [one for one in each.figures if one.name.startswith("class/")]
    classes.sort(key=lambda one: -max(one.a, one.b))
    others = [one for one in (each.step, *each.figures) if one.name in _OTHERS]
    tests = len(each.figures)
    corrected = f"higher, lower: after correction for {plural(tests, 'figure')} (Holm)"
    if rows:
        yield _table("WHERE THE STEP WENT", "% of A's step", rows, corrected)
    yield _table("STEP, CLOCK, ENERGY AND MEMORY", "%", others, "means of a step and GPU")
    if classes:
        yield _table("CLASSES", "%", classes, "sums of durations, by launch")
    if each.gpus:
        yield _gpus(each)


def _table(title: str, unit: str, differences: Sequence[Difference], caption: str) -> Section:
    cells = [
        (
            _label(each.name),
            _value(each.name, each.a),
            _value(each.name, each.b),
            f"{signed(each.change)}{_interval(each)}",
            _verdict(each),
        )
        for each in differences
    ]
    styles = {nth: _MARKED.get(each.verdict, "") for nth, each in enumerate(differences)}
    is_times = all(each.name.endswith("_ns") or each.name.startswith(ROW) for each in differences)
    ms = " ms" if is_times else ""
    columns = ("~<", f"A{ms}", f"B{ms}", f"{unit} [95 %]", "<")
    return table(title, columns, cells, caption=caption, styles=styles)


def _label(name: str) -> str:
    if name.startswith(ROW):
        return _BRIEF[name.removeprefix(ROW)]
    return _OTHERS.get(name) or words(name.removeprefix("class/").removesuffix("_ns"))


def _value(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return size(round(value))
    if name.endswith("_ns") or name.startswith(ROW):
        return milliseconds(value)
    return decimal(value, 1)


def _verdict(each: Difference) -> str:
    if each.name == STEP and each.differs:
        return "slower" if each.verdict == "higher" else "faster"
    return _VERDICTS.get(each.verdict, each.verdict)


def _gpus(each: Comparison) -> Section:
    rows = [
        (gpu.gpu_a or UNKNOWN, gpu.uuid, whole(gpu.busy_mhz_a), whole(gpu.busy_mhz_b),
         decimal(gpu.busy_mhz_b - gpu.busy_mhz_a, 0)
         if gpu.busy_mhz_a is not None and gpu.busy_mhz_b is not None else UNKNOWN)
        for gpu in each.gpus[:_MOST_GPUS]
    ]  # fmt: skip
    more = len(each.gpus) - _MOST_GPUS
    caption = "busy clock, means" + (f"; and {more} more (--format json)" if more > 0 else "")
    return table("GPUS", ("<gpu", "~<uuid", "-A MHz", "-B MHz", "-B - A"), rows, caption=caption)
