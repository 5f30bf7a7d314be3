"""The back end over the kernel's files, on a fake sysfs; expected values are those put there."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chopperd.clock import SystemClock
from chopperd.devices.amd.kernel.backend import AmdgpuBackend
from chopperd.devices.base import DeviceBackend
from chopperd.errors import BackendUnavailableError, DeviceLostError, TransientDeviceError
from chopperd.model.devices import GpuInfo, GpuProcess, ReadScope
from chopperd.model.kinds import Cause
from chopperd.testing import BackendContract, carried_out
from tests.fakes.amd.cards import Card, apu, mi100, mi210, mi250x_pair, mi300x, radeon_w7900
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.sysfs.fixtures import MakeSysfs
from tests.integration.devices.amdgpu_node import AmdgpuNode

DIES = (2100, 2098, 2095, 2100, 2099, 2100, 2100, 2097)
BUSY = Segment(die_clocks_mhz=DIES, power_w=600, limits=frozenset({"ppt"}))

MakeNode = Callable[..., AmdgpuNode]


@pytest.fixture
def make_node(make_sysfs: MakeSysfs) -> Iterator[MakeNode]:
    made: list[AmdgpuNode] = []

    def make(cards: Sequence[Card] = (), *, segment: Segment = BUSY) -> AmdgpuNode:
        made.append(AmdgpuNode(make_sysfs(cards), segment))
        return made[-1]

    yield make
    for node in made:
        node.backend.close()


class TestMi300x(BackendContract):
    node: AmdgpuNode
    monkeypatch: pytest.MonkeyPatch

    @pytest.fixture
    def backend(self, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> DeviceBackend:
        self.node = make_node([mi300x(), mi300x()]).settles()
        self.monkeypatch = monkeypatch
        return self.node.backend

    def lose(self, backend: DeviceBackend) -> GpuInfo | None:
        self.node.loses(1, self.monkeypatch)
        return backend.devices()[1]


class TestMi300xBeforeCounters(BackendContract):
    @pytest.fixture
    def backend(self, make_node: MakeNode) -> DeviceBackend:
        return make_node([mi300x((1, 4))]).settles().backend


class TestMi350x(BackendContract):
    @pytest.fixture
    def backend(self, make_node: MakeNode) -> DeviceBackend:
        return make_node([mi300x((1, 9))]).settles().backend


class TestMi250x(BackendContract):
    @pytest.fixture
    def backend(self, make_node: MakeNode) -> DeviceBackend:
        return make_node(mi250x_pair(), segment=Segment(power_w=430)).settles().backend


class TestPartitions(BackendContract):
    @pytest.fixture
    def backend(self, make_node: MakeNode) -> DeviceBackend:
        node = make_node([mi300x()])
        node.tree.add(mi300x(), compute="CPX", partitions=8)
        node.backend.close()
        node.backend = AmdgpuBackend(node.tree.root, node.clock)
        return node.settles().backend


class TestRadeon(BackendContract):
    @pytest.fixture
    def backend(self, make_node: MakeNode) -> DeviceBackend:
        return make_node([radeon_w7900()], segment=Segment(power_w=60)).settles().backend


class TestApu(BackendContract):
    @pytest.fixture
    def backend(self, make_node: MakeNode) -> DeviceBackend:
        return make_node([apu((2, 4))], segment=Segment(power_w=20)).settles().backend


def test_a_look_holds_what_the_files_say(make_node: MakeNode) -> None:
    node = make_node([mi300x()]).settles()
    info, reading = node.gpus[0], node.look()
    assert list(reading.die_clocks_mhz) == list(DIES)
    assert reading.sm_clock_mhz == 2095
    assert (reading.power_w, info.power_source) == (600, "instant")
    assert (reading.temperature_c, reading.temperature_memory_c) == (60, 50)
    assert (reading.activity_ratio, reading.mem_clock_mhz) == (1.0, 1300)
    assert reading.memory_used_bytes == 288 << 20
    assert reading.power_limit_w == 750
    assert info.sm_clock_max_mhz == 2100
    assert (info.power_limit_default_w, info.memory_size_bytes) == (750, 206_141_652_992)
    assert info.name == "AMD Instinct MI300X"
    assert info.pci_bus_id == "0000:0c:00.0"
    assert info.uuid == "GPU-5b1a4e6000000000"
    assert info.kfd_node == 2


def test_energy_rises_as_the_power_says_and_is_not_told_before_it_is_checked(
    make_node: MakeNode,
) -> None:
    node = make_node([mi300x()])
    assert node.look().energy_j is None
    first, last = node.settles().look(), node.look(after_ms=1000)
    assert first.energy_j is not None
    assert last.energy_j is not None
    assert last.energy_j - first.energy_j == pytest.approx(600, abs=0.01)


def test_time_under_limits_is_that_of_the_firmware_s_counters(make_node: MakeNode) -> None:
    """All of the time at the power limit: 2 s in 2 s, and none of it for heat."""
    node = make_node([mi300x()]).settles()
    first, last = node.look(), node.look(after_ms=2000)
    rise = {cause: last.limited_ns[cause] - first.limited_ns[cause] for cause in last.limited_ns}
    assert rise[Cause.POWER_CAP] == pytest.approx(2e9, rel=0.01)
    assert rise[Cause.THERMAL] == 0
    assert rise[Cause.UNEXPLAINED] == pytest.approx(0, abs=1e6)
    assert last.causes == frozenset()


@pytest.mark.parametrize("scope", ReadScope)
def test_a_plan_reads_the_same_by_the_files_alone(make_node: MakeNode, scope: ReadScope) -> None:
    node = make_node([mi300x()]).settles()
    reading = node.look(scope=scope)
    plan = node.backend.read_plan(node.gpus[0], scope)
    assert plan is not None
    assert plan.calls[0].argument < 1000  # of 3872: the other partitions are not read
    planned = carried_out(plan)
    assert planned.memory_used_bytes == reading.memory_used_bytes
    assert planned.power_limit_w == reading.power_limit_w
    assert planned.die_clocks_mhz == reading.die_clocks_mhz
    assert planned.energy_j == reading.energy_j
    assert planned.limited_ns == reading.limited_ns
    node.passes(1_000_000_000)
    assert reading.energy_j is not None
    assert carried_out(plan).energy_j == pytest.approx(reading.energy_j + 600, abs=0.01)


def test_mi200_gives_the_average_and_the_first_die_of_a_card_both_dies_power(
    make_node: MakeNode,
) -> None:
    """Case 28 of the public reports: MI210 91 W, MI250 430 W for both dies, the second absent."""
    mi210_node = make_node([mi210()], segment=Segment(power_w=91))
    assert mi210_node.look().power_w == 91
    assert mi210_node.gpus[0].power_source == "average"
    pair = make_node(mi250x_pair(), segment=Segment(power_w=430))
    assert [pair.look(0).power_w, pair.look(1).power_w] == [430, None]
    assert [info.power_source for info in pair.gpus] == ["card", None]
    assert len({info.uuid for info in pair.gpus}) == 2
    # Its block has the average alone, and is read before other files.
    radeon = make_node([radeon_w7900()], segment=Segment(power_w=60))
    assert radeon.gpus[0].power_source == "average"


def test_a_counter_of_energy_that_stands_still_is_not_believed(make_node: MakeNode) -> None:
    node = make_node([mi100()], segment=Segment(power_w=200)).settles(seconds=15)
    assert node.look().energy_j is None
    assert node.look().power_w == 200


def test_gated_and_absent_dies_are_told_apart(make_node: MakeNode) -> None:
    node = make_node([mi300x()], segment=Segment(die_clocks_mhz=(2100, 0, 2098, None, 132)))
    reading = node.look()
    assert reading.die_clocks_mhz[:5] == (2100, 0, 2098, None, 132)
    assert reading.sm_clock_mhz == 2098


def test_partitions_follow_their_card_and_repeat_nothing_of_it(make_sysfs: MakeSysfs) -> None:
    """Case 29: power once, the memory once, and what a partition has is absent, not 0."""
    tree = make_sysfs()
    tree.removes(tree.gpus[0])
    tree.add(mi300x(), compute="DPX", partitions=2)
    with closing(AmdgpuBackend(tree.root, SystemClock())) as backend:
        card, *parts = backend.devices()
        assert (card.parent, card.kfd_node) == (None, None)
        assert [part.gpu for part in parts] == [f"{card.gpu}.0", f"{card.gpu}.1"]
        assert {part.parent for part in parts} == {card.gpu}
        assert len({part.kfd_node for part in parts}) == 2
        assert [part.memory_size_bytes for part in parts] == [None, None]
        assert card.memory_size_bytes == mi300x().vram_bytes
        assert backend.read(card, ReadScope.FULL).power_w == 500
        for part in parts:
            reading = backend.read(part, ReadScope.FULL)
            assert (reading.power_w, reading.sm_clock_mhz, reading.memory_used_bytes) == (
                None,
                None,
                None,
            )


def test_a_card_that_is_gone_is_lost_and_found_again_by_its_address(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node([mi300x(), mi300x()]).settles()
    node.loses(1, monkeypatch)
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            node.look(1)
    assert node.look(0).power_w == 600
    assert node.backend.changed() == f"{node.gpus[1].uuid} is gone"
    assert node.backend.trouble(node.gpus[1]) == f"{node.gpus[1].pci_bus_id} is gone"
    assert node.backend.trouble(node.gpus[0]) is None
    node.returns()
    assert node.look(1).power_w == 600
    assert node.backend.changed() is None
    assert node.backend.trouble(node.gpus[1]) is None


def test_two_cards_with_one_id_are_two_gpus_of_which_one_has_its_address(
    make_sysfs: MakeSysfs,
) -> None:
    tree = make_sysfs([mi300x(), mi300x()])
    unique_id = (tree.gpus[0].folder / "unique_id").read_text()
    (tree.gpus[1].folder / "unique_id").write_text(unique_id)
    with closing(AmdgpuBackend(tree.root, SystemClock())) as backend:
        first, second = backend.devices()
        assert first.uuid == f"GPU-{unique_id.strip()}"
        assert second.uuid == second.pci_bus_id
        for device in (first, second):
            assert backend.read(device, ReadScope.FULL).memory_used_bytes is not None
        assert backend.changed() is None


def test_a_read_that_fails_or_is_cut_costs_this_look_only(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node([mi300x()]).settles()

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", fails)
        with pytest.raises(TransientDeviceError):
            node.look(scope=ReadScope.FAST)
        assert node.look().power_w is None  # the memory is told by another file
    assert node.look().power_w == 600
    node.tree.gpus[0].cuts("gpu_metrics", 100)
    with pytest.raises(TransientDeviceError):
        node.look(scope=ReadScope.FAST)
    node.tree.gpus[0].heals("gpu_metrics")
    assert node.look().power_w == 600


def test_a_block_that_is_no_longer_measured_is_told_no_more(make_node: MakeNode) -> None:
    node = make_node([mi300x()]).settles()
    node.tree.gpus[0].freezes(node.clock.mono_ns())
    assert node.look(after_ms=500).sm_clock_mhz == 2095
    stale = node.look(after_ms=1200)
    assert (stale.sm_clock_mhz, stale.power_w, stale.die_clocks_mhz) == (None, None, ())
    assert stale.memory_used_bytes == 288 << 20
    node.tree.gpus[0].freezes(0)
    assert node.look().sm_clock_mhz == 2095


def test_a_block_of_another_version_is_read_by_that_once_it_stays(
    make_node: MakeNode, make_sysfs: MakeSysfs
) -> None:
    """As after the driver was replaced under an open file: v1.6 is shorter, and laid out anew."""
    node = make_node([mi300x()]).settles()
    other = make_sysfs([mi300x((1, 6))])
    other.plays(Segment(die_clocks_mhz=1700, power_w=444))
    block = (other.gpus[0].folder / "gpu_metrics").read_bytes()
    path = node.tree.gpus[0].folder / "gpu_metrics"
    node.tree.gpus = ()  # it goes on with what is written here
    path.write_bytes(block)
    with pytest.raises(TransientDeviceError):
        node.look(scope=ReadScope.FAST)
    with pytest.raises(DeviceLostError):
        node.look(scope=ReadScope.FAST, after_ms=1500)
    found = node.look()
    assert (found.power_w, found.sm_clock_mhz) == (444, 1700)


def test_impossible_numbers_cost_their_field_only(make_node: MakeNode) -> None:
    node = make_node([mi300x()]).settles()
    node.tree.gpus[0].shows(average_gfx_activity=4000, current_uclk=65534)
    reading = node.look()
    assert (reading.activity_ratio, reading.mem_clock_mhz) == (None, None)
    assert (reading.power_w, reading.sm_clock_mhz) == (600, 2095)


def test_all_ones_are_not_reported_whatever_their_width(make_node: MakeNode) -> None:
    node = make_node([mi300x()])
    node.tree.gpus[0].lacks(
        "current_gfxclks", "energy_accumulator", "current_socket_power", "temperature_hotspot"
    )
    node.backend.close()
    node.backend = AmdgpuBackend(node.tree.root, node.clock)
    reading = node.look()
    assert reading.die_clocks_mhz == ()
    assert reading.energy_j is None
    # hwmon has what the block does not.
    assert (reading.sm_clock_mhz, reading.power_w, reading.temperature_c) == (2100, 600, 60)


def test_32_ones_in_the_64_bits_of_energy_are_not_reported(make_node: MakeNode) -> None:
    """As the kernel's driver of RX 7900 and W7900 writes them; nothing is waited for then."""
    node = make_node([radeon_w7900()], segment=Segment(power_w=60))
    node.tree.gpus[0].shows(energy_accumulator=2**32 - 1)
    node.backend.close()
    node.backend = AmdgpuBackend(node.tree.root, node.clock)
    node.settles()
    assert node.look().energy_j is None
    assert node.backend.read_plan(node.gpus[0], ReadScope.FAST) is not None


