"""Whether two programs that read the same sensor a moment apart agree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class _Tolerance:
    """What two right readings may differ by: a share of the larger, or an amount."""

    ratio: float = 0.0
    amount: float = 0.0


#: What changes from moment to moment has room; what stands still has that of rounding.
_TOLERANCES: Final[Mapping[str, _Tolerance]] = {
    "sm_clock_mhz": _Tolerance(0.1, 60.0),
    "mem_clock_mhz": _Tolerance(0.02, 30.0),
    "power_average_w": _Tolerance(0.1, 10.0),
    "power_w": _Tolerance(0.25, 25.0),
    "temperature_c": _Tolerance(0.0, 3.0),
    "memory_used_bytes": _Tolerance(0.02, 64 * 2**20),
    "activity_ratio": _Tolerance(0.0, 0.3),
}
_STANDS_STILL: Final = _Tolerance(0.005, 1.0)


def differs(name: str, ours: float, theirs: float) -> bool:
    """Whether two numbers of a field are further apart than two moments explain."""
    allowed = _TOLERANCES.get(name, _STANDS_STILL)
    return abs(ours - theirs) > max(allowed.amount, allowed.ratio * max(abs(ours), abs(theirs)))
