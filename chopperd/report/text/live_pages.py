"""Render the live pages on the agent and its GPUs: `chopperd status` and `chopperd top`."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from msgspec import Struct
from rich.console import Group, RenderableType

from chopperd.model.live import DiesLive, GpuLive, LiveTotals, NodeSnapshot, SamplerCondition
from chopperd.report.text import wording as fmt
from chopperd.report.text.page import simulated_mark, table
from chopperd.report.text.wording import UNKNOWN, known
from chopperd.units import NS_PER_S

_WINDOW_NS: Final = 10 * NS_PER_S


def window(history: Sequence[NodeSnapshot]) -> tuple[NodeSnapshot, ...]:
    """Return the snapshots that rates are computed from: the last 10 s and the one before that."""
    begin_ns = history[-1].taken_mono_ns - _WINDOW_NS
    first = sum(snapshot.taken_mono_ns <= begin_ns for snapshot in history[:-1])
    return tuple(history[max(first - 1, 0) :])


def lost_ratios(history: Sequence[NodeSnapshot]) -> dict[str, float | None]:
    """Compute the live ceiling loss over a history as a share of sampled time, by GPU label.

    Each counts from the first snapshot in which its total is known. None where it is not known now,
    or fell meanwhile, or no time was sampled. `history`: at least one, oldest first.
    """
    states: dict[str, list[GpuLive]] = {gpu.info.gpu: [] for gpu in history[-1].gpus}
    for snapshot in history:
        for gpu in snapshot.gpus:
            states.get(gpu.info.gpu, []).append(gpu)
    return {label: _lost_ratio_of_rates(those) for label, those in states.items()}


def lost_s(totals: LiveTotals | None) -> float | None:
    """Return the live ceiling loss in s, summed over causes; None if it was never known."""
    return sum(totals.lost_s.values()) if totals is not None and totals.lost_s else None


def _lost_ratio_of_rates(states: Sequence[GpuLive]) -> float | None:
    known_s = [both for gpu in states for both in _sampled_and_lost_s(gpu)]
    if not known_s or not list(_sampled_and_lost_s(states[-1])):
        return None
    sampled_s, lost_s = (last - first for first, last in zip(known_s[0], known_s[-1], strict=True))
    return lost_s / sampled_s if sampled_s > 0 and lost_s >= 0 else None


def _sampled_and_lost_s(gpu: GpuLive) -> Iterator[tuple[float, float]]:
    sampled = gpu.totals.sampled_s if gpu.totals is not None else None
    lost = lost_s(gpu.totals)
    if sampled is not None and lost is not None:
        yield sampled, lost


_LIVE_COLUMNS: Final = (
    *("<gpu", "MHz", "<-?last min", "?% max", "W", "??limit W", "C", "busy %", "???Hz"),
    *("?lost ms/s", "excess ms/s", "<held by"),
)
_OWNER_COLUMNS: Final = ("<gpu", "pid", "<-user", "<-job", "memory", "<~-command")
#: The last minute, in slices: a mark for each is as high as its mean clock.
_MINUTE_NS: Final = 60 * NS_PER_S
_SLICES: Final = 12
_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
#: A GPU with a larger live loss against its peers, a figure without interval, is marked.
_CULPRIT_RATIO: Final = 0.03
_CULPRIT: Final = " ◂"
_AS_ASKED: Final = "asked"  # the pace of a GPU that is read at the configured rate
_LIVE_CAPTION: Final = (
    "lost: live ceiling against the top clock, over the last 10 s; excess: against peers, at most, "
    "in the last whole 10 s; q ends"
)


class ProcessOwner(Struct, frozen=True, kw_only=True):
    """Who runs a process, as far as this machine tells; None is unknown."""

    user: str | None = None
    job: str | None = None
    command: str | None = None


def live_page(
    history: Sequence[NodeSnapshot], owners: Mapping[int, ProcessOwner] | None = None
) -> Group:
    """Render the table of `chopperd top`, a line a GPU, the suspect first; unknown is a dash.

    `history`: at least one snapshot, oldest first; `owners` are by pid.
    """
    now = history[-1]
    ratios = lost_ratios(window(history))
    gpus = sorted(now.gpus, key=lambda gpu: -_suspicion(gpu))
    sparks, scale = _sparks(minute(history))
    rows = [_live_cells(gpu, ratios[gpu.info.gpu], sparks[gpu.info.gpu]) for gpu in gpus]
    styles = {nth: "bold red" for nth, gpu in enumerate(gpus) if _suspicion(gpu)}
    parts: list[RenderableType] = [simulated_mark()] if now.simulated else []
    backend = (now.backend or "no back end") + (f", driver {now.driver}" if now.driver else "")
    title = f"GPUS  {now.node}, {backend}, {now.sampler.condition.value}"
    parts.append(table(title, _LIVE_COLUMNS, rows, caption=_LIVE_CAPTION + scale, styles=styles))
    processes = [cells for gpu in gpus for cells in _owner_cells(gpu, owners or {})]
    if processes:
        parts += ["", table("PROCESSES", _OWNER_COLUMNS, processes)]
    return Group(*parts)


def minute(history: Sequence[NodeSnapshot]) -> tuple[NodeSnapshot, ...]:
    """Return the snapshots of the last minute, which the page draws."""
    end_ns = history[-1].taken_mono_ns
    return tuple(each for each in history if end_ns - each.taken_mono_ns < _MINUTE_NS)


def _suspicion(gpu: GpuLive) -> float:
    """Return how much a GPU is suspected, as it is silent or behind its peers; 0 for not."""
    is_awaited = gpu.last_sample_unix_ns is None and gpu.trouble is None and gpu.hung is None
    if not gpu.up and not is_awaited:
        return 2.0
    return gpu.excess_ratio or 0.0 if (gpu.excess_ratio or 0.0) >= _CULPRIT_RATIO else 0.0


def _sparks(history: Sequence[NodeSnapshot]) -> tuple[dict[str, str], str]:
    """Return each GPU's clock over a minute as marks, blank where unknown, and their meaning."""
    end_ns = history[-1].taken_mono_ns
    slices: dict[str, list[list[float]]] = {
        gpu.info.gpu: [[] for _ in range(_SLICES)] for gpu in history[-1].gpus
    }
    for snapshot in history:
        nth = _SLICES - 1 - (end_ns - snapshot.taken_mono_ns) * _SLICES // _MINUTE_NS
        for gpu in snapshot.gpus:
            if known(gpu.reading.sm_clock_mhz) and gpu.info.gpu in slices:
                slices[gpu.info.gpu][nth].append(gpu.reading.sm_clock_mhz)
    means = {
        gpu: [fmean(each) if each else None for each in those] for gpu, those in slices.items()
    }
    clocks = [mhz for those in means.values() for mhz in those if mhz is not None]
    if not any(sum(mhz is not None for mhz in those) > 1 for those in means.values()):
        return dict.fromkeys(means, ""), ""
    low, high = min(clocks), max(clocks)
    drawn = {gpu: "".join(_height(mhz, low, high) for mhz in those) for gpu, those in means.items()}
    return drawn, f"\nlast min: clock, from {fmt.whole(low)} to {fmt.whole(high)} MHz"


