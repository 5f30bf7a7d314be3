"""Collectives and shapes beyond those that are told apart: as if absent, and counted."""

import pytest

from chopperd.model.trace import GraphMark
from chopperd.traces.read import rows
from chopperd.traces.read.rows import BEYOND, Interner
from tests.decoders import Reading, assert_same_columns, reading

MOST = 3


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_DETAILS", MOST)


def kernel(number: int, elements: int) -> str:
    return (
        f'{{"ph":"X","cat":"kernel","name":"ncclKernel","pid":0,"tid":7,"ts":{10 * number},"dur":5,'
        f'"args":{{"device":0,"Collective name":"allreduce","In msg nelems":{elements}}}}}'
    )


def product(number: int, size: int) -> str:
    return (
        f'{{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":{10 * number},"dur":5,'
        f'"args":{{"Input Dims":[[{size},2],[2,2]],"Input type":["float","float"]}}}}'
    )


def read_alike(events: list[str]) -> Reading:
    """By both decoders, whole and in pieces."""
    text = f'{{"traceEvents":[{",".join(events)}]}}'.encode()
    found = reading(text, native=False)
    for native in (False, True):
        for piece_bytes in (1 << 20, 200, 9000):
            other = reading(text, native=native, piece_bytes=piece_bytes)
            assert_same_columns(found.tables, other.tables)
            assert other.tables.damage == found.tables.damage
    return found


def test_collectives_beyond_the_limit_are_absent_and_counted() -> None:
    """Sizes 1, 2, 3 are kept wherever they come; 4 and 5 are not: 2 x 4 and 40 x 5."""
    sizes = [1, 2, 3, 4, 2, 4, *[5] * 40, 1]
    found = read_alike([kernel(number, size) for number, size in enumerate(sizes)])
    tables = found.tables
    told = [
        tables.collectives[number].in_elements if number >= 0 else None
        for number in tables.records.collective.tolist()
    ]
    assert told == [size if size <= MOST else None for size in sizes]
    assert tables.damage.rows_without_detail == 42


def test_shapes_beyond_the_limit_are_absent_and_counted() -> None:
    found = read_alike([product(number, size) for number, size in enumerate([1, 2, 3, 4, 3, 5])])
    tables = found.tables
    told = [
        tables.shapes[number].dims if number >= 0 else None
        for number in tables.spans.shapes.tolist()
    ]
    assert told == ["[[1,2],[2,2]]", "[[2,2],[2,2]]", "[[3,2],[2,2]]", None, "[[3,2],[2,2]]", None]
    assert tables.damage.rows_without_detail == 2


def test_marks_in_graphs_are_read_and_those_beyond_the_limit_are_absent_and_counted() -> None:
    """Modules 0 and 1 and a name alone are kept; modules 2 and 3 are not. Other kinds are none."""
    marks = [
        '"module_fqn":"m.0","name":"wq","phase":"forward"',
        '"name":"all_gather","phase":null,"module_fqn":[1]',
        '"phase":{},"name":["x"]',
        '"module_fqn":"m.1","phase":7',
        '"module_fqn":"m.2"',
        '"module_fqn":"m.0","name":"wq","phase":"forward"',
        '"module_fqn":"m.3"',
        '"graph node id":3',
    ]
    events = [
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{10 * at},"dur":5,'
        f'"args":{{"device":0,{mark}}}}}'
        for at, mark in enumerate(marks)
    ]
    tables = read_alike(events).tables
    first = GraphMark(module="m.0", name="wq", phase="forward")
    told = [tables.marks[at] if at >= 0 else None for at in tables.records.mark.tolist()]
    assert told == [
        first,
        GraphMark(name="all_gather"),
        None,
        GraphMark(module="m.1", phase="7"),
        None,
        first,
        None,
        None,
    ]
    assert tables.damage.rows_without_detail == 2
    assert {tables.names[at] for at in tables.records.name.tolist()} == {"k"}


def test_just_as_many_as_are_told_apart_lose_nothing() -> None:
    found = read_alike([kernel(number, number % MOST) for number in range(9)])
    assert found.tables.damage.rows_without_detail == 0
    assert len(found.tables.collectives) == MOST


def test_a_full_table_still_knows_its_keys() -> None:
    interner: Interner[str] = Interner(2)
    assert interner.numbers(["a", "b", "c", "a"]) == [0, 1, BEYOND, 0]
    assert (interner["b"], interner["d"], len(interner)) == (1, BEYOND, 2)
