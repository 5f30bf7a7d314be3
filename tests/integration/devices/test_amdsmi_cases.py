"""The public cases about AMD SMI, each over the real binding; numbers are their `expected.md`'s."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from chopperd.clock import SystemClock
from chopperd.devices.amd.block import Block
from chopperd.devices.amd.smi.backend import AmdSmiBackend, handles
from chopperd.devices.amd.smi.calls import SmiSource, layout_of
from chopperd.devices.amd.smi.library import SmiError, open_library
from chopperd.devices.faults import DeviceFaults, VendorErrors
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.plausible import EnergyCounter
from tests.fakes.amd.cards import mi210, mi250x_pair, mi300x, radeon_w7900
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.smi.fixtures import MakeFakeAmdSmi
from tests.fakes.amd.smi.gpu import MIB, SmiGpu
from tests.integration.cases import Cases
from tests.integration.devices.amdsmi import Stepped, open_amdsmi

pytestmark = pytest.mark.corpus


@pytest.fixture
def cases(shared: Path) -> Cases:
    return Cases(shared)


@pytest.fixture
def opened() -> Iterator[list[AmdSmiBackend]]:
    made: list[AmdSmiBackend] = []
    yield made
    for backend in made:
        backend.close()


def shows(gpu: SmiGpu, said: Mapping[str, object]) -> None:
    """The metrics as a case has them: "N/A" is all ones, as the raw structure has it."""
    for name, value in said.items():
        if gpu.place_of(name) is None:
            continue
        if value == "N/A":
            gpu.lacks(name)
        elif isinstance(value, list):
            gpu.shows(**{name: tuple(value)})
        elif isinstance(value, int):
            gpu.shows(**{name: value})


def read_all(backend: AmdSmiBackend) -> list[DeviceReading]:
    return [backend.read(device, ReadScope.FULL) for device in backend.devices()]


def test_case_26_all_ones_of_a_number_s_own_width_is_absent_and_nothing_else_is(
    cases: Cases, make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path, opened: list[AmdSmiBackend]
) -> None:
    fake = make_fake_amdsmi([mi300x()])
    shows(fake.node.gpus[0], json.loads((cases.folder(26) / "metrics.json").read_text()))
    backend = open_amdsmi(tmp_path)
    opened.append(backend)
    [reading] = read_all(backend)
    assert list(reading.die_clocks_mhz) == [2100, 2098]
    assert reading.sm_clock_mhz == 2098
    assert (reading.temperature_c, reading.activity_ratio) == (61, 0.97)
    assert (reading.mem_clock_mhz, reading.power_w, reading.energy_j) == (900, 702, None)
    [device] = backend.devices()
    assert device.power_source == "instant"
    backend.close()
    # What enters no reading: the raw numbers.
    library = open_library()
    source = SmiSource(library, handles(library)[0], layout_of(library))
    vendor = VendorErrors(base=SmiError, classify=lambda *_: DeviceLostError("", operation=""))
    block = Block(source, DeviceFaults(0, vendor, SystemClock()))
    block.refresh()
    library.close()
    for name, expected in (
        ("pcie_replay_count_acc", 65535),
        ("temperature_edge", None),
        ("average_mm_activity", None),
        ("voltage_gfx", None),
        ("energy_accumulator", None),
    ):
        place = block.slot(name)
        assert place is not None
        assert block.number(place, 0).raw() == expected


def test_case_28_one_fixed_rule_says_which_power_is_read(
    cases: Cases, make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path, opened: list[AmdSmiBackend]
) -> None:
    first, second = mi250x_pair()
    cards = [
        mi210(),
        mi300x(),
        replace(first, unique_id=0xA),
        replace(second, unique_id=0xB),
        replace(radeon_w7900(), power="both"),
    ]
    fake = make_fake_amdsmi(cards)
    said = json.loads((cases.folder(28) / "power.json").read_text())
    for gpu, powers in zip(fake.node.gpus, said, strict=True):
        # The call that tells power alone says the same.
        gpu.unanswers("amdsmi_get_power_info")
        shows(gpu, powers)
    backend = open_amdsmi(tmp_path)
    opened.append(backend)
    powers_w = [reading.power_w for reading in read_all(backend)]
    assert powers_w == [91, 702, 430, None, 60]
    assert sum(power_w or 0 for power_w in powers_w) == 1283
    assert [device.power_source for device in backend.devices()] == [
        "average",
        "instant",
        "card",
        None,
        "instant",
    ]


def test_case_28_the_power_never_changes_its_kind_from_sample_to_sample(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path, opened: list[AmdSmiBackend]
) -> None:
    fake = make_fake_amdsmi([replace(radeon_w7900(), power="both")])
    gpu = fake.node.gpus[0]
    gpu.shows(current_socket_power=60, average_socket_power=55)
    backend = open_amdsmi(tmp_path)
    opened.append(backend)
    assert read_all(backend)[0].power_w == 60
    gpu.lacks("current_socket_power")
    assert read_all(backend)[0].power_w is None
    gpu.shows(current_socket_power=61)
    assert read_all(backend)[0].power_w == 61


def test_case_29_a_card_is_told_once_and_its_partitions_tell_nothing_of_their_own(
    cases: Cases, make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path, opened: list[AmdSmiBackend]
) -> None:
    said = json.loads((cases.folder(29) / "partitions.json").read_text())
    fake = make_fake_amdsmi([mi210()])
    parts = fake.node.add_partitions(mi300x().at(1), 2, compute="DPX", says_ones=True)
    first = said[0]
    parts[0].plays(
        Segment(
            power_w=first["socket_power"],
            die_clocks_mhz=first["gfxclk"],
            activity_percent=first["gfx_activity"]["value"],
        )
    )
    for part, row in zip(parts, said, strict=True):
        part.uses(row["vram_used_mb"] * MIB)
    backend = open_amdsmi(tmp_path)
    opened.append(backend)
    devices = backend.devices()
    assert [device.gpu for device in devices] == ["0", "1", "1.0", "1.1"]
    assert [device.parent for device in devices] == [None, None, "1", "1"]
    assert len({device.pci_bus_id for device in devices[1:]}) == 1
    assert [device.kfd_node for device in devices] == [2, None, 3, 4]
    readings = read_all(backend)
    assert (readings[1].power_w, readings[1].sm_clock_mhz) == (402, 2050)
    assert readings[1].activity_ratio == 0.8
    assert readings[1].memory_used_bytes == 20283 * MIB
    assert readings[2:] == [DeviceReading()] * 2
    sizes = [device.memory_size_bytes for device in devices[1:]]
    assert sizes == [196592 * MIB, None, None]


def test_case_30_the_counter_gives_the_energy_of_the_case_over_a_dip_and_a_restart(
    cases: Cases, make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path, opened: list[AmdSmiBackend]
) -> None:
    stepped = Stepped(make_fake_amdsmi([mi300x()]), tmp_path).settle()
    opened.append(stepped.backend)
    with (cases.folder(30) / "samples.csv").open() as file:
        counts = [int(row["energy_accumulator"]) for row in csv.DictReader(file)]
    counter, totals_j = EnergyCounter(), [0.0]
    for second, count in enumerate(counts):
        stepped.fake.node.gpus[0].shows(energy_accumulator=count)
        energy_j = stepped.after(1_000_000_000).energy_j
        assert energy_j == count / 65536
        totals_j.append(totals_j[-1] + counter.increment_j(energy_j, second * 1_000_000_000))
    # The case writes 2^-16 J as 15.259 uJ: one part in 70,000 more.
    expected_j = [0, 0, 30.518, 30.518, 61.036, 61.036, 62.5619]
    assert totals_j == pytest.approx(expected_j, rel=2e-5)