def _height(mhz: float | None, low: float, high: float) -> str:
    if mhz is None:
        return " "
    span = high - low
    return _HEIGHTS[round((mhz - low) / span * (len(_HEIGHTS) - 1)) if span else -1]


def _owner_cells(gpu: GpuLive, owners: Mapping[int, ProcessOwner]) -> Iterator[tuple[str, ...]]:
    for label, pid, memory in _processes(gpu):
        owner = owners.get(int(pid), ProcessOwner())
        known_ones = (each or UNKNOWN for each in (owner.user, owner.job))
        yield label, pid, *known_ones, memory, owner.command or UNKNOWN


def _values(gpu: GpuLive) -> tuple[str, ...]:
    """Return cells: clock, share of the top clock, power, its limit, temperature, busy share."""
    reading, info = gpu.reading, gpu.info
    ratio = None
    if reading.sm_clock_mhz is not None and info.sm_clock_max_mhz:
        ratio = reading.sm_clock_mhz / info.sm_clock_max_mhz
    return (
        fmt.whole(reading.sm_clock_mhz),
        fmt.percent(ratio, 0),
        fmt.whole(reading.power_w),
        fmt.whole(reading.power_limit_w),
        fmt.whole(reading.temperature_c),
        fmt.percent(reading.activity_ratio, 0),
    )


