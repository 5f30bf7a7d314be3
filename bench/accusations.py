"""Which GPUs are named as slower than their peers, over simulated nodes whose truth is known.

`python -m bench.accusations` prints, for each kind of node, in how many of them somebody was named
who is no straggler, in how many the straggler was, and in how many a finding blames a GPU (the
straggler, or another): through `join_device`, peers and the summary, the way of the product.
"""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from bench.accuracy import READ_SPAN_NS, scenario_timeline
from bench.scenarios import REFERENCE_MHZ, Scenario, observe, scenario
from chopperd.correlate.join import JoinedDevice, join_device
from chopperd.model.report import (
    SCHEMA,
    Alignment,
    FrameworkSummary,
    Generated,
    Profiler,
    Reference,
    ReportDocument,
    Sampling,
    Summary,
    TraceSummary,
)
from chopperd.model.report_rows import Row
from chopperd.report.build.clocks import clock_of, dvfs_of
from chopperd.report.build.rows import DraftRow
from chopperd.report.build.summary import across_devices, summarise
from chopperd.report.findings.clocks import clock_findings
from chopperd.simulation.track import ClockTruth, StepFunction

GPUS: Final = 8


class Node(Struct, frozen=True, kw_only=True):
    """A kind of node.

    Attributes:
        preset, step_s, steps, hz: The job on each GPU, and how it is sampled.
        spread: Clocks differ by up to so much either way, drawn evenly.
        slower: The first GPU's clock is lower by so much; 0: there is no straggler.
        together: Whether all clocks move alike, so that peers are equal in the run, too.
        reasons: Whether drivers report limits, drawn without regard to who is slow. Where they
            report none, a low clock is unexplained.
    """

    preset: str
    step_s: float
    steps: int
    hz: float
    spread: float = 0.0
    slower: float = 0.0
    together: bool = False
    reasons: bool = True


class Found(Struct, frozen=True, kw_only=True):
    """What a node's summary says.

    Attributes:
        straggler: Whether the first GPU is named. others: Whether another is.
        blamed: Codes of findings against the first GPU. wronged: Those against another, or against
            the first where it is no straggler. A limit that drivers report on a whole node is none.
        half_points: Half width of the first GPU's excess, percentage points of its compute; NaN
            where it has none.
    """

    straggler: bool
    others: bool
    blamed: tuple[str, ...]
    wronged: tuple[str, ...]
    half_points: float


def found_on(kind: Node, seed: int) -> Found:
    """One node of a kind."""
    rng = np.random.default_rng([seed, 7])
    scales = 1.0 + rng.uniform(-kind.spread, kind.spread, GPUS)
    scales[0] -= kind.slower
    drafts = [row for gpu, scale in enumerate(scales) for row in _rows(kind, seed, gpu, scale)]
    summary = summary_of(drafts)
    first, *others = summary.gpus
    compute_ns = sum(each.covered_ns for each in drafts if each.row.rank == 0) / kind.steps
    excess_ns, high_ns = first.excess_ns_per_step, first.excess_high_ns_per_step
    # The low end stops at 0, and so does the figure of a GPU that is faster than its peers.
    half_ns = high_ns - excess_ns if excess_ns and high_ns is not None else np.nan
    against = [each for each in clock_findings(document_of(drafts, summary)) if each.gpu]
    rightly = [each for each in against if kind.slower and each.gpu == first.gpu]
    return Found(
        straggler=bool(first.stands_out),
        others=any(line.stands_out for line in others),
        blamed=tuple(each.code for each in rightly),
        wronged=tuple(each.code for each in against if each not in rightly),
        half_points=100 * half_ns / compute_ns,
    )


def summary_of(drafts: Sequence[DraftRow]) -> Summary:
    """The run in one look."""
    reference = Reference(sm_clock_mhz=REFERENCE_MHZ, source="device_max")
    summary = summarise(across_devices(drafts), [], reference)
    if summary is None:
        raise ValueError("the simulated devices have no record")
    return summary


def document_of(drafts: Sequence[DraftRow], summary: Summary) -> ReportDocument:
    """The parts of a document that findings about clocks are made from."""
    trace = TraceSummary(
        path="simulated",
        sha256="",
        job=None,
        run=None,
        rank=None,
        rank_source=None,
        world_size=GPUS,
        base_time_unix_ns=0,
        complete=True,
        events=0,
        damaged_events=0,
        invalid_records=0,
        unlinked_kernels=0,
    )
    return ReportDocument(
        schema=SCHEMA,
        generated=Generated(
            version="", node=None, backend=None, driver=None, simulated=True, time=""
        ),
        summary=summary,
        findings=(),
        trace=trace,
        traces=(trace,),
        sampling=Sampling(
            asked_hz=None,
            kept_hz=None,
            samples_in_compute=0,
            sensor_period_ms=None,
            power_source=None,
        ),
        alignment=Alignment(
            offset_uncertainty_ns=None,
            lag_ns=None,
            lag_low_ns=None,
            lag_high_ns=None,
            realtime_step=None,
            check="no samples",
        ),
        profiler=Profiler(),
        framework=FrameworkSummary(name="none", evidence=()),
        devices=(),
        totals=(),
        steps=tuple(each.row for each in drafts),
        drops=(),
        notes=(),
    )


