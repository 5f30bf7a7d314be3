"""Parts of bars and areas under clocks: their lengths against sums, and areas against integrals."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.model.answers import StepTimeline
from chopperd.report.html import clocks, drawing, gpus, lanes
from chopperd.report.html.markup import Html, joined, number, tag
from tests.unit.report.documents import eight_gpus, without_clocks
from tests.unit.report.traced import document, node

_CLOCKS = st.lists(st.integers(1200, 2100), min_size=2, max_size=12)


def test_text_is_escaped_and_markup_is_not() -> None:
    made = tag("td", "<b>&", tag("b", 'a"'), None, ["x", Html("<i></i>")], title='"<', data_x=1.50)
    assert made == '<td title="&quot;&lt;" data-x="1.5">&lt;b&gt;&amp;<b>a"</b>x<i></i></td>'
    assert joined("a\x1b[0m\nb") == r"a\u001b[0m\nb"
    assert tag("input", checked=True, disabled=False, class_=None) == "<input checked>"
    assert (number(2.0), number(-0.001), number(1234.567)) == ("2", "0", "1234.57")


def test_the_parts_of_a_bar_are_the_window() -> None:
    """All of DESIGN's example: excess and physics by cause sum to the loss, and all to 1,412 ms."""
    for row in eight_gpus().steps:
        bar = drawing.bar_of(row)
        assert bar is not None
        every = [*bar.pieces(), *bar.compute()]
        assert sum(each.time_ns for each in every) == pytest.approx(row.window_ns, rel=1e-3)
        of_clock = [each for each in every if each.of_clock]
        assert sum(each.time_ns for each in of_clock) == pytest.approx(row.dvfs.lost_ns or 0)
        solid = sum(each.time_ns for each in of_clock if not each.is_pale)
        assert solid == pytest.approx(row.dvfs.excess_ns or 0)


def test_without_peers_all_of_the_loss_is_pale_and_called_a_ceiling() -> None:
    row = eight_gpus().steps[0]
    bar = drawing.bar_of(replace(row, dvfs=replace(row.dvfs, excess_ns=None)))
    assert bar is not None
    found = [each for each in bar.pieces() if each.of_clock]
    assert found
    assert all(each.is_pale and each.words.endswith("at most, peers unknown") for each in found)


def test_a_clock_that_is_not_known_is_hatched_and_no_loss() -> None:
    for row in without_clocks().steps:
        bar = drawing.bar_of(row)
        assert bar is not None
        assert not bar.compute()
        keys = {each.key: each.words for each in bar.pieces()}
        assert keys["compute_unsampled"] == "compute, clock unknown"
        assert not [each for each in bar.pieces() if each.of_clock]


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 157, 4, [0, 50, 100, 150]),
        (0, 538, 5, [0, 200, 400]),
        (1413, 1980, 7, [1500, 1600, 1700, 1800, 1900]),
        (0, 0, 4, [0]),
        (0, 1, 4, [0, 0.25, 0.5, 0.75, 1]),
    ],
)
def test_scales_have_round_numbers(
    low: float, high: float, most: int, expected: list[float]
) -> None:
    assert drawing.ticks(low, high, most) == pytest.approx(expected)


def area(path: str) -> float:
    """The area of a polygon of M, L, V, H and z, by the shoelace formula."""
    points: list[tuple[float, float]] = []
    for kind, text in re.findall(r"([MLVH])([-\d. ]+)", path):
        values = [float(each) for each in text.split()]
        x, y = points[-1] if points else (0.0, 0.0)
        points.append(
            (values[0], values[1])
            if kind in "ML"
            else (x, values[0])
            if kind == "V"
            else (values[0], y)
        )
    closed = [*points, points[0]]
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise(closed))) / 2


