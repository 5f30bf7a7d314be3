"""Small recordings, written out."""

import numpy as np

from chopperd.model.arrays import Float64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import Cause
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.units import NS_PER_MS, NS_PER_S

START_UNIX_NS = 1_750_000_000 * NS_PER_S
PERIOD_NS = 100 * NS_PER_MS


def gpu_info(index: int = 0) -> GpuInfo:
    return GpuInfo(
        gpu=str(index),
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA H100 80GB HBM3",
        vendor=Vendor.NVIDIA,
        sm_clock_max_mhz=1980,
    )


def column(*values: float | None) -> Float64s:
    """A column in which None stands for "not reported"."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def track(index: int = 0, *, start_unix_ns: int = START_UNIX_NS) -> GpuSamples:
    """Five samples, 100 ms apart; the slow loop took its turn at the first and the fourth."""
    return GpuSamples(
        gpu=gpu_info(index),
        t_unix_ns=start_unix_ns + PERIOD_NS * np.arange(5, dtype=np.int64),
        sm_clock_mhz=column(1980, 1905, None, 1410, 1395),
        read_span_ns=np.full(5, 20_000, np.int64),
        causes=np.array([0, 0b10, Cause.UNKNOWN.bit, 0b10 | Cause.UNKNOWN.bit, 0b110], np.int64),
        mem_clock_mhz=column(2619, None, None, 2619, None),
        power_w=column(700, None, None, 310.5, None),
        energy_j=column(1000, None, None, 1210, None),
        temperature_c=column(61, None, None, 60, None),
        memory_used_bytes=column(8_388_608, None, None, 0, None),
        activity_ratio=column(0, None, None, 1, None),
        limited_ns={
            Cause.POWER_CAP: column(0, 90_000_000, None, 290_000_000, 390_000_000),
            Cause.THERMAL: column(None, None, None, None, None),
        },
    )


def recording(gpu_count: int = 1) -> SampleSet:
    return SampleSet(gpus=tuple(track(index) for index in range(gpu_count)), driver="595.45.04")
