"""Chopper's definitions reproduced by hand, and by its own steps in plain Python."""

from dataclasses import dataclass
from functools import partial
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.traffic import ChopperKernels, ChopperTotals
from chopperd.correlate.waterfall import RowSums
from chopperd.model.kinds import KernelClass
from chopperd.model.timeline import DeviceTimeline
from tests.unit.correlate.builders import Rec, device

COMM, PACK, COPY = KernelClass.COMM, KernelClass.COMM_PACK, KernelClass.MEMCPY
SUMS: Final = (
    *("kernel_count", "kernel_ns", "launch_ns", "prep_ns", "call_ns"),
    *("first_launch_ns", "first_call_ns"),
)


def chopper_totals(timeline: DeviceTimeline) -> ChopperTotals:
    return ChopperKernels.of(timeline).totals(partial(RowSums, timeline))


def row(totals: ChopperTotals, index: int = -1) -> dict[str, int]:
    return {name: int(getattr(totals, name)[index]) for name in SUMS}


def kernel(
    start: int,
    end: int,
    call: int,
    kind: KernelClass = KernelClass.GEMM,
    *,
    step: int = 0,
    stream: int = 7,
) -> Rec:
    return Rec(start, end, kind, call=call, thread=0, step=step, stream=stream)


def test_a_kernel_a_us_before_its_call_by_its_own_clock_has_a_call_of_no_length() -> None:
    """A gap of 20 before the second: prep up to its start, nothing negative."""
    totals = chopper_totals(
        device([kernel(100, 200, 105), kernel(220, 300, 221)], windows=[(100, 300)])
    )
    assert row(totals, 0) == {
        "kernel_count": 2,
        "kernel_ns": 180,
        "launch_ns": 20,
        "prep_ns": 20,
        "call_ns": 0,
        "first_launch_ns": 0,
        "first_call_ns": 0,
    }


def test_a_gap_is_prep_until_the_launch_call_and_call_from_there_on() -> None:
    """Gaps of 20, 50, 0: calls came 10 before the end, 30 after it, and after the start."""
    totals = chopper_totals(
        device(
            [
                kernel(100, 200, 90),
                kernel(220, 300, 190),
                kernel(350, 400, 330),
                kernel(380, 450, 375, stream=8),
            ],
            windows=[(100, 450)],
        )
    )
    assert row(totals, 0) == {
        "kernel_count": 4,
        "kernel_ns": 100 + 80 + 50 + 70,
        "launch_ns": 20 + 50 + 0,
        "prep_ns": 0 + 30 + 0,
        "call_ns": 20 + 20 + 0,
        "first_launch_ns": 0,
        "first_call_ns": 10,
    }
    assert row(totals, 1) == row(totals, 0)


def test_the_previous_kernel_is_that_which_started_before_not_that_which_ended_last() -> None:
    """The third starts inside the long first one, 30 after the second's end: Chopper sees a gap."""
    totals = chopper_totals(
        device([kernel(0, 100, 0), kernel(10, 20, 0, stream=8), kernel(50, 60, 0, stream=8)])
    )
    assert row(totals)["launch_ns"] == 30


def test_steps_are_apart_and_their_first_kernels_count_from_the_first_of_all() -> None:
    """Step 1 begins with communication at 300, its compute at 340, called at 290."""
    totals = chopper_totals(
        device(
            [
                kernel(100, 200, 90),
                kernel(300, 390, 280, COMM, step=1, stream=9),
                kernel(340, 380, 290, step=1),
                kernel(400, 410, 350, step=1),
            ],
            windows=[(100, 340), (340, 410)],
        )
    )
    assert row(totals, 0)["launch_ns"] == 0
    assert row(totals, 1) == {
        "kernel_count": 2,
        "kernel_ns": 50,
        "launch_ns": 20,
        "prep_ns": 0,
        "call_ns": 20,
        "first_launch_ns": 40,
        "first_call_ns": 50,
    }
    assert row(totals) == {name: row(totals, 0)[name] + row(totals, 1)[name] for name in SUMS}