def test_a_version_that_is_not_known_leaves_hwmon(make_sysfs: MakeSysfs) -> None:
    tree = make_sysfs([mi300x()])
    tree.plays(Segment(die_clocks_mhz=1900, power_w=333))
    block = tree.gpus[0].folder / "gpu_metrics"
    block.write_bytes(bytes.fromhex("2000010a") + bytes(28))
    with closing(AmdgpuBackend(tree.root, SystemClock())) as backend:
        reading = backend.read(backend.devices()[0], ReadScope.FULL)
    assert (reading.sm_clock_mhz, reading.power_w) == (1900, 333)
    assert reading.die_clocks_mhz == ()
    assert reading.limited_ns == {}


def test_a_virtual_machine_s_gpu_is_read_without_metrics(make_sysfs: MakeSysfs) -> None:
    tree = make_sysfs([Card(guest=True)])
    with closing(AmdgpuBackend(tree.root, SystemClock())) as backend:
        reading = backend.read(backend.devices()[0], ReadScope.FULL)
    assert reading.energy_j is None
    assert reading.memory_used_bytes == 288 << 20


def test_other_makers_cards_are_none_of_ours(make_sysfs: MakeSysfs, tmp_path: Path) -> None:
    tree = make_sysfs([mi300x()], with_display=True)
    with closing(AmdgpuBackend(tree.root, SystemClock())) as backend:
        assert [info.gpu for info in backend.devices()] == ["0"]
    with pytest.raises(BackendUnavailableError, match="amdgpu runs no card"):
        AmdgpuBackend(tmp_path / "nothing", SystemClock())


