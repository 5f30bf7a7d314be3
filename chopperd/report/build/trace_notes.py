"""Make notes on a trace file: what it lacks, what it lost, and which times are doubtful."""

import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Final

import numpy as np

from chopperd.model.report import LostKind, Note
from chopperd.model.samples import SampleSet
from chopperd.model.timeline import (
    ACCUMULATION_IRREGULAR,
    ClockDrift,
    DeviceTimeline,
    StepSource,
    Timeline,
)
from chopperd.model.trace import MOST_DETAILS, Damage, Trace
from chopperd.report.text.wording import count, percent, plural
from chopperd.traces.timeline.iterations import repeating_annotation
from chopperd.units import NS_PER_MS, NS_PER_US

_PLACE_IN_JOB: Final = re.compile(r"(?<![a-z])[tdpec]p[-_]?\d", re.IGNORECASE)
REPEATING_ANNOTATIONS: Final = "repeating_annotations"


def trace_notes(
    trace: Trace, timeline: Timeline, samples: SampleSet | None, *, stepped: bool
) -> list[Note]:
    """Return the notes on a trace, basic ones first; `stepped`: the wall clock stepped in it."""
    in_name = _PLACE_IN_JOB.search(Path(trace.meta.path).name)
    basic = noted(
        no_device_records=not timeline.devices and "no kernel or copy of a GPU in the trace",
        no_samples=samples is None and "no clock samples of its time",
        rank_unknown=trace.meta.rank is None
        and in_name
        and "rank unknown: TP, DP, PP or EP in a file's name is a place in the job's layout, not a "
        "rank; the rank is known where the name has rank0, rank1, ...",
        no_timebase=not trace.meta.anchored
        and f"{_missing_anchor(trace.damage)}: clocks can't be joined",
        time_axes_differ=stepped
        and "the wall clock stepped inside the trace: clocks lie on another time axis there; no "
        "interval",
    )
    later = (*_timeline_notes(timeline, trace.damage), *_launch_notes(trace, timeline))
    return [*basic, *damage_notes(trace.damage), *later]


def _missing_anchor(damage: Damage) -> str:
    """Return why a trace has no wall-clock anchor: Kineto writes it after the events."""
    if damage.truncated or damage.still_written or damage.unclosed:
        return "the file is cut short before its wall-clock anchor (baseTimeNanoseconds)"
    if damage.unreadable_keys:
        return "the trace's wall-clock anchor (baseTimeNanoseconds) is damaged"
    return "no wall-clock anchor in the trace (baseTimeNanoseconds)"


def noted(**texts: object) -> list[Note]:
    """Return a note for each text that is not empty or false; its code is the argument name."""
    return [
        Note(code=code, text=text) for code, text in texts.items() if text and isinstance(text, str)
    ]


def _timeline_notes(timeline: Timeline, damage: Damage) -> list[Note]:
    cut = damage.truncated or damage.still_written
    cycles = max((step.cycle for step in timeline.steps), default=0)
    owners = {step.process for step in timeline.steps}
    irregular = sum(ACCUMULATION_IRREGULAR in step.partial_reasons for step in timeline.steps)
    read_less = cut or damage.invalid_records or damage.damaged_events or damage.damaged_args
    why_lost = "" if read_less else ": dropped by the profiler"
    launches, unlinked = timeline.launch_count, timeline.unlinked_records
    lost_count = launches - timeline.recorded_launch_count
    totals_only = ": totals only" if timeline.devices else ""
    return noted(
        no_steps=timeline.step_source is StepSource.NONE
        and f"no step markers in the trace{totals_only}",
        steps_of_engine=timeline.step_source is StepSource.STEP_MARKER
        and "steps are the annotations of a serving engine's iterations, or those that the step "
        "marker names: work launched between them is in no step",
        step_marker_unmatched=timeline.unmatched_marker
        and f"nothing in the trace is named like the step marker {timeline.unmatched_marker}",
        approximate_steps=timeline.step_source is StepSource.GPU_ROWS
        and "steps are cut at GPU-side rows: approximate",
        step_numbers_again=cycles
        and f"step numbers come again: {cycles + 1} profiler cycles in the file; later cycles are "
        "numbered on from the one before",
        accumulation_irregular=irregular
        and f"{plural(irregular, 'step')} of more micro-steps than others, as where fp16 skips the "
        "optimizer: left out of step times",
        several_processes=len(owners) > 1
        and f"{len(owners)} processes with steps in the file: each has its own steps; the rank is "
        "the file's",
        unlinked_records=unlinked
        and f"{plural(unlinked, 'device record')} without a launch in the file: counted by time "
        "only",
        launches_without_record=lost_count > 0
        and f"{lost_count} of {launches} launches left no record{why_lost}; the time in which "
        "their work may have run is unknown, not idle",
    )


def _launch_notes(trace: Trace, timeline: Timeline) -> list[Note]:
    stepless = timeline.devices and timeline.step_source is StepSource.NONE
    repeats, of_graphs = repeating_annotation(trace) if stepless else None, timeline.graph_records
    return noted(
        repeating_annotations=repeats
        and f"the annotation {repeats.name} comes {repeats.times} times, perhaps once a step: "
        f"--step-marker {quote(repeats.marker)} (traces.step_marker) makes steps of it",
        graph_launches=of_graphs
        and f"{plural(of_graphs, 'device record')} of graph launches: which layers they are of is "
        "not known",
    )


def lost_by_kind(damage: Damage, timeline: Timeline) -> Mapping[str, int]:
    """Return the number of losses by `LostKind`, without kinds of which there are none.

    Launches without a record are those that the profiler lost, or reading did.
    """
    derived = {
        **_invalid_records(damage),
        LostKind.LAUNCHES_WITHOUT_RECORD: timeline.launch_count - timeline.recorded_launch_count,
    }
    # Other kinds have the names of the counts in `Damage`.
    numbers = {k.value: derived[k] if k in derived else getattr(damage, k) for k in LostKind}
    return {kind: number for kind, number in numbers.items() if number}


