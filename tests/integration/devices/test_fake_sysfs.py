"""The fake sysfs is laid out as the kernel's is, and moves as the fake library does."""

import ctypes
import errno
import os
import struct
from pathlib import Path

import pytest

from tests.fakes.amd.cards import (
    Card,
    apu,
    metric_values,
    mi100,
    mi210,
    mi250x_pair,
    mi300x,
    mi350x,
    motions,
    radeon_w7900,
)
from tests.fakes.amd.motion import NS_PER_S, Segment, Timeline
from tests.fakes.amd.sysfs.attributes import Attribute, AttributeTable
from tests.fakes.amd.sysfs.fixtures import MakeSysfs
from tests.fakes.amd.sysfs.tables import VERSIONS, part, table
from tests.fakes.amd.sysfs.tree import SysfsTree
from tests.waiting import wait_for

AT_NS = 1000 * NS_PER_S
MS_NS = 10**6
#: Worked out by hand from the header, member by member, with C's alignment; v1.8 is known.
SIZES = {
    (1, 0): 80, (1, 1): 96, (1, 2): 104, (1, 3): 120, (1, 4): 288, (1, 5): 360, (1, 6): 1664,
    (1, 7): 2208, (1, 8): 3872, (2, 0): 120, (2, 1): 120, (2, 2): 128, (2, 3): 152, (2, 4): 168,
    (3, 0): 264,
}  # fmt: skip
CARDS = (
    *(mi300x((1, minor)) for minor in range(4, 10)), mi350x(), mi210(), mi100(), radeon_w7900(),
    apu((2, 4)), apu((3, 0)),
)  # fmt: skip


def read(*parts: Path | str) -> str:
    return Path(*parts).read_text().strip()


@pytest.mark.parametrize("version", VERSIONS)
def test_tables_have_the_size_of_the_kernels(version: tuple[int, int]) -> None:
    assert ctypes.sizeof(table(version)) == SIZES[version]


def test_partitions_have_the_size_of_the_kernels() -> None:
    # 8 x 4 + 32 x 2 + 4 x 2 + 8 x 8, and so on
    assert [ctypes.sizeof(part(f"xcp_1_{minor}")) for minor in range(3)] == [168, 232, 440]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"{card.name} {card.metrics_version}")
def test_the_header_tells_size_and_version(make_sysfs: MakeSysfs, card: Card) -> None:
    (gpu,) = make_sysfs([card]).gpus
    block = (gpu.folder / "gpu_metrics").read_bytes()
    assert struct.unpack_from("<HBB", block) == (len(block), *card.metrics_version)


def reported(card: Card, block: bytes) -> dict[str, int]:
    """The first number of each metric of a structure's table."""
    structure = table(card.metrics_version).from_buffer_copy(block)
    found = {}
    for name, *_ in structure._fields_:
        value = getattr(structure, name)
        if isinstance(value, int):
            found[name] = value
        elif isinstance(value[0], int):
            found[name] = value[0]
    return found


