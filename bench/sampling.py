"""What sampling costs and how late it is: 8 scripted GPUs at 10 and 100 Hz.

Run: python -m bench.sampling [seconds]. CPU from /proc/PID/stat of the sampler process, as a share
of one core, beside the share of a loop that just sleeps and reads the clock as often (the floor
that this machine sets). Lateness is what each record says of itself.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from chopperd.clock import SystemClock
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor

SCRIPT = Path(__file__).parents[1] / "tests/integration/sampling/scripted_sampler.py"
GPU_COUNT = 8

#: One thread a GPU that sleeps a period at a time and does nothing else.
FLOOR = """
import sys, threading, time
def loop():
    while True:
        time.sleep(1 / float(sys.argv[1]))
        time.monotonic_ns()
for _ in range(int(sys.argv[2])):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(1000)
"""


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_ratio(pid: int, seconds: float) -> float:
    before_s, start = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / (time.monotonic() - start)


def floor_ratio(hz: float, seconds: float) -> float:
    command = [sys.executable, "-c", FLOOR, str(hz), str(GPU_COUNT)]
    with subprocess.Popen(command) as process:
        time.sleep(0.5)
        ratio = cpu_ratio(process.pid, seconds)
        process.kill()
    return ratio


def measure(hz: float, seconds: float) -> None:
    command = [sys.executable, str(SCRIPT), "--gpus", str(GPU_COUNT)]
    supervisor = SamplerSupervisor(command, SamplerSettings(hz=hz), SystemClock())
    start_ns = time.monotonic_ns()
    supervisor.start()
    pid = supervisor.pid
    assert pid is not None
    while not all(supervisor.reader.status(n).written for n in range(GPU_COUNT)):
        time.sleep(0.001)
    first_ns = [supervisor.reader.drain(n).records["t_mono_ns"][0] for n in range(GPU_COUNT)]
    ratio = cpu_ratio(pid, seconds)
    records = np.concatenate([supervisor.reader.drain(n).records for n in range(GPU_COUNT)])
    missed = sum(supervisor.reader.status(n).missed_count for n in range(GPU_COUNT))
    supervisor.stop()
    supervisor.close()
    late_ms = np.percentile(records["late_ns"], [50, 99, 100]) / 1e6
    floor = floor_ratio(hz, seconds)
    print(
        f"{hz:5g} Hz: {100 * ratio:.2f} % of a core (floor {100 * floor:.2f} %), "
        f"{len(records)} samples, {missed} missed, late p50 {late_ms[0]:.3f} ms, "
        f"p99 {late_ms[1]:.3f} ms, max {late_ms[2]:.3f} ms, "
        f"first sample of all GPUs {(max(first_ns) - start_ns) / 1e6:.0f} ms after start"
    )


if __name__ == "__main__":
    for rate_hz in (10.0, 100.0):
        measure(rate_hz, float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
