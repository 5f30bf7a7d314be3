"""Reads a device, each field by the best call that answers; checks energy counters."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from chopperd.devices.faults import CallFailedError, DeviceFaults
from chopperd.devices.read_plan import ReadPlan
from chopperd.errors import DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.plausible import Bounds
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

_NOTHING: Final = DeviceReading()

#: Time after which an absent field is probed again: drivers gain fields when settings change.
PROBE_INTERVAL_NS: Final = 60 * NS_PER_S
_NEVER_NS: Final = 1 << 62
#: Reads at the start after which a source that has not answered stays unknown.
_FIRST_READS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A driver call that reads one number."""

    operation: str  # the vendor's name of the call, for errors and counts; unique within a field
    #: Returns the number in the field's unit; raises the vendor's error or `CallFailedError`.
    read: Callable[[], float]
    source: str | None = None  # name of this call where a field has several ("v2", "instant")


class Channel:
    """Reads a field of one device, which may be absent, by calls given best first.

    The first call that gives a plausible value is used from then on: two sources of one number
    differ (memory v1 includes the driver's reserve), and a change of source would look like an
    event. The selection is stored in `DeviceFaults` and outlives this object. Before it is made, a
    call that gives only implausible values for a minute is passed over for the next one.
    """

    def __init__(self, faults: DeviceFaults, field: str, bounds: Bounds, *calls: Call) -> None:
        operation = faults.selected.get(field)
        selected = tuple(call for call in calls if call.operation == operation)
        self._faults = faults
        self.field = field
        self.bounds = bounds
        self._low, self._high = bounds.low, bounds.high
        self._calls = selected or calls
        self._is_selected = bool(selected)
        self._is_settled = False
        self._absent_until_ns: int | None = None if calls else _NEVER_NS
        self._implausible_since_ns: int | None = None

    @property
    def source(self) -> str | None:
        """Name of the selected call; None until one is selected."""
        return self._calls[0].source if self._is_selected else None

    @property
    def next_calls(self) -> tuple[Call, ...]:
        """Calls that the next `value` may make; empty while the field is absent."""
        return () if self._absent_until_ns is not None else self._calls

    @property
    def settled_call(self) -> Call | None:
        """Call that gave the last value; None if the last `value` was None."""
        return self._calls[0] if self._is_settled else None

    @property
    def absent_until_ns(self) -> int | None:
        """Monotonic time of an absent field's next probe, ns; None if not absent, or for good."""
        return self._absent_until_ns if self._calls else None

    @property
    def is_absent(self) -> bool:
        """Whether the device is known not to have the field."""
        return self._absent_until_ns is not None

    def reopen(self, now_mono_ns: int) -> None:
        """Mark an absent field as not absent if its next probe is due, so that `value` reads it."""
        if self._absent_until_ns is not None and now_mono_ns >= self._absent_until_ns:
            self._absent_until_ns = None
            self._faults.revision += 1

    def value(self) -> float | None:
        """Read the field; None while absent, failed or implausible; raises DeviceLostError."""
        if self._absent_until_ns is not None:
            return None
        faults = self._faults
        for call in self._calls:
            try:
                value = call.read()
            except faults.vendor_error as error:
                if faults.is_absent(error, call.operation):
                    continue
                break
            except CallFailedError as failure:
                if failure.is_absent:
                    continue
                break
            if self._low <= value <= self._high:
                if not self._is_settled:
                    self._settle(call)
                return value
            self._count_implausible(value)
            if not self._may_try_next():
                break
        else:
            self._absent_until_ns = faults.clock.mono_ns() + PROBE_INTERVAL_NS
            faults.revision += 1
        self._unsettle()
        return None

    def _unsettle(self) -> None:
        if self._is_settled:
            self._is_settled = False
            self._faults.revision += 1

    def _count_implausible(self, value: float) -> None:
        """Count a value, except a 0 before any other value, which means that there is no sensor."""
        if value or self._is_selected:
            self._faults.implausible_total[self.field] += 1

    def _may_try_next(self) -> bool:
        """Return whether values have been implausible for a minute; starts timing at the first."""
        if self._is_selected or len(self._calls) == 1:
            return False
        now_ns = self._faults.clock.mono_ns()
        if self._implausible_since_ns is None:
            self._implausible_since_ns = now_ns
        return now_ns - self._implausible_since_ns >= PROBE_INTERVAL_NS

    def _settle(self, call: Call) -> None:
        self._calls = (call,)
        self._is_settled = self._is_selected = True
        self._faults.select(self.field, call.operation)


#: One comparison covers at least this time, and this energy by the power.
_LONG_ENOUGH_NS: Final = 2 * NS_PER_S
_ENOUGH_J: Final = 10.0
#: Two reads further apart than this say nothing about the power between them.
_GAP_NS: Final = 3 * NS_PER_S
#: Accepted ratio of counted to expected energy. It is wide because the power may be a mean over an
#: unknown time; a counter that does not move, or is in another unit, is far outside.
_AGREE: Final = (0.6, 1.6)
#: Failed comparisons in a row that reject a counter: one may fail while the load changes.
_FAILURES: Final = 5


class Verdict(Enum):
    """Result of an `EnergyCheck` so far."""

    OPEN = auto()
    RIGHT = auto()
    WRONG = auto()