@pytest.mark.parametrize(
    "card", [card for card in CARDS if card.metrics_version != (1, 9)],
    ids=lambda card: f"{card.name} {card.metrics_version}",
)  # fmt: skip
def test_a_card_says_what_its_version_has_and_all_ones_elsewhere(
    make_sysfs: MakeSysfs, card: Card
) -> None:
    (gpu,) = make_sysfs([card]).gpus
    segment = Segment(die_clocks_mhz=1999, power_w=33, activity_percent=55)
    gpu.plays(segment)
    says = reported(card, (gpu.folder / "gpu_metrics").read_bytes())
    many = not card.apu and card.metrics_version >= (1, 4)
    clock = "current_gfxclks" if many else "current_gfxclk"
    assert says.get(clock, 1999) == 1999
    power = "current_socket_power" if many else "average_socket_power"
    assert says[power] == (33000 if card.apu else 33)
    percent = 5500 if card.metrics_version[0] == 2 else 55
    assert says["average_gfx_activity"] == percent
    assert says.get("xgmi_link_width", 0xFFFF) == 0xFFFF
    assert says.get("ppt_residency_acc", 0) in (0, 1000)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def attributes_of(block: bytes) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Unit and numbers by id; read one after the other, as a reader must."""
    (count,) = struct.unpack_from("<i", block, 4)
    offset, found = 8, {}
    for _ in range(count):
        (encoding,) = struct.unpack_from("<Q", block, offset)
        number = encoding & 0x3FF
        letter = "BbHhIiQq"[encoding >> 20 & 0xF]
        values = struct.unpack_from(f"<{number}{letter}", block, offset + 8)
        offset += 8 + struct.calcsize(f"<{number}{letter}")
        found[encoding >> 10 & 0x3FF] = (encoding >> 24, values)
    assert offset == len(block)
    return found


def test_attributes_are_read_one_after_the_other(sysfs: SysfsTree) -> None:
    gpu = sysfs.add(mi350x())
    gpu.plays(Segment(die_clocks_mhz=(1, 2, 3, 4, 5, 6, 7, None), power_w=901))
    found = attributes_of((gpu.folder / "gpu_metrics").read_bytes())
    # ids by the order of the kernel's enumeration: 3 is the power (W), 33 the clocks (MHz)
    assert found[3] == (3, (901,))
    assert found[33] == (1, (1, 2, 3, 4, 5, 6, 7, 0xFFFF))
    assert len(found) == 48


def test_attributes_may_be_few_and_unknown(sysfs: SysfsTree) -> None:
    few = AttributeTable((37, 3), unknown=(Attribute("of_the_future", 77, "I", 3),))
    gpu = sysfs.add(mi350x(), attributes=few)
    found = attributes_of((gpu.folder / "gpu_metrics").read_bytes())
    assert found == {37: (1, (1900,)), 900: (77, (2**32 - 1,) * 3), 3: (3, (500,))}


def test_counters_are_the_exact_integrals_of_what_plays(sysfs: SysfsTree) -> None:
    (gpu,) = sysfs.gpus
    gpu.plays(
        Segment(length_ns=2 * NS_PER_S, power_w=400, limits=frozenset({"ppt"})),
        Segment(power_w=100),
        origin_ns=AT_NS,
    )
    seen = []
    for later_s in (0, 3):
        sysfs.freeze(AT_NS + later_s * NS_PER_S)
        seen.append(reported(gpu.card, (gpu.folder / "gpu_metrics").read_bytes()))
    start, end = seen
    # 2 s of 400 W and 1 s of 100 W; 2 s of 3 under the power limit
    assert end["energy_accumulator"] - start["energy_accumulator"] == 900 * 65536
    assert end["ppt_residency_acc"] - start["ppt_residency_acc"] == 2000
    assert end["accumulation_counter"] - start["accumulation_counter"] == 3000
    assert end["firmware_timestamp"] == (AT_NS + 3 * NS_PER_S) // 10
    assert end["system_clock_counter"] == AT_NS + 3 * NS_PER_S
    assert read(gpu.hwmon, "power1_input") == "100000000"


def test_counters_go_on_where_something_else_plays(sysfs: SysfsTree) -> None:
    (gpu,) = sysfs.gpus
    sysfs.freeze(AT_NS)
    before = reported(gpu.card, (gpu.folder / "gpu_metrics").read_bytes())
    gpu.plays(Segment(power_w=10))
    sysfs.freeze(AT_NS + NS_PER_S)
    after = reported(gpu.card, (gpu.folder / "gpu_metrics").read_bytes())
    assert after["energy_accumulator"] - before["energy_accumulator"] == 10 * 65536


def test_the_firmware_may_stop_measuring(sysfs: SysfsTree) -> None:
    (gpu,) = sysfs.gpus
    gpu.freezes(AT_NS)
    sysfs.freeze(AT_NS + NS_PER_S)
    says = reported(gpu.card, (gpu.folder / "gpu_metrics").read_bytes())
    assert says["firmware_timestamp"] == AT_NS // 10
    assert says["system_clock_counter"] == AT_NS + NS_PER_S


def test_a_tree_advances_by_itself_for_whom_has_a_file_open(sysfs: SysfsTree) -> None:
    (gpu,) = sysfs.gpus
    file = os.open(gpu.folder / "gpu_metrics", os.O_RDONLY)
    offset = table((1, 8)).firmware_timestamp.offset

    def stamp() -> int:
        (found,) = struct.unpack_from("<Q", os.pread(file, 4096, 0), offset)
        return int(found)

    start = stamp()
    with sysfs.advancing():
        wait_for(lambda: stamp() > start, "a new measurement")
    os.close(file)


def test_links_lead_from_class_and_bus_to_the_device(make_sysfs: MakeSysfs) -> None:
    tree = make_sysfs([mi300x()], with_display=True)
    drm = tree.root / "class" / "drm"
    assert names_in(drm) == ["card0", "card0-VGA-1", "card1", "renderD128", "renderD129"]
    assert read(drm, "card0", "device", "vendor") == "0x1a03"
    assert read(drm, "card1", "device", "vendor") == "0x1002"
    assert (drm / "card1" / "device").resolve().name == "0000:0c:00.0"
    assert "PCI_SLOT_NAME=0000:0c:00.0" in read(drm, "renderD129", "device", "uevent")
    assert (drm / "card1" / "device" / "driver").resolve().name == "amdgpu"
    by_address = tree.root / "bus" / "pci" / "devices" / "0000:0c:00.0"
    assert read(by_address, "unique_id") == "5b1a4e6000000000"
    assert read(tree.root, "module", "amdgpu", "version") == "6.12.12"


def properties(tree: SysfsTree, place: int) -> dict[str, int]:
    lines = read(tree.node_folder(place), "properties").splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def test_partitions_are_nodes_and_render_devices_without_metrics(sysfs: SysfsTree) -> None:
    sysfs.add(mi300x().at(1), compute="CPX", memory="NPS4", partitions=8)
    drm = sysfs.root / "class" / "drm"
    assert len([name for name in names_in(drm) if name.startswith("renderD")]) == 9
    second = drm / "renderD130" / "device"
    assert second.resolve().name == "amdgpu_xcp_0"
    assert not (second / "gpu_metrics").exists()
    assert len(sysfs.gpus) == 2
    assert read(sysfs.gpus[1].folder, "current_compute_partition") == "CPX"
    third = properties(sysfs, 3)
    # bus 0x1c, device 0, function 0, and partition 2 from bit 28 on
    assert third["location_id"] == 0x2000_1C00
    assert third["drm_render_minor"] == 131
    assert (third["num_xcc"], third["simd_count"]) == (1, 4 * 38)
    assert third["unique_id"] == 0x5B1A_4E60_0000_0001
    assert read(sysfs.node_folder(3), "gpu_id") == "40003"


def test_each_partition_counts_its_own_dies(sysfs: SysfsTree) -> None:
    gpu = sysfs.add(mi300x().at(1), compute="DPX", partitions=2)
    gpu.plays(
        Segment(die_clocks_mhz=(*(2100,) * 7, None), limits=frozenset({"ppt"})), origin_ns=AT_NS
    )
    sysfs.freeze(AT_NS + NS_PER_S)
    says = table((1, 8)).from_buffer_copy((gpu.folder / "gpu_metrics").read_bytes())
    stats = getattr(says, "xcp_stats")  # noqa: B009
    counted = [list(stats[part].gfx_below_host_limit_ppt_acc) for part in range(3)]
    ones = 2**64 - 1
    assert counted == [[1000] * 4 + [ones] * 4, [1000] * 3 + [0] + [ones] * 4, [ones] * 8]


def test_the_two_gpus_of_a_mi250x_have_one_power_sensor(make_sysfs: MakeSysfs) -> None:
    first, second = make_sysfs(mi250x_pair()).gpus
    assert read(first.hwmon, "power1_average") == "500000000"
    assert not (second.hwmon / "power1_average").exists()
    assert not (second.hwmon / "power1_cap").exists()
    says = reported(second.card, (second.folder / "gpu_metrics").read_bytes())
    assert says["average_socket_power"] == 0xFFFF
    assert says["current_gfxclk"] == 2100


def test_hwmon_says_what_the_segment_does(make_sysfs: MakeSysfs) -> None:
    (gpu,) = make_sysfs([mi210()]).gpus
    gpu.plays(Segment(die_clocks_mhz=1350, temperature_c=71, memory_temperature_c=62, power_w=250))
    names = ("freq1_input", "freq2_input", "temp1_input", "temp2_input", "temp3_input")
    says = [int(read(gpu.hwmon, name)) for name in (*names, "power1_average", "power1_cap")]
    assert says == [1350 * 10**6, 1600 * 10**6, 61000, 71000, 62000, 250 * 10**6, 300 * 10**6]
    assert [read(gpu.hwmon, f"temp{n}_label") for n in (1, 2, 3)] == ["edge", "junction", "mem"]
    assert read(gpu.hwmon, "temp2_crit") == "100000"
    assert read(gpu.folder, "pp_dpm_sclk").splitlines()[1] == "1: 1350Mhz *"


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EACCES, errno.EIO, errno.ELOOP])
def test_a_file_fails_as_told_and_heals(sysfs: SysfsTree, code: int) -> None:
    (gpu,) = sysfs.gpus
    gpu.fails("gpu_metrics", code)
    sysfs.advance()
    with pytest.raises(OSError) as failed:  # noqa: PT011
        os.pread(opened_file := os.open(gpu.folder / "gpu_metrics", os.O_RDONLY), 8, 0)
    assert failed.value.errno == code
    if code == errno.EIO:
        os.close(opened_file)
    gpu.heals("gpu_metrics")
    assert len((gpu.folder / "gpu_metrics").read_bytes()) == 3872


def test_who_has_a_failing_file_open_reads_nothing_until_it_is_healed(sysfs: SysfsTree) -> None:
    (gpu,) = sysfs.gpus
    file = os.open(gpu.folder / "gpu_metrics", os.O_RDONLY)
    with sysfs.advancing(0.001):
        for _ in range(20):
            gpu.fails("gpu_metrics", errno.EIO)
            assert os.pread(file, 4096, 0) == b""
            gpu.heals("gpu_metrics")
            assert len(os.pread(file, 4096, 0)) == 3872
    os.close(file)


def test_a_file_may_be_cut(sysfs: SysfsTree) -> None:
    (gpu,) = sysfs.gpus
    file = os.open(gpu.folder / "gpu_metrics", os.O_RDONLY)
    gpu.cuts("gpu_metrics", 100)
    sysfs.advance()
    assert len(os.pread(file, 4096, 0)) == 100
    os.close(file)
    gpu.heals("gpu_metrics")
    assert len((gpu.folder / "gpu_metrics").read_bytes()) == 3872


def test_metrics_show_what_they_are_told(sysfs: SysfsTree) -> None:
    (gpu,) = sysfs.gpus
    gpu.shows(current_gfxclks=(60000, 1), energy_accumulator=7)
    gpu.lacks("temperature_mem", "xcp_stats.0.gfx_busy_inst")
    block = (gpu.folder / "gpu_metrics").read_bytes()
    says = table((1, 8)).from_buffer_copy(block)
    assert list(getattr(says, "current_gfxclks"))[:3] == [60000, 1, 2100]  # noqa: B009
    assert reported(gpu.card, block)["energy_accumulator"] == 7
    assert reported(gpu.card, block)["temperature_mem"] == 0xFFFF


def test_a_gpu_may_go(make_sysfs: MakeSysfs) -> None:
    tree = make_sysfs([mi300x(), mi300x()])
    first, second = tree.gpus
    file = os.open(first.folder / "gpu_metrics", os.O_RDONLY)
    tree.removes(first)
    assert names_in(tree.root / "class" / "drm") == ["card1", "renderD129"]
    tree.advance()
    assert tree.gpus == (second,)
    assert os.pread(file, 4096, 0) == b""
    os.close(file)


def test_motions_agree_with_a_sum_over_milliseconds() -> None:
    """An independent brute force: a millisecond at a time, over segments that go round."""
    card = mi300x()
    timeline = Timeline(
        segments=(
            Segment(length_ns=7 * MS_NS, power_w=300, die_clocks_mhz=1000),
            Segment(length_ns=5 * MS_NS, power_w=700, die_clocks_mhz=2000),
        ),
        origin_ns=AT_NS,
        repeats=True,
    )
    by_name = {(m.name, m.place): m for m in motions(card, timeline)}
    energy, clock = by_name["energy_accumulator", 0], by_name["current_gfxclks", 5]
    millijoule = 0
    for ms in range(50):
        power_w, clock_mhz = ((300, 1000), (700, 2000))[ms % 12 >= 7]
        now_ns = AT_NS + ms * MS_NS
        assert energy.at(now_ns) == 10**9 + millijoule * 65536 // 1000
        assert clock.at(now_ns) == clock_mhz
        millijoule += power_w
    assert "energy_accumulator" not in metric_values(card, timeline.segments[0])
