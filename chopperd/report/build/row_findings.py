"""Findings about rows of the waterfall: who held the GPU idle, communication, copies.

Rows are of the critical device; a finding's bound is what it costs a step there.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from chopperd.model.answers import Finding, Held
from chopperd.model.report import ReportDocument, Summary
from chopperd.model.report_rows import OTHER_PARTS, CollectiveTraffic, Row
from chopperd.report.build.clock_findings import LEAST_RATIO
from chopperd.report.text.holders import said
from chopperd.report.text.wording import brief_milliseconds, count, percent, plural
from chopperd.traces.timeline.host import DATA_WAIT_PATTERNS

#: Preparing launches is launch-bound work only from here on: less of it hides behind kernels.
LAUNCH_RATIO: Final = 0.10
#: Exposed communication below this is the usual tail of a step.
COMM_RATIO: Final = 0.05
#: Idle time of more than this for each kernel is not for launching it, which takes 5 to 200 us.
LAUNCH_GAP_NS: Final = 1_000_000
#: One thing that launches nothing holds the GPU, if it has so much of the host's time,
HOLDER_RATIO: Final = 0.5
#: and anything, if it has so much of the step in stretches of this length: thousands of short
#: ones are launches.
HOLDER_STEP_RATIO: Final = 0.05
HOLDER_STRETCH_NS: Final = 1_000_000
#: A group's links are slow at less than this of the median of groups alike, at least so many.
SLOW_BUS_RATIO: Final = 0.5
BUS_GROUPS: Final = 3
#: Smaller messages are limited by latency, not by links.
BUS_MESSAGE_BYTES: Final = 1 << 20
#: Groups are alike if their mean message sizes differ by no more than this factor.
_ALIKE_FACTOR: Final = 2.0

_LOADER: Final = re.compile(
    "|".join((*DATA_WAIT_PATTERNS, r"loader|dataset|collate|__next__|next_batch")), re.IGNORECASE
)
_NAMES_SHOWN: Final = 3
#: Nothing is named that holds less of the step.
_NAMED_RATIO: Final = 0.01
_COPY_ACTIONS: Final = {
    "h2d": "copy inputs from pinned memory with non_blocking=True, a step ahead on another stream",
    "d2h": "move .cpu() and .item() calls and logging out of the step, or make them non_blocking",
    "d2d": "avoid .contiguous(), .clone() and copies between GPUs in the step",
    "memset": "reuse buffers instead of zeroing new ones (optimizer.zero_grad(set_to_none=True))",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the rules look at: the critical device's rows, of which `summary` has the means."""

    document: ReportDocument
    summary: Summary
    step_ns: float
    rows: Sequence[Row]
    report: str  # the command that makes this report again

    @property
    def held(self) -> Sequence[Held]:
        """Return who held the critical device, in sum over `steps`; empty where unknown."""
        return self.summary.held

    @property
    def steps(self) -> int:
        """Return over how many steps the summary's means are; 1 for a whole file."""
        return max(self.summary.steps, 1)

    def mean_ns(self, row: str) -> float:
        """Return the mean of a row of the waterfall, in ns a step; 0 where unknown."""
        return self.summary.waterfall_ns.get(row, 0.0)

    def is_worth(self, bound_ns: float, ratio: float = LEAST_RATIO) -> bool:
        """Whether a bound is a large enough share of the step."""
        return bound_ns >= ratio * self.step_ns

    def share(self, ns: float) -> str:
        """Return a time and its share of the step as text."""
        return f"{brief_milliseconds(ns)} ms ({percent(ns / self.step_ns)} %)"

    def per_step(self, held: Iterable[Held]) -> float:
        """Return the mean time of holders in ns a step."""
        return sum(each.time_ns for each in held) / self.steps


def _finding(
    run: Run,
    code: str,
    title: str,
    evidence: Iterable[str],
    bound_ns: float,
    action: str,
    options: str = "",
    *,
    on_job: bool = False,
) -> Finding:
    """Make a finding on the critical device, or on the job, that a row's time bounds."""
    row = run.rows[0]
    alike = {(each.rank, each.device) for each in run.rows}
    is_one = len(alike) == 1 and not on_job
    return Finding(
        code=code,
        title=title,
        evidence=tuple(filter(None, evidence)),
        bound_ns=round(bound_ns),
        basis="row",
        gpu=row.gpu if is_one else None,
        rank=row.rank if is_one else None,
        action=action,
        command=f"{run.report} {options}".strip(),
    )


