import math
from collections.abc import Callable

import pytest

from chopperd.devices.channel import PROBE_INTERVAL_NS, Call, Channel
from chopperd.devices.faults import CallFailedError, DeviceFaults, VendorErrors
from chopperd.errors import (
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from chopperd.model.devices import GpuProcess
from chopperd.plausible import CLOCK_MHZ, Bounds
from tests.fakes.clock import ScriptedClock

ANY = Bounds(-math.inf, math.inf)


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


def call(read: Callable[[], float], source: str | None = None) -> Call:
    return Call(operation=f"read_{source}", read=read, source=source)


def channel_of(faults: DeviceFaults, *calls: Call, bounds: Bounds = ANY) -> Channel:
    return Channel(faults, "field", bounds, *calls)


def pass_a_minute(clock: ScriptedClock, channel: Channel) -> None:
    clock.advance(PROBE_INTERVAL_NS)
    channel.reopen(clock.mono_ns())


def test_an_absent_field_costs_one_call_a_minute() -> None:
    clock = ScriptedClock()
    driver = Driver(UnsupportedFieldError, UnsupportedFieldError, 7)
    channel = channel_of(device_faults(clock), call(driver.read))
    assert [channel.value(), channel.value()] == [None, None]
    assert driver.asked == 1
    pass_a_minute(clock, channel)
    assert [channel.value(), channel.value()] == [None, None]
    assert driver.asked == 2
    pass_a_minute(clock, channel)
    assert channel.value() == 7


def test_a_field_that_vanishes_is_asked_for_again_after_a_minute() -> None:
    clock = ScriptedClock()
    driver = Driver(5, UnsupportedFieldError, 6, 7)
    channel = channel_of(device_faults(clock), call(driver.read))
    assert [channel.value(), channel.value(), channel.value()] == [5, None, None]
    pass_a_minute(clock, channel)
    assert [channel.value(), channel.value()] == [6, 7]


def test_an_older_call_takes_over_where_the_newer_one_does_not_exist() -> None:
    newer, older = Driver(UnsupportedFieldError), Driver(1, 2)
    channel = channel_of(device_faults(), call(newer.read, "new"), call(older.read, "old"))
    assert [channel.value(), channel.value()] == [1, 2]
    assert channel.source == "old"
    assert newer.asked == 1


def test_a_source_once_chosen_is_never_exchanged() -> None:
    clock = ScriptedClock()
    newer, older = Driver(1, UnsupportedFieldError, TransientDeviceError, 4), Driver()
    channel = channel_of(device_faults(clock), call(newer.read, "new"), call(older.read, "old"))
    assert [channel.value(), channel.value()] == [1, None]
    pass_a_minute(clock, channel)
    assert [channel.value(), channel.value()] == [None, 4]
    assert (channel.source, older.asked) == ("new", 0)


def test_a_passing_failure_does_not_hand_over_to_the_older_call() -> None:
    newer, older = Driver(TransientDeviceError, 3), Driver()
    channel = channel_of(device_faults(), call(newer.read, "new"), call(older.read, "old"))
    assert [channel.value(), channel.source] == [None, None]
    assert [channel.value(), channel.source] == [3, "new"]


def test_passing_failures_are_counted_and_remembered_for_the_look() -> None:
    faults = device_faults()
    driver = Driver(TransientDeviceError, TransientDeviceError)
    channel = channel_of(faults, call(driver.read, "x"))
    channel.value()
    channel.value()
    assert isinstance(faults.transient, TransientDeviceError)
    assert isinstance(faults.transient.__cause__, VendorError)
    faults.begin_read()
    assert faults.transient is None


def test_absence_is_no_failure() -> None:
    faults = device_faults()
    channel_of(faults, call(Driver(UnsupportedFieldError).read)).value()
    assert faults.transient is None


def test_a_lost_device_is_raised_at_once() -> None:
    faults = device_faults()
    with pytest.raises(DeviceLostError):
        channel_of(faults, call(Driver(DeviceLostError).read, "x")).value()


def test_a_kind_of_failure_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    channel = channel_of(device_faults(), call(Driver(*[TransientDeviceError] * 3).read))
    for _ in range(3):
        channel.value()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_absurd_values_are_dropped_and_counted() -> None:
    faults = device_faults()
    driver = Driver(1, 10_000, 0, 10_001, float("nan"))
    channel = channel_of(faults, call(driver.read), bounds=CLOCK_MHZ)
    assert [channel.value() for _ in range(5)] == [1, 10_000, None, None, None]
    assert faults.implausible_total == {"field": 3}


def test_a_sensor_that_is_not_there_reads_0_and_counts_as_no_fault() -> None:
    faults = device_faults()
    channel = channel_of(faults, call(Driver(0, 0, 10_001).read), bounds=CLOCK_MHZ)
    assert [channel.value() for _ in range(3)] == [None, None, None]
    assert faults.implausible_total == {"field": 1}


def test_processes_that_are_none_are_dropped_and_counted() -> None:
    faults = device_faults()
    listed = [GpuProcess(pid=pid, memory_used_bytes=1) for pid in (0, 1, 4_242, 2**32 - 1, -1)]
    assert [one.pid for one in faults.processes("list", lambda: listed) or ()] == [1, 4_242]
    assert faults.processes("list", tuple) == ()
    assert faults.implausible_total == {"processes": 3}


def test_a_first_value_that_is_absurd_hides_nothing() -> None:
    newer, older = Driver(0, 500), Driver()
    calls = call(newer.read, "new"), call(older.read, "old")
    channel = channel_of(device_faults(), *calls, bounds=CLOCK_MHZ)
    assert [channel.value(), channel.source] == [None, None]
    assert [channel.value(), channel.source] == [500, "new"]
    assert older.asked == 0


def test_a_way_that_is_absurd_for_a_minute_makes_room_for_the_next() -> None:
    clock = ScriptedClock()
    newer, older = Driver(0, 0, 0), Driver(400, 401)
    calls = call(newer.read, "new"), call(older.read, "old")
    channel = channel_of(device_faults(clock), *calls, bounds=CLOCK_MHZ)
    assert channel.value() is None
    clock.advance(PROBE_INTERVAL_NS - 1)
    assert channel.value() is None
    clock.advance(1)
    assert [channel.value(), channel.value()] == [400, 401]
    assert channel.source == "old"


def test_the_only_way_is_asked_on_however_long_it_is_absurd() -> None:
    clock = ScriptedClock()
    channel = channel_of(device_faults(clock), call(Driver(0, 0, 7).read), bounds=CLOCK_MHZ)
    assert channel.value() is None
    clock.advance(2 * PROBE_INTERVAL_NS)
    assert [channel.value(), channel.value()] == [None, 7]


def test_a_call_that_failed_for_many_is_not_counted_again() -> None:
    faults = device_faults()
    channel = channel_of(faults, call(raises_failed))
    assert channel.value() is None
    assert not channel.is_absent


def raises_failed() -> float:
    raise CallFailedError(is_absent=False)


def test_a_call_that_a_device_lacks_makes_all_its_numbers_absent() -> None:
    faults = device_faults()
    channel = channel_of(faults, call(raises_absent))
    assert channel.value() is None
    assert channel.is_absent


def raises_absent() -> float:
    raise CallFailedError(is_absent=True)


def test_a_choice_outlives_its_channel() -> None:
    faults = device_faults()
    newer, older = Driver(UnsupportedFieldError, 5), Driver(1, 2)
    calls = call(newer.read, "new"), call(older.read, "old")
    channel_of(faults, *calls).value()
    successor = channel_of(faults, *calls)
    assert successor.source == "old"
    assert successor.value() == 2
    assert newer.asked == 1


def test_what_answers_is_settled_until_it_fails() -> None:
    faults = device_faults()
    channel = channel_of(faults, call(Driver(1, 2, TransientDeviceError, 3).read))
    revisions, settled = [], []
    for _ in range(4):
        channel.value()
        revisions.append(faults.revision)
        settled.append(channel.settled_call is not None)
    assert settled == [True, True, False, True]
    assert revisions[0] == revisions[1] < revisions[2] < revisions[3]


def test_a_number_without_any_way_is_absent_for_good() -> None:
    clock = ScriptedClock()
    channel = channel_of(device_faults(clock))
    pass_a_minute(clock, channel)
    assert (channel.is_absent, channel.absent_until_ns, channel.value()) == (True, None, None)


def test_a_choice_that_is_no_way_any_more_binds_nobody() -> None:
    faults = device_faults()
    channel_of(faults, call(Driver(1).read, "old")).value()
    assert channel_of(faults).source is None
    successor = channel_of(faults, call(Driver(2).read, "other"))
    assert [successor.source, successor.value(), successor.source] == [None, 2, "other"]
