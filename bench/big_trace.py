"""Makes the inputs of the trace benchmarks: large traces from a real one, and samples for them.

Run as a module in a process of its own, so that whoever measures stays small.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np

from bench.processes import ROOT, WORK
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import Cause
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.store.samples.files import write_samples
from chopperd.traces.read.reader import read_trace
from chopperd.units import NS_PER_S

#: The public inputs, where the tests look for them too.
SHARED: Final = Path(os.environ.get("CHOPPERD_SHARED", ROOT.parent / "shared"))
MAKER: Final = SHARED / "tools" / "make_big_trace.py"
#: Said where there is no big trace.
NO_BIG_TRACE: Final = (
    "The big trace is made by tools/make_big_trace.py of CHOPPERD_SHARED, which was not found: "
    "what needs it was skipped."
)
#: Events of each trace. The maker writes whole copies of a real step: about 0.1, 0.5 and 2 GB.
EVENTS: Final = {"small": 340_000, "big": 1_720_000, "large": 7_340_000}
UUID: Final = "GPU-benchmark-0"
SAMPLE_HZ: Final = 100
_MAX_MHZ: Final = 1980.0


def trace_path(name: str) -> Path:
    """Where a trace lies: alone in its folder, as HTA wants it."""
    return WORK / name / "rank0.pt.trace.json"


def samples_path(name: str) -> Path:
    """Where the samples of a trace lie."""
    return WORK / f"{name}-samples.csv"


def device_of(name: str) -> int:
    """The trace's own number of its only device."""
    return int((WORK / f"{name}-device").read_text())


def made(name: str) -> Path | None:
    """Where a trace lies, made by a process of its own if need be; None where it can't be made."""
    if not trace_path(name).exists() and MAKER.exists():
        subprocess.run([sys.executable, "-m", "bench.big_trace", name], cwd=ROOT, check=True)
    return trace_path(name) if trace_path(name).exists() else None


def make(name: str) -> None:
    """Write a trace and its samples, unless they are there."""
    trace = trace_path(name)
    if not trace.exists():
        trace.parent.mkdir(parents=True, exist_ok=True)
        part = WORK / f"{name}.part"
        make = [sys.executable, str(MAKER), str(part), str(EVENTS[name])]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        part.replace(trace)
    if not samples_path(name).exists():
        _make_samples(name)


def _make_samples(name: str) -> None:
    trace = read_trace(trace_path(name))
    (device,) = np.unique(trace.records.device).tolist()
    (WORK / f"{name}-device").write_text(str(device))
    first_ns, last_ns = trace.span_ns
    t_unix_ns = np.arange(first_ns - NS_PER_S, last_ns + NS_PER_S, NS_PER_S // SAMPLE_HZ)
    write_samples(
        samples_path(name),
        SampleSet(gpus=(_power_capped(t_unix_ns),), asked_hz=SAMPLE_HZ, started_unix_ns=first_ns),
    )


def _power_capped(t_unix_ns: np.ndarray) -> GpuSamples:
    """A clock that wanders below its maximum under a power cap (fixed seed)."""
    count = len(t_unix_ns)
    rng = np.random.default_rng(7)
    steps_mhz = rng.normal(0, 15, count)
    clock_mhz = np.clip(1700 + np.convolve(steps_mhz, np.ones(50), "same"), 1200, _MAX_MHZ)
    unknown = np.full(count, np.nan)
    return GpuSamples(
        gpu=GpuInfo(
            gpu="0",
            index=0,
            uuid=UUID,
            name="Benchmark",
            vendor=Vendor.NVIDIA,
            sm_clock_max_mhz=_MAX_MHZ,
            power_limit_w=700.0,
        ),
        t_unix_ns=t_unix_ns,
        sm_clock_mhz=np.round(clock_mhz / 15) * 15,
        read_span_ns=np.full(count, 30_000),
        causes=np.full(count, Cause.POWER_CAP.bit),
        mem_clock_mhz=unknown,
        power_w=np.round(700 - rng.uniform(0, 20, count), 1),
        energy_j=np.round(np.arange(count) * 690.0 / SAMPLE_HZ, 1),
        temperature_c=np.round(60 + rng.uniform(0, 5, count)),
        memory_used_bytes=unknown,
        activity_ratio=unknown,
    )


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        make(wanted)
