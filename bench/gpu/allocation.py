"""Does polling the driver slow cudaMalloc and cudaFree? Both timed with and without sampling."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np

from bench.gpu.looping import Condition, in_turns, looping
from bench.gpu.paired import Done, Stretch, inside, medians, paired_ratio, shown
from bench.gpu.part import Options, main
from bench.gpu.sampling import RATES_HZ, sampler
from bench.markdown import table

_OFF = "off"


def measure(options: Options) -> tuple[str, object]:
    """A job that allocates and frees 64 MiB all the time, under each rate in turns."""
    conditions: dict[str, Condition] = {_OFF: _nothing}
    conditions |= {f"{hz:g} Hz": partial(sampler, hz) for hz in RATES_HZ}
    pairs, seconds = (2, 0.2) if options.is_dry else (5, 0.6)
    with looping("alloc", options.device) as done:
        stretches = in_turns(conditions, pairs, seconds, settle_s=0.1, seed=1)
    found = medians(done, stretches)
    ratios = {name: paired_ratio(found, name, _OFF) for name in conditions if name != _OFF}
    rows = [
        (
            name,
            *_times(done, [each for each in stretches if each.condition == name]),
            shown(ratios[name]) if name in ratios else "",
        )
        for name in conditions
    ]
    header = ("sampling", "malloc + free", "p50 us", "p99 us", "most us", "p50 over off")
    note = "64 MiB each, torch's caching allocator off." if options.device == "cuda" else "CPU."
    return f"{note}\n\n{table(header, rows)}", {"medians_ns": _flat(found), "ratios": ratios}


def _nothing() -> AbstractContextManager[object]:
    return nullcontext()


def _times(done: list[Done], stretches: list[Stretch]) -> tuple[str, ...]:
    took_us = np.array([ns for each in stretches for ns in inside(done, each)]) / 1e3
    if not len(took_us):
        return "0", "-", "-", "-"
    return (str(len(took_us)), *(f"{np.percentile(took_us, q):.1f}" for q in (50, 99, 100)))


def _flat(found: dict[tuple[str, int], float]) -> dict[str, float]:
    return {f"{condition}, pair {pair}": value for (condition, pair), value in found.items()}


if __name__ == "__main__":
    main(measure)
