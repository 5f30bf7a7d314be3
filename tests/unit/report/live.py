"""A node as it is now, built by hand."""

from chopperd.model.devices import DeviceReading, GpuInfo, Vendor
from chopperd.model.kinds import Cause
from chopperd.model.live import (
    AnalysisLive,
    ArchiveLive,
    GpuLive,
    LiveTotals,
    NodeSnapshot,
    SamplerCondition,
    SamplerLive,
    StoreLive,
)
from chopperd.units import NS_PER_S

STARTED_UNIX_NS = 1_800_000_000 * NS_PER_S
READING = DeviceReading(
    sm_clock_mhz=1485.0,
    mem_clock_mhz=2619.0,
    power_w=698.4,
    temperature_c=66.0,
    activity_ratio=0.98,
    causes=frozenset({Cause.POWER_CAP, Cause.THERMAL}),
    power_limit_w=600.0,
)


def totals(sampled_s: float, lost_s: float, busy_sampled_s: float | None = None) -> LiveTotals:
    busy = sampled_s if busy_sampled_s is None else busy_sampled_s
    lost = {Cause.POWER_CAP: lost_s / 2, Cause.THERMAL: lost_s / 2}
    return LiveTotals(sampled_s=sampled_s, busy_sampled_s=busy, lost_s=lost)


def live_gpu(
    label: str = "0",
    *,
    up: bool = True,
    reading: DeviceReading = READING,
    totals: LiveTotals | None = None,
    excess_s: float | None = None,
    excess_ratio: float | None = None,
    max_mhz: float | None = 1980.0,
) -> GpuLive:
    return GpuLive(
        info=GpuInfo(
            gpu=label,
            index=int(label),
            uuid=f"GPU-{label}",
            name="NVIDIA H100 80GB HBM3",
            vendor=Vendor.NVIDIA,
            sm_clock_max_mhz=max_mhz,
            power_limit_w=700.0 if max_mhz else None,
        ),
        up=up,
        last_sample_unix_ns=STARTED_UNIX_NS,
        reading=reading,
        totals=totals,
        excess_s=excess_s,
        excess_ratio=excess_ratio,
        residency_s={},
        ticks_count=100,
        missed_count=0,
        failed_count=0,
        lost_count=0,
        driver_s=0.1,
        asked_hz=10.0,
        kept_hz=9.96,
        hung=None,
    )


def snapshot(*gpus: GpuLive, after_s: float = 0.0, simulated: bool = False) -> NodeSnapshot:
    """The node so long after the agent's start."""
    return NodeSnapshot(
        taken_unix_ns=STARTED_UNIX_NS + round(after_s * NS_PER_S),
        taken_mono_ns=round(after_s * NS_PER_S),
        started_unix_ns=STARTED_UNIX_NS,
        version="1.2.3",
        node="node7",
        backend="nvml",
        backend_up=True,
        driver="560.35.03",
        simulated=simulated,
        gpus=gpus,
        sampler=SamplerLive(condition=SamplerCondition.RUNNING, pid=77, restart_count=2),
        archive=ArchiveLive(bytes=300 * 2**20, oldest_unix_ns=STARTED_UNIX_NS),
        store=StoreLive(bytes=3 * 2**30, steps=12_345, traces=97),
        analysis=AnalysisLive(waiting=2, outcomes={"analysed": 95, "rejected": 2}),
    )
