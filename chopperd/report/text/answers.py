"""Render the tables that answer: ranks of a job, drops of clocks, memory, and what to do next."""

from collections.abc import Sequence
from typing import Final

from chopperd.model.answers import DropShare, RankLine, TracedDrop
from chopperd.model.memory import MemoryCorrelation, RankMemory, StepMemory
from chopperd.model.report import ReportDocument
from chopperd.report.findings.hosts import REMEDIES
from chopperd.report.text import wording as fmt
from chopperd.report.text.costs import CAUSE_WORDS, rank_name
from chopperd.report.text.page import Section, plain, table
from chopperd.report.text.wording import UNKNOWN, known
from chopperd.units import NS_PER_S

_RANKS_SHOWN: Final = 16
_DROPS_SHOWN: Final = 8
_CLASSES_NAMED: Final = 2
_TIME_OF_DAY: Final = slice(11, 19)
#: Why there is no table of drops.
NO_MEMORY: Final = "no step with rows of device memory or runtime calls"
NO_DROPS: Final = "no drop of a GPU's busy clock in the traces' time, or no samples of it"
_RANKS_CAPTION: Final = (
    "ms a step; late: own work beyond the median rank's; critical: steps in which it set the pace"
)
_RANK_STYLES: Final = {"straggler": "bold red", "pauses": "yellow"}


_NO_SIZES: Final = "sizes: record with profile_memory=True, or give a snapshot (--memory FILE)"


def findings(document: ReportDocument) -> Section | None:
    """Render the findings, each with its bound, the action, and the command that verifies it."""
    if not document.findings:
        return None
    rows = []
    for finding in document.findings:
        bound = f" (at most {fmt.brief_ms(finding.bound_ns)} ms)"
        rows += [
            (finding.code, finding.title + (bound if known(finding.bound_ns) else "")),
            *(("", text) for text in finding.evidence),
            ("", f"do: {finding.action}"),
            ("", f"check: {finding.command}"),
        ]
    return plain("NEXT", rows)


def ranks(document: ReportDocument) -> Section | None:
    """Render one line a rank, the latest by its own work first; None where nothing is known."""
    summary = document.ranks
    if summary is None or not any(line.verdict for line in summary.lines):
        return None
    lines = sorted(summary.lines, key=lambda line: -(line.late_ns or 0))
    shown = lines[:_RANKS_SHOWN]
    of = "" if len(shown) == len(lines) else f", latest {len(shown)} of {len(lines)}"
    columns = (
        *("<rank", "<-gpu", "-window", "-late", "<-verdict", "<-cause", "-wait", "-transfer"),
        *("-wait caused", "?critical"),
    )
    styles = {i: _RANK_STYLES.get(line.verdict or "", "") for i, line in enumerate(shown)}
    caption = _RANKS_CAPTION
    if summary.waits_are_bounds:
        caption += f"\nwaits are lower bounds: {fmt.plural(summary.missing_ranks, 'rank')} missing"
    counts = (summary.matched, summary.collectives)
    matched, every = (UNKNOWN if each is None else fmt.count(each) for each in counts)
    title = f"RANKS  {matched} of {every} collectives matched{of}"
    return table(title, columns, map(_rank_cells, shown), caption=caption, styles=styles)


def _rank_cells(line: RankLine) -> tuple[str, ...]:
    late = f" in {line.late_steps} of {line.steps}" if line.late_steps else ""
    cause = (
        CAUSE_WORDS.get(line.cause, fmt.words(line.cause)) if line.cause is not None else UNKNOWN
    )
    size = f" +{fmt.brief_ms(line.cause_ns)}" if line.cause and known(line.cause_ns) else ""
    return (
        rank_name(line).removeprefix("rank "),
        line.gpu or UNKNOWN,
        fmt.milliseconds(line.window_ns),
        fmt.milliseconds(line.late_ns),
        f"{line.verdict}{late if line.verdict != 'even' else ''}" if line.verdict else UNKNOWN,
        cause + size,
        fmt.milliseconds(line.wait_ns),
        fmt.milliseconds(line.transfer_ns),
        fmt.milliseconds(line.wait_caused_ns),
        fmt.count(line.critical_steps),
    )


def drops(document: ReportDocument) -> Section | None:
    """Render the drops of busy clocks while traced, deepest loss first; None without any."""
    if not document.drops:
        return None
    found = sorted(document.drops, key=lambda drop: -drop.lost_ns)
    title = "DROPS  of a GPU's busy clock"
    if len(found) > _DROPS_SHOWN:
        title += f", {_DROPS_SHOWN} that lost most of {fmt.count(len(found))}"
    columns = (
        *("<-gpu", "-rank", "<?begin (UTC)", "s", "<-steps", "MHz", "from", "lost ms", "-W", "-C"),
        *("<cause", "<-~?ran more than outside"),
    )
    return table(title, columns, [_drop_cells(drop) for drop in found[:_DROPS_SHOWN]])


