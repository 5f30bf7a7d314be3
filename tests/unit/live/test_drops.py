"""Drops in a GPU's records, by hand, and their way to whoever keeps them."""

import numpy as np
from msgspec.structs import replace

from chopperd.live.drops import DropQueue, GpuDrops
from chopperd.model.captures import GpuDrop
from chopperd.model.devices import Vendor
from chopperd.model.kinds import Cause
from chopperd.model.live import DropTotals
from chopperd.sampling.memory.layout import Records
from chopperd.units import NS_PER_MS, NS_PER_S, TimeTriple
from tests.fakes.drops import gpu_drop
from tests.fakes.records import records
from tests.fakes.samples import gpu_info

PERIOD_NS = 100 * NS_PER_MS
GPU = replace(gpu_info(3), vendor=Vendor.NVIDIA)
#: Unix time minus monotonic time.
OFFSET_NS = 1_800_000_000 * NS_PER_S


def clocks(*runs: tuple[float, float], first_s: float = 100.0, causes: int = 0) -> Records:
    """Ten records a second, from runs of (seconds, MHz)."""
    rows = [
        {"sm_clock_mhz": clock, "causes": causes}
        for seconds, clock in runs
        for _ in range(round(seconds * 10))
    ]
    return records(rows, first_ns=round(first_s * NS_PER_S))


def at(mono_s: float, offset_ns: int = OFFSET_NS) -> TimeTriple:
    mono_ns = round(mono_s * NS_PER_S)
    return TimeTriple(unix_ns=mono_ns + offset_ns, mono_ns=mono_ns, boot_ns=mono_ns)


def test_a_drop_is_published_in_unix_time_with_its_figures() -> None:
    drops = GpuDrops(GPU)
    drops.add(clocks((60, 1500), (5, 1350), (10, 1500)), PERIOD_NS)
    (drop,) = drops.news(replace(GPU, gpu="7"), at(176))
    assert (drop.gpu, drop.uuid, drop.state) == ("7", GPU.uuid, "recovered")
    assert drop.begin_unix_ns == OFFSET_NS + 160 * NS_PER_S
    assert drop.end_unix_ns == OFFSET_NS + 165 * NS_PER_S
    assert (drop.length_s, drop.reference_mhz) == (5.0, 1500.0)
    assert np.isclose(drop.lowest_mhz, 1350.0)
    assert np.isclose([drop.depth_ratio, drop.mean_depth_ratio, drop.lost_s], [0.1, 0.1, 0.5]).all()
    assert (drop.cause, set(drop.lost_by_cause_s)) == ("unexplained", {"unexplained"})
    assert drops.news(GPU, at(177)) == []
    totals = drops.totals()
    assert totals is not None
    assert (totals.count, totals.length_s) == (1, 5.0)
    assert np.isclose(totals.lost_s, 0.5)


def test_an_open_drop_is_told_at_once_and_each_half_minute_under_one_begin() -> None:
    """Also when the clock is set while it is open."""
    drops = GpuDrops(GPU)
    drops.add(clocks((60, 1500), (5, 1350)), PERIOD_NS)
    (first,) = drops.news(GPU, at(165))
    assert (first.state, first.end_unix_ns) == ("open", None)
    drops.add(clocks((30, 1350), first_s=165), PERIOD_NS)
    assert drops.news(GPU, at(194)) == []
    (second,) = drops.news(GPU, at(195, OFFSET_NS + NS_PER_S))
    assert second.begin_unix_ns == first.begin_unix_ns
    assert second.length_s > first.length_s + 29
    # Its length and loss are counted once it is known to be over.
    assert drops.totals() == DropTotals(count=1)
    drops.add(clocks((10, 1500), first_s=195), PERIOD_NS)
    (last,) = drops.news(GPU, at(205, OFFSET_NS + NS_PER_S))
    assert last.begin_unix_ns == first.begin_unix_ns
    assert (last.state, last.length_s) == ("recovered", 35.0)


def test_silence_interrupts_an_open_drop() -> None:
    drops = GpuDrops(GPU)
    drops.add(clocks((60, 1500), (5, 1350)), PERIOD_NS)
    assert len(drops.news(GPU, at(165))) == 1
    assert drops.news(GPU, at(190)) == []
    (ended,) = drops.news(GPU, at(230))
    assert ended.state == "interrupted"


def test_totals_are_unknown_until_clock_and_busyness_are_known_and_then_zero() -> None:
    drops = GpuDrops(GPU)
    drops.add(clocks(), PERIOD_NS)
    drops.add(clocks((1, np.nan)), PERIOD_NS)
    drops.add(clocks((1, 1500), first_s=101, causes=Cause.UNKNOWN.bit), PERIOD_NS)
    assert drops.totals() is None
    drops.add(clocks((1, 1500), first_s=102, causes=Cause.LOW_UTILIZATION.bit), PERIOD_NS)
    assert drops.totals() == DropTotals(count=0, length_s=0.0, lost_s=0.0)


def test_an_idle_gpu_with_a_low_clock_has_no_drop() -> None:
    drops = GpuDrops(GPU)
    idle = clocks((30, 300), first_s=160, causes=Cause.LOW_UTILIZATION.bit)
    for part in (clocks((60, 1500)), idle, clocks((30, 1500), first_s=190)):
        drops.add(part, PERIOD_NS)
    assert drops.totals() == DropTotals()


def test_a_gpu_that_is_busy_for_less_than_half_is_left_out() -> None:
    drops = GpuDrops(GPU)
    hardly = clocks((30, 1000), first_s=160)
    hardly["activity_ratio"][::10] = 0.3
    for part in (clocks((60, 1500)), hardly):
        drops.add(part, PERIOD_NS)
    assert drops.totals() == DropTotals()


def test_the_newest_version_of_each_drop_waits_once_and_is_taken_once() -> None:
    queue = DropQueue()
    one, two = gpu_drop(1), gpu_drop(2)
    grown = replace(one, length_s=9.0)
    queue.put([one, two])
    queue.put([grown])
    assert queue.take() == (grown, two)
    assert queue.take() == ()


def test_where_too_many_wait_the_first_are_given_up() -> None:
    queue = DropQueue()
    many: list[GpuDrop] = [gpu_drop(number) for number in range(1005)]
    queue.put(many)
    assert queue.take() == tuple(many[5:])
