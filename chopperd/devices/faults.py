"""Classifies, counts and logs a device's failed driver calls; makes and times calls."""

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from chopperd.clock import Clock
from chopperd.errors import (
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from chopperd.model.devices import FieldProbe, GpuInfo, GpuProcess
from chopperd.plausible import PID

logger = logging.getLogger(__name__)

T = TypeVar("T")
E = TypeVar("E", bound=DeviceError)


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorErrors:
    """A binding's class of errors, and the function that turns one into a `DeviceError`.

    `classify` takes the error, the operation and the GPU's index.
    """

    base: type[Exception]
    classify: Callable[[Exception, str, int], DeviceError]


class CallFailedError(Exception):
    """A call that reads several numbers failed, which is already noted."""

    def __init__(self, *, is_absent: bool) -> None:
        super().__init__()
        self.is_absent = is_absent  # whether the device does not have the call


class DeviceFaults:
    """Classifies one device's failed calls, and stores which call gives each of its fields."""

    def __init__(self, device_index: int, vendor: VendorErrors, clock: Clock) -> None:
        self.clock = clock  # times the next probe of absent fields
        self.selected: dict[str, str] = {}  # operation that gives a field, from its first value on
        self.revision = 0  # rises when a change of what answers makes read plans outdated
        self.vendor_error = vendor.base
        self.implausible_total: Counter[str] = Counter()  # number of dropped values by field
        self.transient: TransientDeviceError | None = None  # last failure of the read in progress
        self._classify = vendor.classify
        self._device_index = device_index
        self._logged: set[tuple[str, type[DeviceError]]] = set()

    def select(self, name: str, operation: str) -> None:
        """Store that this operation gives a field from now on, and raise `revision`."""
        self.selected[name] = operation
        self.revision += 1

    def begin_read(self) -> None:
        """Clear the failure of the previous read."""
        self.transient = None

    def classified(self, error: Exception, operation: str) -> DeviceError:
        """Return the `DeviceError` for a vendor's error; not raised, counted or logged here."""
        return self._classify(error, operation, self._device_index)

    def lost(self, text: str, operation: str) -> DeviceLostError:
        """Return a `DeviceLostError` for a reason that is not a vendor's error; not raised here."""
        return DeviceLostError(
            f"GPU {self._device_index}: {text}",
            operation=operation,
            device_index=self._device_index,
        )

    def is_absent(self, error: Exception, operation: str) -> bool:
        """Log an error once; return whether the device lacks the field; raises DeviceLostError."""
        failure = self.classified(error, operation)
        failure.__cause__ = error
        self._log_once(failure)
        if isinstance(failure, UnsupportedFieldError):
            return True
        if isinstance(failure, DeviceLostError):
            raise failure
        if isinstance(failure, TransientDeviceError):
            self.transient = failure
        return False

    def processes(
        self, operation: str, listed: Callable[[], Iterable[GpuProcess]]
    ) -> tuple[GpuProcess, ...] | None:
        """Return the processes that `listed` gives; None where the device lacks the call.

        Processes with an impossible pid are dropped and counted.
        """
        self.begin_read()
        try:
            found = tuple(listed())
        except self.vendor_error as error:
            self.is_absent(error, operation)
            if self.transient is not None:
                raise self.transient from error
            return None
        plausible = tuple(each for each in found if each.pid in PID)
        if len(plausible) < len(found):
            self.implausible_total["processes"] += len(found) - len(plausible)
        return plausible

    def _log_once(self, failure: DeviceError) -> None:
        key = (failure.operation, type(failure))
        if key in self._logged:
            return
        self._logged.add(key)
        level = logging.INFO if isinstance(failure, UnsupportedFieldError) else logging.WARNING
        logger.log(level, "%s", failure)


def failed_call(
    kind: type[E], text: str, *, operation: str, device_index: int, code: int | None, shown: str
) -> E:
    """Return the error of a call that failed, of a kind; `shown`: the vendor's code as text."""
    return kind(
        f"GPU {device_index}: {operation} failed: {text}{shown}",
        operation=operation,
        device_index=device_index,
        vendor_code=code,
    )


def as_kind(failure: DeviceError, kind: type[E]) -> E:
    """Return a failure with the same details as another kind of error."""
    return kind(
        str(failure),
        operation=failure.operation,
        device_index=failure.device_index,
        vendor_code=failure.vendor_code,
    )


def not_listed(device: GpuInfo, operation: str) -> DeviceLostError:
    """Return the error for a GPU that a back end does not have."""
    text = f"GPU {device.gpu} ({device.uuid}) is not one of this driver's"
    return DeviceLostError(text, operation=operation, device_index=device.index)


def counts_by_gpu(counts: Iterable[tuple[str, Counter[str]]]) -> dict[tuple[str, str], int]:
    """Merge counters of several GPUs, by GPU label and name; other threads may go on counting."""
    return {(gpu, name): count for gpu, each in counts for name, count in dict(each).items()}


class CallsHangError(Exception):
    """The calls for a GPU do not return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait for the calls of one GPU: all waits must fit into the caller's limit."""

    first_s: float  # while no calls have hung
    later_s: float  # once some have


class TimedCalls:
    """Makes the calls for each GPU in a new thread, and stops waiting after a timeout."""

    def __init__(self, what: str) -> None:
        self._what = what  # name of the calls in the error ("its first calls")
        self._hung: list[threading.Thread] = []

    @property
    def hang(self) -> bool:
        """Whether any calls that timed out have still not returned; for any thread."""
        return any(thread.is_alive() for thread in self._hung)

    def answer(self, ask: Callable[[], T], timeouts: Timeouts) -> T:
        """Run `ask` in a thread and return its result; a result after the timeout is dropped.

        Raises:
            CallsHangError: `ask` did not return in time.
            Exception: Any error that `ask` raises.
        """
        answers: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(ask())
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                errors.append(error)

        # Not a daemon: the process must not end inside a driver call.
        thread = threading.Thread(target=run, name="chopperd-timed-calls")
        thread.start()
        thread.join(timeouts.later_s if self._hung else timeouts.first_s)
        if thread.is_alive():
            self._hung.append(thread)
            raise CallsHangError(f"{self._what} do not return")
        for error in errors:
            raise error
        return answers[0]

    def wait(self) -> None:
        """Wait until all calls that timed out have returned."""
        for thread in self._hung:
            thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProber:
    """Makes calls several times and times them; failures are not counted in `faults`."""

    faults: DeviceFaults  # classifies errors, and stores which call gives each field
    calls_count: int  # number of times that a call that answers is made

    def is_selected(self, field: str, operation: str) -> bool:
        """Return whether this operation gives a field now."""
        return self.faults.selected.get(field) == operation

    def base(
        self, field: str, operation: str, source: str | None, unit: str, label: str | None = None
    ) -> FieldProbe:
        """Return the probe of a call for a field before it is made; `label`: its name, if other."""
        return FieldProbe(
            operation=label or operation,
            feeds=field,
            source=source,
            used=self.is_selected(field, operation),
            unit=unit,
        )

    def asked(
        self, base: FieldProbe, ask: Callable[[], float | None], most: int | None = None
    ) -> FieldProbe:
        """Make a call repeatedly; return `base` with the last answer and call times, or the error.

        `most` limits the number of calls where one takes long. Raises DeviceLostError.
        """
        spans_ns: list[int] = []
        value, clock = None, self.faults.clock
        for _ in range(max(min(self.calls_count, most or self.calls_count), 1)):
            started_ns = clock.mono_ns()
            try:
                value = ask()
            except (self.faults.vendor_error, CallFailedError) as error:
                failed = self._failed(base, error)
                if not spans_ns:
                    return failed
                break
            spans_ns.append(clock.mono_ns() - started_ns)
        return replace(
            base,
            value=value,
            calls_count=len(spans_ns),
            call_p50_ns=_quantile(spans_ns, 0.5),
            call_p99_ns=_quantile(spans_ns, 0.99),
        )

    def _failed(self, base: FieldProbe, error: Exception) -> FieldProbe:
        base = replace(base, used=False, calls_count=1)
        if isinstance(error, CallFailedError):
            return replace(base, error="not reported")
        failure = self.faults.classified(error, base.operation)
        if isinstance(failure, DeviceLostError):
            raise failure from error
        return replace(base, error=str(error), error_code=failure.vendor_code)


def used_if_answered(*probes: FieldProbe) -> tuple[FieldProbe, ...]:
    """Mark the first probe that answers as used, for a field that is read once at the start."""
    first = next((probe for probe in probes if probe.answers), None)
    return tuple(replace(probe, used=probe is first) for probe in probes)


def _quantile(spans_ns: list[int], share: float) -> int:
    """Return the smallest of the values that at least this share of them do not exceed."""
    return sorted(spans_ns)[max(0, math.ceil(share * len(spans_ns)) - 1)]
