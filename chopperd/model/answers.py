"""The parts of a report that answer: who held the GPU idle, which rank is slow, what to do.

Published names, as in `chopperd.model.report`; `None` is "unknown".
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

#: What a holder is: an operator, an annotation, a Python frame, or no host thread's doing.
HolderKind = Literal["operator", "annotation", "frame", "none"]

#: The name of a holder, or its beginning, where nothing is open on the host.
NOTHING_OPEN: Final = "(nothing open)"
#: The region of what runs in autograd's backward, with no annotation around it.
BACKWARD_REGION: Final = "backward"


class Held(Struct, frozen=True, kw_only=True):
    """Idle time, or exposed communication, of a row that one holder answers for; exact.

    `row` is a key of the waterfall; all of a row's entries sum to it. `name` is what the host did:
    an operator, an annotation or a Python frame; of kind "none": "(launch latency)", "(device
    waits)", "(the collective)", "(no host spans)", "(no launch)", "(launch without record)",
    "(nothing open) before X", and "(other)" for the smallest of very many. `inner` is the innermost
    thing open, `whole` the outermost one that launches nothing, `region` the outermost annotation,
    else backward, else the module. `count` is the number of separate stretches of the name that
    begin here, so that those of a name add up: one that goes on from another row, or from another
    innermost thing, counts there. `in_call_ns` lay inside the launch call. Of exposed
    communication, `late_host_ns` is what a faster network would not give back, `host_waits_ns` that
    in which the thread was in a synchronise call.
    """

    row: str
    name: str
    kind: HolderKind
    inner: str | None
    whole: str | None
    region: str | None
    count: int
    time_ns: int
    in_call_ns: int
    late_host_ns: int = 0
    host_waits_ns: int = 0


class ChopperTimes(Struct, frozen=True, kw_only=True):
    """The figures of a row as Chopper defines them; sums over its compute kernels.

    `kernel_count` and `kernel_ns` are of compute kernels with a launch, without communication and
    its packing; `kernel_ns` and `launch_ns` make Chopper's time of an iteration. `launch_ns` are
    the gaps between a compute kernel's end and the next one's start, `prep_ns` and `call_ns` their
    parts before and from the begin of the launch call. `first_launch_ns` is from the first kernel
    of all to the first compute kernel, `first_call_ns` from that one's launch call to its start;
    their difference is Chopper's prep. `overlap_ratio` of the time communication runs.
    """

    kernel_count: int
    kernel_ns: int
    launch_ns: int
    prep_ns: int
    call_ns: int
    first_launch_ns: int
    first_call_ns: int
    overlap_ratio: float | None


class PartChopper(Struct, frozen=True, kw_only=True):
    """Chopper's figures of one family, operation, layer or annotation, as of `ChopperTimes`.

    The gaps are those before its own kernels, also where other work was before the gap.
    """

    kernel_count: int
    kernel_ns: int
    launch_ns: int
    prep_ns: int
    call_ns: int
    overlap_ratio: float | None


class PartEfficiency(Struct, frozen=True, kw_only=True):
    """Floating point work of one family, operation, layer or annotation, as of `Efficiency`.

    Known where operators of its kernels are recorded with shapes; `utilization` and the overheads
    where the GPU's peak is known too.
    """

    flops: float
    shaped_time_ns: int
    achieved_flops_per_s: float
    dtype: str | None
    utilization: float | None = None
    overhead_utilization: float | None = None
    overhead_overlap: float | None = None
    overhead_frequency: float | None = None


class RankLine(Struct, frozen=True, kw_only=True):
    """One rank among those of its job on this node, over the steps that all of them completed.

    Times are means per step. `late_ns` is how much longer than the median rank it worked by itself
    between collectives: the cause of others' waits. `verdict`: "straggler" where it was late by
    more than 1 % of the step in more than half of the steps, "pauses" in fewer (`late_steps` of
    `steps`, `pause_ns` in sum over them), "even" otherwise, also where it is late by its clock and
    no more than clocks of equal GPUs differ; None with fewer than three steps. `cause` is the row
    of the waterfall, or "dvfs_loss", that exceeds the median rank's most, by `cause_ns`, in the
    median of the steps in which it is late; None without a verdict of being late. `wait_ns` is
    exposed communication spent waiting for others, `transfer_ns` the rest; `wait_caused_ns` is what
    the others waited for this rank, the last to come, in sum.
    """

    rank: int | None
    device: int
    gpu: str | None
    steps: int
    window_ns: int | None = None
    wait_ns: int | None = None
    transfer_ns: int | None = None
    wait_caused_ns: int | None = None
    late_ns: int | None = None
    late_steps: int | None = None
    pause_ns: int | None = None
    critical_steps: int = 0
    verdict: Literal["straggler", "pauses", "even"] | None = None
    cause: str | None = None
    cause_ns: int | None = None


class RanksSummary(Struct, frozen=True, kw_only=True):
    """The ranks of one job and node compared.

    `matched` collectives were found on every rank of their group, of `collectives` in all;
    `matched_by` is "seq" (torch's sequence numbers), "order" (on the stream, checked by the ends)
    or "mixed". `missing_ranks` of the job have no trace here: waits are then lower bounds
    (`waits_are_bounds`). `job_lost_ns` is the mean clock loss per step of the critical device.
    `why_not` says why there is no comparison; numbers of collectives are then unknown.
    """

    lines: tuple[RankLine, ...]
    collectives: int | None = None
    matched: int | None = None
    matched_by: Literal["seq", "order", "mixed"] | None = None
    missing_ranks: int = 0
    waits_are_bounds: bool = False
    job_lost_ns: int | None = None
    why_not: str | None = None


class DropShare(Struct, frozen=True, kw_only=True):
    """A class's or family's share of the device's work inside a drop, and outside all drops.

    Work is the sum of the durations of kernels, copies and fills; `outside_ratio` is None where all
    of the trace lies inside drops.
    """

    name: str
    inside_ratio: float
    outside_ratio: float | None


class TracedDrop(Struct, frozen=True, kw_only=True):
    """A drop of one GPU's busy clock while it was traced: when, how deep, what ran, and its cause.

    `classes` and `families`, those whose share differs most first, are what ran: no claim of cause.
    `steps` are the numbers of the first and the last step that it touches. The drop may reach
    beyond the trace: all other figures are of the whole drop. `end_unix_ns` is None where it had
    not ended with the last sample, to which the figures then are. `lost_ns` is against the clock
    before the drop (`reference_mhz`), not the highest; `power_w` and `temperature_c` are means.
    """

    gpu: str | None
    rank: int | None
    device: int
    start_unix_ns: int
    end_unix_ns: int | None
    duration_ns: int
    reference_mhz: float
    mean_mhz: float
    lowest_mhz: float
    lost_ns: int
    by_cause_ns: Mapping[str, int]
    power_w: float | None = None
    temperature_c: float | None = None
    steps: tuple[int, int] | None = None
    classes: tuple[DropShare, ...] = ()
    families: tuple[DropShare, ...] = ()


class Finding(Struct, frozen=True, kw_only=True):
    """One entry of the closed catalogue of findings: what is wrong, and what to do about it.

    `bound_ns` is the most that the action can save in a step, on the basis of `basis`: the peers,
    the waterfall's row, or sensitivity times loss; None for findings about the measurement.
    `command` verifies it.
    """

    code: str
    title: str
    evidence: tuple[str, ...]
    bound_ns: int | None
    basis: Literal["peers", "row", "beta", "none"]
    gpu: str | None
    rank: int | None
    action: str
    command: str


class StepTimeline(Struct, frozen=True, kw_only=True):
    """What a device ran in one step, and the samples of its clock: to be drawn, not computed with.

    Times are in units of `unit_ns`, from the row's start on. `lanes` has for each class of kernels
    that ran [gap, length, gap, length, ...]: a gap is the time since the interval before (the first
    since the start); intervals closer than a few units are one. `samples` has five values each: the
    time since the sample before (the first since the start), the clock in MHz, the power in W,
    what ran ("compute", "comm", "copy", "idle"), and why the clock was limited; None is unknown.
    They are those of the step's time, of very many every `every`th, and the nearest in compute
    before and after it, so that the first time may be negative. Samples in compute further apart
    than `most_apart_ns` say nothing of the time between them; None without samples.
    """

    job: str | None
    run: str | None
    rank: int | None
    step: int
    device: int
    gpu: str | None
    start_unix_ns: int | None
    window_ns: int
    unit_ns: int
    most_apart_ns: int | None = None
    every: int = 1
    lanes: Mapping[str, tuple[int, ...]]
    samples: tuple[int | float | str | None, ...] = ()
