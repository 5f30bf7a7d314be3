"""The table of bounds; expected values are those of DESIGN.md section 2, "Samples"."""

import pytest

from chopperd import plausible
from chopperd.model.samples import VALUE_COLUMNS
from chopperd.plausible import INFO_BOUNDS, SAMPLE_BOUNDS, Bounds


@pytest.mark.parametrize(
    ("bounds", "believed", "refused"),
    [
        (plausible.CLOCK_MHZ, (1, 1980, 10_000), (-5, 0, 10_001, 64_017, 1_980_000_000)),
        (plausible.DIE_CLOCK_MHZ, (0, 132), (-1, 65_535)),
        (plausible.TEMPERATURE_C, (-50, 0, 200), (-51, 201, 2112, 2**32 - 1)),
        (plausible.RATIO, (0, 0.5, 1), (-0.1, 1.1)),
        (plausible.PID, (1, 4_194_304), (0, 2**32 - 1)),
        (plausible.BITS, (0, 2**63), (2**64 - 1,)),
        (plausible.POWER_W, (0.5, 1200), (0, -1, 200_000)),
    ],
)
def test_values_outside_of_their_bounds_are_not_believed(
    bounds: Bounds, believed: tuple[float, ...], refused: tuple[float, ...]
) -> None:
    assert [value for value in believed if value not in bounds] == []
    assert [value for value in refused if value in bounds] == []


def test_every_column_of_a_sample_has_bounds_and_none_takes_all_ones() -> None:
    assert set(SAMPLE_BOUNDS) == set(VALUE_COLUMNS)
    for bounds in (*SAMPLE_BOUNDS.values(), *INFO_BOUNDS.values()):
        assert 2**64 - 1 not in bounds