def _rows(kind: Node, seed: int, gpu: int, scale: float) -> list[DraftRow]:
    drawn = seed * GPUS + gpu
    moved = seed * GPUS if kind.together else drawn
    known = scenario(kind.preset, seed=moved, step_s=kind.step_s, steps=kind.steps)
    known = scaled(known, scale, reasons=kind.reasons)
    seen = observe(known, hz=kind.hz, seed=drawn, read_span_ns=READ_SPAN_NS)
    return list(rows_of(join_device(scenario_timeline(known), (), seen, REFERENCE_MHZ), gpu))


def scaled(known: Scenario, scale: float, *, reasons: bool = True) -> Scenario:
    """The scenario with its clock times a factor, and no limits unless there are `reasons`."""
    clock = known.truth.clock
    slower = StepFunction(edges_ns=clock.edges_ns, value=clock.value * scale)
    causes = known.truth.causes if reasons else np.zeros_like(known.truth.causes)
    return replace(known, truth=ClockTruth(clock=slower, causes=causes))


def rows_of(joined: JoinedDevice, gpu: int) -> Iterator[DraftRow]:
    """The step rows of a device as far as peers are told from them."""
    clocks = joined.clocks
    if clocks is None:
        raise ValueError("the simulated samples do not cover the simulated trace")
    for index, window in enumerate(joined.timeline.windows):
        bias_mhz = float(clocks.compute.bias_mhz[index])
        random_mhz = float(clocks.compute.half_width_mhz[index]) - bias_mhz
        covered_ns = int(clocks.compute.covered_ns[index])
        row = Row(
            job=None,
            run=None,
            rank=gpu,
            step=window.step,
            step_source="profiler_step",
            device=0,
            gpu=str(gpu),
            partial=False,
            partial_reasons=(),
            host_only=False,
            window_ns=window.end_ns - window.start_ns,
            clock=clock_of(clocks, index),
            dvfs=dvfs_of(clocks, REFERENCE_MHZ, index),
        )
        yield DraftRow(
            row=row,
            model="Simulated GPU",
            process=gpu,
            covered_ns=covered_ns,
            random_mhz=random_mhz,
            bias_mhz=bias_mhz,
            random_ns=random_mhz * covered_ns / REFERENCE_MHZ,
            bias_ns=bias_mhz * covered_ns / REFERENCE_MHZ,
        )


def kinds() -> list[Node]:
    """All lines of the table."""
    jobs = [
        ("steady", 0.3, 3, 100.0),
        ("steady", 1.0, 10, 10.0),
        ("steady", 1.0, 10, 100.0),
        ("steady", 1.0, 30, 100.0),
        ("phase-locked", 0.3, 3, 100.0),
        ("phase-locked", 1.0, 10, 10.0),
        ("phase-locked", 1.0, 10, 100.0),
        ("phase-locked", 1.0, 30, 100.0),
    ]
    sorts = (
        (0.01, 0.0, False, True),
        (0.01, 0.06, False, True),
        (0.01, 0.0, False, False),
        (0.01, 0.06, False, False),
        (0.0, 0.02, True, True),
        (0.0, 0.02, False, True),
        (0.01, 0.02, False, True),
    )
    made = [
        Node(
            preset=preset,
            step_s=step_s,
            steps=steps,
            hz=hz,
            spread=spread,
            slower=slower,
            together=together,
            reasons=reasons,
        )
        for preset, step_s, steps, hz in jobs
        for spread, slower, together, reasons in sorts
    ]
    return [each for each in made if each.steps > 3 or (each.reasons and each.slower in (0, 0.06))]


def nodes_of(kind: Node, nodes: int) -> int:
    """All of `nodes` where a limit is held; of 2 % a quarter, of long runs an eighth."""
    return max(1, nodes // (8 if kind.steps > 10 else 4 if 0 < kind.slower < 0.06 else 1))


def table_line(kind: Node, found: Sequence[Found]) -> str:
    """The nodes of one kind as a row of the table."""
    straggler = sum(each.straggler for each in found)
    named = f"{straggler} of {len(found)}" if kind.slower else "-"
    accused = sum(each.others or (each.straggler and not kind.slower) for each in found)
    blamed = sum(bool(each.blamed) for each in found)
    wronged = sum(bool(each.wronged) for each in found)
    half = np.nanmedian([each.half_points for each in found])
    return (
        f"| {kind.preset}{', together' if kind.together else ''}"
        f"{'' if kind.reasons else ', no reasons'} | {kind.steps} x {kind.step_s:g} "
        f"| {kind.hz:g} | ±{100 * kind.spread:g} "
        f"| {100 * kind.slower:g} | {half:.2f} | {accused} of {len(found)} | {named} "
        f"| {f'{blamed} of {len(found)}' if kind.slower else '-'} | {wronged} of {len(found)} |"
    )


def _one(job: tuple[Node, int]) -> Found:
    return found_on(*job)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", type=int, nargs="*", help="only these lines, from 0 on")
    chosen = parser.parse_args()
    print(f"Nodes of {GPUS} GPUs.\n")
    print(
        "| clock | steps s | Hz | spread % | straggler % | half width | accused | named | blamed "
        "| wronged |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(chosen.processes) as pool:
        lines = kinds()
        for kind in lines if chosen.kinds is None else [lines[n] for n in chosen.kinds]:
            nodes = range(nodes_of(kind, chosen.nodes))
            jobs = [(kind, chosen.first_seed + nth) for nth in nodes]
            print(table_line(kind, list(pool.map(_one, jobs))), flush=True)


if __name__ == "__main__":
    main()
