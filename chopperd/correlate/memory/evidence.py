"""What two runs say of FSDPv1 and FSDPv2: each claim with what is for it, against it, and open.

A run differs from another in all that changed between them. So nothing here says "because": what
else differs is listed, and figures that were compared decide, not the claim.

Source: DESIGN.md section 2, "Comparing runs".
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final, Literal

from chopperd.model.comparison import (
    ROW,
    STEADY,
    STEP,
    Claim,
    ClaimName,
    Comparison,
    Difference,
    Evidence,
    EvidenceSide,
)
from chopperd.model.memory import RankMemory
from chopperd.model.report import Note, ReportDocument

_Answer = Literal["supports", "contradicts", "open"]
#: What FSDPv2 is said to have, and the figures that tell: whether they are to be higher.
_CLAIMS: Final[Mapping[ClaimName, Mapping[str, bool]]] = {
    "steadier_allocation": {"memory/segment_calls": False, "memory/retries": False},
    "less_memory": {"memory/peak_allocated_bytes": False, "memory/peak_reserved_bytes": False},
    "higher_clock": {"busy_mhz": True},
    "steadier_clock": {"busy_p05_mhz": True, "busy_std_mhz": False},
    "shorter_step": {STEP: False},
    "less_energy": {"energy_j": False},
}
_UNSTEADY: Final = frozenset({"churns", "varies"})
_LEAST_LOAD: Final = 0.005
#: Figures that differ for other reasons than the framework's way with memory.
_OTHER_FIGURES: Final = {
    "temperature_c": ("temperature", "the GPUs are not equally hot"),
    "memory/allocations": ("requests", "the job asks for memory another number of times a step"),
    f"{ROW}compute_at_ref": (
        "work",
        "kernels take another time at the reference clock: other kernels, or other contention",
    ),
}
_ROWS_OF_LOAD: Final = ("idle_", "exposed_")


def fsdp_evidence(
    first: tuple[str, Sequence[ReportDocument]],
    other: tuple[str, Sequence[ReportDocument]],
    comparison: Comparison,
) -> Evidence | None:
    """Return the evidence of two sides of which one is of FSDPv1 and one of FSDPv2; else None.

    `first`, `other`: name and reports. `comparison`: of the other with the first.
    """
    sides = {side.framework: side for side in (_side(*first), _side(*other))}
    if sides.keys() != {"fsdp1", "fsdp2"}:
        return None
    v1, v2 = sides["fsdp1"], sides["fsdp2"]
    ranks = _ranks(first[1] if v1.side == first[0] else other[1])
    ranks2 = _ranks(other[1] if v1.side == first[0] else first[1])
    figures = {each.name: each for each in (comparison.step, *comparison.figures)}
    is_turned = v1.side != first[0]
    claims = []
    for name, wanted in _CLAIMS.items():
        answers = [(each, _answer(figures[each], up != is_turned)) for each, up in wanted.items()
                   if each in figures]  # fmt: skip
        if name == "steadier_allocation":
            answers = [*_allocation(ranks, ranks2), *answers]
        claims.append(_claim(name, answers))
    together = [*_together(v1.side, ranks.values()), *_together(v2.side, ranks2.values())]
    claims.append(_claim("memory_and_clock_move_together", together))
    return Evidence(
        fsdp1=v1,
        fsdp2=v2,
        claims=tuple(each for each in claims if each.supports or each.contradicts or each.open),
        confounders=tuple(_confounders(comparison, figures)),
    )


def _side(name: str, reports: Sequence[ReportDocument]) -> EvidenceSide:
    ranks = list(_ranks(reports).values())
    frameworks = {document.framework.name for document in reports}
    rho: defaultdict[str, list[float]] = defaultdict(list)
    for each in ranks:
        for one in each.correlations:
            if one.rho is not None:
                rho[one.figure].append(one.rho)
    return EvidenceSide(
        side=name,
        framework=frameworks.pop() if len(frameworks) == 1 else "several",
        verdicts=dict(Counter(each.verdict for each in ranks)),
        cv_reserved=_middle(each.cv_reserved for each in ranks),
        program_ratio=_middle(each.program_ratio for each in ranks),
        determinism_ratio=_middle(each.determinism_ratio for each in ranks),
        rho={figure: median(values) for figure, values in rho.items()},
        sources=tuple(sorted({each.source for each in ranks})),
    )


def _ranks(reports: Sequence[ReportDocument]) -> dict[object, RankMemory]:
    """Return the memory of each device by rank and device, of the last report that has it."""
    return {(each.rank, each.device): each for one in reports for each in one.memory}


def _middle(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return median(known) if known else None


def _claim(name: ClaimName, answers: Iterable[tuple[str, _Answer]]) -> Claim:
    every = list(answers)
    return Claim(
        name=name,
        supports=tuple(each for each, answer in every if answer == "supports"),
        contradicts=tuple(each for each, answer in every if answer == "contradicts"),
        open=tuple(each for each, answer in every if answer == "open"),
    )


def _answer(figure: Difference, is_wanted_up: bool) -> _Answer:
    """Return what a figure says; equal ones contradict, those not told apart leave it open."""
    if figure.verdict in {"unresolved", "too_few"}:
        return "open"
    is_up = {"higher": True, "lower": False}.get(figure.verdict)
    return "supports" if is_up == is_wanted_up else "contradicts"


def _allocation(
    v1: Mapping[object, RankMemory], v2: Mapping[object, RankMemory]
) -> Iterator[tuple[str, _Answer]]:
    """Yield what verdicts, the reserved peaks' variation and addresses say, over ranks."""
    verdicts = [{each.verdict for each in ranks.values()} for ranks in (v1, v2)]
    known = STEADY | _UNSTEADY
    if all(verdicts):
        is_steady = [not each & _UNSTEADY for each in verdicts]
        if not all(each <= known for each in verdicts):
            yield "verdicts", "open"
        else:
            yield "verdicts", "supports" if is_steady == [False, True] else "contradicts"
    for name, sign in (("cv_reserved", -1), ("determinism_ratio", 1)):
        pairs = [(getattr(v1[key], name), getattr(v2[key], name)) for key in v1.keys() & v2.keys()]
        changes = [sign * (b - a) for a, b in pairs if a is not None and b is not None]
        if changes:
            yield (
                name,
                "supports" if min(changes) > 0 else "contradicts" if max(changes) <= 0 else "open",
            )


