"""Live integrals by the C library against `LiveIntegrals`, whose own tests say what is right."""

import os
from collections.abc import Iterator
from dataclasses import replace
from math import nan

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.model.kinds import CAUSES, Cause
from chopperd.sampling.integrals import LiveIntegrals, PythonTotals
from chopperd.sampling.memory.layout import RECORD, TOTAL_NAMES, Records, RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.native.library import NativeLibrary, memory_of
from chopperd.sampling.native.ticks import NativeIntegrals, NativeTotals

MS = 1_000_000
GPU = GpuInfo(gpu="0", index=0, uuid="u", name="n", vendor=Vendor.NVIDIA, sm_clock_max_mhz=1980.0)
CAPACITY = 64

GPUS = (
    GPU,
    replace(GPU, sm_clock_limit_mhz=1500.0),
    replace(GPU, sm_clock_limit_mhz=0.0),
    replace(GPU, vendor=Vendor.AMD),
    replace(GPU, sm_clock_max_mhz=None),
)
CAUSE_SETS = (
    0,
    Cause.POWER_CAP.bit,
    Cause.POWER_CAP.bit | Cause.THERMAL.bit | Cause.USER_LIMIT.bit,
    Cause.HW_SLOWDOWN.bit | Cause.HW_THERMAL.bit,
    Cause.HW_SLOWDOWN.bit,
    Cause.USER_LIMIT.bit,
    Cause.LOW_UTILIZATION.bit,
    Cause.LOW_UTILIZATION.bit | Cause.UNKNOWN.bit,
    Cause.UNKNOWN.bit,
)


def some(random: np.random.Generator, values: np.ndarray, known_ratio: float) -> np.ndarray:
    """The values, some of them not reported."""
    return np.where(random.random(values.shape) < known_ratio, values, nan)


def random_records(seed: int, count: int, known_ratio: float) -> Records:
    """Records of a GPU that misbehaves: gaps, times that stand, counters that leap, few values."""
    random = np.random.default_rng(seed)
    made = np.zeros(count, RECORD)
    spacing_ms = random.choice([0, 1, 90, 100, 110, 250, 700, 4000], count)
    made["t_mono_ns"] = 10**9 + np.cumsum(spacing_ms) * MS
    made["causes"] = random.choice(CAUSE_SETS, count)
    made["sm_clock_mhz"] = some(random, random.uniform(0, 2100, count), known_ratio)
    energy_j = np.cumsum(random.uniform(0, 50, count)) - random.choice([0, 0, 0, 500], count)
    energy_j += random.choice([0, 0, 0, 0, 65_536, 1e6, 1e9], count)
    made["energy_j"] = some(random, energy_j, 0.5 * known_ratio)
    made["activity_ratio"] = some(random, random.choice([0, 0.3, 1], count), 0.3 * known_ratio)
    steps_ns = random.choice([0, 0, 1, 5, 60, 100, -300, 9000], (count, len(CAUSES))) * MS
    limited_ns = np.maximum(np.cumsum(steps_ns, axis=0), 0).astype(float)
    made["limited_ns"] = some(random, limited_ns, known_ratio)
    made["limited_ns"][:, random.random(len(CAUSES)) < 0.3] = nan
    return made