def test_processes_with_memory_on_a_gpu_are_those_that_the_compute_driver_lists(
    make_node: MakeNode,
) -> None:
    node = make_node([mi300x(), mi300x()])
    assert node.backend.processes(node.gpus[0]) is None
    folder = node.tree.root / "class/kfd/kfd/proc"
    for pid, on_first, on_second in ((4242, 5 << 30, 0), (77, 1 << 20, 2 << 20), (78, 0, 0)):
        for gpu, used_bytes in enumerate((on_first, on_second)):
            gpu_id = (node.tree.node_folder(gpu) / "gpu_id").read_text().strip()
            (folder / str(pid)).mkdir(parents=True, exist_ok=True)
            (folder / str(pid) / f"vram_{gpu_id}").write_text(f"{used_bytes}\n")
    first, second = (node.backend.processes(gpu) for gpu in node.gpus)
    assert first == (
        GpuProcess(pid=77, memory_used_bytes=1 << 20),
        GpuProcess(pid=4242, memory_used_bytes=5 << 30),
    )
    assert second == (GpuProcess(pid=77, memory_used_bytes=2 << 20),)


def test_single_sensors_are_read_apart_from_looks(make_node: MakeNode) -> None:
    node = make_node([mi300x()])
    reads = node.backend.sensor_reads(node.gpus[0])
    assert reads["power_w"]() == 600
    before_j = reads["energy_j"]()
    node.passes(1_000_000_000)
    after_j = reads["energy_j"]()
    assert before_j is not None
    assert after_j is not None
    assert after_j - before_j == pytest.approx(600, abs=0.01)


