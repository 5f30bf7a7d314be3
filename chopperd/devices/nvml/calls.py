"""The NVML calls behind each field of a reading, old symbols after new ones, and their units."""

from types import ModuleType

from chopperd.devices.channel import Call
from chopperd.units import joules_from_millijoules, watts_from_milliwatts


def sm_clock_mhz(nvml: ModuleType, handle: object) -> Call[float]:
    """SM clock at this instant. Source: nvmlDeviceGetClockInfo, NVML_CLOCK_SM, MHz."""
    return Call(
        operation="nvmlDeviceGetClockInfo",
        read=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    )


def mem_clock_mhz(nvml: ModuleType, handle: object) -> Call[float]:
    """Memory clock at this instant. Source: nvmlDeviceGetClockInfo, NVML_CLOCK_MEM, MHz."""
    return Call(
        operation="nvmlDeviceGetClockInfo",
        read=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
    )


def reason_bits(nvml: ModuleType, handle: object) -> tuple[Call[int], ...]:
    """Limits in force, as NVML's bits.

    Source: nvmlDeviceGetCurrentClocksEventReasons; the same under its name before driver 535,
    ...ThrottleReasons (gone from CUDA 14).
    """
    return (
        Call(
            operation="nvmlDeviceGetCurrentClocksEventReasons",
            read=lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        ),
        Call(
            operation="nvmlDeviceGetCurrentClocksThrottleReasons",
            read=lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        ),
    )


def power_usage_w(nvml: ModuleType, handle: object) -> Call[float]:
    """Board power, W. Source: nvmlDeviceGetPowerUsage, mW.

    The mean of the last second on Ampere and later, GA100 apart; at this instant before.
    """
    return Call(
        operation="nvmlDeviceGetPowerUsage",
        read=lambda: watts_from_milliwatts(nvml.nvmlDeviceGetPowerUsage(handle)),
    )


def energy_j(nvml: ModuleType, handle: object) -> Call[float]:
    """Energy since the driver loaded, J.

    Source: nvmlDeviceGetTotalEnergyConsumption, mJ; Volta and later.
    """
    return Call(
        operation="nvmlDeviceGetTotalEnergyConsumption",
        read=lambda: joules_from_millijoules(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
    )


def temperature_c(nvml: ModuleType, handle: object) -> tuple[Call[float], ...]:
    """GPU temperature, degrees C.

    Source: nvmlDeviceGetTemperatureV (signed); nvmlDeviceGetTemperature (unsigned: frost reads
    as 4 billion degrees) on drivers that lack it.
    """
    return (
        Call(
            operation="nvmlDeviceGetTemperatureV",
            read=lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),
        ),
        Call(
            operation="nvmlDeviceGetTemperature",
            read=lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        ),
    )


def memory_used_bytes(nvml: ModuleType, handle: object) -> tuple[Call[int], ...]:
    """Device memory in use, bytes.

    Source: nvmlDeviceGetMemoryInfo_v2; v1, whose figure holds the driver's reserve (about a GB),
    on drivers that lack it.
    """
    return (
        Call(
            operation="nvmlDeviceGetMemoryInfo_v2",
            read=lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used,
            source="v2",
        ),
        Call(
            operation="nvmlDeviceGetMemoryInfo",
            read=lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            source="v1",
        ),
    )


def activity_ratio(nvml: ModuleType, handle: object) -> Call[float]:
    """Share of time with a kernel running, over the driver's own window of 1/6 s to 1 s.

    Source: nvmlDeviceGetUtilizationRates, `gpu`, percent; not defined while MIG mode is on.
    """
    return Call(
        operation="nvmlDeviceGetUtilizationRates",
        read=lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    )