def _rate(gpu: GpuLive) -> str:
    """Format the achieved rate of samples in Hz, with the reason where it is not as configured."""
    if not gpu.up or gpu.kept_hz is None:
        return UNKNOWN
    why = "" if gpu.pace == _AS_ASKED else f" {gpu.pace}"
    return fmt.decimal(gpu.kept_hz, 1) + why


def gpu_condition(gpu: GpuLive) -> str:
    """Return why the GPU does not answer, else the limits in force now."""
    if gpu.hung is not None:
        return f"{gpu.hung.scope} call hangs for {gpu.hung.age_s:.0f} s"
    if not gpu.up:
        is_awaited = gpu.last_sample_unix_ns is None and gpu.trouble is None
        return "no sample yet" if is_awaited else "does not answer"
    if gpu.info.parent is not None:
        return f"part of GPU {gpu.info.parent}"
    causes, dies_off = gpu.reading.causes, _dies_off(gpu.dies)
    if causes is None:
        return UNKNOWN + dies_off
    return (" + ".join(fmt.words(each.label) for each in sorted(causes)) or "nothing") + dies_off


def _dies_off(dies: DiesLive | None) -> str:
    if dies is None or not dies.gated:
        return ""
    return f" ({dies.running}/{dies.running + dies.gated} dies)"


def _live_cells(gpu: GpuLive, lost_ratio: float | None, spark: str) -> tuple[str, ...]:
    clock, *others = _values(gpu)
    return (
        gpu.info.gpu + _CULPRIT * bool(_suspicion(gpu)),
        clock,
        spark,
        *others,
        _rate(gpu),
        _per_second_ms(lost_ratio),
        _per_second_ms(gpu.excess_ratio),
        gpu_condition(gpu),
    )


