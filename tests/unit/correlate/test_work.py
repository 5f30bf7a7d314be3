"""Work by launch and time by window, by hand."""

from chopperd.correlate.waterfall import foreign_ns, launched_ns, marker_busy_ns
from chopperd.model.timeline import Marker
from tests.unit.correlate.builders import Rec, device

US = 1_000


def test_launched_is_the_union_of_a_steps_own_records_wherever_they_run() -> None:
    """Step 0: [0, 100) and [50, 150) and, in step 1's window, [250, 300): 200. Step 1: 60."""
    timeline = device(
        [
            Rec(0, 100, step=0),
            Rec(50, 150, step=0, stream=8),
            Rec(200, 260, step=1),
            Rec(250, 300, step=0, stream=8),
            Rec(300, 310, step=-1),
        ],
        windows=[(0, 200), (200, 310)],
    )
    assert launched_ns(timeline).tolist() == [200, 60]


def test_foreign_is_the_union_of_other_steps_and_unlinked_records_inside_the_window() -> None:
    """Window 1 is [200, 310): step 0's [250, 300) and the unlinked [290, 310) make 60."""
    timeline = device(
        [
            Rec(0, 100, step=0),
            Rec(90, 120, step=-1, stream=9),
            Rec(200, 260, step=1),
            Rec(250, 300, step=0, stream=8),
            Rec(290, 310, step=-1, stream=9),
        ],
        windows=[(0, 200), (200, 310)],
    )
    assert foreign_ns(timeline).tolist() == [30, 60]


def test_a_long_foreign_record_from_before_the_window_counts_inside_it() -> None:
    """Step 0's collective [10, 900) runs on through window 1 [100, 500) and into 2 [500, 1000).

    It began two records before window 1 and many before window 2.
    """
    timeline = device(
        [
            Rec(0, 50, step=0),
            Rec(10, 900, step=0, stream=20),
            Rec(60, 70, step=0),
            Rec(100, 450, step=1),
            Rec(460, 470, step=1),
            Rec(500, 1000, step=2),
        ],
        windows=[(0, 100), (100, 500), (500, 1000)],
    )
    assert foreign_ns(timeline).tolist() == [0, 400, 400]
    assert launched_ns(timeline).tolist() == [900, 360, 500]


def test_a_step_without_records_launched_nothing() -> None:
    timeline = device([Rec(0, 50, step=1)], windows=[(0, 10), (10, 50)])
    assert launched_ns(timeline).tolist() == [0, 50]
    assert foreign_ns(timeline).tolist() == [10, 0]


def test_busy_time_of_a_marker_is_the_union_of_what_was_launched_inside_it() -> None:
    """Case 45: a micro-step's marker of 100 us launches 60 us, one with the optimizer's 80 us."""
    micro = Marker(step=1, start_ns=0, end_ns=100 * US)
    last = Marker(step=2, start_ns=100 * US, end_ns=230 * US)
    timeline = device(
        [
            Rec(20 * US, 60 * US, call=5 * US, thread=0),
            Rec(40 * US, 80 * US, call=10 * US, thread=0, stream=8),
            Rec(90 * US, 95 * US, call=3 * US, thread=-1),
            Rec(120 * US, 180 * US, call=100 * US, thread=0),
            Rec(200 * US, 220 * US, call=229 * US, thread=1),
            Rec(240 * US, 250 * US, call=230 * US, thread=1),
        ]
    )
    assert marker_busy_ns(timeline, micro) == 60 * US
    assert marker_busy_ns(timeline, last) == 80 * US