#: What to do about long launch calls.
_LOADS_ONCE: Final = (
    "capture later steps, after a warm-up (schedule(wait=..., warmup=...)): a kernel is loaded at "
    "its first use, once; if the calls stay long, look for what loads or compiles in each step"
)

# Who held the GPU idle. Without holders (a file without host spans) only rows of one meaning count.


def _is_host(held: Held) -> bool:
    """Whether the host's own work held the GPU: before a launch, or inside its call."""
    if held.row == "idle_launch_call":
        return held.kind != "none"
    return held.row == "idle_launch_prep"


def _is_loader(held: Held) -> bool:
    return held.whole is not None and _LOADER.search(held.whole) is not None


def _loaders(run: Run) -> list[Held]:
    return [each for each in run.held if _is_host(each) and _is_loader(each)]


def _data(run: Run) -> Iterable[Finding]:
    row_ns, loaders = run.mean_ns("idle_data"), _loaders(run)
    bound_ns = row_ns + run.per_step(loaders)
    if not run.is_worth(bound_ns):
        return
    by_row = [each for each in run.held if each.row == "idle_data"]
    yield _finding(
        run,
        "data.wait",
        "the GPU waits for data",
        (
            f"{run.share(bound_ns)} of a step: no kernel runs while the loop waits for its batch",
            _names(run, [*by_row, *loaders], "whole"),
        ),
        bound_ns,
        "give the loader more workers (num_workers, prefetch_factor, pin_memory), or do the "
        "slow part of a sample's preparation once, before training",
        "--by idle",
    )


def _sync(run: Run) -> Iterable[Finding]:
    bound_ns = run.mean_ns("idle_sync")
    if run.is_worth(bound_ns):
        holders = [each for each in run.held if each.row == "idle_sync"]
        yield _finding(
            run,
            "host.sync",
            "the host waits for the GPU, which then waits for the host",
            (f"{run.share(bound_ns)} idle in synchronise calls", _names(run, holders, "name")),
            bound_ns,
            "avoid .item(), .cpu(), nonzero and torch.cuda.synchronize() in the step, or do them "
            "every hundredth step",
            "--by idle",
        )


def _host(run: Run) -> Iterable[Finding]:
    """Yield the one thing that holds the GPU, if there is one, and launches for the rest."""
    held = [each for each in run.held if _is_host(each) and not _is_loader(each)]
    total_ns = run.per_step(held) if run.held else run.mean_ns("idle_launch_prep")
    holder = _holder(run, held, total_ns)
    if holder is not None:
        name, those = said(holder[0]), holder[1]
        bound_ns = run.per_step(those)
        total_ns -= bound_ns
        stretches = sum(each.count for each in those) / run.steps
        yield _finding(
            run,
            "host.holder",
            f"{name} keeps the GPU idle",
            (
                f"{run.share(bound_ns)} of a step in {stretches:.3g} stretches",
                _in_calls(run, those),
                _names(run, those, "inner"),
            ),
            bound_ns,
            _LOADS_ONCE
            if _is_in_calls(those)
            else f"make {name} faster, do it less often, or move it to another thread or the GPU",
            "--by idle",
        )
    if run.is_worth(total_ns, LAUNCH_RATIO):
        rest = held if holder is None else [each for each in held if each not in holder[1]]
        yield _launches(run, rest, total_ns)


def _holder(run: Run, held: Sequence[Held], total_ns: float) -> tuple[str, list[Held]] | None:
    """Return the thing that launches nothing and holds half of the host's time, or a long one.

    What launches and holds much in short stretches is launches.
    """
    for field, is_idle in (("whole", True), ("name", False)):
        by_thing: defaultdict[str, list[Held]] = defaultdict(list)
        for each in held:
            thing = getattr(each, field)
            if thing is not None and not thing.startswith("("):
                by_thing[thing].append(each)
        for thing, those in sorted(by_thing.items(), key=lambda pair: -run.per_step(pair[1])):
            own_ns = run.per_step(those)
            stretch_ns = own_ns * run.steps / max(sum(each.count for each in those), 1)
            is_long = stretch_ns >= HOLDER_STRETCH_NS and run.is_worth(own_ns, HOLDER_STEP_RATIO)
            is_half = is_idle and run.is_worth(own_ns) and own_ns >= HOLDER_RATIO * total_ns
            if is_long or is_half:
                return thing, those
    return None


