"""Measure the costs of a step that somebody can act on: idle rows, communication, slow GPUs.

The clock's ceiling loss, mostly physics, is none; times are means of the summary's steps, in ns.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from chopperd.model.answers import Held, RankLine
from chopperd.model.report import GpuLine, ReportDocument, Summary
from chopperd.model.report_rows import Row
from chopperd.report.text import wording as fmt
from chopperd.report.text.holders import DEVICE_WAITS, LATENCY, Holders, holders, used_rows, who
from chopperd.report.text.trust import foreign_samples
from chopperd.report.text.wording import known

#: A part of a cost with a smaller share of it is not worth a clause.
_LEAST_SHARE: Final = 0.1
#: Label of a row of the waterfall as the largest cost, and its name among the next ones.
_LABELS: Final[Mapping[str, tuple[str, str]]] = {
    "idle_launch_prep": ("WAITING FOR THE HOST", "waiting for the host"),
    "idle_data": ("WAITING FOR DATA", "waiting for data"),
    "idle_sync": ("SYNCHRONISING", "synchronise calls"),
    "idle_allocator": ("DEVICE MEMORY CALLS", "device memory calls"),
}
#: Rows that nobody can act on as they stand.
UNKNOWN_ROWS: Final[Mapping[str, str]] = {
    "unknown": "unknown (launches without record)",
    "idle_other": "idle with no next launch known",
}
_DIRECTIONS: Final[Mapping[str, str]] = {
    "h2d": "host to device",
    "d2h": "device to host",
    "d2d": "device to device",
    "memset": "fills",
}


class Cost(Struct, frozen=True, kw_only=True):
    """Time a step that somebody can act on.

    `label` is that of the largest cost, `brief` the clause among further ones; `of_all` the amount
    in words, where it is more than a share. `named`: a GPU or rank stands out, however small it is.
    """

    label: str
    brief: str
    time_ns: float
    details: tuple[str, ...] = ()
    named: bool = False
    of_all: str = ""


def costs(document: ReportDocument, summary: Summary) -> list[Cost]:
    """Return the costs of the critical device, largest first."""
    return sorted(_costs(document, summary), key=lambda cost: -cost.time_ns)


def of_step(summary: Summary) -> str:
    """Return what a cost is a part of: each step, or the whole file."""
    step = fmt.short_ms(summary.step_ns)
    is_file = summary.basis == "totals"
    return f"of the {step} ms of the whole file" if is_file else f"of each {step} ms step"


def _cost(label: str, brief: str, time_ns: float, *details: str) -> Cost:
    """Return a cost whose clause is `brief` with its time."""
    return Cost(
        label=label,
        brief=f"{brief} {fmt.short_ms(time_ns)} ms",
        time_ns=time_ns,
        details=tuple(filter(None, details)),
    )


def _costs(document: ReportDocument, summary: Summary) -> Iterator[Cost]:
    found = holders(document)
    for row, (label, brief) in _LABELS.items():
        time_ns = summary.waterfall_ns.get(row) or 0.0
        yield _cost(label, brief, time_ns, who(found, found.of(row)) if found is not None else "")
    yield from _launches(summary, found)
    yield _communication(document, summary, found)
    yield _copies(document, summary)
    slow = list(_slow_gpus(document, summary))
    yield from slow
    yield from _slow_ranks(document, summary, has_slow_gpu=bool(slow))


def _launches(summary: Summary, found: Holders | None) -> Iterator[Cost]:
    """Yield the parts of launch latency: in launch calls, after them, and the device's waits."""
    all_ns = summary.waterfall_ns.get("idle_launch_call") or 0.0
    those = found.of("idle_launch_call") if found is not None else []
    if found is None or not those:
        yield _cost("LAUNCH LATENCY", "launch latency", all_ns)
        return
    parts = launch_parts(those)
    yield _cost("IN LAUNCH CALLS", "in launch calls", found.mean_ns(parts[0]), who(found, parts[0]))
    yield _cost("LAUNCH LATENCY", "launch latency", found.mean_ns(parts[1]))
    waits = "launched long before: for an event, another stream, or work that the file lacks"
    yield _cost("THE DEVICE WAITS", "the device waits", found.mean_ns(parts[2]), waits)


