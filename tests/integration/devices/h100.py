"""The GPU that the fake driver has by default, and what is played on it; values by hand."""

from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.units import NS_PER_MS
from tests.fakes.nvml.fixtures import FakeNvml
from tests.fakes.nvml.scenario import Segment
from tests.fakes.samples import START_UNIX_NS

H100 = GpuInfo(
    gpu="0",
    index=0,
    uuid="GPU-00000000",
    name="NVIDIA H100 80GB HBM3",
    vendor=Vendor.NVIDIA,
    pci_bus_id="00000000:10:00.0",
    sm_clock_max_mhz=1980,
    mem_clock_max_mhz=2619,
    power_limit_w=700,
    power_limit_default_w=700,
    memory_size_bytes=85_899_345_920,
    power_source="instant",
    memory_source="v2",
    temperature_slowdown_c=95,
    temperature_shutdown_c=100,
    temperature_memory_max_c=105,
)

# 200 ms at 700 W under a power cap, 200 ms at 100 W without a limit, round and round (case 21).
STEP_A = Segment(length_ns=200 * NS_PER_MS, sm_clock_mhz=1410, power_mw=700_000, reasons=0x4)
STEP_B = Segment(length_ns=200 * NS_PER_MS, sm_clock_mhz=1980, power_mw=100_000, reasons=0x1)


def read_at(fake: FakeNvml, ms: int, scope: ReadScope = ReadScope.FULL) -> DeviceReading:
    """What a back end reads `ms` after the start of the scenario."""
    fake.scenario.freeze(START_UNIX_NS + ms * NS_PER_MS)
    backend = fake.opened[0] if fake.opened else fake.open()
    return backend.read(backend.devices()[0], scope)
