"""Small inputs for the join, written as a person would: records, windows, samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chopperd.correlate.clock.signal import LabelledSamples, RunningClass, achieved_period_ns
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import Cause, CopyDirection, DType, KernelClass
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import DeviceTimeline, DeviceWindow, HostActivity, Intervals
from chopperd.units import NS_PER_MS

MS = NS_PER_MS
COMPUTE, COMM = RunningClass.COMPUTE, RunningClass.COMM
COPY, IDLE = RunningClass.COPY, RunningClass.IDLE


@dataclass(frozen=True, slots=True)
class Rec:
    """One device record; `thread` -1: not linked to a launch."""

    start: int
    end: int
    kind: KernelClass = KernelClass.GEMM
    direction: CopyDirection = CopyDirection.NONE
    stream: int = 7
    family: int = 0
    step: int = 0
    call: int = 0
    call_end: int = 0
    thread: int = -1
    copied: int = -1
    collective: int = -1
    seq: int = -1
    comms_id: int = -1
    operation: int = -1
    layer: int = -1
    annotation: int = -1
    phase: int = -1
    flops: float = math.nan
    dtype: int = DType.NONE


def spans(*pairs: tuple[int, int]) -> Intervals:
    """Disjoint intervals."""
    return Intervals(
        start_ns=np.array([start for start, _ in pairs], np.int64),
        end_ns=np.array([end for _, end in pairs], np.int64),
    )


def host(
    allocator: Intervals | None = None, data: Intervals | None = None, sync: Intervals | None = None
) -> HostActivity:
    """What one thread did."""
    none = spans()
    return HostActivity(allocator=allocator or none, data=data or none, sync=sync or none)


def device(
    records: Sequence[Rec],
    windows: Sequence[tuple[int, int]] = (),
    unrecorded: Intervals | None = None,
) -> DeviceTimeline:
    """A device's timeline; window k is step k's, the last one the tail."""
    rows = sorted(records, key=lambda rec: (rec.start, rec.end))
    return DeviceTimeline(
        device=0,
        start_ns=np.array([rec.start for rec in rows], np.int64),
        end_ns=np.array([rec.end for rec in rows], np.int64),
        stream=np.array([rec.stream for rec in rows], np.int64),
        kernel_class=np.array([rec.kind for rec in rows], np.int8),
        copy_direction=np.array([rec.direction for rec in rows], np.int8),
        family=np.array([rec.family for rec in rows], np.int32),
        step=np.array([rec.step for rec in rows], np.int32),
        call_start_ns=np.array([rec.call for rec in rows], np.int64),
        call_end_ns=np.array([rec.call_end for rec in rows], np.int64),
        call_thread=np.array([rec.thread for rec in rows], np.int32),
        copied_bytes=np.array([rec.copied for rec in rows], np.int64),
        collective=np.array([rec.collective for rec in rows], np.int32),
        seq=np.array([rec.seq for rec in rows], np.int64),
        comms_id=np.array([rec.comms_id for rec in rows], np.int64),
        operation=np.array([rec.operation for rec in rows], np.int32),
        layer=np.array([rec.layer for rec in rows], np.int32),
        annotation=np.array([rec.annotation for rec in rows], np.int32),
        phase=np.array([rec.phase for rec in rows], np.int8),
        flops=np.array([rec.flops for rec in rows], np.float64),
        matrix_dtype=np.array([rec.dtype for rec in rows], np.int8),
        windows=tuple(
            DeviceWindow(step=step, start_ns=start, end_ns=end, tail=step == len(windows) - 1)
            for step, (start, end) in enumerate(windows)
        ),
        unrecorded=unrecorded or spans(),
    )


def labelled(
    t_ns: Sequence[int],
    clock_mhz: Sequence[float],
    label: Sequence[RunningClass] | RunningClass = COMPUTE,
    period_ns: int | None = None,
) -> LabelledSamples:
    """Samples with what ran at each; the period is theirs unless given."""
    times = np.array(t_ns, np.int64)
    labels = [label] * len(times) if isinstance(label, RunningClass) else list(label)
    return LabelledSamples(
        t_ns=times,
        clock_mhz=np.array(clock_mhz, np.float64),
        label=np.array(labels, np.int8),
        period_ns=achieved_period_ns(times) if period_ns is None else period_ns,
    )


def gpu_samples(
    t_ns: Sequence[int],
    clock_mhz: Sequence[float],
    *,
    causes: Sequence[int] | None = None,
    energy_j: Sequence[float] | None = None,
    limited_ns: Mapping[Cause, Sequence[float]] | None = None,
    sensor_lag_ns: int | None = 0,
    limit_mhz: float | None = None,
    read_span_ns: int = 0,
    sensor_period_ns: int | None = None,
    average_ns: int | None = 0,
) -> GpuSamples:
    """What a sampler recorded of one GPU; its sensor is known to show instants without a lag."""
    count = len(t_ns)
    absent = np.full(count, np.nan)
    return GpuSamples(
        gpu=GpuInfo(
            gpu="0",
            index=0,
            uuid="GPU-0",
            name="Some GPU",
            vendor=Vendor.NVIDIA,
            sm_clock_max_mhz=1980.0,
            sm_clock_limit_mhz=limit_mhz,
            sensor_lag_ns=sensor_lag_ns,
            sm_clock_period_ns=sensor_period_ns,
            sm_clock_average_ns=average_ns,
        ),
        t_unix_ns=np.array(t_ns, np.int64),
        sm_clock_mhz=np.array(clock_mhz, np.float64),
        read_span_ns=np.full(count, read_span_ns, np.int64),
        causes=np.zeros(count, np.int64) if causes is None else np.array(causes, np.int64),
        mem_clock_mhz=absent,
        power_w=absent,
        energy_j=absent if energy_j is None else np.array(energy_j, np.float64),
        temperature_c=absent,
        memory_used_bytes=absent,
        activity_ratio=absent,
        limited_ns={
            cause: np.array(counter, np.float64) for cause, counter in (limited_ns or {}).items()
        },
    )