def launch_parts(those: Sequence[Held]) -> tuple[list[Held], list[Held], list[Held]]:
    """Split the holders of launch latency: in launch calls, after them, and the device's waits."""
    return (
        [each for each in those if each.name not in {LATENCY, DEVICE_WAITS}],
        [each for each in those if each.name == LATENCY],
        [each for each in those if each.name == DEVICE_WAITS],
    )


def _communication(document: ReportDocument, summary: Summary, found: Holders | None) -> Cost:
    exposed_ns = summary.waterfall_ns.get("exposed_comm") or 0.0
    those = found.of("exposed_comm") if found is not None else []
    late_ns = found.mean_ns(those, "late_host_ns") if found is not None else 0.0
    rest_ns = max(exposed_ns - late_ns, 0.0)
    late = ""
    if late_ns >= max(_LEAST_SHARE * exposed_ns, 1):
        late = (
            f"but the host is late in {fmt.short_ms(late_ns)} of them: "
            f"a faster network gives back {fmt.short_ms(rest_ns)}"
        )
    details = tuple(filter(None, (_split(document), late)))
    ms = fmt.short_ms(exposed_ns)
    return Cost(
        label="HOST LATE AT COMMUNICATION" if late_ns > rest_ns else "COMMUNICATION",
        brief=", ".join((f"communication {ms} ms exposed", *details)),
        time_ns=exposed_ns,
        details=details,
    )


def _split(document: ReportDocument) -> str:
    parts = wait_and_transfer(document)
    if parts is None:
        return ""
    wait, transfer = map(fmt.short_ms, parts)
    return f"{wait} of it waiting for other ranks, {transfer} in transfer"


def wait_and_transfer(document: ReportDocument) -> tuple[float, float] | None:
    """Return the parts of exposed communication, means in ns; None where one is unknown."""
    parts = [row.exposed_comm_ns for row in used_rows(document)]
    waits_ns = [each.wait for each in parts if each is not None and each.wait is not None]
    moves_ns = [each.transfer for each in parts if each is not None and each.transfer is not None]
    if not parts or min(len(waits_ns), len(moves_ns)) < len(parts):
        return None
    return sum(waits_ns) / len(parts), sum(moves_ns) / len(parts)


def _copies(document: ReportDocument, summary: Summary) -> Cost:
    time_ns = summary.waterfall_ns.get("exposed_copy") or 0.0
    rows = [row.exposed_copy_ns for row in used_rows(document) if row.exposed_copy_ns is not None]
    by_direction = {
        name: sum(getattr(each, direction) for each in rows) / len(rows)
        for direction, name in _DIRECTIONS.items()
        if rows
    }
    parts = sorted(by_direction.items(), key=lambda pair: -pair[1])
    shown = [f"{n} {fmt.short_ms(ns)}" for n, ns in parts if ns >= _LEAST_SHARE * time_ns > 0]
    ms = fmt.short_ms(time_ns)
    return Cost(
        label="COPIES",
        brief=f"copies {ms} ms exposed",
        time_ns=time_ns,
        details=(", ".join(shown),) if shown else (),
    )


# GPUs and ranks that stand out.


def _slow_gpus(document: ReportDocument, summary: Summary) -> Iterator[Cost]:
    if foreign_samples(document):
        return
    for line in summary.gpus:
        if line.stands_out and known(line.excess_ns_per_step):
            excess = fmt.brief_ms(line.excess_ns_per_step)
            low_ns, high_ns = line.excess_low_ns_per_step, line.excess_high_ns_per_step
            interval = f" {fmt.ms_interval(low_ns, high_ns)}".rstrip()
            yield Cost(
                label=f"{gpu_name(line).upper()} IS SLOW",
                brief=f"{gpu_name(line)} is slow {excess} ms{interval}",
                time_ns=line.excess_ns_per_step,
                of_all=f"{excess} {of_step(summary)}{interval}: {_facts(document, summary, line)}",
                named=True,
            )


