"""Drops of a GPU's busy clock, as they are found, kept and told: data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from chopperd.model.causes import Cause


class DropState(StrEnum):
    """How a drop stands: it goes on, or why it ended.

    `RECOVERED`: the clock came back. `NEW_LEVEL`: it lasted so long that the low clock is what
    later drops are told against. `INTERRUPTED`: for a minute the GPU was not busy or its clock not
    known, or the agent ended; what the clock did then is not known.
    """

    OPEN = "open"
    RECOVERED = "recovered"
    NEW_LEVEL = "new_level"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDrop:
    """A drop of one GPU's busy clock, on the time axis of its samples.

    Attributes:
        state: How it stands.
        begin_ns, end_ns: The first low sample, and the first one after it that is not; where it
            did not recover, the last one seen. None while it is open.
        length_s: From begin to end; while it is open, to the last busy sample.
        busy_s: Busy time in it.
        reference_mhz: The busy clock that it is told against: frozen at its onset.
        lowest_mhz: Lowest mean over a window; of the whole drop where that is shorter.
        mean_mhz: Busy mean over the drop.
        lost_s: Busy time lost against the reference.
        lost_by_cause_s: The same by the limits in force; it holds no zeros.
        onset_power_w, mean_power_w: Power just before, and mean over it; None if not reported.
        onset_temperature_c, mean_temperature_c: Temperature likewise.
    """

    state: DropState
    begin_ns: int
    end_ns: int | None
    length_s: float
    busy_s: float
    reference_mhz: float
    lowest_mhz: float
    mean_mhz: float
    lost_s: float
    lost_by_cause_s: Mapping[Cause, float] = field(default_factory=dict)
    onset_power_w: float | None = None
    mean_power_w: float | None = None
    onset_temperature_c: float | None = None
    mean_temperature_c: float | None = None

    @property
    def depth_ratio(self) -> float:
        """How far below the reference it went, as a share of it."""
        return 1.0 - self.lowest_mhz / self.reference_mhz

    @property
    def mean_depth_ratio(self) -> float:
        """How far below the reference it was in the mean, as a share of it."""
        return 1.0 - self.mean_mhz / self.reference_mhz

    @property
    def cause(self) -> Cause:
        """What the largest share of the loss is due to."""
        return max(self.lost_by_cause_s, key=self.lost_by_cause_s.__getitem__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDrop:
    """A drop as it is kept and published; times are Unix times, all else is as in `ClockDrop`.

    Attributes:
        gpu, uuid: The GPU's label and identity.
        cause: Label of what the largest share of the loss is due to.
        lost_by_cause_s: By label.
    """

    gpu: str
    uuid: str
    state: DropState
    begin_unix_ns: int
    end_unix_ns: int | None
    length_s: float
    busy_s: float
    reference_mhz: float
    lowest_mhz: float
    mean_mhz: float
    depth_ratio: float
    mean_depth_ratio: float
    lost_s: float
    cause: str
    lost_by_cause_s: Mapping[str, float]
    onset_power_w: float | None
    mean_power_w: float | None
    onset_temperature_c: float | None
    mean_temperature_c: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropQuery:
    """Which drops are asked for; None asks for all.

    Attributes:
        gpu: Label or UUID of a GPU.
        from_unix_ns, to_unix_ns: Drops that overlap `[from, to)`.
    """

    gpu: str | None = None
    from_unix_ns: int | None = None
    to_unix_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTotals:
    """Drops of one GPU since the agent started; they never fall.

    Attributes:
        count: Drops, counted when they are found.
        length_s, lost_s: Their length and loss, counted when they have ended.
    """

    count: int = 0
    length_s: float = 0.0
    lost_s: float = 0.0