def _drop_cells(drop: TracedDrop) -> tuple[str, ...]:
    first, last = drop.steps or (None, None)
    return (
        *_whose(drop),
        ("" if known(drop.end_unix_ns) else ">") + fmt.decimal(drop.duration_ns / NS_PER_S, 1),
        UNKNOWN if first is None else str(first) if first == last else f"{first}-{last}",
        fmt.whole(drop.mean_mhz),
        fmt.whole(drop.reference_mhz),
        fmt.milliseconds(drop.lost_ns),
        fmt.whole(drop.power_w),
        fmt.whole(drop.temperature_c),
        fmt.largest_shares(drop.by_cause_ns, 1) or UNKNOWN,
        _ran_more(drop.classes),
    )


def drop_work(document: ReportDocument) -> Section:
    """Render the families of kernels that ran in drops, those that lost most first."""
    title = "WORK IN DROPS  share of the work in the drop, and outside all drops"
    found = sorted(document.drops, key=lambda drop: -drop.lost_ns)[:_DROPS_SHOWN]
    rows = [
        (
            *_whose(drop),
            fmt.brief_name(each.name),
            fmt.percent(each.inside_ratio),
            fmt.percent(each.outside_ratio),
        )
        for drop in found
        for each in drop.families
    ]
    if not rows:
        return table(title, ("<",), [(NO_DROPS if not found else UNKNOWN,)], header=False)
    columns = ("<gpu", "-rank", "<begin (UTC)", "~<name", "in %", "outside %")
    return table(title, columns, rows)


def _whose(drop: TracedDrop) -> tuple[str, str, str]:
    return (
        drop.gpu or f"dev {drop.device}",
        UNKNOWN if drop.rank is None else str(drop.rank),
        fmt.moment(drop.start_unix_ns).removesuffix(" UTC")[_TIME_OF_DAY],
    )


def _ran_more(shares: Sequence[DropShare]) -> str:
    """Return the classes with a larger share inside than outside, with both; all without it."""
    more = [
        f"{fmt.share_of(each.name, each.inside_ratio)} ({fmt.percent(each.outside_ratio, 0)})"
        for each in shares
        if each.outside_ratio is None or each.inside_ratio > each.outside_ratio
    ]
    return ", ".join(more[:_CLASSES_NAMED]) or UNKNOWN


def memory(document: ReportDocument) -> Section | None:
    """Render each device's memory: peaks, segments, how alike steps are; None where unknown."""
    name = document.framework.name
    is_fsdp = name.startswith("fsdp")
    # Of other jobs, calls that are none say nothing.
    found = [m for m in document.memory if is_fsdp or m.source != "runtime" or m.segment_calls]
    title = f"FSDP AND MEMORY  {name}" if is_fsdp else "MEMORY"
    if not found:
        why = f"; {_NO_SIZES}" if document.devices else ": it has no device"
        return plain(title, [(f"no device memory in the trace{why}",)]) if is_fsdp else None
    columns = (
        *(
            "-rank",
            "<gpu",
            "-allocated",
            "-reserved",
            "-?CV %",
            "-??held",
            "-segment calls",
            "-?ms",
        ),
        *("-retries", "-program", "-allocator", "<verdict"),
    )
    shown = found[:_RANKS_SHOWN]
    reasons = dict.fromkeys(reason for each in found for reason in each.reasons)
    remedies = ", or ".join(dict.fromkeys(REMEDIES[each] for each in reasons))
    sizes = any(known(each.peak_allocated_bytes) for each in found)
    beside = [_beside(each, one) for each in found for one in each.correlations]
    captions = (
        "allocated, reserved: peaks; program, allocator: alike from step to step",
        *_reasons(shown),
        "" if sizes else _NO_SIZES,
        f"try: {remedies}" if remedies else "",
        *_offloads(shown),
        *filter(None, beside),
    )
    rows = [_memory_cells(each) for each in shown]
    return table(title, columns, rows, caption="; ".join(filter(None, captions)))


def _memory_cells(each: RankMemory) -> tuple[str, ...]:
    at_least = "≥ " if any(step.at_least for step in each.steps[each.warm_up_steps :]) else ""
    calls = each.segment_calls
    return (
        UNKNOWN if each.rank is None else str(each.rank),
        f"dev {each.device}" if each.gpu is None else each.gpu,
        *(_size(value) for value in (each.peak_allocated_bytes, each.peak_reserved_bytes)),
        fmt.percent(each.cv_reserved, 2),
        _size(each.held_bytes),
        UNKNOWN if calls is None else at_least + fmt.count(calls),
        fmt.milliseconds(each.segment_ns),
        UNKNOWN if each.retries is None else fmt.count(each.retries),
        fmt.decimal(each.program_ratio, 3),
        fmt.decimal(each.determinism_ratio, 3),
        each.verdict.replace("_", " "),
    )


