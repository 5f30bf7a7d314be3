"""What a question to a driver says of itself, and the clock of several dies."""

from chopperd.model.devices import FieldProbe, lowest_running_mhz


def test_a_question_is_answered_where_the_driver_gave_no_error() -> None:
    assert FieldProbe(operation="nvmlDeviceGetClockInfo", feeds="sm_clock_mhz", value=0).answers
    refused = FieldProbe(operation="nvmlDeviceGetSamples", feeds=None, error="Not Supported")
    assert not refused.answers


def test_the_clock_of_dies_is_the_lowest_of_those_that_run() -> None:
    assert lowest_running_mhz([1900.0, 0.0, 140.0, 1800.0, None]) == 1800.0
    assert lowest_running_mhz([132.0, 90.0]) == 90.0
    assert lowest_running_mhz([0.0, None]) is None
