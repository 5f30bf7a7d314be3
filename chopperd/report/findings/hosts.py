"""Findings about what held the GPU idle: the data, the host's waits, its launches and its own work.

Without holders (a file without host spans) only rows of one meaning count.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from chopperd.model.answers import Finding, Held
from chopperd.model.memory import MemoryReason
from chopperd.model.report_rows import OTHER_PARTS
from chopperd.report.findings.run import Run, finding
from chopperd.report.text.wording import brief_ms, count, holder_name
from chopperd.traces.timeline.host import DATA_WAIT_PATTERNS

#: Preparing launches is launch-bound work only from here on: less of it hides behind kernels.
LAUNCH_RATIO: Final = 0.10
#: Idle time of more than this for each kernel is not for launching it, which takes 5 to 200 us.
LAUNCH_GAP_NS: Final = 1_000_000
#: One thing that launches nothing holds the GPU, if it has so much of the host's time,
HOLDER_RATIO: Final = 0.5
#: and anything, if it has so much of the step in stretches of this length: thousands of short
#: ones are launches.
HOLDER_STEP_RATIO: Final = 0.05
HOLDER_STRETCH_NS: Final = 1_000_000
_LOADER: Final = re.compile(
    "|".join((*DATA_WAIT_PATTERNS, r"loader|dataset|collate|__next__|next_batch")), re.IGNORECASE
)
_NAMES_SHOWN: Final = 3
#: Nothing is named that holds less of the step.
_NAMED_RATIO: Final = 0.01
_NO_STREAMS: Final = (
    "FSDPv2 (fully_shard), whose frees wait for no stream, or TORCH_NCCL_AVOID_RECORD_STREAMS=1 "
    "before torch 2.8"
)
#: What to try against each reason why addresses vary or segments come and go.
REMEDIES: Final[dict[MemoryReason, str]] = {
    "near_limit": "leave memory free (smaller batches, expandable_segments:True)",
    "delayed_frees": _NO_STREAMS,
    "record_stream": _NO_STREAMS,
    "rate_limiter": "fewer all-gathers in flight (forward_prefetch, limit_all_gathers)",
    "expandable_segments": "expandable_segments:False, to compare",
    "unknown": "a snapshot (--memory FILE), which shows the frees that wait",
}
#: What to do about long launch calls.
_LOADS_ONCE: Final = (
    "capture later steps, after a warm-up (schedule(wait=..., warmup=...)): a kernel is loaded at "
    "its first use, once; if the calls stay long, look for what loads or compiles in each step"
)


def _is_host(held: Held) -> bool:
    """Whether the host's own work held the GPU: before a launch, or inside its call."""
    if held.row == "idle_launch_call":
        return held.kind != "none"
    return held.row == "idle_launch_prep"


def _is_loader(held: Held) -> bool:
    return held.whole is not None and _LOADER.search(held.whole) is not None


def _data(run: Run) -> Iterable[Finding]:
    loaders = [each for each in run.held if _is_host(each) and _is_loader(each)]
    bound_ns = run.mean_ns("idle_data") + run.per_step(loaders)
    if not run.is_worth(bound_ns):
        return
    by_row = [each for each in run.held if each.row == "idle_data"]
    yield finding(
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
        yield finding(
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
        name, those = holder_name(holder[0]), holder[1]
        bound_ns = run.per_step(those)
        total_ns -= bound_ns
        stretches = sum(each.count for each in those) / run.steps
        yield finding(
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
    """Return the thing that launches nothing and holds half of the host's time, or a long one."""
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
    kernels = [row.chopper.kernel_count for row in run.rows if row.chopper is not None]
    launched = sum(kernels) / len(kernels) if kernels else 0.0
    launches = f"{count(round(launched))} compute kernels a step" if kernels else ""
    idle = f"{run.share(bound_ns)} idle while the host prepares a launch"
    longest = _names(run, held, "name")
    if bound_ns > LAUNCH_GAP_NS * launched:
        return finding(
            run,
            "host.holder",
            "the host keeps the GPU idle, and not by launching kernels",
            (idle, launches, longest),
            bound_ns,
            "profile with with_stack=True: it shows which code runs between the kernels",
            "--by idle",
        )
    regions = _largest(run, held, "region")
    where = (
        f" for {holder_name(regions[0][0])}" if regions and 2 * regions[0][1] >= bound_ns else ""
    )
    return finding(
        run,
        "launch.bound",
        "the GPU waits for the host to launch kernels",
        (idle, launches, longest),
        bound_ns,
        f"launch less: torch.compile or CUDA graphs{where}, fused kernels, larger batches",
        "--by idle",
    )


def _is_in_calls(held: Sequence[Held]) -> bool:
    return 2 * sum(each.in_call_ns for each in held) >= sum(each.time_ns for each in held)


def _in_calls(run: Run, held: Sequence[Held]) -> str:
    if not _is_in_calls(held):
        return ""
    in_call = brief_ms(sum(each.in_call_ns for each in held) / run.steps)
    return f"{in_call} ms of it inside launch calls: the first use of a kernel loads it"


def _names(run: Run, held: Sequence[Held], field: str) -> str:
    shown = [
        f"{holder_name(name)} ({brief_ms(ns)} ms)"
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


def _allocator(run: Run) -> Iterable[Finding]:
    """Yield segment calls that idle the GPU in steps after its warm-up."""
    row = run.rows[0]
    memory = [m for m in run.document.memory if (m.rank, m.device) == (row.rank, row.device)]
    idle_ns = [step.idle_allocator_ns for m in memory for step in m.steps[m.warm_up_steps :]]
    known_ns = [each for each in idle_ns if each is not None]
    bound_ns = sum(known_ns) / max(len(known_ns), 1)
    if not any(m.verdict == "churns" for m in memory) or not run.is_worth(bound_ns):
        return
    reasons: list[MemoryReason] = [reason for each in memory for reason in each.reasons]
    tried = [*dict.fromkeys(REMEDIES[each] for each in reasons)] or [REMEDIES["near_limit"]]
    yield finding(
        run,
        "alloc.churn",
        "the GPU waits while the host allocates device memory",
        (
            f"{run.share(bound_ns)} idle in calls that allocate, map or free segments",
            *(each.verdict_text for each in memory),
        ),
        bound_ns,
        f"try {', or '.join(tried)}",
    )


def host_findings(run: Run) -> list[Finding]:
    """Return the findings about idle time, in no order."""
    return [found for rule in (_data, _sync, _host, _allocator) for found in rule(run)]
