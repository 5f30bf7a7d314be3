"""How many holders a row has room for; its sums stay whole."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.holding import HELD_ROWS, HeldTotals
from chopperd.model.report_rows import OTHER_PARTS
from chopperd.model.timeline import Holder
from chopperd.report.build.holders import held_of, held_over, most_of_step
from tests.unit.report.documents import totals_only

PREP, COMM = HELD_ROWS.index("idle_launch_prep"), HELD_ROWS.index("exposed_comm")


def totals(rows: list[tuple[int, int, int, int]], holders: tuple[Holder, ...]) -> HeldTotals:
    """Rows of window, waterfall row, holder and ns; half of each ns is in the call."""
    window, row, holder, time_ns = (np.array(each, np.int64) for each in zip(*rows, strict=True))
    return HeldTotals(
        window=window,
        row=row,
        holder=holder,
        time_ns=time_ns,
        in_call_ns=time_ns // 2,
        late_host_ns=time_ns * (row == COMM),
        host_waits_ns=np.zeros(len(rows), np.int64),
        count=np.ones(len(rows), np.int64),
        holders=holders,
    )


def test_the_largest_of_a_row_come_first_and_rows_in_the_waterfalls_order() -> None:
    holders = (Holder("a", "operator", "x", "w", "r"), Holder("b", "frame"))
    found = held_of(
        totals([(0, COMM, 1, 8), (0, PREP, 0, 5), (0, PREP, 1, 9), (1, PREP, 0, 1)], holders), 0, 10
    )
    assert [(each.row, each.name, each.time_ns) for each in found] == [
        ("exposed_comm", "b", 8),
        ("idle_launch_prep", "b", 9),
        ("idle_launch_prep", "a", 5),
    ]
    assert (found[0].late_host_ns, found[0].in_call_ns, found[0].kind) == (8, 4, "frame")
    assert (found[2].inner, found[2].whole, found[2].region) == ("x", "w", "r")


def test_too_many_lose_first_what_is_innermost_and_then_are_one() -> None:
    """By hand: a's two are 7 together, then b 6, c 5; with room for two, c and d are the others."""
    holders = (
        *(Holder("a", "operator", inner) for inner in ("x", "y")),
        *(Holder(name, "operator", "z") for name in "bcd"),
    )
    made = totals([(0, PREP, holder, ns) for holder, ns in enumerate((3, 4, 6, 5, 2))], holders)
    found = held_of(made, 0, 2)
    assert [(each.name, each.inner, each.time_ns) for each in found] == [
        ("a", None, 7),
        ("b", None, 6),
        (OTHER_PARTS, None, 7),
    ]
    assert (found[-1].kind, found[-1].count, found[-1].in_call_ns) == ("none", 2, 3)
    assert [each.name for each in held_of(made, 0, 3)] == ["a", "b", "c", "d"]


def test_without_stacks_there_are_none() -> None:
    assert held_of(None, 0, 10) == ()


@pytest.mark.parametrize(("steps", "most"), [(0, 40), (100, 40), (400, 20), (10_000, 12)])
def test_the_more_steps_the_fewer_entries_each(steps: int, most: int) -> None:
    assert most_of_step(steps) == most


def test_holders_of_several_rows_add_up_in_the_waterfalls_order() -> None:
    holders = (Holder("a", "operator", "x"), Holder("b", "frame"))
    made = totals([(0, PREP, 0, 5), (1, COMM, 1, 2), (1, PREP, 0, 6)], holders)
    rows = [replace(totals_only().totals[0], held=held_of(made, index, 10)) for index in (0, 1)]
    found = held_over(rows)
    assert [(each.row, each.name, each.time_ns, each.count) for each in found] == [
        ("exposed_comm", "b", 2, 1),
        ("idle_launch_prep", "a", 11, 2),
    ]
