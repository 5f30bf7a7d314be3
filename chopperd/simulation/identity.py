"""Who a simulated node's GPUs say they are."""

from uuid import UUID

from chopperd.model.devices import GpuInfo, Vendor
from chopperd.simulation.presets import NodePreset
from chopperd.simulation.processes import generator

_IDENTITY_KEY = 14


def gpu_identities(preset: NodePreset, seed: int) -> tuple[GpuInfo, ...]:
    """The GPUs, in the driver's order; their unique ids depend on the seed."""
    rng, model = generator(_IDENTITY_KEY, seed), preset.gpu
    sensors = model.sensors
    return tuple(
        GpuInfo(
            gpu=str(index),
            index=index,
            uuid=_uuid(model.vendor, rng.bytes(16)),
            name=model.name,
            vendor=model.vendor,
            pci_bus_id=f"00000000:{0x1B + 0x1D * index:02X}:00.0",
            sm_clock_max_mhz=model.sm_clock_max_mhz,
            mem_clock_max_mhz=model.mem_clock_mhz,
            power_limit_w=model.power_limit_w,
            power_limit_default_w=model.power_limit_w,
            memory_size_bytes=model.memory_size_bytes,
            sensor_lag_ns=sensors.clock_lag_ns + sensors.clock_period_ns // 2,
            sm_clock_period_ns=sensors.clock_period_ns,
            sm_clock_average_ns=0,
            power_period_ns=sensors.power_period_ns,
            energy_period_ns=sensors.energy_period_ns,
        )
        for index in range(preset.gpu_count)
    )


def _uuid(vendor: Vendor, raw: bytes) -> str:
    unique = str(UUID(bytes=raw))
    return f"GPU-{unique}" if vendor is Vendor.NVIDIA else unique