@settings(max_examples=20)
@given(_CLOCKS, st.integers(1300, 1900))
def test_areas_are_what_lies_between_the_clock_and_what_it_is_compared_with(
    mhz: list[int], peers_mhz: int
) -> None:
    """Against the integral of the line in small pieces: solid up to the peers, pale from there."""
    samples = [
        clocks._Sample(100.0 * nth, each, "compute", "thermal") for nth, each in enumerate(mhz)
    ]
    level = clocks._Level(
        low_mhz=1000.0, high_mhz=2200.0, reference_mhz=1980.0, peers_mhz=float(peers_mhz), mean=None
    )
    px = (level.y(1000.0) - level.y(2200.0)) / 1200
    drawn = {"f-thermal": 0.0, "p-thermal": 0.0}
    for name, shape in clocks._areas([samples], level):
        (path,) = re.findall(r' d="([^"]*)"', shape)
        drawn[name] += area(path) / px
    pieces, expected = 200, {"f-thermal": 0.0, "p-thermal": 0.0}
    for one, other in pairwise(mhz):
        for at in range(pieces):
            clock = one + (other - one) * (at + 0.5) / pieces
            width = 100 / pieces
            expected["f-thermal"] += max(peers_mhz - clock, 0) * width
            expected["p-thermal"] += max(1980 - max(clock, peers_mhz), 0) * width
    for name, value in expected.items():
        # Corners are drawn to a tenth of a px, and on a line within a fifth of one.
        assert drawn[name] == pytest.approx(value, abs=100 * len(mhz) * 0.4 / px + 1)


def test_between_samples_that_are_far_apart_the_clock_is_hatched() -> None:
    """Samples at 0, 100, 400 and 500 of 600 units, 150 apart at most."""
    samples = [
        clocks._Sample(at, 1500.0, "compute", "thermal") for at in (0.0, 100.0, 400.0, 500.0)
    ]
    runs = list(clocks._runs(samples, 150))
    assert [[each.at for each in run] for run in runs] == [[0, 100], [400, 500]]
    level = clocks._Level(
        low_mhz=1000.0, high_mhz=2000.0, reference_mhz=2000.0, peers_mhz=None, mean=None
    )
    hatched = [
        re.findall(r'x="([\d.]+)" width="([\d.]+)"', each)
        for each in clocks._unsampled(runs, 600, level)
    ]
    assert hatched == [[("100", "300")], [("500", "100")]]


def test_lanes_are_the_intervals_of_their_classes() -> None:
    timeline = StepTimeline(
        job=None,
        run=None,
        rank=0,
        step=1,
        device=0,
        gpu=None,
        start_unix_ns=None,
        window_ns=1000,
        unit_ns=1,
        lanes={"gemm": (100, 50, 100, 50), "norm": (150, 30), "reduction": (160, 40, 300, 10)},
    )
    assert lanes.spans(timeline, ["gemm"]) == [(100, 150), (250, 300)]
    assert lanes.others(timeline) == ["norm", "reduction"]
    assert lanes.spans(timeline, lanes.others(timeline)) == [(150, 200), (500, 510)]
    assert lanes.path([(100, 150), (250, 300)], 5) == "M0 5m100 0h50m100 0h50"
    assert lanes.between([(100, 150), (250, 1000)], 1000) == [(0, 100), (150, 250)]
    drawn = lanes.lanes(timeline)
    assert "GEMM: 10 % of the step" in drawn
    assert "communication" not in drawn


@pytest.mark.parametrize(
    ("clocks_mhz", "expected"),
    [
        ([1000.0, 1000.0, 1800.0, 1800.0], (1773.0, 1827.0)),  # the upper of two groups, 1.5 %
        ([1500.0, 1500.0, 1500.0, 1500.0], (1477.5, 1522.5)),
        ([1500.0, 1500.0, 1500.0], None),
    ],
)
def test_the_spread_of_equal_gpus_is_that_by_which_gpus_are_named(
    clocks_mhz: list[float], expected: tuple[float, float] | None
) -> None:
    found = document(*node(clocks_mhz))
    stats = {
        (row.rank, row.device): row.clock.compute
        for row in found.totals
        if row.clock is not None and row.clock.compute is not None
    }
    spread = gpus._spread(found, stats)
    assert spread == (None if expected is None else pytest.approx(expected))
