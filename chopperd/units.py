"""Units and their conversions, and the system clocks at one instant."""

from msgspec import Struct

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
HZ_PER_MHZ = 1_000_000
BYTES_PER_KIB = 1_024
MILLIWATTS_PER_WATT = 1_000
MILLIJOULES_PER_JOULE = 1_000
MICROWATTS_PER_WATT = 1_000_000
MILLIDEGREES_PER_DEGREE = 1_000


def watts_from_milliwatts(value_mw: float) -> float:
    """Convert a power in mW to W."""
    return value_mw / MILLIWATTS_PER_WATT


def joules_from_millijoules(value_mj: float) -> float:
    """Convert an energy in mJ to J."""
    return value_mj / MILLIJOULES_PER_JOULE


def hertz_from_megahertz(value_mhz: float) -> float:
    """Convert a clock in MHz to Hz."""
    return value_mhz * HZ_PER_MHZ


def seconds_from_ns(value_ns: float) -> float:
    """Convert a time in ns to s."""
    return value_ns / NS_PER_S


def ms_from_ns(value_ns: float) -> float:
    """Convert a time in ns to ms, for people."""
    return value_ns / NS_PER_MS


class TimeTriple(Struct, frozen=True, kw_only=True):
    """CLOCK_REALTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME at one instant, in ns.

    It ties the MONOTONIC times of samples to Unix time.
    """

    unix_ns: int
    mono_ns: int
    boot_ns: int
