import json
import logging

from chopperd.logs import JsonFormatter


def record_of(message: str, *arguments: object) -> logging.LogRecord:
    record = logging.LogRecord("chopperd.x", logging.WARNING, __file__, 1, message, arguments, None)
    record.created = 1_700_000_000.25
    return record


def test_a_json_line_has_time_level_logger_and_message() -> None:
    assert json.loads(JsonFormatter().format(record_of("kept %d Hz\nof %d", 61, 100))) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "logger": "chopperd.x",
        "message": "kept 61 Hz\nof 100",
    }


def test_a_json_line_stays_one_line_with_an_exception() -> None:
    record = record_of("failed")
    error = ValueError("bad")
    record.exc_info = (ValueError, error, None)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: bad")
