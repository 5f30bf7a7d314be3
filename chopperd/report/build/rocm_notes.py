"""What must be said of the times in a ROCm trace: clocks that drift, ends that are no ends."""

from typing import Final

import numpy as np

from chopperd.model.report import Note
from chopperd.model.timeline import ClockDrift, DeviceTimeline
from chopperd.report.text.wording import count, percent, plural
from chopperd.units import NS_PER_MS

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
