"""What sampling the real driver costs, and how punctual it is, at several rates."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from bench.gpu.part import Options, main
from bench.markdown import table
from bench.processes import cpu_ns
from chopperd.cli.recording import sampler_command
from chopperd.clock import SystemClock
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
from chopperd.units import NS_PER_S

RATES_HZ: Final = (10.0, 100.0, 1000.0)


@contextmanager
def sampler(hz: float) -> Iterator[SamplerSupervisor]:
    """A sampler at work; the budget is not held, so that what it costs shows."""
    settings = SamplerSettings(hz=hz, budget_ratio=1.0)
    supervisor = SamplerSupervisor(sampler_command("nvml"), settings, SystemClock())
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        supervisor.close()


def sampled(hz: float, seconds: float) -> dict[str, float]:
    """A while of sampling, after half a second of settling."""
    clock = SystemClock()
    with sampler(hz) as supervisor:
        clock.sleep_until(clock.mono_ns() + NS_PER_S // 2)
        pid = supervisor.pid
        assert pid is not None
        before = supervisor.reader.status(0)
        cpu_begin_ns, begin_ns = cpu_ns(pid), clock.mono_ns()
        clock.sleep_until(begin_ns + round(seconds * NS_PER_S))
        after = supervisor.reader.status(0)
        cpu_used_ns, end_ns = cpu_ns(pid) - cpu_begin_ns, clock.mono_ns()
        records = supervisor.reader.drain(0).records
    inside = records[(records["t_mono_ns"] >= begin_ns) & (records["t_mono_ns"] < end_ns)]
    lasted_ns = end_ns - begin_ns
    late_us, span_us = inside["late_ns"] / 1e3, inside["span_ns"] / 1e3
    return {
        "asked_hz": hz,
        "kept_hz": len(inside) * NS_PER_S / lasted_ns,
        "core_ratio": cpu_used_ns / lasted_ns,
        "driver_ratio": (after.driver_ns - before.driver_ns) / lasted_ns,
        "missed_count": after.missed_count - before.missed_count,
        **{f"late_p{q}_us": float(np.percentile(late_us, q)) for q in (50, 99, 100)},
        **{f"read_p{q}_us": float(np.percentile(span_us, q)) for q in (50, 99, 100)},
    }


def measure(options: Options) -> tuple[str, object]:
    """All rates."""
    found = [sampled(hz, 0.5 if options.is_dry else 4.0) for hz in RATES_HZ]
    header = (
        "Hz",
        "kept Hz",
        "missed",
        "% of a core",
        "driver, % of time",
        "late us p50/p99/max",
        "read us p50/p99/max",
    )
    rows = [
        (
            f"{each['asked_hz']:g}",
            f"{each['kept_hz']:.1f}",
            f"{each['missed_count']:.0f}",
            f"{100 * each['core_ratio']:.2f}",
            f"{100 * each['driver_ratio']:.3f}",
            *(
                "/".join(f"{each[f'{name}_p{q}_us']:.0f}" for q in (50, 99, 100))
                for name in ("late", "read")
            ),
        )
        for each in found
    ]
    return table(header, rows), found


if __name__ == "__main__":
    main(measure)