def _launches(run: Run, held: Sequence[Held], bound_ns: float) -> Finding:
    """Return the finding on the rest of the host's time: launches, if there are enough of them."""
    kernels = [row.chopper.kernel_count for row in run.rows if row.chopper is not None]
    launched = sum(kernels) / len(kernels) if kernels else 0.0
    launches = f"{count(round(launched))} compute kernels a step" if kernels else ""
    idle = f"{run.share(bound_ns)} idle while the host prepares a launch"
    longest = _names(run, held, "name")
    if bound_ns > LAUNCH_GAP_NS * launched:
        return _finding(
            run,
            "host.holder",
            "the host keeps the GPU idle, and not by launching kernels",
            (idle, launches, longest),
            bound_ns,
            "profile with with_stack=True: it shows which code runs between the kernels",
            "--by idle",
        )
    regions = _largest(run, held, "region")
    where = f" for {said(regions[0][0])}" if regions and 2 * regions[0][1] >= bound_ns else ""
    return _finding(
        run,
        "launch.bound",
        "the GPU waits for the host to launch kernels",
        (idle, launches, longest),
        bound_ns,
        f"launch less: torch.compile or CUDA graphs{where}, fused kernels, larger batches",
        "--by idle",
    )


def _is_in_calls(held: Sequence[Held]) -> bool:
    """Whether most of the time is inside launch calls."""
    return 2 * sum(each.in_call_ns for each in held) >= sum(each.time_ns for each in held)


def _in_calls(run: Run, held: Sequence[Held]) -> str:
    """Return how much of the time is inside launch calls, where that is most of it."""
    if not _is_in_calls(held):
        return ""
    in_call_ns = sum(each.in_call_ns for each in held)
    return (
        f"{brief_milliseconds(in_call_ns / run.steps)} ms of it inside launch calls: the first use "
        "of a kernel loads it"
    )


def _names(run: Run, held: Sequence[Held], field: str) -> str:
    """Return the largest holders as text, by one of their names."""
    shown = [
        f"{said(name)} ({brief_milliseconds(ns)} ms)"
        for name, ns in _largest(run, held, field)
        if run.is_worth(ns, _NAMED_RATIO)
    ]
    return f"longest in {', '.join(shown[:_NAMES_SHOWN])}" if shown else ""


def _largest(run: Run, held: Sequence[Held], field: str) -> list[tuple[str, float]]:
    by_name: defaultdict[str, list[Held]] = defaultdict(list)
    for each in held:
        name = getattr(each, field)
        if name is not None and name != OTHER_PARTS:
            by_name[name].append(each)
    sums = [(name, run.per_step(those)) for name, those in by_name.items()]
    return sorted(sums, key=lambda each: -each[1])


# Communication and copies.


def _comm(run: Run) -> Iterable[Finding]:
    exposed_ns = run.mean_ns("exposed_comm")
    held = [each for each in run.held if each.row == "exposed_comm"]
    late_ns = sum(each.late_host_ns for each in held) / run.steps
    transfers = [each.exposed_comm_ns.transfer for each in run.rows if each.exposed_comm_ns]
    known = [each for each in transfers if each is not None]
    is_split = len(known) == len(run.rows)
    transfer_ns = sum(known) / len(known) if is_split else exposed_ns
    bound_ns = min(exposed_ns - late_ns, transfer_ns)
    if not run.is_worth(bound_ns, COMM_RATIO):
        return
    overlaps = [row.overlap_ratio for row in run.rows if row.overlap_ratio is not None]
    overlap = sum(overlaps) / len(overlaps) if overlaps else None
    yield _finding(
        run,
        "comm.exposed",
        "compute waits for communication",
        (
            f"{run.share(exposed_ns)} of a step with communication and no compute",
            f"{brief_milliseconds(late_ns)} ms of it is the host's, which launches late"
            if late_ns
            else "",
            f"{brief_milliseconds(exposed_ns - transfer_ns)} ms of it is waiting for other ranks"
            if is_split
            else "how much of it is waiting for other ranks is unknown",
            "" if overlap is None else f"{percent(overlap, 0)} % of communication is overlapped",
            _collectives(run),
        ),
        bound_ns,
        ("" if is_split else "compare the ranks first, all traces in one report; then ")
        + _comm_action(run.document.framework.name),
        "--by family",
        on_job=True,
    )


