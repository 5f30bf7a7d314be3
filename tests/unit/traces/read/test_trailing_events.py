"""Events behind the event array, in texts written by hand."""

import pytest

from chopperd.traces.read.document import trailing_events

ONE = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2}'


@pytest.mark.parametrize(
    ("tail", "count"),
    [
        (b"}", 0),
        (b"", 0),
        (b',"traceName":"a"}\n', 0),
        (b',"note":"\\"traceEvents\\":["}', 0),
        (b',"other":{"traceEvents":[' + ONE + b"]}}", 0),
        (b',"traceEvents":[' + ONE + b"," + ONE + b"]}", 2),
        (b',"traceEvents":[],"a":1,"traceEvents":[' + ONE + b"]}", 1),
        (b'}\n{"schemaVersion":1,"traceEvents":[' + ONE + b"," + ONE + b"]}", 2),
        (b'}{"traceEvents":[' + ONE + b',{"ph":"X","na', 1),
        (b'}{"traceEvents":[' + ONE + b',{"ph":x},' + ONE + b"]}", 3),
    ],
)
def test_events_of_further_lists_and_documents_are_counted(tail: bytes, count: int) -> None:
    assert trailing_events(tail) == count


def test_only_a_few_lists_are_looked_for() -> None:
    assert trailing_events((b',"traceEvents":[' + ONE + b"]") * 9) == 8
