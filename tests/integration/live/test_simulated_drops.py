"""Drops on the simulated node: known truth, sampled as the agent samples it."""

from dataclasses import dataclass

import numpy as np
import pytest

from chopperd.live.drops import GpuDrops
from chopperd.model.captures import GpuDrop
from chopperd.model.devices import ReadScope
from chopperd.model.samples import VALUE_COLUMNS
from chopperd.sampling.memory.layout import RECORD, Records
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from chopperd.units import NS_PER_MS, NS_PER_S, TimeTriple

START_NS = 1_800_000_000 * NS_PER_S
PERIOD_NS = 100 * NS_PER_MS
SECONDS = 120
COOL, HOT = 0, 5


@dataclass(frozen=True)
class Sampled:
    """Two minutes of a node with one badly cooled GPU."""

    node: SimulatedNode
    records: dict[int, Records]

    def drops(self, gpu: int, *, low_ratio: float = 0.0, from_s: float = 0.0) -> list[GpuDrop]:
        """The drops of a GPU whose clock is lowered by a ratio for 5 s."""
        records = self.records[gpu].copy()
        since_s = (records["t_mono_ns"] - START_NS) / NS_PER_S
        is_low = (since_s >= from_s) & (since_s < from_s + 5)
        records["sm_clock_mhz"][is_low] *= 1 - low_ratio
        drops, found = GpuDrops(self.node.gpus[gpu]), []
        for first in range(0, len(records), 10):
            drops.add(records[first : first + 10], PERIOD_NS)
            now_ns = int(records["t_mono_ns"][first : first + 10][-1])
            now = TimeTriple(unix_ns=now_ns, mono_ns=now_ns, boot_ns=now_ns)
            found += drops.news(self.node.gpus[gpu], now)
        return [drop for drop in found if drop.end_unix_ns is not None]


@pytest.fixture(scope="module", params=["fsdp2-h100", "fsdp2-mi300x"])
def sampled(request: pytest.FixtureRequest) -> Sampled:
    node = SimulatedNode(SimulationSpec(preset=request.param, seed=1, start_unix_ns=START_NS))
    records = {gpu: np.zeros(SECONDS * 10, RECORD) for gpu in (COOL, HOT)}
    for place in range(SECONDS * 10):
        t_ns, scope = START_NS + place * PERIOD_NS, ReadScope.FAST if place % 10 else ReadScope.FULL
        for gpu, made in records.items():
            reading = node.reading(gpu, t_ns, scope)
            made["t_mono_ns"][place] = t_ns
            for name in VALUE_COLUMNS:
                value = getattr(reading, name)
                made[name][place] = np.nan if value is None else value
            made["causes"][place] = sum(cause.bit for cause in reading.causes or ())
    return Sampled(node, records)


def test_a_steady_job_has_no_drops_also_on_a_gpu_that_warms_up(sampled: Sampled) -> None:
    """Single samples of the cool GPU scatter by 7 to 15 %, as its clock follows the phases."""
    clock_mhz = sampled.records[COOL]["sm_clock_mhz"]
    assert clock_mhz.std() / clock_mhz.mean() > 0.05
    assert sampled.drops(COOL) == sampled.drops(HOT) == []


@pytest.mark.parametrize("from_s", [60.03, 90.0])
def test_an_injected_drop_on_a_smooth_clock_is_found_to_half_a_point(
    sampled: Sampled, from_s: float
) -> None:
    (drop,) = sampled.drops(HOT, low_ratio=0.08, from_s=from_s)
    assert (drop.begin_unix_ns - START_NS) / NS_PER_S == pytest.approx(from_s, abs=0.3)
    assert drop.length_s == pytest.approx(5.0, abs=0.3)
    assert drop.depth_ratio == pytest.approx(0.08, abs=0.005)
    assert drop.mean_depth_ratio == pytest.approx(0.08, abs=0.005)
    assert (drop.state, drop.cause) == ("recovered", "thermal")


@pytest.mark.parametrize("from_s", [60.03, 90.0])
def test_an_injected_drop_on_a_swinging_clock_is_found_within_its_noise(
    sampled: Sampled, from_s: float
) -> None:
    """50 samples that scatter by 7 % know their mean to a point; on MI300X by 15 %, to two."""
    (drop,) = sampled.drops(COOL, low_ratio=0.12, from_s=from_s)
    assert (drop.begin_unix_ns - START_NS) / NS_PER_S == pytest.approx(from_s, abs=1.0)
    assert drop.length_s == pytest.approx(5.0, abs=1.5)
    assert drop.mean_depth_ratio == pytest.approx(0.12, abs=0.02)
    assert (drop.state, drop.cause) == ("recovered", "power_cap")
