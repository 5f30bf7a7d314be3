"""Findings about communication and copies that no compute hides."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Final

from chopperd.model.answers import Finding
from chopperd.model.report_rows import CollectiveTraffic
from chopperd.report.findings.run import Run, finding
from chopperd.report.text.wording import brief_ms, percent, plural

#: Exposed communication below this is the usual tail of a step.
COMM_RATIO: Final = 0.05
#: A group's links are slow at less than this of the median of groups alike, at least so many.
SLOW_BUS_RATIO: Final = 0.5
BUS_GROUPS: Final = 3
#: Smaller messages are limited by latency, not by links.
BUS_MESSAGE_BYTES: Final = 1 << 20
#: Groups are alike if their mean message sizes differ by no more than this factor.
_ALIKE_FACTOR: Final = 2.0
_NAMES_SHOWN: Final = 3
_COPY_ACTIONS: Final = {
    "h2d": "copy inputs from pinned memory with non_blocking=True, a step ahead on another stream",
    "d2h": "move .cpu() and .item() calls and logging out of the step, or make them non_blocking",
    "d2d": "avoid .contiguous(), .clone() and copies between GPUs in the step",
    "memset": "reuse buffers instead of zeroing new ones (optimizer.zero_grad(set_to_none=True))",
}


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
    yield finding(
        run,
        "comm.exposed",
        "compute waits for communication",
        (
            f"{run.share(exposed_ns)} of a step with communication and no compute",
            f"{brief_ms(late_ns)} ms of it is the host's, which launches late" if late_ns else "",
            f"{brief_ms(exposed_ns - transfer_ns)} ms of it is waiting for other ranks"
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
    rank = run.rows[0].rank
    rows = [row for row in run.document.totals if row.rank == rank]
    alike: defaultdict[str, list[CollectiveTraffic]] = defaultdict(list)
    for each in (each for row in rows for each in row.collectives):
        alike[each.name].append(each)
    longest = sorted(alike.items(), key=lambda pair: -sum(each.time_ns for each in pair[1]))
    texts = [
        f"{name} ({plural(sum(each.count for each in those), 'time')}, "
        f"{brief_ms(sum(each.time_ns for each in those))} ms)"
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
            yield finding(
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
    shown = [f"{brief_ms(ns)} ms {name}" for name, ns in ways.items() if ns]
    yield finding(
        run,
        "copy.exposed",
        "compute waits for copies",
        (f"{run.share(bound_ns)} of a step with copies only", ", ".join(shown)),
        bound_ns,
        _COPY_ACTIONS[way],
        "--by operation",
    )


def traffic_findings(run: Run) -> list[Finding]:
    """Return the findings about communication and copies, in no order."""
    return [found for rule in (_comm, _slow_bus, _copies) for found in rule(run)]
