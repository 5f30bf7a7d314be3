"""What must be said of one trace and its devices: why something is missing or to be doubted."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from chopperd.correlate.causes import false_causes
from chopperd.correlate.join import JoinedDevice
from chopperd.model.devices import Vendor
from chopperd.model.kinds import CAUSES
from chopperd.model.report import Note, Reference
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.timeline import ACCUMULATION_IRREGULAR, StepSource, Timeline
from chopperd.model.trace import Damage, Trace
from chopperd.report.build.clocks import (
    AVERAGES,
    above_reference,
    compute_rows,
    reference_doubt,
    sensor_conditions,
)
from chopperd.report.build.rows import dies_of
from chopperd.report.build.trace_faults import damage_notes
from chopperd.report.text.wording import percent, plural, whole, words
from chopperd.traces.timeline.host import repeating_annotation
from chopperd.units import NS_PER_MS, NS_PER_S

#: Fewer samples of one clock may be chance.
_MIN_LOCKED_SAMPLES: Final = 30
PLACE_IN_JOB: Final = re.compile(r"(?<![a-z])[tdpec]p[-_]?\d", re.IGNORECASE)
REPEATING_ANNOTATIONS: Final = "repeating_annotations"


def trace_notes(
    trace: Trace, timeline: Timeline, samples: SampleSet | None, *, stepped: bool
) -> list[Note]:
    """Notes of one trace, the most basic first.

    Args:
        trace: As read.
        timeline: As laid out.
        samples: Of the node; None if there are none.
        stepped: Whether the wall clock stepped inside the trace.
    """
    return [
        *_basic_notes(trace, timeline, samples, stepped=stepped),
        *damage_notes(trace.damage),
        *_timeline_notes(timeline, trace.damage),
        *_launch_notes(trace, timeline),
    ]


def _noted(conditions: Iterable[tuple[bool, str, str]]) -> list[Note]:
    """A note for each condition that holds: (condition, code, text)."""
    return [Note(code=code, text=text) for holds, code, text in conditions if holds]


def _basic_notes(
    trace: Trace, timeline: Timeline, samples: SampleSet | None, *, stepped: bool
) -> list[Note]:
    """What decides whether there are figures and clocks at all."""
    return _noted(
        (
            (not timeline.devices, "no_device_records", "no kernel or copy of a GPU in the trace"),
            (samples is None, "no_samples", "no clock samples of its time"),
            (
                trace.meta.rank is None and bool(PLACE_IN_JOB.search(Path(trace.meta.path).name)),
                "rank_unknown",
                "rank unknown: TP, DP, PP or EP in a file's name is a place in the job's layout, "
                "not a rank; the rank is known where the name has rank0, rank1, ...",
            ),
            (
                not trace.meta.anchored,
                "no_timebase",
                "no wall-clock anchor in the trace (baseTimeNanoseconds): clocks can't be joined",
            ),
            (
                stepped,
                "time_axes_differ",
                "the wall clock stepped inside the trace: clocks lie on another time axis there; "
                "no interval",
            ),
        )
    )


def _timeline_notes(timeline: Timeline, damage: Damage) -> list[Note]:
    """What the events lack of steps and links."""
    cut = damage.truncated or damage.still_written
    cycles = max((step.cycle for step in timeline.steps), default=0)
    owners = {step.process for step in timeline.steps}
    irregular = sum(ACCUMULATION_IRREGULAR in step.partial_reasons for step in timeline.steps)
    read_less = cut or damage.invalid_records or damage.damaged_events or damage.damaged_args
    why_lost = "" if read_less else ": dropped by the profiler"
    lost_count = timeline.launch_count - timeline.recorded_launch_count
    return _noted(
        (
            (
                timeline.step_source is StepSource.NONE,
                "no_steps",
                "no step markers in the trace" + (": totals only" if timeline.devices else ""),
            ),
            (
                timeline.step_source is StepSource.GPU_ROWS,
                "approximate_steps",
                "steps are cut at GPU-side rows: approximate",
            ),
            (
                bool(cycles),
                "step_numbers_again",
                f"step numbers come again: {cycles + 1} profiler cycles in the file; later cycles "
                "are numbered on from the one before",
            ),
            (
                irregular > 0,
                "accumulation_irregular",
                f"{plural(irregular, 'step')} of more micro-steps than others, as where fp16 skips "
                "the optimizer: left out of step times",
            ),
            (
                len(owners) > 1,
                "several_processes",
                f"{len(owners)} processes with steps in the file: each has its own steps; the rank "
                "is the file's",
            ),
            (
                bool(timeline.unlinked_records),
                "unlinked_records",
                f"{plural(timeline.unlinked_records, 'device record')} without a launch in the "
                "file: counted by time only",
            ),
            (
                lost_count > 0,
                "launches_without_record",
                f"{lost_count} of {timeline.launch_count} launches left no record{why_lost}; "
                "the time in which their work may have run is unknown, not idle",
            ),
        )
    )


def _launch_notes(trace: Trace, timeline: Timeline) -> list[Note]:
    """What annotations and graph launches tell, and what not."""
    stepless = timeline.devices and timeline.step_source is StepSource.NONE
    repeats = repeating_annotation(trace) if stepless else None
    name, times = repeats or ("", 0)
    of_graphs = timeline.graph_records
    return _noted(
        (
            (
                repeats is not None,
                REPEATING_ANNOTATIONS,
                f"the annotation {name} comes {times} times, perhaps once a step: steps are told "
                "by ProfilerStep and Optimizer.step only",
            ),
            (
                of_graphs > 0,
                "graph_launches",
                f"{plural(of_graphs, 'device record')} of graph launches: which layers they are of "
                "is not known",
            ),
        )
    )


def doubt_notes(
    joined: JoinedDevice,
    mine: GpuSamples | None,
    reference: Reference,
    same_model: Sequence[GpuSamples] = (),
) -> list[Note]:
    """Why a device's figures may be wrong by more than any interval says; none where they are not.

    Args:
        joined: The device with its GPU's samples.
        mine: The samples of its GPU.
        reference: Its reference clock.
        same_model: Samples of the GPUs of its model: one that is held low next to others that run
            higher says nothing against the reference.
    """
    clocks = joined.clocks
    if clocks is None or mine is None:
        return []
    found, gpu = clocks.belonging, mine.gpu.gpu
    apart_ns = found.apart_ns or 0
    is_moved = apart_ns and apart_ns == clocks.lag.lag_ns
    opposite = "idle" if found.says == "busy" else "busy"
    doubt = reference_doubt(clocks, mine, (mine, *same_model), reference.sm_clock_mhz)
    return _noted(
        (
            (
                found.apart_ns is not None,
                "time_axes_differ",
                f"the samples of GPU {gpu} lie {abs(apart_ns) / NS_PER_MS:.0f} ms "
                f"{'before' if apart_ns < 0 else 'behind'} the trace, more than any sensor lags: "
                "their times are of another clock or another run; "
                f"{'moved by that, ' if is_moved else ''}no interval",
            ),
            (
                found.says is not None,
                "samples_contradict_trace",
                f"the samples of GPU {gpu} say {found.says} for most of the time in which the trace"
                f" is {opposite}: they are of another GPU or time (--device-map); no interval",
            ),
            (
                bool(doubt),
                "reference_doubtful",
                f"the reference clock of GPU {gpu} {doubt} (--reference-mhz); no interval",
            ),
        )
    )


def device_notes(
    joined: JoinedDevice,
    samples: SampleSet | None,
    mine: GpuSamples | None,
    reference: Reference,
    why_unmapped: str | None = None,
    *,
    in_agent: bool = False,
) -> list[Note]:
    """Why a device's clocks, losses or energy are unknown.

    Args:
        joined: The device with its GPU's samples.
        samples: Of the node, where they can be joined; None if not.
        mine: The samples of its GPU; None if it was not mapped to one.
        reference: Its reference clock.
        why_unmapped: What kept it from being mapped, in words, where that can be said.
        in_agent: Whether the agent makes the report.
    """
    if samples is None:
        return []
    if mine is None:
        device = joined.timeline.device
        text = f"device {device} of the trace is not mapped to a sampled GPU"
        text += f": {why_unmapped}" if why_unmapped else ""
        return [Note(code="device_unmapped", text=f"{text}; {_remedy(device, samples, in_agent)}")]
    above = above_reference(joined.clocks, reference)
    conditions = (
        (bool(above), "clock_above_reference", above),
        (joined.clocks is None, "no_overlap", _why_apart(joined, mine)),
        (
            reference.sm_clock_mhz is None,
            "no_reference",
            f"no reference clock for GPU {mine.gpu.gpu} (--reference-mhz)",
        ),
        (
            joined.clocks is not None
            and mine.gpu.parent is None
            and not np.isfinite(mine.energy_j).any(),
            "no_energy",
            f"the samples of GPU {mine.gpu.gpu} have no energy counter",
        ),
    )
    shared = (
        mine.gpu.parent is not None,
        "shared_clock_domain",
        f"GPU {mine.gpu.gpu} is a part of GPU {mine.gpu.parent}: clock, causes, power limit and "
        "temperature are those of the whole card; the part's energy is not known",
    )
    return [
        *_noted((*conditions, *sensor_conditions(joined, mine), *_power_conditions(mine), shared)),
        *_false_cause_notes(samples, mine),
        *_lock_notes(joined, mine, reference),
        *_dies_notes(joined, mine),
    ]


def _false_cause_notes(samples: SampleSet, mine: GpuSamples) -> list[Note]:
    """Which limits were left out since they are set whatever the GPU does."""
    whose = mine.gpu.parent or mine.gpu.gpu
    false = [false_causes(each) for each in samples.gpus if each.gpu.gpu == whose]
    names = " and ".join(words(c.label) for c in CAUSES if any(c.bit & bits for bits in false))
    text = (
        f"GPU {mine.gpu.gpu} reports the limit {names} also while it is idle and cool: it says "
        "nothing there, and is left out of the causes"
    )
    return [Note(code="cause_ignored", text=text)] if names else []


def _lock_notes(joined: JoinedDevice, mine: GpuSamples, reference: Reference) -> list[Note]:
    """The hint that a clock is locked: no driver has a call that gives it."""
    clocks, top_mhz = joined.clocks, reference.sm_clock_mhz
    if clocks is None or top_mhz is None or mine.gpu.sm_clock_limit_mhz is not None:
        return []
    rows = compute_rows(clocks)
    found_mhz = np.unique(clocks.samples.clock_mhz[rows])
    is_held = len(found_mhz) == 1 and len(rows) >= _MIN_LOCKED_SAMPLES
    if not is_held or found_mhz[0] >= top_mhz or mine.causes[clocks.kept[rows]].any():
        return []
    shown = "amd-smi metric --clock" if mine.gpu.vendor is Vendor.AMD else "nvidia-smi -q -d CLOCK"
    text = (
        f"GPU {mine.gpu.gpu} computes at {whole(found_mhz[0])} MHz all the time, of "
        f"{whole(top_mhz)}, and no limit is reported: it looks locked ({shown}); if it is, set "
        f"reference.limit_mhz = {whole(found_mhz[0])}, and the loss is its user's limit"
    )
    return [Note(code="looks_locked", text=text)]


def _remedy(device: int, samples: SampleSet, in_agent: bool) -> str:
    """What to do about a device that is not mapped, where the report is made."""
    gpus = f"sampled: {', '.join(each.gpu.gpu for each in samples.gpus) or 'none'}"
    if not in_agent:
        return f"say which it is with --device-map [RANK:]{device}=GPU ({gpus})"
    return (
        f"say which it is with traces.device_map or POST /api/v1/traces?device_map={device}=GPU "
        f"({gpus}), or give the agent the host's pid namespace (hostPID)"
    )


def _power_conditions(mine: GpuSamples) -> tuple[tuple[bool, str, str], ...]:
    """What the power of a GPU is not."""
    gpu = mine.gpu
    over = "1 s" if gpu.power_source == "average_1s" else "a time that is not known"
    return (
        (
            gpu.power_source in AVERAGES,
            "power_averaged",
            f"power readings of GPU {gpu.gpu} are averaged over {over}: not used for steps "
            "shorter than 1 s",
        ),
        (
            gpu.power_source == "card",
            "card_power",
            f"power and energy of GPU {gpu.gpu} are those of its card, with the GPU beside it",
        ),
    )


def _dies_notes(joined: JoinedDevice, mine: GpuSamples) -> list[Note]:
    """Whose clock it is, of a GPU whose dies have clocks of their own."""
    clocks = joined.clocks
    if clocks is None:
        return []
    whole_file = len(clocks.windows) - 1
    dies, own_mhz = dies_of(mine, clocks, whole_file), clocks.compute.mean_mhz[whole_file]
    if dies is None:
        return []
    die = "XCD" if mine.gpu.vendor is Vendor.AMD else "die"
    text = f"the clock of GPU {mine.gpu.gpu} is its governing die's, mostly {die} {dies.governing}"
    if dies.running > 1:
        ratio = dies.mean_mhz / own_mhz - 1
        away = f"{percent(abs(ratio))} % {'lower' if ratio < 0 else 'higher'}"
        text += f"; the mean of {dies.running} running dies is {away}"
    if dies.gated:
        text += f"; {plural(dies.gated, 'die')} left out while off"
    return [Note(code="several_dies", text=text)]


def _why_apart(joined: JoinedDevice, mine: GpuSamples) -> str:
    """How the samples of a GPU and the trace miss one another."""
    whose = f"of GPU {mine.gpu.gpu}"
    clocked_ns = mine.t_unix_ns[np.isfinite(mine.sm_clock_mhz)]
    if not len(clocked_ns):
        return f"no sample {whose} has a clock"
    windows = joined.times.windows
    start_ns, end_ns = int(windows.start_ns[-1]), int(windows.end_ns[-1])
    ahead_ns, behind_ns = start_ns - int(clocked_ns[-1]), int(clocked_ns[0]) - end_ns
    if ahead_ns > 0:
        return f"the samples {whose} end {_seconds(ahead_ns)} before the trace begins"
    if behind_ns >= 0:
        return f"the samples {whose} begin {_seconds(behind_ns)} after the trace ends"
    return f"too few samples {whose} fall into the trace's time"


def _seconds(time_ns: int) -> str:
    """Three digits, or all whole seconds where there are more."""
    time_s = time_ns / NS_PER_S
    return f"{time_s:.3g} s" if time_s < 999.5 else f"{time_s:,.0f} s"
