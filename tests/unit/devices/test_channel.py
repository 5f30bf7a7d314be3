from collections.abc import Callable

import pytest

from chopperd.devices.channel import (
    PROBE_INTERVAL_NS,
    Call,
    Channel,
    DeviceFaults,
    Gauge,
    VendorErrors,
)
from chopperd.devices.plausible import Bounds
from chopperd.errors import (
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from tests.fakes.clock import ScriptedClock


class VendorError(Exception):
    def __init__(self, means: type[DeviceError]) -> None:
        super().__init__(means.__name__)
        self.means = means


def classify(error: Exception, operation: str, device_index: int) -> DeviceError:
    assert isinstance(error, VendorError)
    return error.means("it failed", operation=operation, device_index=device_index)


def device_faults(clock: ScriptedClock | None = None) -> DeviceFaults:
    vendor = VendorErrors(base=VendorError, classify=classify)
    return DeviceFaults(0, vendor, clock or ScriptedClock())


class Driver:
    """Answers from a script, item by item, and counts how often it is asked."""

    def __init__(self, *script: float | type[DeviceError]) -> None:
        self._script = list(script)
        self.asked = 0

    def read(self) -> float:
        self.asked += 1
        answer = self._script.pop(0)
        if isinstance(answer, type):
            raise VendorError(answer)
        return answer


def call(read: Callable[[], float], source: str | None = None) -> Call[float]:
    return Call(operation=f"read_{source}", read=read, source=source)


def test_an_absent_field_costs_one_call_a_minute() -> None:
    clock = ScriptedClock()
    driver = Driver(UnsupportedFieldError, UnsupportedFieldError, 7)
    channel = Channel(device_faults(clock), call(driver.read))
    assert [channel.value(), channel.value()] == [None, None]
    assert driver.asked == 1
    clock.advance(PROBE_INTERVAL_NS)
    assert [channel.value(), channel.value()] == [None, None]
    assert driver.asked == 2
    clock.advance(PROBE_INTERVAL_NS)
    assert channel.value() == 7


def test_a_field_that_vanishes_is_asked_for_again_after_a_minute() -> None:
    clock = ScriptedClock()
    driver = Driver(5, UnsupportedFieldError, 6, 7)
    channel = Channel(device_faults(clock), call(driver.read))
    assert [channel.value(), channel.value(), channel.value()] == [5, None, None]
    clock.advance(PROBE_INTERVAL_NS)
    assert [channel.value(), channel.value()] == [6, 7]


def test_an_older_call_takes_over_where_the_newer_one_does_not_exist() -> None:
    newer, older = Driver(UnsupportedFieldError), Driver(1, 2)
    channel = Channel(device_faults(), call(newer.read, "new"), call(older.read, "old"))
    assert [channel.value(), channel.value()] == [1, 2]
    assert channel.source == "old"
    assert newer.asked == 1


def test_a_source_once_chosen_is_never_exchanged() -> None:
    clock = ScriptedClock()
    newer, older = Driver(1, UnsupportedFieldError, TransientDeviceError, 4), Driver()
    channel = Channel(device_faults(clock), call(newer.read, "new"), call(older.read, "old"))
    assert [channel.value(), channel.value()] == [1, None]
    clock.advance(PROBE_INTERVAL_NS)
    assert [channel.value(), channel.value()] == [None, 4]
    assert (channel.source, older.asked) == ("new", 0)


def test_a_passing_failure_does_not_hand_over_to_the_older_call() -> None:
    newer, older = Driver(TransientDeviceError, 3), Driver()
    channel = Channel(device_faults(), call(newer.read, "new"), call(older.read, "old"))
    assert [channel.value(), channel.source] == [None, None]
    assert [channel.value(), channel.source] == [3, "new"]


def test_passing_failures_are_counted_and_remembered_for_the_look() -> None:
    faults = device_faults()
    driver = Driver(TransientDeviceError, TransientDeviceError)
    channel = Channel(faults, call(driver.read, "x"))
    channel.value()
    channel.value()
    assert faults.failed_total == {"read_x": 2}
    assert isinstance(faults.transient, TransientDeviceError)
    assert isinstance(faults.transient.__cause__, VendorError)
    faults.begin_look()
    assert faults.transient is None


def test_absence_is_no_failure() -> None:
    faults = device_faults()
    Channel(faults, call(Driver(UnsupportedFieldError).read)).value()
    assert not faults.failed_total
    assert faults.transient is None


def test_a_lost_device_is_raised_at_once() -> None:
    faults = device_faults()
    with pytest.raises(DeviceLostError):
        Channel(faults, call(Driver(DeviceLostError).read, "x")).value()
    assert faults.failed_total == {"read_x": 1}


def test_a_kind_of_failure_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    channel = Channel(device_faults(), call(Driver(*[TransientDeviceError] * 3).read))
    for _ in range(3):
        channel.value()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_absurd_values_are_dropped_and_counted() -> None:
    faults = device_faults()
    driver = Driver(0, 1, 10_000, 10_001, float("nan"))
    gauge = Gauge(faults, "sm_clock_mhz", Bounds(1, 10_000), call(driver.read))
    assert [gauge.value() for _ in range(5)] == [None, 1, 10_000, None, None]
    assert faults.implausible_total == {"sm_clock_mhz": 3}
