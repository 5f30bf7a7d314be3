import pytest
from msgspec.structs import replace

from chopperd.model.live import LiveTotals
from chopperd.report.text.live_pages import lost_ratios, lost_s, window
from tests.unit.report.live import live_gpu, snapshot, totals


def test_a_rate_is_growth_over_sampled_time() -> None:
    """4 s more sampled, of them 1 s lost."""
    before = snapshot(live_gpu(totals=totals(100.0, 7.0)))
    after = snapshot(live_gpu(totals=totals(104.0, 8.0)), after_s=5.0)
    assert lost_ratios([before, after]) == {"0": pytest.approx(0.25)}


def test_what_is_not_known_at_both_ends_has_no_rate() -> None:
    known = live_gpu(totals=totals(100.0, 7.0))
    for first, last in [
        (replace(known, totals=None), known),
        (known, replace(known, totals=None)),
        (known, known),  # no time sampled in between
        (known, live_gpu(totals=totals(50.0, 1.0))),  # begun anew
        (known, live_gpu(totals=LiveTotals(sampled_s=110.0))),
    ]:
        assert lost_ratios([snapshot(first), snapshot(last, after_s=5.0)]) == {"0": None}


def test_a_rate_begins_where_its_total_is_first_known() -> None:
    looks = [
        live_gpu(totals=None),
        live_gpu(totals=totals(1.0, 0.0)),
        live_gpu(totals=totals(5.0, 0.8)),
    ]
    history = [snapshot(gpu, after_s=float(second)) for second, gpu in enumerate(looks)]
    assert lost_ratios(history) == {"0": pytest.approx(0.8 / 4.0)}
    assert lost_ratios([*history, snapshot(looks[0], after_s=4.0)]) == {"0": None}


def test_a_gpu_without_busy_time_in_between_lost_nothing() -> None:
    before = snapshot(live_gpu(totals=totals(100.0, 7.0)))
    after = snapshot(live_gpu(totals=totals(104.0, 7.0)), after_s=4.0)
    assert lost_ratios([before, after]) == {"0": 0.0}


def test_a_gpu_that_came_meanwhile_has_no_rate_yet() -> None:
    gpu = live_gpu(totals=totals(10.0, 1.0))
    come = live_gpu("1", totals=totals(1.0, 0.1))
    assert lost_ratios([snapshot(gpu), snapshot(gpu, come, after_s=1.0)])["1"] is None


def test_one_look_gives_no_rate() -> None:
    assert lost_ratios([snapshot(live_gpu(totals=totals(10.0, 1.0)))]) == {"0": None}


def test_a_loss_never_known_is_not_zero() -> None:
    assert lost_s(None) is None
    assert lost_s(LiveTotals(sampled_s=3.0)) is None
    assert lost_s(totals(3.0, 0.0)) == 0.0


def test_the_window_holds_ten_seconds_and_reaches_back_to_the_look_before() -> None:
    history = [snapshot(after_s=after_s) for after_s in (0.0, 2.0, 4.0, 12.5, 13.0)]
    # 13 s - 10 s = 3 s: the newest look not after it is that of 2 s.
    assert list(window(history)) == history[1:]
    assert list(window(history[:1])) == history[:1]
    assert window(window(history)) == window(history)
