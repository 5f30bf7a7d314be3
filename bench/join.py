"""Seconds for the join of one device over one hour: 2 M kernels with 360 k samples at 100 Hz.

`python -m bench.join` prints Markdown and, with `--profile`, where the time goes.
"""

import argparse
import cProfile
import pstats
import time

import numpy as np

from bench.markdown import Figure, figure_table, median_and_range
from chopperd.correlate import intervals
from chopperd.correlate.join import join_device
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import Cause, CopyDirection, DType, KernelClass
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import DeviceTimeline, DeviceWindow, HostActivity
from chopperd.units import NS_PER_S

KERNELS = 2_000_000
SAMPLES = 360_000
STEPS = 3_600
#: CPU time of the join: what it must and should take.
MOST_S = 1.5
AIM_S = 0.5
SPAN_NS = 3_600 * NS_PER_S
CLASSES = [KernelClass.GEMM] * 5 + [KernelClass.ELEMENTWISE] * 3 + [KernelClass.COMM] * 2


def timeline() -> DeviceTimeline:
    """An hour of kernels on two streams, a tenth of the time idle, all launched by one thread."""
    rng = np.random.default_rng(7)
    kernel_class = np.array(CLASSES, np.int8)[rng.integers(0, len(CLASSES), KERNELS)]
    edges = np.sort(rng.integers(0, SPAN_NS, KERNELS))
    length = rng.integers(100_000, 3_200_000, KERNELS)
    end = np.minimum(edges + length, SPAN_NS)
    order = np.lexsort((end, edges))
    start_ns, end_ns = edges[order], end[order]
    step = (start_ns // NS_PER_S).astype(np.int32)
    cuts = np.arange(STEPS + 1) * NS_PER_S
    return DeviceTimeline(
        device=0,
        start_ns=start_ns,
        end_ns=end_ns,
        stream=np.where(kernel_class == KernelClass.COMM, 20, 7).astype(np.int64),
        kernel_class=kernel_class,
        copy_direction=np.full(KERNELS, CopyDirection.NONE, np.int8),
        family=(kernel_class * 40 + rng.integers(0, 40, KERNELS)).astype(np.int32),
        step=step,
        call_start_ns=start_ns - rng.integers(5_000, 2_000_000, KERNELS),
        call_end_ns=start_ns - 4_000,
        call_thread=np.zeros(KERNELS, np.int32),
        copied_bytes=np.full(KERNELS, -1, np.int64),
        collective=np.full(KERNELS, -1, np.int32),
        seq=np.full(KERNELS, -1, np.int64),
        comms_id=np.full(KERNELS, -1, np.int64),
        operation=np.full(KERNELS, -1, np.int32),
        layer=np.full(KERNELS, -1, np.int32),
        annotation=np.full(KERNELS, -1, np.int32),
        phase=np.full(KERNELS, -1, np.int8),
        flops=np.full(KERNELS, np.nan),
        matrix_dtype=np.full(KERNELS, DType.NONE, np.int8),
        windows=tuple(
            DeviceWindow(
                step=k, start_ns=int(cuts[k]), end_ns=int(cuts[k + 1]), tail=k == STEPS - 1
            )
            for k in range(STEPS)
        ),
        unrecorded=intervals.EMPTY,
    )


def activity() -> tuple[HostActivity, ...]:
    """One thread that synchronises often."""
    start_ns = np.arange(0, SPAN_NS, 50_000_000)
    sync = intervals.union(start_ns, start_ns + 2_000_000)
    return (HostActivity(allocator=intervals.EMPTY, data=intervals.EMPTY, sync=sync),)


def samples() -> GpuSamples:
    """An hour of samples of a clock that wanders between 1300 and 1900 MHz."""
    rng = np.random.default_rng(8)
    t_ns = (np.arange(SAMPLES) + rng.uniform(0.05, 0.95, SAMPLES)) * (SPAN_NS / SAMPLES)
    clock_mhz = 1600 + 300 * np.sin(np.arange(SAMPLES) / 37) + rng.normal(0, 20, SAMPLES)
    absent = np.full(SAMPLES, np.nan)
    return GpuSamples(
        gpu=GpuInfo(gpu="0", index=0, uuid="GPU-0", name="Bench GPU", vendor=Vendor.NVIDIA),
        t_unix_ns=t_ns.astype(np.int64),
        sm_clock_mhz=np.round(clock_mhz / 15) * 15,
        read_span_ns=np.full(SAMPLES, 200_000),
        causes=np.where(rng.random(SAMPLES) < 0.8, Cause.POWER_CAP.bit, Cause.THERMAL.bit),
        mem_clock_mhz=absent,
        power_w=absent,
        energy_j=np.cumsum(rng.uniform(4, 8, SAMPLES)),
        temperature_c=absent,
        memory_used_bytes=absent,
        activity_ratio=absent,
        limited_ns={
            Cause.POWER_CAP: np.cumsum(rng.uniform(0, 1e7, SAMPLES)),
            Cause.THERMAL: np.cumsum(rng.uniform(0, 1e6, SAMPLES)),
        },
    )


def main() -> None:
    """Print the time of the join."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    arguments = (timeline(), activity(), samples(), 1980.0)
    taken = []
    for _ in range(chosen.runs):
        before = time.process_time()
        join_device(*arguments)
        taken.append(time.process_time() - before)
    figure = Figure(
        what="join, s of CPU",
        shown=median_and_range(taken),
        value=float(np.median(taken)),
        must=MOST_S,
        aim=AIM_S,
    )
    print(f"{KERNELS:,} kernels with {SAMPLES:,} samples, {chosen.runs} times.\n")
    print(figure_table([figure]))
    if chosen.profile:
        profile = cProfile.Profile()
        profile.runcall(join_device, *arguments)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