def _per_second_ms(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else fmt.decimal(1000 * ratio, 0 if ratio >= 0.1 else 1)


_COLUMNS: Final = (
    *("<gpu", "MHz", "?% max", "W", "?limit W", "C", "busy %", "lost %", "??kept Hz", "<held by"),
)
_PROCESS_COLUMNS: Final = ("<gpu", "pid", "memory")
_CAPTION: Final = "lost: live ceiling against the top clock, share of busy time since the start"


#: Conditions that are no problem.
_IN_ORDER: Final = frozenset(
    {SamplerCondition.STARTING, SamplerCondition.RUNNING, SamplerCondition.PAUSED}
)


def node_troubles(now: NodeSnapshot) -> tuple[str, ...]:
    """Return the problems of the parts of an agent, one line each; a pause is none."""
    sampler = now.sampler
    found: list[str | None] = []
    if sampler.condition not in _IN_ORDER:
        why = sampler.reason or "no reason known"
        found.append(f"sampling is {sampler.condition.value}: {why}")
    if sampler.abandoned_pids:
        pids = ", ".join(map(str, sampler.abandoned_pids))
        found.append(f"left alone as they hang in a driver: processes {pids}")
    if sampler.condition is SamplerCondition.RUNNING:
        found += [f"GPU {gpu.info.gpu}: {gpu_condition(gpu)}" for gpu in now.gpus if not gpu.up]
    found += [f"GPU {gpu.info.gpu}: {gpu.trouble}" for gpu in now.gpus if gpu.trouble]
    found += [now.archive.trouble, now.store.trouble, now.store.set_aside, now.analysis.trouble]
    return tuple(trouble for trouble in found if trouble is not None)


def status_page(now: NodeSnapshot, troubles: Sequence[str]) -> Group:
    """Render the agent with its problems, then its GPUs; unknown is a dash."""
    rows = [*_agent(now), *_stored(now), *_analysis(now), *_self_test(now)]
    rows += [("trouble", trouble) for trouble in troubles]
    parts: list[RenderableType] = [simulated_mark()] if now.simulated else []
    parts.append(table("AGENT", ("<", "<"), rows, header=False))
    gpus = [
        (gpu.info.gpu, *_values(gpu), fmt.percent(_lost_ratio(gpu)), _rate(gpu), gpu_condition(gpu))
        for gpu in now.gpus
    ]
    if gpus:
        parts += ["", table("GPUS", _COLUMNS, gpus, caption=_CAPTION)]
    processes = [row for gpu in now.gpus for row in _processes(gpu)]
    if processes:
        parts += ["", table("PROCESSES", _PROCESS_COLUMNS, processes)]
    return Group(*parts)


def _agent(now: NodeSnapshot) -> Iterator[tuple[str, str]]:
    up_s = (now.taken_unix_ns - now.started_unix_ns) / NS_PER_S
    yield "agent", f"{now.version} on {now.node}, up {fmt.duration(up_s)}"
    sampler, invalid = now.sampler, sum(gpu.invalid_count for gpu in now.gpus)
    backend = f"{now.backend or 'no back end'}, driver {now.driver or 'version unknown'}"
    left_out = f", {fmt.plural(invalid, 'impossible value')} left out" if invalid else ""
    restarts = f"{fmt.count(sampler.restart_count)} restarts"
    yield "sampler", f"{sampler.condition.value}, {backend}, {restarts}{left_out}"
    if now.chosen is not None:
        yield "back end", now.chosen
    if now.pause is not None:
        until_ns = now.pause.until_unix_ns
        end = "taken away" if until_ns is None else fmt.moment(until_ns)
        yield "paused", f"until {end}: {now.pause.reason}"


def _stored(now: NodeSnapshot) -> Iterator[tuple[str, str]]:
    kept = now.archive
    since = UNKNOWN if kept.oldest_unix_ns is None else fmt.moment(kept.oldest_unix_ns)
    lost = f", {fmt.count(kept.lost_samples)} samples lost" if kept.lost_samples else ""
    damaged = f", {fmt.count(kept.damaged_chunks)} damaged chunks" if kept.damaged_chunks else ""
    yield "recorder", f"{fmt.size(kept.bytes)}, samples since {since}{lost}{damaged}"

    store = now.store
    memory = f", {fmt.count(store.in_memory)} rows in memory only" if store.in_memory else ""
    rows = f"{fmt.count(store.steps)} step rows, {fmt.count(store.traces)} traces"
    dropped = f", {fmt.count(store.dropped)} changes dropped" if store.dropped else ""
    yield "store", f"{fmt.size(store.bytes)}, {rows}{memory}{dropped}"


def _analysis(now: NodeSnapshot) -> Iterator[tuple[str, str]]:
    taken = now.analysis
    outcomes = [f"{fmt.count(number)} {outcome}" for outcome, number in taken.outcomes.items()]
    working = f", working on {taken.working_on}" if taken.working_on else ""
    yield (
        "traces",
        f"analysis {taken.mode}, {fmt.count(taken.waiting)} waiting{working}, "
        f"spool {fmt.size(taken.spool_bytes)}; {', '.join(outcomes) or 'none since the start'}",
    )


def _self_test(now: NodeSnapshot) -> Iterator[tuple[str, str]]:
    found = now.self_test
    ratios = found.step_time_ratio, found.low_ratio, found.high_ratio
    if not all(map(known, ratios)):
        yield "self-test", f"what sampling costs a step is not measured: {found.reason or UNKNOWN}"
        return
    change, low, high = (fmt.percent(ratio - 1, 2) for ratio in ratios if known(ratio))
    longer = f"sampling makes steps {change} % longer [{low}, {high}]"
    yield "self-test", f"{longer}, by {found.block_count} blocks"


def _processes(gpu: GpuLive) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the processes on a GPU; those on a part of a card with the part only."""
    for process in gpu.processes or ():
        if process.partition is None or gpu.info.parent is not None:
            used = process.memory_used_bytes
            yield gpu.info.gpu, str(process.pid), UNKNOWN if used is None else fmt.size(used)


def _lost_ratio(gpu: GpuLive) -> float | None:
    """Return live ceiling loss over busy time with known clock; None without such time."""
    lost = lost_s(gpu.totals)
    if gpu.totals is None or lost is None or not gpu.totals.busy_sampled_s:
        return None
    return lost / gpu.totals.busy_sampled_s