#: What is noted of each count of `Damage`: the noun, and what follows the count; code is the name.
_DAMAGE: Final = {
    "damaged_events": ("event", "that can't be read: left out; their work is in no figure"),
    "damaged_args": (
        "event",
        "with details (args) that can't be read: name and times are used; what they communicated, "
        "or their launch, may be unknown",
    ),
    "undecodable_events": ("event", "with impossible values: left out of all figures"),
    "further_events": (
        "event",
        "in further lists or documents of the file: only the first list is read",
    ),
    "invalid_records": (
        "device record",
        "with impossible times{which}: left out of all figures; their launches count as without "
        "record",
    ),
    "duplicate_records": ("device record", "there twice: counted once"),
    "duplicate_rows": ("row", "of the host there twice: counted once"),
    "rows_without_detail": (
        "row",
        f"with a collective or shapes beyond the {count(MOST_DETAILS)} that are distinguished: "
        "what they communicated, or their FLOPs, are unknown",
    ),
    "frames_left_out": (
        "Python frame",
        "shorter than {shortest_us} us left out: who held the GPU for so short may be unknown",
    ),
    "cut_records": (
        "device record",
        "lasted far past later ones of the stream, which runs one at a time: ends stamped late, "
        "cut to the start of the next",
    ),
    "overrun_records": (
        "device record",
        "ended after the next of the stream had started: busy time counts that once, families' "
        "times count it twice",
    ),
}


def damage_notes(damage: Damage) -> list[Note]:
    """Return notes on what the file lost, and what that does to the figures."""
    cut = damage.truncated or damage.still_written
    shortest_us = damage.shortest_frame_ns // NS_PER_US
    which, counts = _of_which(damage), {code: getattr(damage, code) for code in _DAMAGE}
    return noted(
        incomplete=cut and "the file is cut short: whole events were used",
        not_closed=damage.unclosed and not cut and "the file lacks its closing brackets",
        unreadable_keys=damage.unreadable_keys
        and "what the file says of itself can't all be read: rank or time base may be missing",
        **{
            code: counts[code]
            and f"{plural(counts[code], noun)} {text.format(which=which, shortest_us=shortest_us)}"
            for code, (noun, text) in _DAMAGE.items()
        },
    )


def _invalid_records(damage: Damage) -> dict[LostKind, int]:
    known = damage.zeroed_records + damage.outlying_records
    return {
        LostKind.NEGATIVE_RECORDS: damage.invalid_records - known,
        LostKind.ZEROED_RECORDS: damage.zeroed_records,
        LostKind.OUTLYING_RECORDS: damage.outlying_records,
    }


def _of_which(damage: Damage) -> str:
    words = {
        LostKind.NEGATIVE_RECORDS: "with a negative duration or none",
        LostKind.ZEROED_RECORDS: "with neither start nor length",
        LostKind.OUTLYING_RECORDS: "far beyond all other rows",
    }
    numbers = _invalid_records(damage).items()
    parts = [f"{count(number)} {words[kind]}" for kind, number in numbers if number]
    return f" ({', '.join(parts)})" if parts else ""


#: The end of one record is the start of the next to this much: Kineto's times are cut to ns.
_TOUCH_NS: Final = 1
#: Fewer neighbours, or a smaller share of them, get no note.
_FEWEST: Final = 10
_NOTABLE_RATIO: Final = 0.2
_PER_MILLION: Final = 1e6


def rocm_notes(device: DeviceTimeline, runtime: str | None) -> list[Note]:
    """Return notes on the times of a device of a ROCm trace; none on others.

    Source: MI300X firmware before ROCm 6.4.2 gave wrong times (ROCm/legacy-rocm-build#4079,
        ROCm/roctracer#105: kernels end as the next begins); a real trace of HIP 7.2 has them too.
    """
    if runtime != "rocm":
        return []
    drift, early = device.drift, device.early_count
    touching, neighbours = _touching(device)
    return noted(
        rocm_clock_drift=drift and drift.misleads and _drift(device.device, drift, early),
        rocm_touching_kernels=neighbours >= _FEWEST
        and touching >= _NOTABLE_RATIO * neighbours
        and f"{percent(touching / neighbours)} % of {count(neighbours)} records on device "
        f"{device.device} end as the next begins: their ends are not measured, and idle time "
        "between kernels is counted as busy",
    )


def _drift(device: int, drift: ClockDrift, early_count: int) -> str:
    rate, low, high = (
        f"{ratio * _PER_MILLION:+.3g}" for ratio in (drift.ratio, drift.low_ratio, drift.high_ratio)
    )
    early = f"; {plural(early_count, 'record')} before the launch" if early_count else ""
    return (
        f"launches and kernels of device {device} drift apart by {rate} ppm [{low}, {high}], "
        f"{drift.apart_ns / NS_PER_MS:.3g} ms over the file{early}: which of the two is off is not "
        "known and nothing is corrected; idle time derived from launches, and the join, are "
        "uncertain by that"
    )


def _touching(device: DeviceTimeline) -> tuple[int, int]:
    """Count records that end as the next on their stream begins, and records that have a next."""
    order = np.lexsort((device.end_ns, device.start_ns, device.stream))
    stream = device.stream[order]
    same = stream[1:] == stream[:-1]
    gap_ns = device.start_ns[order][1:] - device.end_ns[order][:-1]
    return int(np.count_nonzero(same & (abs(gap_ns) <= _TOUCH_NS))), int(np.count_nonzero(same))