def _together(side: str, ranks: Iterable[RankMemory]) -> Iterator[tuple[str, _Answer]]:
    """Yield what a run's own steps say: whether the clock is lower where memory churns more."""
    found: defaultdict[str, list[_Answer]] = defaultdict(list)
    for rank in ranks:
        for each in rank.correlations:
            if each.rho is not None and each.low is not None and each.high is not None:
                answer: _Answer = "open"
                if each.high < 0 or each.low > 0:
                    answer = "supports" if each.high < 0 else "contradicts"
                found[f"{side}/{each.figure}"].append(answer)
    for name, answers in found.items():
        most, count = Counter(answers).most_common(1)[0]
        yield name, most if 2 * count > len(answers) else "open"


def _confounders(comparison: Comparison, figures: Mapping[str, Difference]) -> Iterator[Note]:
    """Yield what else differs between the runs, or may: no figure above isolates memory from it."""
    yield Note(
        code="framework",
        text="the frameworks differ in more than allocation: in kernels (copies into and out of "
        "buffers), in when communication starts, and in what the host waits for",
    )
    if not comparison.by_runs:
        text = "fewer than three runs a side: what changes from run to run is not known"
        yield Note(code="runs", text=text)
    if comparison.paired_by != "uuid":
        yield Note(code="gpus", text="the GPUs are not the same, or not known to be")
    for name, (code, text) in _OTHER_FIGURES.items():
        if name in figures and figures[name].differs:
            yield Note(code=code, text=text)
    load = [
        each
        for name, each in figures.items()
        if name.removeprefix(ROW).startswith(_ROWS_OF_LOAD)
        and each.differs
        and abs(each.change or 0.0) >= _LEAST_LOAD
    ]
    if load:
        text = "the GPUs idle or wait for another share of the step: load, heat and clock follow"
        yield Note(code="load", text=text)
