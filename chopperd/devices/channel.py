"""Driver calls that may be absent or fail, one device's each; nothing vendor-specific."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from chopperd.clock import Clock
from chopperd.devices.plausible import Bounds
from chopperd.errors import (
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

T = TypeVar("T")
NumberT = TypeVar("NumberT", bound=float)

#: An absent field is asked for again after this long: drivers learn fields when settings change.
PROBE_INTERVAL_NS: Final = 60 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorErrors:
    """How a binding raises: its base class, and what one of its errors means for the caller."""

    base: type[Exception]
    classify: Callable[[Exception, str, int], DeviceError]


class DeviceFaults:
    """What goes wrong on one device: classed, counted, and logged the first time.

    Attributes:
        clock: Times the next probe of absent fields.
        vendor_error: The class that the binding raises.
        failed_total: Failed calls by operation, absent fields apart.
        implausible_total: Dropped values by field.
        transient: The last failure of the look in progress; None if there was none.
    """

    def __init__(self, device_index: int, vendor: VendorErrors, clock: Clock) -> None:
        self.clock = clock
        self.vendor_error = vendor.base
        self.failed_total: Counter[str] = Counter()
        self.implausible_total: Counter[str] = Counter()
        self.transient: TransientDeviceError | None = None
        self._classify = vendor.classify
        self._device_index = device_index
        self._told: set[tuple[str, type[DeviceError]]] = set()

    def begin_look(self) -> None:
        """Forget the failures of the look before."""
        self.transient = None

    def absent(self, error: Exception, operation: str) -> bool:
        """Take a vendor error: True if it says that the device does not have this field.

        Raises:
            DeviceLostError: The error says that the device is gone.
        """
        failure = self._classify(error, operation, self._device_index)
        failure.__cause__ = error
        self._tell_once(failure)
        if isinstance(failure, UnsupportedFieldError):
            return True
        self.failed_total[operation] += 1
        if isinstance(failure, DeviceLostError):
            raise failure
        if isinstance(failure, TransientDeviceError):
            self.transient = failure
        return False

    def plausible(self, field: str, value: float, bounds: Bounds) -> bool:
        """Whether a value is inside its bounds; counted where it is not."""
        if value in bounds:
            return True
        self.implausible_total[field] += 1
        return False

    def _tell_once(self, failure: DeviceError) -> None:
        key = (failure.operation, type(failure))
        if key in self._told:
            return
        self._told.add(key)
        level = logging.INFO if isinstance(failure, UnsupportedFieldError) else logging.WARNING
        logger.log(level, "%s", failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One way to ask a driver for a value.

    Attributes:
        operation: The vendor's name of the call, for errors and counts.
        read: Asks; raises the vendor's error.
        source: What tells this way from its alternatives ("v2", "instant").
    """

    operation: str
    read: Callable[[], T]
    source: str | None = None


class Channel(Generic[T]):
    """A value of one device that may be absent, with the ways to ask for it, best first.

    The first way that answers is kept for good: two sources of one number differ (memory v1
    counts the driver's reserve), and a change between samples would look like an event.
    """

    def __init__(self, faults: DeviceFaults, *calls: Call[T]) -> None:
        self._faults = faults
        self._calls = calls
        self._answers = False
        self._source: str | None = None
        self._probe_mono_ns = 0

    @property
    def source(self) -> str | None:
        """Which way answers; None until one has."""
        return self._source

    @property
    def answers(self) -> bool:
        """Whether the device was found to have the field, and not to lack it since."""
        return self._answers

    def value(self) -> T | None:
        """Ask the driver; None while the field is absent, or when this call failed.

        Raises:
            DeviceLostError: The driver says that the device is gone.
        """
        faults = self._faults
        if not self._answers and faults.clock.mono_ns() < self._probe_mono_ns:
            return None
        for call in self._calls:
            try:
                value = call.read()
            except faults.vendor_error as error:
                if faults.absent(error, call.operation):
                    continue
                return None
            if not self._answers:
                self._keep(call)
            return value
        self._answers = False
        self._probe_mono_ns = faults.clock.mono_ns() + PROBE_INTERVAL_NS
        return None

    def _keep(self, call: Call[T]) -> None:
        self._calls = (call,)
        self._source = call.source
        self._answers = True


class Gauge(Channel[NumberT]):
    """A channel for one field of a reading; values outside its bounds are dropped and counted."""

    def __init__(
        self, faults: DeviceFaults, field: str, bounds: Bounds, *calls: Call[NumberT]
    ) -> None:
        super().__init__(faults, *calls)
        self._field = field
        self._bounds = bounds
        self._low, self._high = bounds.low, bounds.high

    def value(self) -> NumberT | None:
        """Ask the driver; None while absent, when this call failed, or where it is absurd.

        Raises:
            DeviceLostError: The driver says that the device is gone.
        """
        value = super().value()
        # Compared here first: almost every value is plausible, and this runs for each tick.
        if value is None or self._low <= value <= self._high:
            return value
        return value if self._faults.plausible(self._field, value, self._bounds) else None
