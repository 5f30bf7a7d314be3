"""Looks at AMD GPUs that the C library makes, against those of the back end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from chopperd.clock import Clock
from chopperd.devices.amd.smi.backend import AmdSmiBackend, Paths
from chopperd.devices.amd.smi.library import open_library
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.model.kinds import Cause
from chopperd.sampling.native.library import NativeLibrary
from chopperd.units import NS_PER_S
from tests.fakes.amd.cards import Card, mi210, mi300x
from tests.fakes.amd.motion import Segment, boot_ns
from tests.fakes.amd.smi.calls import IO, NOT_FOUND
from tests.fakes.amd.smi.fixtures import FakeAmdSmi, MakeFakeAmdSmi
from tests.fakes.amd.smi.gpu import METRICS, SmiGpu
from tests.fakes.clock import ScriptedClock
from tests.integration.sampling.one_gpu import CLOCK, OneGpu, one_gpu
from tests.integration.sampling.test_native_ticks import kinds
from tests.waiting import wait_for


class CountedAmdSmi(AmdSmiBackend):
    """The real back end; counts the looks that it makes itself."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.read_count = 0
        super().__init__(open_library(), clock, Paths(sysfs=folder))

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        self.read_count += 1
        return super().read(device, scope)


@pytest.fixture
def opened() -> Iterator[list[CountedAmdSmi]]:
    made: list[CountedAmdSmi] = []
    yield made
    for backend in made:
        backend.close()


def settled_at(fake: FakeAmdSmi, folder: Path) -> CountedAmdSmi:
    """A back end that knows all it can, over a firmware that is stopped at an instant."""
    clock, at_ns = ScriptedClock(), boot_ns()
    fake.node.freeze(at_ns)
    backend = CountedAmdSmi(folder, clock)
    [device] = backend.devices()
    for _ in range(8):
        at_ns += NS_PER_S // 2
        clock.advance(NS_PER_S // 2)
        fake.node.freeze(at_ns)
        backend.read(device, ReadScope.FULL)
    assert backend.read_plan(device, ReadScope.FULL)
    return backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something that a GPU does; how many kinds of records a loop makes of it."""

    trouble: Callable[[SmiGpu], object] = SmiGpu.calls_total
    card: Callable[[], Card] = mi300x
    kinds_count: int = 2


DIES = (2100, 1900, 132, 0, 2000, 1999, 1998, 1997)
CASES = {
    "nothing": Case(),
    "a chip with one die": Case(card=mi210),
    "a chip with one die under limits": Case(
        card=mi210, trouble=lambda gpu: gpu.plays(Segment(limits=frozenset({"ppt", "hbm_thm"})))
    ),
    "dies that differ, sleep and are off": Case(
        trouble=lambda gpu: gpu.plays(Segment(die_clocks_mhz=DIES))
    ),
    "a die that is gated": Case(
        trouble=lambda gpu: gpu.plays(Segment(die_clocks_mhz=(*DIES[:7], None)))
    ),
    "an absurd clock of one die": Case(trouble=lambda gpu: gpu.shows(current_gfxclks=(60000,))),
    "an absurd temperature": Case(trouble=lambda gpu: gpu.shows(temperature_hotspot=999)),
    "a counter that wrapped": Case(
        trouble=lambda gpu: gpu.shows(**{"xcp_stats.0.gfx_below_host_limit_ppt_acc": (0, 0)})
    ),
    "an energy that fell": Case(trouble=lambda gpu: gpu.shows(energy_accumulator=5)),
    "no energy": Case(trouble=lambda gpu: gpu.lacks("energy_accumulator")),
    "a power that is all ones": Case(trouble=lambda gpu: gpu.lacks("current_socket_power")),
    "no block": Case(trouble=lambda gpu: gpu.fails(IO, METRICS), kinds_count=1),
}


@pytest.mark.parametrize("name", CASES)
def test_records_are_the_same_word_for_word(
    make_fake_amdsmi: MakeFakeAmdSmi,
    native: NativeLibrary,
    tmp_path: Path,
    opened: list[CountedAmdSmi],
    name: str,
) -> None:
    case = CASES[name]
    fake = make_fake_amdsmi([case.card()])
    gpu = fake.node.gpus[0]
    found = []
    start_ns = boot_ns()
    for library in (None, native):
        gpu.heals()
        gpu.plays(Segment(), origin_ns=start_ns - 100 * NS_PER_S)
        backend = settled_at(fake, tmp_path)
        opened.append(backend)
        with one_gpu(backend, library) as sampled:
            sampled.samples_on(10)
            case.trouble(gpu)
            position = sampled.ticks_on(3).written  # the tick that was on is over
            sampled.ticks_on(60)
            records = sampled.reader.drain(0, position).records
            # Each run's firmware is stopped at an instant of its own.
            records["energy_j"] -= records["energy_j"][0] if name != "an energy that fell" else 0
            found.append(kinds(records))
    python, c = found
    assert c == python
    assert len(python) == case.kinds_count


def test_settled_looks_are_made_without_the_back_end_and_counters_go_on(
    make_fake_amdsmi: MakeFakeAmdSmi,
    native: NativeLibrary,
    tmp_path: Path,
    opened: list[CountedAmdSmi],
) -> None:
    fake = make_fake_amdsmi([mi300x()])
    fake.node.plays(Segment(power_w=650, limits=frozenset({"ppt"})))
    backend = CountedAmdSmi(tmp_path, CLOCK)
    opened.append(backend)
    with one_gpu(backend, native) as sampled:
        wait_until_planned(sampled, backend)
        first = sampled.records[-1]
        sampled.samples_on(200)
        last = sampled.records[-1]
    spans_ns = int(last["t_mono_ns"] - first["t_mono_ns"])
    # The firmware measures each millisecond, and samples are timed by the middle of their call.
    assert last["energy_j"] - first["energy_j"] == pytest.approx(
        650 * spans_ns / NS_PER_S, rel=0.02
    )
    limited_ns = last["limited_ns"][Cause.POWER_CAP] - first["limited_ns"][Cause.POWER_CAP]
    assert limited_ns == pytest.approx(spans_ns, rel=0.02)
    assert not np.isnan(last["sm_clock_mhz"])


def wait_until_planned(sampled: OneGpu, backend: CountedAmdSmi) -> None:
    """Wait until the back end is asked no more; how else would it stand still for 50 ticks."""

    def is_planned() -> bool:
        before = backend.read_count
        sampled.ticks_on(50)
        return backend.read_count <= before + 1  # a full look of its own now and then

    wait_for(is_planned, "looks without the back end", 60)


def test_a_lost_gpu_is_found_again_and_read_by_a_new_plan(
    make_fake_amdsmi: MakeFakeAmdSmi,
    native: NativeLibrary,
    tmp_path: Path,
    opened: list[CountedAmdSmi],
) -> None:
    fake = make_fake_amdsmi([mi300x()])
    backend = CountedAmdSmi(tmp_path, CLOCK)
    opened.append(backend)
    with one_gpu(backend, native) as sampled:
        wait_until_planned(sampled, backend)
        fake.node.gpus[0].fails(NOT_FOUND)
        sampled.waits_for(lambda status: status.losses_count)
        fake.node.gpus[0].heals()
        sampled.samples_on(10)
        wait_until_planned(sampled, backend)
