import pytest

from chopperd.traces.decode import Complete
from chopperd.traces.salvage import Salvage, salvage
from tests.layouts import complete_event, encode

GOOD = encode(complete_event("kernel", "good", 1, 2))


def names(found: Salvage) -> list[str]:
    return [event.name for event in found.events if isinstance(event, Complete)]


@pytest.mark.parametrize(
    "bad",
    [
        rb'{"ph": "X", "name": "C:\app\new\model.py(12): run", "ts": 1}',
        b'{"ph": "X", "name": "{"device": "cpu"}(3): init", "ts": 1}',
        b'{"ph": "X", "name": "tab\there", "ts": 1}',
        rb'{"ph": "X", "name": "ends with \", "ts": 1}',
        b'{"ph": "X" "name": "x"}',
        b'{"ph": "X", "args": {"l": [{"name": 1}, {"name": 2}], "bad": "a"b"}, "ts": 1}',
    ],
)
@pytest.mark.parametrize("comma", [b",", b",\n  "])
def test_a_damaged_event_costs_itself_alone(bad: bytes, comma: bytes) -> None:
    text = comma.join([GOOD, bad, GOOD, bad, bad, GOOD, bad]) + b'], "name": [{"name": 1}]}'
    found = salvage(text, final=True)
    assert names(found) == ["good"] * 3
    assert (found.damaged, found.undecodable) == (4, 0)
    assert found.ended
    assert found.rest == b', "name": [{"name": 1}]}'


def test_pieces_of_a_damaged_event_are_not_taken_for_events() -> None:
    bad = b'{"args": {"bad": "a"b", "l": [{"name": 1}, {"name": 2}]}, "ph": "X"}'
    found = salvage(b",".join([GOOD, bad, GOOD, bad]) + b"]}", final=True)
    assert (names(found), found.damaged, found.undecodable) == (["good", "good"], 2, 0)
    assert found.rest == b"}"


def test_elements_that_are_no_events_are_counted_and_passed() -> None:
    found = salvage(b'null, 5, [{"ph": "X"}], {"name": "x"},' + GOOD + b",]", final=True)
    assert names(found) == ["good"]
    assert (found.damaged, found.undecodable, found.ended) == (0, 4, True)


def test_an_unfinished_event_is_left_for_the_next_piece() -> None:
    found = salvage(GOOD + b"," + GOOD[:-5], final=False)
    assert names(found) == ["good"]
    assert found.rest == GOOD[:-5]
    assert not found.ended


def test_a_damaged_last_event_is_left_for_the_next_piece_too() -> None:
    bad = b'{"ph": "X", "name": "a"b"'
    found = salvage(GOOD + b"," + bad, final=False)
    assert (found.rest, found.damaged) == (bad, 0)


def test_a_file_cut_inside_an_event_has_that_event_neither_read_nor_counted() -> None:
    found = salvage(GOOD + b"," + GOOD[:20], final=True)
    assert (names(found), found.damaged, found.undecodable) == (["good"], 0, 0)
    assert found.rest == GOOD[:20]


def test_damage_before_a_cut_is_still_counted() -> None:
    bad = b'{"ph": "X", "name": "a"b"}'
    found = salvage(b",".join([GOOD, bad, GOOD[:20]]), final=True)
    assert (names(found), found.damaged, found.rest) == (["good"], 1, GOOD[:20])


def test_a_missing_bracket_and_a_trailing_comma_are_no_damage() -> None:
    for ending in (b"", b",", b" ,\n", b"\n"):
        found = salvage(GOOD + ending, final=True)
        assert (names(found), found.damaged, found.rest, found.ended) == (["good"], 0, b"", False)


def test_a_number_at_the_end_of_a_piece_may_go_on() -> None:
    found = salvage(b"[1],12", final=False)
    assert (found.undecodable, found.rest) == (1, b"12")
    assert salvage(b"[1],12", final=True).undecodable == 2
