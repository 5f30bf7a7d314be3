"""What a question to a driver says of itself."""

from chopperd.model.devices import FieldProbe


def test_a_question_is_answered_where_the_driver_gave_no_error() -> None:
    assert FieldProbe(operation="nvmlDeviceGetClockInfo", feeds="sm_clock_mhz", value=0).answers
    refused = FieldProbe(operation="nvmlDeviceGetSamples", feeds=None, error="Not Supported")
    assert not refused.answers