class EnergyCheck:
    """Checks an energy counter against the power reported with it before the counter is used.

    Counters that do not move (MI100), or run at another rate than their unit says, have been seen;
    on a module of processor and GPU the counter may cover both.

    Source: ROCm/amdsmi issues 38 and 115, ml-energy/zeus issue 113.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._last: tuple[int, float, float] | None = None
        self._failed_count = 0
        self.verdict = Verdict.OPEN
        self._restart()

    def take(self, mono_ns: int, energy_j: float | None, power_w: float | None) -> Verdict:
        """Add the energy and power of one read; return the verdict after it."""
        if self.verdict is not Verdict.OPEN or energy_j is None or power_w is None:
            return self.verdict
        last, self._last = self._last, (mono_ns, energy_j, power_w)
        if last is None or mono_ns - last[0] > _GAP_NS or energy_j < last[1]:
            self._restart()
            return self.verdict
        self._passed_ns += mono_ns - last[0]
        self._counted_j += energy_j - last[1]
        self._expected_j += (power_w + last[2]) / 2 * (mono_ns - last[0]) / NS_PER_S
        if self._passed_ns >= _LONG_ENOUGH_NS and self._expected_j >= _ENOUGH_J:
            self._judge()
        return self.verdict

    def _restart(self) -> None:
        self._passed_ns = 0
        self._counted_j = 0.0
        self._expected_j = 0.0

    def _judge(self) -> None:
        if _AGREE[0] <= self._counted_j / self._expected_j <= _AGREE[1]:
            self.verdict = Verdict.RIGHT
            return
        self._failed_count += 1
        if self._failed_count < _FAILURES:
            self._restart()
            return
        self.verdict = Verdict.WRONG
        logger.warning(
            "GPU %s: its counter of energy rises by %.3g J while its power makes %.3g J; not used",
            self._label,
            self._counted_j,
            self._expected_j,
        )


class GpuSensors(ABC):
    """Reads one GPU through its channels, and makes its read plans; for one thread at a time.

    What a device lacks is probed again each minute, by full reads only. A call that has once given
    a field stays selected, also for sensors that are made for the same `faults` later.
    """

    power: Channel

    def __init__(self, faults: DeviceFaults, energy_check: EnergyCheck) -> None:
        self._faults = faults
        self._energy_check = energy_check
        self._plans: dict[ReadScope, ReadPlan | None] = dict.fromkeys(ReadScope)
        self._last_plans: dict[ReadScope, ReadPlan] = {}
        self._planned_revision = -1

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether the sources of power (and memory) are known, or known to be absent."""

    @property
    def power_source(self) -> str | None:
        """Name of the power that is read (`GpuInfo.power_source`); None until one has answered."""
        return self.power.source

    @property
    def believes_energy(self) -> bool:
        """Whether the energy counter has passed its check."""
        return self._energy_check.verdict is Verdict.RIGHT

    def read(self, scope: ReadScope) -> DeviceReading:
        """Read the sensors once; fields that are absent or failed are None."""
        self._faults.begin_read()
        reading = self._reading(scope)
        failure = self._faults.transient
        if failure is not None and reading == _NOTHING:
            raise failure
        return reading

    def read_plan(self, scope: ReadScope) -> ReadPlan | None:
        """Return the plan of a read; None while a field or a check is not settled.

        Returns the same object as before while nothing changed.
        """
        if self._may_find_more(scope):
            return None
        if self._planned_revision != self._faults.revision:
            self._planned_revision = self._faults.revision
            for each in ReadScope:
                plan = self._planned(each)
                if plan is not None and plan != self._last_plans.get(each):
                    self._last_plans[each] = plan
                self._plans[each] = plan and self._last_plans[each]
        return self._plans[scope]

    @abstractmethod
    def _reading(self, scope: ReadScope) -> DeviceReading:
        """Read the sensors once, without raising a read's failure."""

    @abstractmethod
    def _may_find_more(self, scope: ReadScope) -> bool:
        """Whether a read by Python is due: for an absent field, or a check that goes on."""

    @abstractmethod
    def _planned(self, scope: ReadScope) -> ReadPlan | None:
        """Make the plan of a read, or None if `read` must be called instead."""

    def _checks_energy(self, energy: Channel) -> bool:
        """Whether the check of the energy counter is not finished."""
        is_open = self._energy_check.verdict is Verdict.OPEN
        return is_open and not (energy.is_absent or self.power.is_absent)

    def _checked_j(self, energy_j: float | None, power_w: float | None) -> float | None:
        """Check the energy counter; return it, or None until it has agreed with the power."""
        before = self._energy_check.verdict
        verdict = self._energy_check.take(self._faults.clock.mono_ns(), energy_j, power_w)
        if verdict is not before:
            self._faults.revision += 1
        return energy_j if verdict is Verdict.RIGHT else None


def settle(sensors: GpuSensors) -> DeviceLostError | None:
    """Read a GPU until its sources are known, three times at most, and log failures.

    The first call on a GPU that slept may fail. Returns the error if the GPU is lost, else None.
    """
    for _ in range(_FIRST_READS):
        try:
            sensors.read(ReadScope.FULL)
        except DeviceError as error:
            logger.warning("first read failed: %s", error)
            if isinstance(error, DeviceLostError):
                return error
        if sensors.is_settled:
            break
    return None
