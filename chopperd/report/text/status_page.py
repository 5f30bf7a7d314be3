"""How the agent and its GPUs stand: what `chopperd status` shows."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType

from chopperd.model.live import GpuLive, NodeSnapshot, SamplerCondition
from chopperd.report.text.live_page import gpu_condition, gpu_rate, gpu_values
from chopperd.report.text.live_rates import lost_s
from chopperd.report.text.report import simulated_mark
from chopperd.report.text.sections import table
from chopperd.report.text.wording import (
    UNKNOWN,
    count,
    duration,
    known,
    moment,
    percent,
    plural,
    size,
)
from chopperd.units import NS_PER_S

_COLUMNS: Final = (
    *("<gpu", "MHz", "% max", "W", "limit W", "C", "busy %"),
    *("lost %", "kept Hz", "<held by"),
)
_PROCESS_COLUMNS: Final = ("<gpu", "pid", "memory")
_CAPTION: Final = "lost: live ceiling against the top clock, share of busy time since the start"


#: In these conditions nobody is to be called.
_IN_ORDER: Final = frozenset(
    {SamplerCondition.STARTING, SamplerCondition.RUNNING, SamplerCondition.PAUSED}
)


def node_troubles(now: NodeSnapshot) -> tuple[str, ...]:
    """What is not well with the parts of an agent, a line each; a paused agent is well."""
    sampler = now.sampler
    found: list[str | None] = []
    if sampler.condition not in _IN_ORDER:
        found.append(
            f"sampling is {sampler.condition.value}: {sampler.reason or 'no reason known'}"
        )
    if sampler.abandoned_pids:
        pids = ", ".join(map(str, sampler.abandoned_pids))
        found.append(f"left alone as they hang in a driver: processes {pids}")
    if sampler.condition is SamplerCondition.RUNNING:
        found += [f"GPU {gpu.info.gpu}: {gpu_condition(gpu)}" for gpu in now.gpus if not gpu.up]
    found += [f"GPU {gpu.info.gpu}: {gpu.trouble}" for gpu in now.gpus if gpu.trouble]
    found += [now.archive.trouble, now.store.trouble, now.store.set_aside, now.analysis.trouble]
    return tuple(trouble for trouble in found if trouble is not None)


def status_page(now: NodeSnapshot, troubles: Sequence[str]) -> Group:
    """The agent, then its GPUs; unknown is a dash.

    Args:
        now: The newest snapshot.
        troubles: What is not well, for people.
    """
    rows = [*_agent(now), *_recorder(now), *_store(now), *_analysis(now), *_self_test(now)]
    rows += [("trouble", trouble) for trouble in troubles]
    parts: list[RenderableType] = [simulated_mark()] if now.simulated else []
    parts.append(table("AGENT", ("<", "<"), rows, header=False))
    gpus = [_cells(gpu) for gpu in now.gpus]
    if gpus:
        parts += ["", table("GPUS", _COLUMNS, gpus, caption=_CAPTION)]
    processes = [row for gpu in now.gpus for row in _processes(gpu)]
    if processes:
        parts += ["", table("PROCESSES", _PROCESS_COLUMNS, processes)]
    return Group(*parts)


def _agent(now: NodeSnapshot) -> Iterator[tuple[str, str]]:
    up_s = (now.taken_unix_ns - now.started_unix_ns) / NS_PER_S
    yield "agent", f"{now.version} on {now.node}, up {duration(up_s)}"
    sampler, invalid = now.sampler, sum(gpu.invalid_count for gpu in now.gpus)
    left_out = (f"{plural(invalid, 'impossible value')} left out",) if invalid else ()
    yield (
        "sampler",
        ", ".join(
            (
                sampler.condition.value,
                f"{now.backend or 'no back end'}, driver {now.driver or 'version unknown'}",
                f"{count(sampler.restart_count)} restarts",
                *left_out,
            )
        ),
    )
    if now.chosen is not None:
        yield "back end", now.chosen
    if now.pause is not None:
        until_ns = now.pause.until_unix_ns
        end = "taken away" if until_ns is None else moment(until_ns)
        yield "paused", f"until {end}: {now.pause.reason}"


def _recorder(now: NodeSnapshot) -> Iterator[tuple[str, str]]:
    kept = now.archive
    since = UNKNOWN if kept.oldest_unix_ns is None else moment(kept.oldest_unix_ns)
    lost = f", {count(kept.lost_samples)} samples lost" if kept.lost_samples else ""
    damaged = f", {count(kept.damaged_chunks)} damaged chunks" if kept.damaged_chunks else ""
    yield "recorder", f"{size(kept.bytes)}, samples since {since}{lost}{damaged}"


def _store(now: NodeSnapshot) -> Iterator[tuple[str, str]]:
    kept = now.store
    memory = f", {count(kept.in_memory)} rows in memory only" if kept.in_memory else ""
    rows = f"{count(kept.steps)} step rows, {count(kept.traces)} traces"
    dropped = f", {count(kept.dropped)} changes dropped" if kept.dropped else ""
    yield "store", f"{size(kept.bytes)}, {rows}{memory}{dropped}"


def _analysis(now: NodeSnapshot) -> Iterator[tuple[str, str]]:
    taken = now.analysis
    outcomes = [f"{count(number)} {outcome}" for outcome, number in taken.outcomes.items()]
    working = f", working on {taken.working_on}" if taken.working_on else ""
    yield (
        "traces",
        f"analysis {taken.mode}, {count(taken.waiting)} waiting{working}, "
        f"spool {size(taken.spool_bytes)}; {', '.join(outcomes) or 'none since the start'}",
    )


def _self_test(now: NodeSnapshot) -> Iterator[tuple[str, str]]:
    found = now.self_test
    ratios = found.step_time_ratio, found.low_ratio, found.high_ratio
    if not all(map(known, ratios)):
        yield "self-test", f"what sampling costs a step is not measured: {found.reason or UNKNOWN}"
        return
    change, low, high = (percent(ratio - 1, 2) for ratio in ratios if known(ratio))
    yield (
        "self-test",
        f"sampling makes steps {change} % longer [{low}, {high}], by {found.block_count} blocks",
    )


def _cells(gpu: GpuLive) -> tuple[str, ...]:
    return (
        gpu.info.gpu,
        *gpu_values(gpu),
        percent(_lost_ratio(gpu)),
        gpu_rate(gpu),
        gpu_condition(gpu),
    )


def _processes(gpu: GpuLive) -> Iterator[tuple[str, ...]]:
    """Who is on a GPU; those on a part of a card are shown there."""
    for process in gpu.processes or ():
        if process.partition is None or gpu.info.parent is not None:
            yield gpu.info.gpu, str(process.pid), _size(process.memory_used_bytes)


def _size(value_bytes: int | None) -> str:
    return UNKNOWN if value_bytes is None else size(value_bytes)


def _lost_ratio(gpu: GpuLive) -> float | None:
    """Live ceiling loss over busy time with known clock; None while there is no such time."""
    lost = lost_s(gpu.totals)
    if gpu.totals is None or lost is None or not gpu.totals.busy_sampled_s:
        return None
    return lost / gpu.totals.busy_sampled_s
