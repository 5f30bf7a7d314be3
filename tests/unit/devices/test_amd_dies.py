"""The clock of a GPU with several dies at one instant."""

import pytest

from chopperd.model.devices import lowest_running_mhz


@pytest.mark.parametrize(
    ("clocks_mhz", "expected"),
    [
        ((2100, 2098), 2098),
        ((2100, None, 1900, None), 1900),
        ((2100, 140, 141), 141),  # 140 MHz and less is deep sleep
        ((132, 120, 0), 120),  # where all sleep: the lowest of those that are not off
        ((0, 0), None),
        ((None, None), None),
        ((), None),
    ],
)
def test_the_lowest_running_die_governs(
    clocks_mhz: tuple[float | None, ...], expected: float | None
) -> None:
    assert lowest_running_mhz(clocks_mhz) == expected
