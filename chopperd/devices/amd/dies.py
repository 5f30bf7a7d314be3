"""The clocks of a GPU's compute dies at one instant."""

from collections.abc import Sequence

from chopperd.model.devices import DEEP_SLEEP_MHZ


def lowest_running_mhz(clocks_mhz: Sequence[float | None]) -> float | None:
    """The lowest clock of the dies that run; of those that sleep where none runs.

    None where no die has a clock: all are switched off, or none is told.
    """
    present = [clock for clock in clocks_mhz if clock]
    running = [clock for clock in present if clock > DEEP_SLEEP_MHZ]
    return min(running or present, default=None)
