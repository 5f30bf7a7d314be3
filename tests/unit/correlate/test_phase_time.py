"""Busy time of phases in windows, by hand."""

import numpy as np

from chopperd.correlate.waterfall import Windows, phase_busy_ns
from chopperd.model.timeline import Phase
from tests.unit.correlate.builders import Rec, device

ROWS = Windows(start_ns=np.array([0, 100, 0], np.int64), end_ns=np.array([100, 200, 200], np.int64))


def test_a_phase_is_busy_for_the_union_of_its_records_cut_at_the_window() -> None:
    """Backward: [40, 120) and [60, 90) on another stream; 60 in the first window, 20 after."""
    timeline = device([
        Rec(0, 30, phase=Phase.FORWARD),
        Rec(40, 120, phase=Phase.BACKWARD),
        Rec(60, 90, phase=Phase.BACKWARD, stream=8),
        Rec(130, 150),
    ])  # fmt: skip
    found = phase_busy_ns(timeline, ROWS)
    assert {phase: each.tolist() for phase, each in found.items()} == {
        Phase.FORWARD: [30, 0, 30],
        Phase.BACKWARD: [60, 20, 80],
        Phase.UNKNOWN: [0, 20, 20],
    }


def test_phases_that_run_at_once_count_each() -> None:
    timeline = device([
        Rec(0, 80, phase=Phase.BACKWARD, stream=20),
        Rec(50, 100, phase=Phase.OPTIMIZER),
    ])  # fmt: skip
    found = phase_busy_ns(timeline, ROWS)
    assert sum(int(each[2]) for each in found.values()) == 130


def test_where_nothing_is_told_all_time_is_of_unknown_phase() -> None:
    found = phase_busy_ns(device([Rec(0, 80)]), ROWS)
    assert {phase: each.tolist() for phase, each in found.items()} == {Phase.UNKNOWN: [80, 0, 80]}
    assert phase_busy_ns(device([]), ROWS) == {}
