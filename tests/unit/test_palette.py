"""Words and colours of rows and causes: complete, told apart, and seen on both backgrounds."""

from itertools import pairwise

import pytest
from msgspec.structs import fields

from chopperd import palette
from chopperd.model.kinds import Cause
from chopperd.model.report_rows import Waterfall

PANELS = ("#FFFFFF", "#151A21")


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour as WCAG 2 defines it."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_has_the_largest_contrast() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)


@pytest.mark.parametrize("panel", PANELS)
def test_marks_are_seen_on_both_panels(panel: str) -> None:
    marks = [*palette.ROWS.values(), *palette.CAUSES.values()]
    for mark in marks:
        if mark.colour not in (palette.COMPUTE_GRAFANA, palette.UNKNOWN_LIGHT):
            assert contrast(mark.colour, panel) > 2.95, mark


def test_every_row_and_cause_has_its_mark_in_the_order_of_the_stack() -> None:
    assert list(palette.ROWS) == [field.name for field in fields(Waterfall)]
    assert {cause.label for cause in Cause} <= set(palette.CAUSES)


def test_neighbours_differ() -> None:
    for marks in (palette.ROWS, palette.CAUSES):
        for one, other in pairwise(marks.values()):
            assert (one.colour, one.texture) != (other.colour, other.texture)


def test_pages_draw_every_row_and_cause_in_its_colour_and_texture() -> None:
    style, shapes = palette.stylesheet(), palette.patterns()
    for key, mark in {**palette.CAUSES, **palette.ROWS}.items():
        assert f".f-{key}" in style
        if mark.texture == "hatch":
            assert f".f-{key},.p-{key}{{fill:url(#hatch)" in style
        elif key != "compute_at_ref":
            assert f"--{key}:{mark.colour};" in style
            assert f".p-{key}{{" in style
            assert (f'id="t-{key}"' in shapes) == (mark.texture in {"dots", "dashes"})
    assert f"--compute:{palette.COMPUTE_LIGHT};" in style
    assert f"--compute:{palette.COMPUTE_DARK};" in style


def test_the_texts_of_simulated_data_are_read_on_their_strip() -> None:
    assert contrast(palette.SIMULATED_TEXT, palette.SIMULATED) > 4.5
    assert contrast("#F4D98B", "#2E2508") > 4.5