def _collectives(run: Run) -> str:
    """Return the collectives with the most time of the critical device's file."""
    rank = run.rows[0].rank
    rows = [row for row in run.document.totals if row.rank == rank]
    alike: defaultdict[str, list[CollectiveTraffic]] = defaultdict(list)
    for each in (each for row in rows for each in row.collectives):
        alike[each.name].append(each)
    longest = sorted(alike.items(), key=lambda pair: -sum(each.time_ns for each in pair[1]))
    texts = [
        f"{name} ({plural(sum(each.count for each in those), 'time')}, "
        f"{brief_milliseconds(sum(each.time_ns for each in those))} ms)"
        for name, those in longest[:_NAMES_SHOWN]
    ]
    return f"in the whole file: {', '.join(texts)}" if texts else ""


def _comm_action(framework: str) -> str:
    if framework in ("fsdp1", "fsdp2"):
        return "prefetch further ahead (forward_prefetch, set_modules_to_forward_prefetch)"
    if framework == "ddp":
        return "try other bucket sizes (bucket_cap_mb), gradient compression or more accumulation"
    return "overlap it with compute, communicate less often, or in larger messages"


def _slow_bus(run: Run) -> Iterable[Finding]:
    """Yield groups whose links carry far less than those of groups alike.

    A group's figure is the best of its ranks, which waits least for the others.
    """
    best: dict[tuple[str, int, str], CollectiveTraffic] = {}
    for each in (each for row in run.document.totals for each in row.collectives):
        if _is_rated(each) and each.group_size and each.group_ranks:
            key = each.name, each.group_size, each.group_ranks
            if key not in best or _bus(each) > _bus(best[key]):
                best[key] = each
    for (name, size, ranks), each in best.items():
        alike = [
            _bus(other)
            for (*kind, others), other in best.items()
            if kind == [name, size] and others != ranks and _are_alike(each, other)
        ]
        if len(alike) < BUS_GROUPS - 1 or _bus(each) >= SLOW_BUS_RATIO * median(alike):
            continue
        bound_ns = each.time_ns * (1.0 - _bus(each) / median(alike)) / run.steps
        bound_ns = min(bound_ns, run.mean_ns("exposed_comm"))
        if run.is_worth(bound_ns):
            yield _finding(
                run,
                "comm.slow_bus",
                f"{name} of ranks {ranks} is slower than in other groups of {size}",
                (
                    f"{_bus(each) / 1e9:.3g} GB/s on a rank's links, others "
                    f"{median(alike) / 1e9:.3g}",
                ),
                bound_ns,
                f"look at the links of ranks {ranks}: nvidia-smi nvlink --status, nvidia-smi topo "
                "-m, the network cards' state",
                "--by family",
                on_job=True,
            )


def _is_rated(each: CollectiveTraffic) -> bool:
    return bool(
        each.bus_bytes_per_s
        and each.bytes
        and each.sized_count == each.count
        and each.bytes >= BUS_MESSAGE_BYTES * each.count
    )


def _bus(each: CollectiveTraffic) -> float:
    return each.bus_bytes_per_s or 0.0


def _are_alike(one: CollectiveTraffic, other: CollectiveTraffic) -> bool:
    sizes = [(each.bytes or 0) / each.count for each in (one, other)]
    return max(sizes) <= _ALIKE_FACTOR * min(sizes)


def _copies(run: Run) -> Iterable[Finding]:
    bound_ns = run.mean_ns("exposed_copy")
    if not run.is_worth(bound_ns):
        return
    known = [row.exposed_copy_ns for row in run.rows if row.exposed_copy_ns is not None]
    ways = {way: sum(getattr(each, way) for each in known) / len(run.rows) for way in _COPY_ACTIONS}
    way = max(ways, key=ways.__getitem__)
    shown = [f"{brief_milliseconds(ns)} ms {name}" for name, ns in ways.items() if ns]
    yield _finding(
        run,
        "copy.exposed",
        "compute waits for copies",
        (f"{run.share(bound_ns)} of a step with copies only", ", ".join(shown)),
        bound_ns,
        _COPY_ACTIONS[way],
        "--by operation",
    )


def row_findings(run: Run) -> list[Finding]:
    """Return the findings about rows, in no order."""
    rules = (_data, _sync, _host, _comm, _slow_bus, _copies)
    return [finding for rule in rules for finding in rule(run)]