def test_communication_its_packing_copies_and_kernels_without_launch_are_left_out() -> None:
    totals = chopper_totals(
        device(
            [
                kernel(0, 10, 0),
                kernel(12, 20, 0, COMM),
                kernel(22, 30, 0, PACK),
                kernel(32, 40, 0, COPY),
                Rec(42, 50),
                kernel(60, 70, 55),
            ]
        )
    )
    found = row(totals)
    assert found["kernel_count"] == 2
    assert (found["launch_ns"], found["prep_ns"], found["call_ns"]) == (50, 45, 5)


def test_work_that_no_step_launched_is_left_out_where_there_are_steps() -> None:
    records = [kernel(0, 10, 0, step=-1), kernel(20, 30, 15)]
    assert row(chopper_totals(device(records, windows=[(0, 30)])))["kernel_count"] == 1
    assert row(chopper_totals(device([kernel(0, 10, 0, step=-1)])))["kernel_count"] == 1


def test_overlap_adds_up_communication_and_is_cut_at_each_kernel_s_length() -> None:
    """[0, 100): 60 + 60 of two at once, cut at 100; [200, 300): 25; over 200 ns of kernels."""
    totals = chopper_totals(
        device(
            [
                kernel(0, 100, 0),
                kernel(20, 80, 0, COMM, stream=8),
                kernel(30, 90, 0, COMM, stream=9),
                kernel(200, 300, 150),
                kernel(275, 320, 150, COMM, stream=8),
            ]
        )
    )
    assert totals.overlap_ratio.tolist() == pytest.approx([(100 + 25) / 200])


def test_without_compute_nothing_is_known_of_overlap() -> None:
    totals = chopper_totals(device([kernel(0, 10, 0, COMM)]))
    assert totals.kernel_count.tolist() == [0]
    assert str(totals.overlap_ratio.tolist()) == "[nan]"


@dataclass(frozen=True, slots=True)
class Launched:
    call: int
    start: int
    end: int
    comm: bool
    step: int


def launches() -> st.SearchStrategy[list[Launched]]:
    one = st.builds(
        lambda call, lag, length, comm, step: Launched(
            call, call + lag, call + lag + length, comm, step
        ),
        st.integers(0, 300),
        st.integers(0, 60),
        st.integers(0, 50),
        st.booleans(),
        st.integers(0, 2),
    )
    return st.lists(one, min_size=1, max_size=25)


def as_chopper_does(every: list[Launched], step: int) -> dict[str, float]:
    """Its data frames' steps, one kernel after another."""
    mine = sorted((k for k in every if k.step == step), key=lambda k: (k.start, k.end))
    compute = [k for k in mine if not k.comm]
    found: dict[str, float] = dict.fromkeys((*SUMS, "beside"), 0)
    for number, one in enumerate(compute):
        found["kernel_count"] += 1
        found["kernel_ns"] += one.end - one.start
        parts = [min(one.end, k.end) - max(one.start, k.start) for k in every if k.comm]
        found["beside"] += min(one.end - one.start, sum(max(0, part) for part in parts))
        if number == 0:
            found["first_launch_ns"] = one.start - mine[0].start
            found["first_call_ns"] = one.start - one.call
            continue
        before = compute[number - 1].end
        gap = max(0, one.start - before)
        found["launch_ns"] += gap
        found["prep_ns"] += max(0, one.call - before)
        found["call_ns"] += min(one.start - one.call, gap)
    return found


@given(launches())
@settings(max_examples=80, deadline=None)
def test_every_row_is_what_chopper_s_own_steps_give(every: list[Launched]) -> None:
    steps = sorted({k.step for k in every})
    kinds = {True: COMM, False: KernelClass.GEMM}
    records = [
        kernel(k.start, k.end, k.call, kinds[k.comm], step=steps.index(k.step)) for k in every
    ]
    totals = chopper_totals(device(records, windows=[(0, 500)] * len(steps)))
    for index, step in enumerate(steps):
        expected = as_chopper_does(every, step)
        assert row(totals, index) == {name: expected[name] for name in SUMS}
        assert row(totals, index)["launch_ns"] == expected["prep_ns"] + expected["call_ns"]
        if expected["kernel_ns"]:
            share = expected["beside"] / expected["kernel_ns"]
            assert totals.overlap_ratio[index] == pytest.approx(share)
