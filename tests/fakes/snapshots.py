"""Snapshots of a node written out: eight GPUs of which everything is known."""

from msgspec.structs import replace

from chopperd.model.devices import DeviceReading, GpuInfo, SensorTiming, Vendor
from chopperd.model.kinds import CAUSES, COMPUTE_CLASSES, KERNEL_CLASSES, Cause
from chopperd.model.live import (
    MEMORY_SUMS,
    AnalysisLive,
    ArchiveLive,
    DiesLive,
    DropTotals,
    GpuLive,
    HungCall,
    LiveTotals,
    NodeSnapshot,
    ProcessLive,
    SamplerCondition,
    SamplerLive,
    SelfTestLive,
    StoreLive,
    TracedMemory,
    TracedTotals,
)
from chopperd.units import NS_PER_S

TAKEN_UNIX_NS = 1_800_000_000 * NS_PER_S
TAKEN_MONO_NS = 5_000 * NS_PER_S
#: Limits that NVML counts time under.
COUNTED = (Cause.POWER_CAP, Cause.SYNC_BOOST, Cause.THERMAL, Cause.HW_THERMAL, Cause.POWER_BRAKE)
ROWS = (
    *("compute_at_ref", "dvfs_loss", "compute_unsampled", "exposed_comm", "exposed_copy"),
    *("unknown", "idle_launch_call", "idle_allocator", "idle_data", "idle_sync"),
    *("idle_launch_prep", "idle_other"),
)


class OneSnapshot:
    """A source whose newest snapshot is the one that a test put there."""

    def __init__(self, snapshot: NodeSnapshot) -> None:
        self.snapshot = snapshot

    def latest(self) -> NodeSnapshot:
        return self.snapshot


def gpu_info(index: int) -> GpuInfo:
    return GpuInfo(
        gpu=str(index),
        index=index,
        uuid=f"GPU-{index}",
        pci_bus_id=f"00000000:{index:02X}:00.0",
        name="NVIDIA H100 80GB HBM3",
        vendor=Vendor.NVIDIA,
        sm_clock_max_mhz=1980.0,
        mem_clock_max_mhz=2619.0,
        power_limit_w=650.0,
        power_limit_default_w=700.0,
        memory_size_bytes=80 << 30,
        power_source="instant",
        memory_source="v2",
        temperature_slowdown_c=95.0,
        temperature_shutdown_c=100.0,
        temperature_memory_max_c=105.0,
    )


def gpu_live(index: int = 0) -> GpuLive:
    """A GPU of which everything is known."""
    return GpuLive(
        info=gpu_info(index),
        up=True,
        last_sample_unix_ns=TAKEN_UNIX_NS - 50_000_000,
        reading=DeviceReading(
            sm_clock_mhz=1500.0 + index,
            mem_clock_mhz=2619.0,
            power_w=640.5,
            energy_j=123_456.5,
            temperature_c=61.0,
            memory_used_bytes=70 << 30,
            activity_ratio=0.97,
            causes=frozenset({Cause.POWER_CAP}),
            limited_ns=dict.fromkeys(COUNTED, 5),
            power_average_w=601.0,
            temperature_memory_c=70.0,
            memory_reserved_bytes=1 << 30,
            power_limit_w=600.0,
        ),
        totals=LiveTotals(
            sm_cycles=1.5e12 + index,
            sampled_s=1000.0,
            busy_s=900.0,
            busy_sm_cycles=1.3e12,
            busy_sampled_s=890.0,
            energy_j=600_000.0,
            limited_s={cause: 10.0 + cause for cause in COUNTED},
            lost_s={cause: 1.0 + cause for cause in CAUSES},
        ),
        excess_s=2.5,
        drops=DropTotals(count=3, length_s=12.5, lost_s=0.75),
        residency_s={**{198.0 * tenth: 100.0 for tenth in range(1, 11)}, float("inf"): 0.0},
        ticks_count=10_000,
        missed_count=3,
        failed_count=2,
        lost_count=1,
        invalid_count=5,
        driver_s=8.0,
        driver_fast_s=5.0,
        driver_full_s=3.0,
        driver_rare_s=0.25,
        asked_hz=10.0,
        kept_hz=10.0,
        hung=None,
        timing={
            "sm_clock_mhz": SensorTiming(period_ns=20_000_000),
            "power_w": SensorTiming(period_ns=100_000_000, window_ns=0),
            "energy_j": SensorTiming(),
        },
        dies=DiesLive(
            clocks_mhz=(1500.0, 1512.0, 0.0, None),
            running=2,
            gated=1,
            mean_mhz=1505.0,
            spread_mhz=12.5,
            governing=0,
        ),
    )


def traced() -> TracedTotals:
    return TracedTotals(
        window_s={row: 0.5 for row in ROWS},
        lost_s={cause: 0.25 for cause in CAUSES},
        kernel_s={kind.label: 2.0 for kind in KERNEL_CLASSES},
        kernel_lost_s={kind.label: 0.125 for kind in sorted(COMPUTE_CLASSES)},
        memory=dict(zip(MEMORY_SUMS, (8.0, 24.0, 0.5, 2.0), strict=True)),
        last_capture_unix_ns=TAKEN_UNIX_NS - 60 * NS_PER_S,
        last_memory=TracedMemory(
            peak_allocated_bytes=30 << 30,
            peak_reserved_bytes=40 << 30,
            cv_reserved=0.0,
            verdict="deterministic",
        ),
    )


def process(pid: int) -> ProcessLive:
    return ProcessLive(
        cpu_s=12.5 + pid,
        resident_bytes=50 << 20,
        open_fds=20,
        threads=5,
        started_unix_ns=TAKEN_UNIX_NS - 3600 * NS_PER_S,
    )


def full_snapshot(gpu_count: int = 8, *, hung: bool = False) -> NodeSnapshot:
    """A node of which everything is known; each GPU has a recent capture.

    Args:
        gpu_count: GPUs.
        hung: Whether a driver call hangs on the last one, which then is down.
    """
    gpus = tuple(gpu_live(index) for index in range(gpu_count))
    if hung:
        call = HungCall(scope="full", age_s=12.5)
        gpus = (*gpus[:-1], replace(gpus[-1], up=False, reading=DeviceReading(), hung=call))
    return NodeSnapshot(
        taken_unix_ns=TAKEN_UNIX_NS,
        taken_mono_ns=TAKEN_MONO_NS,
        started_unix_ns=TAKEN_UNIX_NS - 3600 * NS_PER_S,
        version="1.2.3",
        node="node-7",
        backend="nvml",
        backend_up=bool(gpus),
        driver="595.45.04",
        simulated=False,
        gpus=gpus,
        sampler=SamplerLive(condition=SamplerCondition.RUNNING, pid=11, restart_count=2),
        archive=ArchiveLive(bytes=1 << 20, max_bytes=1 << 30, lost_samples=4),
        store=StoreLive(bytes=2 << 20, steps=100, traces=5),
        analysis=AnalysisLive(outcomes={"analysed": 5, "rejected": 1}, spool_bytes=7),
        traced={gpu.info.gpu: traced() for gpu in gpus},
        processes={"agent": process(1), "sampler": process(2), "worker": process(3)},
        self_test=SelfTestLive(
            step_time_ratio=1.004, low_ratio=1.001, high_ratio=1.007, block_count=24
        ),
    )


def with_gpu(snapshot: NodeSnapshot, place: int, gpu: GpuLive) -> NodeSnapshot:
    """The snapshot with another GPU in a place."""
    gpus = list(snapshot.gpus)
    gpus[place] = gpu
    return replace(snapshot, gpus=tuple(gpus))
