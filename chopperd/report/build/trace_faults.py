"""What a trace file lost, by kind: counts for the document, and a line each for people."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from chopperd.model.report import LostKind, Note
from chopperd.model.timeline import ClockDrift, DeviceTimeline, Timeline
from chopperd.model.trace import MOST_DETAILS, Damage
from chopperd.report.text.wording import count, percent, plural
from chopperd.units import NS_PER_MS


def lost_by_kind(damage: Damage, timeline: Timeline) -> Mapping[str, int]:
    """How much is missing or was left out, only kinds of which there is any.

    Args:
        damage: What reading lost.
        timeline: Its launches without a record are what the profiler lost, or reading did.
    """
    kinds = {
        LostKind.DAMAGED_EVENTS: damage.damaged_events,
        LostKind.DAMAGED_ARGS: damage.damaged_args,
        LostKind.UNDECODABLE_EVENTS: damage.undecodable_events,
        LostKind.FURTHER_EVENTS: damage.further_events,
        **_invalid_records(damage),
        LostKind.DUPLICATE_RECORDS: damage.duplicate_records,
        LostKind.DUPLICATE_ROWS: damage.duplicate_rows,
        LostKind.CUT_RECORDS: damage.cut_records,
        LostKind.ROWS_WITHOUT_DETAIL: damage.rows_without_detail,
        LostKind.LAUNCHES_WITHOUT_RECORD: timeline.launch_count - timeline.recorded_launch_count,
    }
    return {kind.value: number for kind, number in kinds.items() if number}


def damage_notes(damage: Damage) -> list[Note]:
    """What the file lost, and what that does to the figures."""
    return [
        Note(code=code, text=text)
        for holds, code, text in (*_as_a_whole(damage), *_rows(damage))
        if holds
    ]


def _as_a_whole(damage: Damage) -> tuple[tuple[bool, str, str], ...]:
    cut = damage.truncated or damage.still_written
    return (
        (cut, "incomplete", "the file is cut short: whole events were used"),
        (damage.unclosed and not cut, "not_closed", "the file lacks its closing brackets"),
        (
            damage.unreadable_keys,
            "unreadable_keys",
            "what the file says of itself can't all be read: rank or time base may be missing",
        ),
    )


def _rows(damage: Damage) -> tuple[tuple[int, str, str], ...]:
    return (
        (
            damage.damaged_events,
            "damaged_events",
            f"{plural(damage.damaged_events, 'event')} that can't be read: left out; work of which "
            "they told is in no figure",
        ),
        (
            damage.damaged_args,
            "damaged_args",
            f"{plural(damage.damaged_args, 'event')} with details (args) that can't be read: kept "
            "with name and times; what they communicated, or their launch, may be unknown",
        ),
        (
            damage.undecodable_events,
            "undecodable_events",
            f"{plural(damage.undecodable_events, 'event')} with impossible values: left out of all "
            "figures",
        ),
        (
            damage.further_events,
            "further_events",
            f"{plural(damage.further_events, 'event')} in further lists or documents of the file: "
            "only the first list is read",
        ),
        (
            damage.invalid_records,
            "invalid_records",
            f"{plural(damage.invalid_records, 'device record')} with impossible times"
            f"{_of_which(damage)}: left out of all figures; their launches count as without record",
        ),
        (
            damage.duplicate_records,
            "duplicate_records",
            f"{plural(damage.duplicate_records, 'device record')} there twice: counted once",
        ),
        (
            damage.duplicate_rows,
            "duplicate_rows",
            f"{plural(damage.duplicate_rows, 'row')} of the host there twice: counted once",
        ),
        (
            damage.rows_without_detail,
            "rows_without_detail",
            f"{plural(damage.rows_without_detail, 'row')} with a collective or shapes beyond the "
            f"{count(MOST_DETAILS)} that are told apart: what they communicated, or their FLOPs, "
            "are unknown",
        ),
        (
            damage.cut_records,
            "cut_records",
            f"{plural(damage.cut_records, 'device record')} lasted far past later ones of the "
            "stream, which runs one at a time: ends stamped late, cut to the start of the next",
        ),
        (
            damage.overrun_records,
            "overrun_records",
            f"{plural(damage.overrun_records, 'device record')} ended after the next of the stream "
            "had started: busy time counts that once, families' times count it twice",
        ),
    )


def _invalid_records(damage: Damage) -> dict[LostKind, int]:
    """The records left out for their times, by what is wrong with them."""
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
    parts = [
        f"{count(number)} {words[kind]}"
        for kind, number in _invalid_records(damage).items()
        if number
    ]
    return f" ({', '.join(parts)})" if parts else ""


# What must be said of the times in a ROCm trace: clocks that drift, ends that are no ends.

#: The end of one record is the start of the next to this much: Kineto's times are cut to ns.
_TOUCH_NS: Final = 1
#: Of fewer neighbours, or a smaller share of them, nothing is said.
_FEWEST: Final = 10
_NOTABLE_RATIO: Final = 0.2
_PER_MILLION: Final = 1e6


def rocm_notes(device: DeviceTimeline, runtime: str | None) -> list[Note]:
    """Notes on the times of a device of a ROCm trace; none on others.

    Source: MI300X firmware before ROCm 6.4.2 gave wrong times (ROCm/legacy-rocm-build#4079,
        ROCm/roctracer#105: kernels end as the next begins); a real trace of HIP 7.2 has them too.
    """
    if runtime != "rocm":
        return []
    notes = []
    if device.drift is not None and device.drift.misleads:
        text = _drift(device.device, device.drift, device.early_count)
        notes.append(Note(code="rocm_clock_drift", text=text))
    touching, neighbours = _touching(device)
    if neighbours >= _FEWEST and touching >= _NOTABLE_RATIO * neighbours:
        text = (
            f"{percent(touching / neighbours)} % of {count(neighbours)} records on device "
            f"{device.device} end as the next begins: their ends are not measured, and idle time "
            "between kernels is counted as busy"
        )
        notes.append(Note(code="rocm_touching_kernels", text=text))
    return notes


def _drift(device: int, drift: ClockDrift, early_count: int) -> str:
    rate, low, high = (
        f"{ratio * _PER_MILLION:+.3g}" for ratio in (drift.ratio, drift.low_ratio, drift.high_ratio)
    )
    early = f"; {plural(early_count, 'record')} before the launch" if early_count else ""
    return (
        f"launches and kernels of device {device} drift apart by {rate} ppm [{low}, {high}], "
        f"{drift.apart_ns / NS_PER_MS:.3g} ms over the file{early}: which of the two is off is not "
        "known and nothing is corrected; idle time told by launches, and the join, are uncertain "
        "by that"
    )


def _touching(device: DeviceTimeline) -> tuple[int, int]:
    """Records that end as the next on their stream begins, and how many have a next."""
    order = np.lexsort((device.end_ns, device.start_ns, device.stream))
    stream, start_ns, end_ns = (
        column[order] for column in (device.stream, device.start_ns, device.end_ns)
    )
    same = stream[1:] == stream[:-1]
    gap_ns = start_ns[1:] - end_ns[:-1]
    return int(np.count_nonzero(same & (abs(gap_ns) <= _TOUCH_NS))), int(np.count_nonzero(same))
