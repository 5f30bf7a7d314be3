from collections.abc import Sequence

import pytest
from msgspec import Raw

from chopperd.traces.decode import (
    Complete,
    Element,
    EventArgs,
    Fault,
    Refusal,
    event_from,
    exact_events,
    first_element,
    quick_events,
)


def fault_of(found: object) -> Fault:
    assert isinstance(found, Refusal)
    return found.fault


def only_row(found: Sequence[object] | Refusal) -> Complete[object]:
    assert not isinstance(found, Refusal)
    assert len(found) == 1
    event = found[0]
    assert isinstance(event, Complete)
    return event


def test_only_the_keys_that_columns_need_are_decoded() -> None:
    row = only_row(
        quick_events(
            b'[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,'
            b'"id":3,"args":{"device":0,"stream":7,"correlation":9,"grid":[1,1,1],'
            b'"Collective name":"allreduce"}}]'
        )
    )
    assert (row.cat, row.name, row.pid, row.tid, row.ts, row.dur) == ("kernel", "k", 0, 7, 1.5, 2)
    assert row.args == EventArgs(device=0, stream=7, correlation=9, collective="allreduce")


def test_a_phase_after_the_other_keys_is_found() -> None:
    assert only_row(quick_events(b'[{"name":"k","ts":1,"ph":"X"}]')).name == "k"


def test_fields_of_changing_type_are_accepted() -> None:
    row = only_row(
        quick_events(
            b'[{"ph":"X","pid":"Spans","tid":"stream 7",'
            b'"args":{"stream":"0x0","bytes":"512","correlation":5000000000}}]'
        )
    )
    assert (row.pid, row.tid) == ("Spans", "stream 7")
    assert row.args == EventArgs(stream="0x0", bytes="512", correlation=5_000_000_000)


def test_ids_above_int64_stay_exact() -> None:
    text = b'[{"ph":"X","args":{"correlation":25300000000000000001}}]'
    assert only_row(quick_events(text)).args == EventArgs(correlation=25300000000000000001)


@pytest.mark.parametrize(
    "time",
    [b"1750000000000121.124", b"8796093022208.001", b"-1e300", b"1.0005", b"5e-4", b"  -0.12345"],
)
def test_quick_decoding_refuses_decimals_that_float64_can_not_hold_to_the_ns(time: bytes) -> None:
    text = b'[{"ph":"X","ts":' + time + b"}]"
    assert fault_of(quick_events(text)) is Fault.INVALID
    exact = only_row(exact_events(text)).ts
    assert isinstance(exact, Raw)
    assert bytes(exact) == time.strip()


@pytest.mark.parametrize("time", [b"1750000000000121", b"8796093022207.999", b"0", b"-3.25"])
def test_quick_decoding_takes_all_other_times(time: bytes) -> None:
    row = only_row(quick_events(b'[{"ph":"X","ts":' + time + b"}]"))
    assert row.ts == float(time)


# The messages that `_refusal` reads are msgspec's; this table holds each of them.
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'[{"ph":"X"}', Fault.INCOMPLETE),
        (b'[{"ph":"X","name":"a},{', Fault.INCOMPLETE),
        (b"", Fault.INCOMPLETE),
        (b'[{"ph":"X","ts":12.', Fault.INCOMPLETE),
        (b'[{"ph":"X","ts":-', Fault.INCOMPLETE),
        (b'[{"ph":"X","ts":1e+', Fault.INCOMPLETE),
        (b'[{"ph":"X","ts":-}', Fault.MALFORMED),
        (b'[{"ph":"X"}], "traceName": 1', Fault.TRAILING),
        (b'[{"ph":"X"},]', Fault.MALFORMED),
        (b'[{"ph":"X"}{"ph":"X"}]', Fault.MALFORMED),
        (b'[{"ph":"X","name":"a"b"}]', Fault.MALFORMED),
        (b'[{"ph":"X","name":"C:\\app"}]', Fault.MALFORMED),
        (b'[{"ph":"X","name":"a\tb"}]', Fault.MALFORMED),
        (b'[{"ph":"X","ts":NaN}]', Fault.MALFORMED),
        (b'[{"ph":"X","name":"\xff"}]', Fault.BAD_TEXT),
        (b'[{"ph":"X","name":5}]', Fault.INVALID),
        (b'[{"name":"no phase"}]', Fault.INVALID),
        (b"[null]", Fault.INVALID),
    ],
)
def test_refusals_say_what_is_wrong(text: bytes, fault: Fault) -> None:
    assert fault_of(quick_events(text)) is fault
    assert fault_of(exact_events(text)) is fault


def test_deep_nesting_is_refused_and_does_not_crash() -> None:
    text = b'[{"ph":"X","args":{"x":' + b"[" * 100_000
    assert fault_of(quick_events(text)) is Fault.MALFORMED


@pytest.mark.parametrize("rest", [b", 1", b"]", b"\n  ],\n", b'{"ph":"X"}'])
def test_the_end_of_the_first_element_is_found_whatever_follows(rest: bytes) -> None:
    text = b'{"ph":"X","name":"}],{","args":{"x":[{"a":1},{"b":2}]}}'
    found = first_element(memoryview(text + rest))
    assert isinstance(found, Element)
    assert isinstance(found.event, Complete)
    assert (text + rest)[: found.size_bytes].rstrip() == text


def test_elements_that_are_no_events_are_told_from_those_that_are_no_json() -> None:
    for text in (b"null, 1", b"[1], 2", b'{"name":"no phase"}, 1', b'"ph"'):
        found = first_element(memoryview(text))
        assert isinstance(found, Element)
        assert found.event is None
    assert fault_of(first_element(memoryview(b'{"ph":"X" 1}, 1'))) is Fault.MALFORMED


def test_an_event_with_odd_fields_is_taken_field_by_field() -> None:
    event = event_from(
        {"ph": "X", "cat": None, "name": 5, "pid": None, "ts": "1.5", "dur": [], "args": "none"}
    )
    assert isinstance(event, Complete)
    assert (event.cat, event.name, event.pid, event.args) == (None, "5", None, None)
    assert isinstance(event.ts, Raw)
    assert (bytes(event.ts), event.dur) == (b'"1.5"', None)