def _reasons(shown: Sequence[RankMemory]) -> list[str]:
    """Return why each verdict holds; where it differs by rank, of the first."""
    texts: dict[str, dict[str, RankMemory]] = {}
    for each in shown:
        texts.setdefault(each.verdict, {}).setdefault(each.verdict_text, each)
    found = []
    for verdict, every in texts.items():
        text, first = next(iter(every.items()))
        whose = f" (rank {first.rank})" if len(every) > 1 and first.rank is not None else ""
        is_said = verdict == "not_measured"  # its text begins so
        found.append(text + whose if is_said else f"{verdict.replace('_', ' ')}{whose}: {text}")
    return found


def _offloads(found: Sequence[RankMemory]) -> list[str]:
    """Return what each rank copies to the host and back, where that is offload."""
    texts = []
    for each in found:
        if each.offload is None:
            continue
        moved = each.offload
        ways = (
            ("to the device", moved.hidden_h2d_bytes, moved.exposed_h2d_bytes),
            ("to the host", moved.hidden_d2h_bytes, moved.exposed_d2h_bytes),
        )
        copies = ", ".join(
            f"{fmt.size(every)} {way} ({fmt.percent(hidden / every)} % hidden)"
            for way, hidden, exposed in ways
            if (every := hidden + exposed)
        )
        cpu = moved.cpu_optimizer_ns
        idle = f", idle in Optimizer.step {fmt.milliseconds(cpu)} ms a step" if cpu else ""
        texts.append(f"{_whose_rank(each)}offload of {moved.stage} (guessed): {copies}{idle}")
    return texts


#: Rows of memory by step that are shown.
_STEPS_SHOWN: Final = 24


def memory_steps(document: ReportDocument) -> Section:
    """Render the memory of each step next to its clock, of as many steps as are shown."""
    every = [(each, step) for each in document.memory for step in each.steps]
    title = "MEMORY BY STEP  next to the step's clock"
    if not every:
        return table(title, ("<",), [(NO_MEMORY,)], header=False)
    if len(every) > _STEPS_SHOWN:
        title += f", {_STEPS_SHOWN} of {fmt.count(len(every))} (--format csv has all)"
    columns = (
        *("-?rank", "<gpu", "step", "-?allocated", "-?reserved", "-?calls", "-?ms", "-?retries"),
        *("-?program", "-?allocator", "-?waited %", "-?MHz", "-?p05", "-?W", "-?idle ms"),
        "-?contention",
    )
    return table(title, columns, [_step_cells(*each) for each in every[:_STEPS_SHOWN]])


def _step_cells(each: RankMemory, step: StepMemory) -> tuple[str, ...]:
    allocs, frees = step.segment_allocs, step.segment_frees
    least = "≥ " if step.at_least else ""
    return (
        UNKNOWN if each.rank is None else str(each.rank),
        f"dev {each.device}" if each.gpu is None else each.gpu,
        str(step.step),
        _size(step.peak_allocated_bytes),
        _size(step.peak_reserved_bytes),
        UNKNOWN if allocs is None or frees is None else least + fmt.count(allocs + frees),
        fmt.milliseconds(step.segment_ns),
        UNKNOWN if step.retries is None else fmt.count(step.retries),
        fmt.decimal(step.program_ratio, 3),
        fmt.decimal(step.determinism_ratio, 3),
        fmt.percent(step.waited_ratio),
        fmt.whole(step.busy_mean_mhz),
        fmt.whole(step.busy_p05_mhz),
        fmt.whole(step.power_w),
        fmt.milliseconds(step.idle_allocator_ns),
        fmt.decimal(step.contention_factor, 2),
    )


def _size(value: int | None) -> str:
    return UNKNOWN if value is None else fmt.size(value)


def _beside(each: RankMemory, found: MemoryCorrelation) -> str:
    """Return how a figure goes together with the clock over steps; "" where that is unknown."""
    if not known(found.rho) or not known(found.low) or not known(found.high):
        return ""
    return (
        f"{_whose_rank(each)}{found.figure.replace('_', ' ')} with the clock's deviation: "
        f"rho {found.rho:.2f} [{found.low:.2f}, {found.high:.2f}]"
    )


def _whose_rank(each: RankMemory) -> str:
    return "" if each.rank is None else f"rank {each.rank}: "
