"""Explain the findings of the catalogue: what each means, when it fires, what to do, how to verify.

The rules themselves, and their thresholds, are in the other modules of this room.
"""

from collections.abc import Mapping
from textwrap import fill
from typing import Final

from msgspec import Struct

from chopperd.report.findings import catalogue, clocks, hosts, traffic
from chopperd.report.text.wording import brief_ms, percent, size

_WIDTH: Final = 80
_LABEL_WIDTH: Final = 7
#: The name under which the lines for torch.profiler are shown.
PROFILER: Final = "profiler"
_PROFILER_TITLE: Final = "the lines that make a job write its steps"
_PROFILER_TEXT: Final = """\
# Around the training loop; the report then shows steps 5 to 7.
from torch.profiler import profile, schedule, tensorboard_trace_handler

with profile(
    schedule=schedule(wait=4, warmup=1, active=3, repeat=1),
    on_trace_ready=tensorboard_trace_handler("traces"),
    record_shapes=True,
) as profiler:
    for batch in loader:
        train_step(batch)
        profiler.step()
"""


class Explanation(Struct, frozen=True, kw_only=True):
    """What `chopperd explain` says about a finding."""

    title: str
    meaning: str
    fires: str
    do: str
    check: str


def _share(ratio: float) -> str:
    return f"{percent(ratio, 0)} % of the step"


_STANDS_OUT: Final = (
    "where a GPU stands out: its compute clock is below the median of at least four GPUs of its "
    "model in the job, by more than sampling and natural spread explain, "
    f"{percent(clocks.ACCUSED_RATIO, 0)} % at least, and"
)
_OF_PEERS: Final = (
    f"causes at least {percent(clocks.EXPLAINS_RATIO, 0)} % of what it loses against them"
)
_NEARLY_ALL: Final = (
    f"on at least {percent(clocks.NODE_RATIO, 0)} % of the GPUs, costing each "
    f"{_share(clocks.LEAST_RATIO)}"
)
_REPORT: Final = "chopperd report TRACE..., before and after"
_PERFORMANCE: Final = "nvidia-smi -q -d PERFORMANCE, or amd-smi metric --clock --power"