def test_a_version_that_is_not_known_is_said_so_that_another_back_end_may_be_taken(
    make_node: MakeNode, make_sysfs: MakeSysfs
) -> None:
    assert make_node([mi300x()]).backend.shortfall() is None
    tree = make_sysfs([mi300x()])
    (tree.gpus[0].folder / "gpu_metrics").write_bytes(bytes.fromhex("2000010a") + bytes(28))
    with closing(AmdgpuBackend(tree.root, SystemClock())) as backend:
        assert backend.shortfall() == (
            "GPU 0: gpu_metrics v1.10 is not known to this version of chopperd"
        )


HOT, NONE = frozenset({Cause.THERMAL}), frozenset[Cause]()


@pytest.mark.parametrize(
    ("segment", "causes"),
    [
        (Segment(die_clocks_mhz=40, power_w=1, temperature_c=37, activity_percent=0), NONE),
        (Segment(die_clocks_mhz=40, power_w=1, temperature_c=76, activity_percent=0), HOT),
        (Segment(die_clocks_mhz=2350, power_w=225, temperature_c=75), NONE),
        (Segment(die_clocks_mhz=2350, power_w=225, temperature_c=77), HOT),
    ],
)
def test_case_62_a_hotspot_bit_that_can_t_be_true_is_left_out(
    make_node: MakeNode, segment: Segment, causes: frozenset[Cause]
) -> None:
    """Idle up to 50 C, or 25 below the critical 100 C; the power's bit beside it stays."""
    card = replace(radeon_w7900(), critical_c=100)
    limits = frozenset({"socket_thm", "ppt"})
    node = make_node([card], segment=replace(segment, limits=limits)).settles()
    assert node.look().causes == causes | {Cause.POWER_CAP}
    plan = node.backend.read_plan(node.gpus[0], ReadScope.FAST)
    assert plan is not None
    assert plan.causes is not None
    assert bool(plan.causes.causes[36]) == (Cause.THERMAL in causes)
    assert plan.causes.causes[0] == Cause.POWER_CAP.bit


def test_two_looks_do_not_make_a_bit_false(make_node: MakeNode) -> None:
    idle = Segment(die_clocks_mhz=40, power_w=1, temperature_c=37, activity_percent=0)
    node = make_node([radeon_w7900()], segment=replace(idle, limits=frozenset({"socket_thm"})))
    assert node.look().causes == HOT  # the second look: the first was at the start
    assert node.backend.read_plan(node.gpus[0], ReadScope.FAST) is None
