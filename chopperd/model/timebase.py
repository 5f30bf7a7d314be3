"""What ties MONOTONIC sample times to wall-clock (Unix) time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTriple:
    """CLOCK_REALTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME at one instant, in ns."""

    unix_ns: int
    mono_ns: int
    boot_ns: int