EXPLANATIONS: Final[Mapping[str, Explanation]] = {
    "power.at_cap": Explanation(
        title="a GPU reaches its power limit at a lower clock than its peers",
        meaning="Chips differ in the power that they need for a clock, and hot ones need more. A "
        "power limit that holds all GPUs alike is physics and no finding.",
        fires=f"{_STANDS_OUT} its power cap {_OF_PEERS}",
        do="Compare its temperature with its peers' first. If that is equal, it is the chip: leave "
        "it out of jobs that wait for the slowest GPU.",
        check="nvidia-smi -q -d POWER, or amd-smi metric --power",
    ),
    "power.cap_lowered": Explanation(
        title="a power limit is below its default and holds the clock",
        meaning="Somebody or something lowered the enforced power limit, and the driver says that "
        "this limit holds the clock.",
        fires=f"where the limit is below {percent(clocks.LOWERED_RATIO, 0)} % of the default, and "
        f"the cap is {_NEARLY_ALL}; or {_STANDS_OUT} a lower limit than its peers' {_OF_PEERS}",
        do="Set it back if nobody wants it lower. The bound is what the cap costs in all: at the "
        "default, a cap may still hold the clock.",
        check="nvidia-smi -q -d POWER, or amd-smi metric --power",
    ),
    "cooling.hot_gpu": Explanation(
        title="heat slows down one GPU more than its peers",
        meaning="The driver reports a thermal limit that its peers do not have, or less of.",
        fires=f"{_STANDS_OUT} heat {_OF_PEERS}; less is enough if it is {clocks.HOTTER_C:.0f} C "
        "hotter than the median of the others",
        do="Have its cooling checked: airflow, heat sink, fans or coolant, its neighbours.",
        check="nvidia-smi -q -d PERFORMANCE,TEMPERATURE, or amd-smi metric --clock --temperature",
    ),
    "cooling.hot_node": Explanation(
        title="heat slows down nearly all GPUs",
        meaning="Thermal limits hold the clocks of the whole node: its inlet air or coolant is too "
        "warm, or too little.",
        fires=f"where thermal limits are {_NEARLY_ALL}, at least {clocks.NODE_GPUS} GPUs",
        do="Have inlet temperature, fans and coolant of the node checked.",
        check="nvidia-smi -q -d PERFORMANCE,TEMPERATURE, or amd-smi metric --clock --temperature",
    ),
    "clock.locked": Explanation(
        title="a limit that somebody set holds the clock",
        meaning="An application clock, a locked clock or a limit of the host is below the highest "
        "clock; or a GPU computes at exactly one clock below its peers'.",
        fires=f"where the user limit is {_NEARLY_ALL}; or {_STANDS_OUT} the limit {_OF_PEERS}",
        do="Remove it if nobody needs it: nvidia-smi -rgc and -rac, amd-smi reset --clocks. "
        "Without it another limit, as power, may hold the clock.",
        check="nvidia-smi -q -d CLOCK, or amd-smi metric --clock",
    ),
    "hw.slowdown_or_brake": Explanation(
        title="the hardware itself slows the clock",
        meaning="A power brake or another hardware slowdown was asserted: a power supply, a cable "
        "or the power of the rack is at its limit.",
        fires=f"{_STANDS_OUT} these {_OF_PEERS}; or where they are {_NEARLY_ALL}, at least "
        f"{clocks.NODE_GPUS} GPUs",
        do="Have power supplies, cables and the rack's power checked.",
        check=_PERFORMANCE,
    ),
    "clock.unexplained_low": Explanation(
        title="a GPU runs below its peers, and no limit explains it",
        meaning="Its clock is low in equal work at the same time, and what the driver reports as "
        "limits does not make the difference, or can't be read.",
        fires=f"{_STANDS_OUT} no limit {_OF_PEERS}",
        do="Run the job without it, and it in another slot: does the low clock follow the GPU?",
        check=_PERFORMANCE,
    ),
    "rank.straggler": Explanation(
        title="the job waits for one rank",
        meaning="Between collectives it works longer by itself than the median rank, so that the "
        "others wait for it.",
        fires=f"where a rank is late by more than {_share(catalogue.LATE_RATIO)} in more than half "
        "of the steps; in fewer, it pauses, and counts by the mean of its pauses",
        do="Look for what exceeds the median rank's: its clock, data, host, or its share of work.",
        check="chopperd report with the traces of all ranks",
    ),
    "data.wait": Explanation(
        title="the GPU waits for data",
        meaning="The thread that launches next waits for its batch, or runs its loader, while the "
        "GPU has nothing to do.",
        fires=f"at {_share(clocks.LEAST_RATIO)}",
        do="Give the loader more workers (num_workers, prefetch_factor, pin_memory), or do the "
        "slow part of a sample's preparation once, before training.",
        check=_REPORT,
    ),
    "launch.bound": Explanation(
        title="the GPU waits for the host to launch kernels",
        meaning="Kernels are shorter than what the host needs to launch the next one: the time is "
        "Python, the framework and the launch call itself.",
        fires=f"at {_share(hosts.LAUNCH_RATIO)}, where that is at most "
        f"{brief_ms(hosts.LAUNCH_GAP_NS)} ms for each compute kernel",
        do="Launch less: torch.compile or CUDA graphs, fused kernels and optimizers, larger "
        "batches. The profiler lengthens launches, so that the bound is above what can be saved.",
        check=_REPORT,
    ),
    "host.sync": Explanation(
        title="the host waits for the GPU, which then waits for the host",
        meaning="A synchronise call (.item(), .cpu(), a blocking copy) returns when the GPU has "
        "nothing left to do, and only then the host launches more.",
        fires=f"at {_share(clocks.LEAST_RATIO)}",
        do="Read results less often, and copy with non_blocking=True to pinned memory.",
        check=_REPORT,
    ),
    "alloc.churn": Explanation(
        title="the GPU waits while the host allocates device memory",
        meaning="Near its limit, or where frees wait for other streams, torch's allocator gives "
        "segments back and asks for new ones in every step; each such call may wait for the GPU.",
        fires=f"at {_share(clocks.LEAST_RATIO)} idle in such calls, in steps after warm-up",
        do="Leave memory free, or let frees come at fixed places of the program: FSDPv2, "
        "expandable segments.",
        check="chopperd report TRACE --memory SNAPSHOT, before and after",
    ),
    "host.holder": Explanation(
        title="one thing on the host keeps the GPU idle",
        meaning="An operator, an annotation or a Python frame that launches nothing, or little, "
        "runs while the GPU has nothing to do: a CPU optimizer, gc, logging, a checkpoint.",
        fires=f"where one thing that launches nothing has {percent(hosts.HOLDER_RATIO, 0)} % of "
        f"the time in which the host prepares launches, and {_share(clocks.LEAST_RATIO)}; where "
        f"anything has {_share(hosts.HOLDER_STEP_RATIO)} in stretches of "
        f"{brief_ms(hosts.HOLDER_STRETCH_NS)} ms; or where that time is more than "
        f"{brief_ms(hosts.LAUNCH_GAP_NS)} ms for each kernel",
        do="Make it faster, do it less often, or move it to another thread or to the GPU. Where "
        "most of it is inside launch calls: capture after a warm-up, as the first use of a kernel "
        "loads it.",
        check=_REPORT,
    ),
    "comm.exposed": Explanation(
        title="compute waits for communication",
        meaning="The GPU runs collectives and computes nothing meanwhile. The bound leaves out "
        "what no faster network gives back: time for which the host launches late, and, where all "
        "ranks are known, waits for other ranks.",
        fires=f"at {_share(traffic.COMM_RATIO)}",
        do="Compare the ranks first (give the traces of all to one report), then overlap: bucket "
        "sizes, prefetching of FSDP, fewer and larger collectives.",
        check="chopperd report TRACE... --by family, before and after",
    ),
    "comm.slow_bus": Explanation(
        title="the links of one group are slower than those of groups alike",
        meaning="Of groups with one size and like messages, one moves far less a second on the "
        "links of a rank; of each group the rank counts that waits least.",
        fires=f"below {percent(traffic.SLOW_BUS_RATIO, 0)} % of the median of the others, of at "
        f"least {traffic.BUS_GROUPS} groups with messages of {size(traffic.BUS_MESSAGE_BYTES)} or "
        "more",
        do="Look at the links of its ranks: NVLink state, topology, network cards.",
        check="nvidia-smi nvlink --status, nvidia-smi topo -m",
    ),
    "copy.exposed": Explanation(
        title="compute waits for copies",
        meaning="The GPU copies or fills memory and does nothing else meanwhile.",
        fires=f"at {_share(clocks.LEAST_RATIO)}",
        do="Copy from pinned memory with non_blocking=True on a stream of its own; prefetch what "
        "is offloaded; reuse buffers.",
        check="chopperd report TRACE... --by operation, before and after",
    ),
    "quality.low_coverage": Explanation(
        title="much of compute has no clock sample near it",
        meaning="Losses are of the sampled part only, and too low for the rest.",
        fires=f"below {percent(catalogue.COVERAGE_RATIO, 0)} % of compute",
        do="Sample from before the trace begins until it has ended (chopperd record -- CMD), at "
        "100 Hz for short steps.",
        check="chopperd doctor",
    ),
    "quality.profiler_overhead": Explanation(
        title="profiled steps are longer than the job's own",
        meaning="The profiler itself takes time on the host: idle rows are too large.",
        fires=f"where profiled steps take {percent(catalogue.PROFILED_RATIO - 1, 0)} % longer than "
        "marked steps around them",
        do="Profile without with_stack, record_shapes and profile_memory.",
        check="chopperd explain profiler",
    ),
}

#: What `explained` explains.
NAMES: Final = (*EXPLANATIONS, PROFILER)


def explained(name: str | None) -> str | None:
    """Return the text on a finding's code, or on `PROFILER`; a list of all for None; else None."""
    if name is None:
        width = max(map(len, EXPLANATIONS))
        titles = {code: each.title for code, each in EXPLANATIONS.items()}
        titles[PROFILER] = _PROFILER_TITLE
        return "".join(f"{code:{width}}  {title}\n" for code, title in titles.items())
    if name == PROFILER:
        return _PROFILER_TEXT
    if name not in EXPLANATIONS:
        return None
    found = EXPLANATIONS[name]
    lines = (
        f"{name}: {found.title}\n",
        f"{fill(found.meaning, _WIDTH)}\n",
        *(_entry(*each) for each in (("fires", found.fires), ("do", found.do))),
        _entry("check", found.check),
    )
    return "\n".join(lines) + "\n"


def _entry(label: str, text: str) -> str:
    indent = " " * _LABEL_WIDTH
    return fill(text, _WIDTH, initial_indent=f"{label:{_LABEL_WIDTH}}", subsequent_indent=indent)
