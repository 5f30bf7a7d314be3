"""Driver calls of one device that may be absent, fail or hang; nothing vendor-specific."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from chopperd.clock import Clock
from chopperd.errors import (
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from chopperd.model.devices import GpuProcess
from chopperd.model.plausible import PID, Bounds
from chopperd.units import NS_PER_S

# Driver calls that may be absent or fail, one device's each; nothing vendor-specific.

logger = logging.getLogger(__name__)

#: An absent field is asked for again after this long: drivers learn fields when settings change.
PROBE_INTERVAL_NS: Final = 60 * NS_PER_S
_NEVER_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorErrors:
    """How a binding raises: its base class, and what one of its errors means for the caller."""

    base: type[Exception]
    classify: Callable[[Exception, str, int], DeviceError]


class CallFailedError(Exception):
    """The driver call that brings a number along with others failed, which is already counted.

    Attributes:
        is_absent: Whether the device does not have the call.
    """

    def __init__(self, *, is_absent: bool) -> None:
        super().__init__()
        self.is_absent = is_absent


@dataclass(slots=True)
class Choices:
    """Which call gives each field of one device, as found by asking.

    Attributes:
        kept: The operation that a field is read by for good, by field.
        revision: Rises with every change in what answers.
    """

    kept: dict[str, str] = field(default_factory=dict)
    revision: int = 0

    def keep(self, name: str, operation: str) -> None:
        """Read a field by an operation from now on."""
        self.kept[name] = operation
        self.revision += 1


class DeviceFaults:
    """What goes wrong on one device: classed, counted, and logged the first time.

    Attributes:
        clock: Times the next probe of absent fields.
        choices: Which of several ways each field is read by.
        vendor_error: The class that the binding raises.
        failed_total: Failed calls by operation, absent fields apart.
        implausible_total: Dropped values by field.
        transient: The last failure of the look in progress; None if there was none.
    """

    def __init__(self, device_index: int, vendor: VendorErrors, clock: Clock) -> None:
        self.clock = clock
        self.choices = Choices()
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

    def classified(self, error: Exception, operation: str) -> DeviceError:
        """What a vendor error means, not yet raised, counted or logged."""
        return self._classify(error, operation, self._device_index)

    def lost(self, text: str, operation: str) -> DeviceLostError:
        """The loss of the device for a reason of ours, not yet raised."""
        return DeviceLostError(
            f"GPU {self._device_index}: {text}",
            operation=operation,
            device_index=self._device_index,
        )

    def absent(self, error: Exception, operation: str) -> bool:
        """Take a vendor error: True if it says that the device does not have this field.

        Raises:
            DeviceLostError: The error says that the device is gone.
        """
        failure = self.classified(error, operation)
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

    def plausible_processes(self, found: Iterable[GpuProcess]) -> tuple[GpuProcess, ...]:
        """The processes but for those that are none; these are counted."""
        listed = tuple(found)
        kept = tuple(one for one in listed if one.pid in PID)
        if len(kept) < len(listed):
            self.implausible_total["processes"] += len(listed) - len(kept)
        return kept

    def _tell_once(self, failure: DeviceError) -> None:
        key = (failure.operation, type(failure))
        if key in self._told:
            return
        self._told.add(key)
        level = logging.INFO if isinstance(failure, UnsupportedFieldError) else logging.WARNING
        logger.log(level, "%s", failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One way to ask a driver for a number.

    Attributes:
        operation: The vendor's name of the call, for errors and counts; tells the ways of one
            field apart.
        read: Asks; the number in the field's unit. Raises the vendor's error, or
            `CallFailedError`.
        source: What tells users this way from its alternatives ("v2", "instant").
    """

    operation: str
    read: Callable[[], float]
    source: str | None = None


