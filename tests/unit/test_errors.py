from chopperd.errors import BackendUnavailableError, ConfigError, TraceFormatError


def test_a_configuration_error_holds_all_problems_and_exits_2() -> None:
    error = ConfigError(["a must be 1..5", "b is unknown"])
    assert error.problems == ["a must be 1..5", "b is unknown"]
    assert str(error) == "a must be 1..5; b is unknown"
    assert error.exit_code == 2


def test_exit_codes_tell_no_device_from_bad_input() -> None:
    assert BackendUnavailableError("no driver").exit_code == 3
    assert TraceFormatError("not JSON", path="x", offset=3).exit_code == 4
