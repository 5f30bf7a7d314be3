"""Evidence on FSDPv1 and v2 of reports built by hand: what each figure says of each claim."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.compared_reports import compare
from chopperd.model.comparison import Claim, Evidence
from chopperd.model.kinds import MemoryVerdict
from chopperd.model.memory import MemoryCorrelation
from chopperd.model.report import FrameworkSummary, ReportDocument
from chopperd.model.report_rows import ClockStats, RowClock, Temperature
from chopperd.report.text.comparison import comparison_markdown, comparison_page
from chopperd.report.text.page import page_text
from tests.unit.correlate.compared_runs import run_of, with_memory

STEPS = np.random.default_rng(2).normal(1500.0, 15.0, 80).tolist()


def run(
    framework: str,
    verdict: MemoryVerdict,
    *,
    mhz: float = 1500.0,
    cv: float | None = 0.0,
    addresses: float | None = 1.0,
    calls: int = 0,
    longer: float = 1.0,
    rho: tuple[float, float, float] | None = None,
) -> ReportDocument:
    """Eighty steps of two ranks; the clock wanders by 5 MHz."""
    document = run_of([ms * longer for ms in STEPS])
    document = with_memory(document, 0, segment_allocs=calls, segment_frees=0, retries=0)
    middle, low, high = rho or (None, None, None)
    correlation = MemoryCorrelation(
        figure="segment_ns", rho=middle, low=low, high=high, effective_steps=80.0
    )
    memory = tuple(
        replace(
            each,
            verdict=verdict,
            cv_reserved=cv,
            determinism_ratio=addresses,
            correlations=(correlation,),
        )
        for each in document.memory
    )
    noise = np.random.default_rng(3).normal(0.0, 5.0, len(document.steps))
    steps = tuple(
        replace(row, clock=clock(mhz + float(more)))
        for row, more in zip(document.steps, noise, strict=True)
    )
    return replace(
        document,
        framework=FrameworkSummary(name=framework, evidence=()),
        memory=memory,
        steps=steps,
    )


def clock(mhz: float) -> RowClock:
    nothing = dict.fromkeys(ClockStats.__struct_fields__)
    busy = ClockStats(**{**nothing, "mean_mhz": mhz, "samples": 9})  # type: ignore[arg-type]
    return RowClock(basis="in_class", compute=None, busy=busy, coverage_ratio=1.0)


CHURNS = run("fsdp1", "churns", cv=0.02, addresses=0.5, calls=20, rho=(-0.5, -0.7, -0.3))
STEADY = run("fsdp2", "deterministic", mhz=1530.0)


def evidence(a: ReportDocument, b: ReportDocument) -> Evidence | None:
    (only,) = compare([[a], [b]], version="1").comparisons
    return only.evidence


def claims(a: ReportDocument, b: ReportDocument) -> dict[str, Claim]:
    found = evidence(a, b)
    assert found is not None
    return {each.name: each for each in found.claims}


def test_only_a_run_of_each_version_is_evidence() -> None:
    assert evidence(CHURNS, CHURNS) is None
    assert evidence(STEADY, replace(CHURNS, framework=STEADY.framework)) is None
    ddp = replace(STEADY, framework=FrameworkSummary(name="ddp", evidence=()))
    assert evidence(CHURNS, ddp) is None
    assert evidence(CHURNS, STEADY) is not None


@pytest.mark.parametrize("is_turned", [False, True])
def test_claims_have_what_is_for_them_whichever_run_is_first(is_turned: bool) -> None:
    pair = (STEADY, CHURNS) if is_turned else (CHURNS, STEADY)
    found = evidence(*pair)
    assert found is not None
    assert (found.fsdp1.side, found.fsdp2.side) == (("B", "A") if is_turned else ("A", "B"))
    assert (found.fsdp1.verdicts, found.fsdp2.verdicts) == ({"churns": 2}, {"deterministic": 2})
    assert (found.fsdp1.cv_reserved, found.fsdp1.determinism_ratio) == (0.02, 0.5)
    by_name = {each.name: each for each in found.claims}
    steady = by_name["steadier_allocation"]
    if not is_turned:  # from none to some calls there is no relative change
        assert "memory/segment_calls" in steady.supports
    assert {"verdicts", "cv_reserved", "determinism_ratio"} <= set(steady.supports)
    assert "memory/retries" in (*steady.contradicts, *steady.open)  # none in either
    assert by_name["higher_clock"].supports == ("busy_mhz",)
    assert by_name["shorter_step"].contradicts == ("step_ns",)  # the same
    side = found.fsdp1.side
    assert by_name["memory_and_clock_move_together"].supports == (f"{side}/segment_ns",)
    assert found.fsdp1.rho == {"segment_ns": -0.5}


def test_what_goes_the_other_way_contradicts() -> None:
    found = claims(
        run("fsdp1", "deterministic", mhz=1530.0, rho=(0.5, 0.3, 0.7)),
        run("fsdp2", "churns", cv=0.02, addresses=0.5, calls=20, longer=1.05),
    )
    assert set(found["steadier_allocation"].contradicts) >= {
        *("verdicts", "cv_reserved", "determinism_ratio")
    }
    assert found["higher_clock"].contradicts == ("busy_mhz",)
    assert found["shorter_step"].contradicts == ("step_ns",)
    assert found["memory_and_clock_move_together"].contradicts == ("A/segment_ns",)


def test_what_is_not_measured_or_too_little_is_open() -> None:
    unknown = run("fsdp2", "not_measured", cv=None, addresses=None)
    found = claims(CHURNS, unknown)["steadier_allocation"]
    assert "verdicts" in found.open
    assert not {"cv_reserved", "determinism_ratio"} & {*found.supports, *found.contradicts}
    weak = replace(CHURNS, memory=run("fsdp1", "churns", rho=(-0.1, -0.3, 0.1)).memory)
    assert claims(weak, STEADY)["memory_and_clock_move_together"].open == ("A/segment_ns",)
    few = [replace(each, steps=each.steps[:20]) for each in (CHURNS, STEADY)]
    assert claims(*few)["higher_clock"].open == ("busy_mhz",)


def test_what_else_differs_is_said_and_nothing_is_called_a_cause() -> None:
    found = evidence(CHURNS, STEADY)
    assert found is not None
    codes = [each.code for each in found.confounders]
    assert codes == ["framework", "runs"]
    longer = evidence(CHURNS, run("fsdp2", "deterministic", longer=1.05))
    assert longer is not None
    assert "load" in [each.code for each in longer.confounders]
    document = compare([[CHURNS], [STEADY]], version="1")
    for text in (page_text(comparison_page(document), width=80), comparison_markdown(document)):
        assert "FSDPv1 (A) AND FSDPv2 (B)" in text
        assert "ALSO DIFFERENT OR NOT KNOWN" in text
        assert "because" not in text
    lines = page_text(comparison_page(document), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    (ranks,) = [line.split() for line in lines if "steady ranks" in line]
    assert ranks == ["steady", "ranks", "for", "0", "of", "2", "2", "of", "2"]
    (mhz,) = [line.split() for line in lines if line.startswith("  busy clock, MHz")]
    assert mhz[3] == "for"


def hot(document: ReportDocument, mean_c: float | None) -> ReportDocument:
    heat = None if mean_c is None else Temperature(mean=mean_c, max=90.0)
    return replace(
        document, steps=tuple(replace(row, temperature_c=heat) for row in document.steps)
    )


def confounders(a: list[ReportDocument], b: list[ReportDocument], *allow: str) -> list[str]:
    (only,) = compare([a, b], version="1", allow=allow).comparisons
    assert only.evidence is not None
    return [each.code for each in only.evidence.confounders]


def test_runs_of_a_side_other_gpus_and_their_heat_are_among_what_else_differs() -> None:
    assert "runs" not in confounders([CHURNS] * 3, [STEADY] * 3)
    assert "temperature" in confounders([hot(CHURNS, 60.0)], [hot(STEADY, 80.0)])
    assert "temperature" not in confounders([hot(CHURNS, None)], [hot(STEADY, 80.0)])
    devices = tuple(replace(each, uuid=f"other {each.uuid}") for each in STEADY.devices)
    assert "gpus" in confounders([CHURNS], [replace(STEADY, devices=devices)], "gpus")


def test_without_memory_of_one_side_nothing_is_said_of_allocation() -> None:
    assert "steadier_allocation" in claims(CHURNS, STEADY)
    assert "steadier_allocation" not in claims(CHURNS, replace(STEADY, memory=()))