class Channel:
    """A number of one device that may be absent, with the ways to ask for it, best first.

    The first way that gives a believable value is kept for good: two sources of one number differ
    (memory v1 counts the driver's reserve), and a change between samples would look like an event.
    The choice is in `DeviceFaults.choices` and outlives this object. A way that has given nothing
    but absurd values for a minute makes room for the next. With no way at all it stays absent.
    """

    def __init__(self, faults: DeviceFaults, field: str, bounds: Bounds, *calls: Call) -> None:
        kept = faults.choices.kept.get(field)
        self._faults = faults
        self._field = field
        self._bounds = bounds
        self._low, self._high = bounds.low, bounds.high
        kept_calls = tuple(call for call in calls if call.operation == kept)
        self._calls = kept_calls or calls
        self._is_kept = bool(kept_calls)
        self._is_settled = False
        self._absent_until_ns: int | None = None if calls else _NEVER_NS
        self._absurd_since_ns: int | None = None

    @property
    def field(self) -> str:
        """The field of a reading that this is."""
        return self._field

    @property
    def bounds(self) -> Bounds:
        """Outside of which a value is absurd."""
        return self._bounds

    @property
    def source(self) -> str | None:
        """Which way is kept; None until one is."""
        return self._calls[0].source if self._is_kept else None

    @property
    def asked_calls(self) -> tuple[Call, ...]:
        """The ways that the next `value` may try; none while the number is absent."""
        return () if self._absent_until_ns is not None else self._calls

    @property
    def settled_call(self) -> Call | None:
        """The way that gave the last value; None if the last try gave none."""
        return self._calls[0] if self._is_settled else None

    @property
    def absent_until_ns(self) -> int | None:
        """When the number is to be asked for again; None if it is not absent, or for good."""
        return self._absent_until_ns if self._calls else None

    @property
    def is_absent(self) -> bool:
        """Whether the device is known to lack the number."""
        return self._absent_until_ns is not None

    def reopen(self, now_mono_ns: int) -> None:
        """Let an absent number be asked for again, if its time has come."""
        if self._absent_until_ns is not None and now_mono_ns >= self._absent_until_ns:
            self._absent_until_ns = None
            self._faults.choices.revision += 1

    def value(self) -> float | None:
        """Ask the driver; None while absent, when this call failed, or where it is absurd.

        Raises:
            DeviceLostError: The driver says that the device is gone.
        """
        if self._absent_until_ns is not None:
            return None
        faults = self._faults
        for call in self._calls:
            try:
                value = call.read()
            except faults.vendor_error as error:
                if faults.absent(error, call.operation):
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
            self._count_absurd(value)
            if not self._has_waited_long():
                break
        else:
            self._absent_until_ns = faults.clock.mono_ns() + PROBE_INTERVAL_NS
            faults.choices.revision += 1
        self._unsettle()
        return None

    def _count_absurd(self, value: float) -> None:
        """Count a value; not a 0 before any other, as a sensor reads that is not there."""
        if value or self._is_kept:
            self._faults.implausible_total[self._field] += 1

    def _has_waited_long(self) -> bool:
        """Whether the first way that answers has been absurd for so long that others may try."""
        if self._is_kept or len(self._calls) == 1:
            return False
        now_ns = self._faults.clock.mono_ns()
        if self._absurd_since_ns is None:
            self._absurd_since_ns = now_ns
        return now_ns - self._absurd_since_ns >= PROBE_INTERVAL_NS

    def _settle(self, call: Call) -> None:
        self._calls = (call,)
        self._is_settled = self._is_kept = True
        self._faults.choices.keep(self._field, call.operation)

    def _unsettle(self) -> None:
        if self._is_settled:
            self._is_settled = False
            self._faults.choices.revision += 1


# Driver calls for one GPU, made so that one that hangs does not hold up the others.

T = TypeVar("T")


class CallsHangError(Exception):
    """The calls for a GPU do not return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a GPU is waited for.

    Attributes:
        first_s: While none has hung.
        later_s: Once another one has: all of it together has to fit into the time of the whole.
    """

    first_s: float
    later_s: float


class PatientCalls:
    """Makes the calls for each GPU in a thread of its own; by one thread.

    Args:
        what: Names the calls, for people.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._hung: list[threading.Thread] = []

    @property
    def hang(self) -> bool:
        """Whether any that were given up have still not returned; for any thread."""
        return any(thread.is_alive() for thread in self._hung)

    def answer(self, ask: Callable[[], T], patience: Patience) -> T:
        """What the calls give; what they still give after they were given up is of no use.

        Raises:
            CallsHangError: They do not return.
            Exception: What they raise.
        """
        answers: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(ask())
            except BaseException as error:  # noqa: BLE001 - raised below, by who asked
                errors.append(error)

        # Not a daemon: the process must not end inside a driver call.
        thread = threading.Thread(target=run, name="chopperd-patient-calls")
        thread.start()
        thread.join(patience.later_s if self._hung else patience.first_s)
        if thread.is_alive():
            self._hung.append(thread)
            raise CallsHangError(f"{self._what} do not return")
        for error in errors:
            raise error
        return answers[0]

    def wait(self) -> None:
        """Wait until all have returned."""
        for thread in self._hung:
            thread.join()
