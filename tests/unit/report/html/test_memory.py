"""The drawing of memory: what is not known is a gap or hatched, never 0."""

from msgspec.structs import replace

from chopperd.model.memory import RankMemory, StepMemory
from chopperd.report.html import memory
from tests.unit.report.documents import eight_gpus
from tests.unit.report.html.pages import seen

GIB = 1 << 30


def step(
    number: int, reserved_gib: int | None, calls: int | None = 0, retries: int | None = 0
) -> StepMemory:
    return StepMemory(
        step=number,
        allocations=100,
        allocated_bytes=None,
        peak_allocated_bytes=None if reserved_gib is None else (reserved_gib - 10) * GIB,
        peak_reserved_bytes=None if reserved_gib is None else reserved_gib * GIB,
        held_bytes=None,
        segment_allocs=calls,
        segment_frees=calls,
        segment_ns=None,
        at_least=False,
        event_queries=None,
        record_streams=None,
        rate_limiter_ns=None,
        retries=retries,
        ooms=0,
        waited_ratio=None,
        waited_median_ns=None,
        waited_p95_ns=None,
        busy_mean_mhz=1400.0 + number,
    )


def drawn(*steps: StepMemory, peak_gib: int | None = 70) -> str:
    of = RankMemory(
        rank=3,
        device=0,
        gpu="3",
        source="rows",
        steps=steps,
        warm_up_steps=0,
        breaks=0,
        program_ratio=None,
        worst_program_ratio=None,
        determinism_ratio=None,
        worst_determinism_ratio=None,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None if peak_gib is None else peak_gib * GIB,
        held_bytes=None,
        cv_allocated=None,
        cv_reserved=None,
        segment_calls=4,
        segment_ns=None,
        retries=1,
        ooms=0,
        verdict="churns",
        verdict_text="1 retry",
        reasons=(),
    )
    page = memory.memory_of(replace(eight_gpus(), memory=(of,)))
    assert page is not None
    return page


def test_peaks_calls_and_clock_are_drawn_by_step() -> None:
    """60, then 70 GiB: levels of 1/1.05 of the height above the axis for the highest."""
    page = seen(drawn(step(1, 60), step(2, 70, calls=2, retries=1)))
    labels = [each["aria-label"] for each in page.all("svg") if each.get("aria-label")]
    peaks = "reserved at most 70.0, allocated at most 60.0"
    assert labels == [
        f"peaks of reserved and allocated memory, GiB: {peaks}",
        "segment calls by step, 4 at most; 1 retry",
        "busy clock, MHz: 1401-1402",
    ]
    assert page.unseen["title"] == ["step 1: 0 segment calls", "step 2: 4 segment calls"]
    assert page.words.count("▲") == 1
    (reserved,) = [e["d"] for e in page.all("path") if e.get("class") == "line"][:1]
    low, high = (f"{110 - 102 * gib / (70 * 1.05):.1f}" for gib in (60, 70))
    assert reserved == f"M0 {low}V{low}h1V{high}h1"


def test_a_step_without_figures_is_a_gap() -> None:
    page = seen(drawn(step(1, 60), step(2, None, calls=None), step(3, 70), step(4, 70)))
    lines = [e["d"] or "" for e in page.all("path") if e.get("class") == "line"]
    assert [each[: each.index(" ")] for each in lines[:2]] == ["M0", "M2"]
    hatched = [each for each in page.all("rect") if each.get("class") == "f-unknown"]
    assert len(hatched) == 1


def test_without_sizes_there_is_the_table_only() -> None:
    page = seen(drawn(step(1, None), step(2, None), peak_gib=None))
    assert not page.all("svg")
    assert "churns" in page.words