@given(
    seed=st.integers(0, 2**32),
    batches=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    known_ratio=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    gpu=st.sampled_from(GPUS),
    period_ms=st.sampled_from([10, 100, 1000]),
    resumed=st.booleans(),
)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_both_give_the_same_totals_for_any_records_in_any_batches(
    native: NativeLibrary,
    seed: int,
    batches: list[int],
    known_ratio: float,
    gpu: GpuInfo,
    period_ms: int,
    resumed: bool,
) -> None:
    python, c = LiveIntegrals(gpu), NativeIntegrals(native, gpu, CAPACITY)
    records = random_records(seed, sum(batches), known_ratio)
    ends = np.cumsum(batches).tolist()
    if resumed:  # what came first was integrated by another sampler
        before = np.linspace(0, 1e9, len(python.totals))
        before[::5] = nan
        python.resume(before, records[: ends[0]])
        c.resume(before, records[: ends[0]])
    for first, end in zip([0, *ends], ends, strict=False):
        if resumed and first == 0:
            continue
        python.add(records[first:end], period_ms * MS)
        c.add(records[first:end], period_ms * MS)
        np.testing.assert_allclose(c.totals, python.totals, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_energy_skips_a_dip_and_goes_on_after_a_restart(native: NativeLibrary, batch: int) -> None:
    """Public case 30, whose text says what stands there after each reading."""
    expected_j = [0.0, 30.518, 30.518, 61.036, 61.036, 62.5619]
    counts = [1_000_000, 3_000_000, 2_900_000, 5_000_000, 1_000, 101_000]
    made = random_records(1, len(counts), 0.0)
    made["t_mono_ns"] = 1000 * MS * np.arange(1, len(counts) + 1)
    made["energy_j"] = np.array(counts) * 15.259e-6
    place = TOTAL_NAMES.index("energy_j")
    python, c = LiveIntegrals(replace(GPU, vendor=Vendor.AMD)), NativeIntegrals(native, GPU, 6)
    for first in range(0, len(counts), batch):
        for integrals in (python, c):
            integrals.add(made[first : first + batch], 1000 * MS)
            now_j = integrals.totals[place]
            assert now_j == pytest.approx(expected_j[first + batch - 1], rel=1e-6, abs=1e-9)


def test_more_records_than_there_is_room_for_are_refused(native: NativeLibrary) -> None:
    c = NativeIntegrals(native, GPU, 10)
    with pytest.raises(ValueError, match="too many"):
        c.add(random_records(1, 11, 1.0), 100 * MS)


@pytest.fixture
def rings() -> Iterator[list[tuple[RingWriter, RingReader]]]:
    """Two memories, for one way of integrating each."""
    fds = [os.memfd_create("ring") for _ in range(2)]
    writers = [RingWriter(fd, RingDescription(gpus=(GPU,)), CAPACITY) for fd in fds]
    opened = [(writer, RingReader(fd)) for writer, fd in zip(writers, fds, strict=True)]
    yield opened
    for (writer, reader), fd in zip(opened, fds, strict=True):
        reader.close()
        writer.close()
        os.close(fd)


@pytest.mark.parametrize(
    ("batches", "sampled_s"),
    [
        # 4 intervals of 10 ms, 20 of 100 ms; of 100 of 10 ms the last 63, the others are lost.
        (((5, 10, 10), (20, 100, 100), (100, 10, 10)), 0.04 + 2.0 + 0.63),
        # 39 of 10 ms, one of 1 s; then one more of 1 s, in which the rate rose, and 4 of 10 ms.
        (((40, 10, 10), (1, 1000, 1000), (5, 10, 1000)), 0.39 + 1.0 + 1.0 + 0.04),
    ],
)
def test_both_publish_the_same_over_wraps_rates_that_change_and_a_late_update(
    native: NativeLibrary,
    rings: list[tuple[RingWriter, RingReader]],
    batches: tuple[tuple[int, int, int], ...],
    sampled_s: float,
) -> None:
    """Batches of records, integrated after each: how many, the period kept, the first spacing."""
    published = []
    for place, (writer, reader) in enumerate(rings):
        gpu = writer.gpu(0)
        if place == 0:
            totals: PythonTotals | NativeTotals = PythonTotals(GPU, gpu, MS)
            totals.resume()
        else:
            memory = memory_of(gpu.places())
            totals = NativeTotals(native, GPU, gpu, memory, MS)
            totals.resume()
        t_ns, figures = 0, []
        for count, period_ms, first_ms in batches:
            gpu.set_period_ns(10 * MS, period_ms * MS)
            for number in range(count):
                t_ns += (period_ms if number else first_ms) * MS
                reading = DeviceReading(
                    sm_clock_mhz=1000.0 + t_ns % 7, causes=frozenset({Cause.POWER_CAP})
                )
                gpu.write(reading, t_mono_ns=t_ns, span_ns=1, late_ns=0, scope=ReadScope.FAST)
            totals.update_if_due(t_ns)
            integrated = reader.integrated(0)
            assert integrated is not None
            figures.append((integrated.records_count, integrated.totals))
        published.append(figures)
    python, c = published
    counts = np.cumsum([count for count, _, _ in batches]).tolist()
    assert [count for count, _ in python] == [count for count, _ in c] == counts
    for (_, expected), (_, found) in zip(python, c, strict=True):
        assert found.sampled_s == pytest.approx(expected.sampled_s)
        assert found.sm_cycles == pytest.approx(expected.sm_cycles)
        assert found.lost_s == pytest.approx(dict(expected.lost_s))
    assert python[-1][1].sampled_s == pytest.approx(sampled_s)


def test_nothing_is_published_once_another_writer_has_begun(
    native: NativeLibrary, rings: list[tuple[RingWriter, RingReader]]
) -> None:
    writer, reader = rings[0]
    gpu = writer.gpu(0)
    memory = memory_of(gpu.places())
    totals = NativeTotals(native, GPU, gpu, memory, MS)
    gpu.write(DeviceReading(), t_mono_ns=5, span_ns=1, late_ns=0, scope=ReadScope.FAST)
    writer._set("generation", writer._get("generation") + 1)
    totals.update(10)
    assert reader.integrated(0) is None
