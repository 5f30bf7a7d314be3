"""Copies by direction, on records written by hand."""

import numpy as np

from chopperd.correlate.traffic import copy_totals
from chopperd.correlate.waterfall import COPY_DIRECTIONS
from chopperd.model.kinds import CopyDirection, KernelClass
from tests.unit.correlate.builders import Rec, device

COPY, FILL = KernelClass.MEMCPY, KernelClass.MEMSET
H2D, D2H, D2D = CopyDirection.H2D, CopyDirection.D2H, CopyDirection.D2D


def test_each_row_has_the_copies_its_step_launched_and_the_last_has_all() -> None:
    """The copy of step 0 that runs in step 1's window counts for step 0."""
    totals = copy_totals(
        device(
            [
                Rec(0, 10, COPY, H2D, step=0, copied=1000),
                Rec(20, 25, COPY, D2H, step=0, copied=300),
                Rec(120, 150, COPY, H2D, step=0, copied=2000),
                Rec(160, 170, COPY, H2D, step=1, copied=500),
                Rec(180, 190, COPY, D2D, step=-1, copied=70),
                Rec(30, 90, step=0),
            ],
            windows=[(0, 100), (100, 200)],
        )
    )
    assert COPY_DIRECTIONS == (H2D, D2H, D2D, CopyDirection.MEMSET)
    assert totals.count.tolist() == [[2, 1, 0, 0], [1, 0, 0, 0], [3, 1, 1, 0]]
    assert totals.time_ns.tolist() == [[40, 5, 0, 0], [10, 0, 0, 0], [50, 5, 10, 0]]
    assert totals.moved_bytes.tolist() == [[3000, 300, 0, 0], [500, 0, 0, 0], [3500, 300, 70, 0]]


def test_bytes_and_their_time_are_of_the_copies_of_known_size() -> None:
    totals = copy_totals(
        device([Rec(0, 10, COPY, H2D, copied=640), Rec(20, 60, COPY, H2D), Rec(70, 75, FILL)])
    )
    (count, time_ns, sized_count, sized_time_ns, copied_bytes) = (
        each[-1].tolist()
        for each in (
            totals.count,
            totals.time_ns,
            totals.sized_count,
            totals.sized_time_ns,
            totals.moved_bytes,
        )
    )
    assert count == [2, 0, 0, 1]
    assert time_ns == [50, 0, 0, 5]
    assert sized_count == [1, 0, 0, 0]
    assert sized_time_ns == [10, 0, 0, 0]
    assert copied_bytes == [640, 0, 0, 0]


def test_a_copy_of_nothing_is_of_known_size() -> None:
    totals = copy_totals(device([Rec(0, 2, COPY, D2D, copied=0)]))
    assert totals.sized_count[-1].tolist() == [0, 0, 1, 0]


def test_a_device_without_copies_or_records_has_none() -> None:
    assert not np.any(copy_totals(device([Rec(0, 10)], windows=[(0, 10)])).count)
    assert copy_totals(device([])).count.tolist() == [[0, 0, 0, 0]]
