"""Expected shares are worked out by hand from the figures in `documents.row`."""

import pytest
from msgspec.structs import replace

from chopperd.model.report_rows import Dvfs, Row
from chopperd.report.text.trust import Share, pooled_share, row_share
from tests.unit.report.documents import MS, row


def with_gap(gap_low: float, gap_high: float, window_ns: int = 1412 * MS) -> Row:
    original = row(0, 1)
    dvfs = replace(original.dvfs, gap_low=gap_low, gap_high=gap_high)
    return replace(original, dvfs=dvfs, window_ns=window_ns)


def test_a_rows_interval_is_the_gaps_times_the_covered_share() -> None:
    share = row_share(row(0, 1))
    assert share is not None
    # 1000 ms covered of a 1412 ms window
    assert share.ratio == pytest.approx(131 / 1412)
    assert share.low_ratio == pytest.approx(0.127 * 1000 / 1412)
    assert share.high_ratio == pytest.approx(0.135 * 1000 / 1412)
    assert share.resolved


def test_a_share_is_resolved_up_to_two_points_either_side() -> None:
    assert Share(ratio=0.10, low_ratio=0.08, high_ratio=0.12).resolved
    assert not Share(ratio=0.10, low_ratio=0.075, high_ratio=0.12).resolved


def test_what_the_run_says_of_a_row_outranks_the_luck_of_its_own_interval() -> None:
    narrow, wide = with_gap(0.130, 0.132), with_gap(0.05, 0.21)
    for original, resolved in ((narrow, False), (wide, True)):
        share = row_share(replace(original, dvfs=replace(original.dvfs, resolved=resolved)))
        assert share is not None
        assert share.resolved is resolved


def test_without_an_interval_the_share_says_so() -> None:
    share = row_share(replace(row(0, 1), dvfs=Dvfs(lost_ns=131 * MS, gap_ratio=0.131)))
    assert share is not None
    assert share.brackets() == "9.3 %, interval unknown"
    assert share.plus_minus() == "9.3 %, interval unknown"


def test_without_a_loss_there_is_no_share() -> None:
    assert row_share(replace(row(0, 1), dvfs=Dvfs())) is None
    assert row_share(replace(row(0, 1), window_ns=None)) is None


def test_pooling_weighs_by_window_and_does_not_narrow_the_interval() -> None:
    # half-widths 0.02 x 1000/1412 over 1412 ms, and 0.04 x 1000/2824 over 2824 ms
    pooled = pooled_share([with_gap(0.111, 0.151), with_gap(0.091, 0.171, 2824 * MS)])
    assert pooled is not None
    assert pooled.ratio == pytest.approx(262 / (3 * 1412))
    assert pooled.half_width_ratio == pytest.approx((0.02 + 0.04) * 1000 / (3 * 1412))


def test_pooling_leaves_out_devices_without_a_share() -> None:
    unknown = replace(row(1, None), dvfs=Dvfs())
    pooled = pooled_share([row(0, None), unknown])
    assert pooled is not None
    assert pooled.ratio == pytest.approx(131 / 1412)
    assert pooled_share([unknown]) is None