def _facts(document: ReportDocument, summary: Summary, line: GpuLine) -> str:
    cause = main_cause(document, line)
    its_loss = f"{fmt.words(cause[0])} in {fmt.percent(cause[1], 0)} % of its loss" if cause else ""
    facts = (_below_peers(document, line), _heat(summary, line), its_loss)
    return ", ".join(filter(None, facts))


def _below_peers(document: ReportDocument, line: GpuLine) -> str:
    if not known(line.mean_mhz) or not known(line.peers_median_mhz):
        return "it runs slower than its peers"
    sizes = [
        row.peers.n - 1
        for row in (*document.steps, *document.totals)
        if row.peers is not None and _is_of(row, line)
    ]
    others = fmt.plural(max(sizes), "peer") if sizes else "peers"
    return f"it runs {fmt.whole(line.peers_median_mhz - line.mean_mhz)} MHz below its {others}"


def _is_of(row: Row, line: GpuLine) -> bool:
    return (row.device, row.rank) == (line.device, line.rank)


def _heat(summary: Summary, line: GpuLine) -> str:
    others = [
        each.temperature_mean_c
        for each in summary.gpus
        if each is not line and known(each.temperature_mean_c)
    ]
    if not known(line.temperature_mean_c):
        return ""
    peers = f" (peers {fmt.spread(others)})" if others else ""
    return f"at {fmt.whole(line.temperature_mean_c)} C{peers}"


def main_cause(document: ReportDocument, line: GpuLine) -> tuple[str, float] | None:
    """Return the cause of most of a GPU's ceiling loss over the whole file, and its share."""
    lost: Counter[str] = Counter()
    for row in document.totals:
        if _is_of(row, line):
            lost.update(row.dvfs.by_cause_ns or {})
    return next(((cause, ns / lost.total()) for cause, ns in lost.most_common(1) if ns), None)


def gpu_name(line: GpuLine) -> str:
    """Return the GPU as "GPU 5", or the trace's device number where it was mapped to no GPU."""
    return f"GPU {line.gpu}" if line.gpu is not None else f"trace device {line.device}"


def _slow_ranks(
    document: ReportDocument, summary: Summary, *, has_slow_gpu: bool
) -> Iterator[Cost]:
    lines = document.ranks.lines if document.ranks is not None else ()
    for line in lines:
        if line.verdict != "straggler" or not line.late_ns:
            continue
        if has_slow_gpu and line.cause == "dvfs_loss":
            continue  # its clock is already named
        ms = fmt.short_ms(line.late_ns)
        text = (
            f"later than the median rank in {line.late_steps} of {fmt.plural(line.steps, 'step')}"
        )
        yield Cost(
            label=f"{rank_name(line).upper()} IS SLOW",
            brief=f"{rank_name(line)} is late by {ms} ms",
            time_ns=float(line.late_ns),
            of_all=f"{ms} {of_step(summary)} {text}{_rank_cause(line)}",
            named=True,
        )


def rank_name(line: RankLine) -> str:
    """Return the rank as "rank 3", or its GPU or device where the rank is unknown."""
    if line.rank is not None:
        return f"rank {line.rank}"
    return f"GPU {line.gpu}" if line.gpu is not None else f"trace device {line.device}"


def _rank_cause(line: RankLine) -> str:
    if line.cause is None:
        return ""
    cause = CAUSE_WORDS.get(line.cause, fmt.words(line.cause))
    return f": {cause} +{fmt.short_ms(line.cause_ns)}"


#: What makes a rank late, in words: rows of the waterfall.
CAUSE_WORDS: Final[Mapping[str, str]] = {
    **{row: brief for row, (_, brief) in _LABELS.items()},
    "idle_launch_call": "launch latency",
    "dvfs_loss": "its clock",
    "exposed_copy": "copies",
    "exposed_comm": "communication",
    "compute_at_ref": "more compute",
    "compute_unsampled": "compute",
    **UNKNOWN_ROWS,
}
