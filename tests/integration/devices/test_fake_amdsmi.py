"""The fake libamd_smi.so is what AMD's own binding takes it for."""

import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tests.fakes.amd.cards import Card, mi100, mi210, mi250x_pair, mi300x
from tests.fakes.amd.motion import NS_PER_S, Segment
from tests.fakes.amd.smi import calls
from tests.fakes.amd.smi.bindings import ALL, BETWEEN, INSTALLED, OLDEST, binding
from tests.fakes.amd.smi.fixtures import FakeAmdSmi, MakeFakeAmdSmi
from tests.fakes.amd.smi.gpu import METRICS, SmiGpu
from tests.waiting import wait_for

#: `sizeof(amdsmi_gpu_metrics_t)` of each release, as its header has it.
METRICS_BYTES = {"6.2.4": 424, "6.3.3": 1832, "6.4.4": 2368, "7.0.2": 4544}
MS_NS = 10**6
AT_NS = 1000 * NS_PER_S


class Opened:
    """The binding over a fake, initialised; its raw calls and its own."""

    def __init__(self, fake: FakeAmdSmi) -> None:
        self.fake = fake
        self.api: ModuleType = fake.imported()
        self.raw: ModuleType = self.api.amdsmi_interface.amdsmi_wrapper
        self.api.amdsmi_init()
        self.handles = self.api.amdsmi_get_processor_handles()

    def metrics(self, gpu: int = 0) -> ctypes.Structure:
        """The raw metrics of a GPU."""
        block: ctypes.Structure = self.raw.amdsmi_gpu_metrics_t()
        ctypes.memset(ctypes.addressof(block), 0xEE, ctypes.sizeof(block))
        code = self.raw.amdsmi_get_gpu_metrics_info(self.handles[gpu], ctypes.byref(block))
        assert code == calls.SUCCESS
        return block

    def code(self, call: str, gpu: int = 0) -> int:
        """What a call with one structure answers."""
        nothing = ctypes.create_string_buffer(8192)
        entry = getattr(self.raw, call)
        return int(entry(self.handles[gpu], ctypes.cast(nothing, entry.argtypes[1])))


@pytest.fixture
def opened() -> Iterator[Callable[[FakeAmdSmi], Opened]]:
    """Opens the binding over fakes and closes it after the test."""
    made: list[Opened] = []

    def open_over(fake: FakeAmdSmi) -> Opened:
        made.append(Opened(fake))
        return made[-1]

    yield open_over
    for each in made:
        each.api.amdsmi_shut_down()


Open = Callable[[FakeAmdSmi], Opened]


def field(metrics: ctypes.Structure, name: str) -> int:
    return int(getattr(metrics, name))


@pytest.mark.parametrize("version", ALL)
def test_each_version_of_the_binding_reads_its_own_structures(
    make_fake_amdsmi: MakeFakeAmdSmi, opened: Open, version: str
) -> None:
    fake = make_fake_amdsmi(version=version)
    size = ctypes.sizeof(fake.binding.structure("amdsmi_gpu_metrics_t"))
    assert size == METRICS_BYTES.get(fake.binding.version, size)
    over = opened(fake)
    metrics = over.api.amdsmi_get_gpu_metrics_info(over.handles[0])
    assert metrics["current_gfxclks"] == [2100] * 8
    assert metrics["current_socket_power"] == 500
    assert metrics["average_socket_power"] == "N/A"
    assert over.api.amdsmi_get_gpu_device_bdf(over.handles[0]) == "0000:0c:00.0"
    asic = over.api.amdsmi_get_gpu_asic_info(over.handles[0])
    assert (asic["market_name"], asic["asic_serial"]) == (
        "AMD Instinct MI300X",
        "0x5B1A4E6000000000",
    )
    assert over.api.amdsmi_get_power_cap_info(over.handles[0])["power_cap"] == 750 * 10**6
    assert over.api.amdsmi_get_gpu_vram_usage(over.handles[0])["vram_total"] == 196592


@pytest.mark.compat
def test_each_version_of_the_binding_has_a_size_of_its_own() -> None:
    versions = (OLDEST, *BETWEEN, INSTALLED)
    sizes = {ctypes.sizeof(binding(each).structure("amdsmi_gpu_metrics_t")) for each in versions}
    assert len(sizes) == len(versions)


def test_a_library_fills_in_its_own_size_and_nothing_after_it(
    make_fake_amdsmi: MakeFakeAmdSmi, opened: Open
) -> None:
    fake = make_fake_amdsmi(version=INSTALLED, library_of=OLDEST)
    size, metrics = METRICS_BYTES[OLDEST], bytes(opened(fake).metrics())
    assert metrics[size:] == b"\xee" * (len(metrics) - size)
    assert metrics[size - 1] != 0xEE


@pytest.mark.parametrize("version", ALL)
def test_what_a_metric_lacks_is_all_ones_of_its_width(
    make_fake_amdsmi: MakeFakeAmdSmi, opened: Open, version: str
) -> None:
    metrics = opened(make_fake_amdsmi([mi210()], version=version)).metrics()
    assert field(metrics, "current_gfxclk") == 2100
    assert list(metrics.current_gfxclks) == [0xFFFF] * 8
    assert field(metrics, "gfxclk_lock_status") == 0xFFFFFFFF
    assert field(metrics, "pcie_bandwidth_acc") == 2**64 - 1


def test_counters_are_the_exact_integrals_of_what_plays(
    fake_amdsmi: FakeAmdSmi, opened: Open
) -> None:
    node, over = fake_amdsmi.node, opened(fake_amdsmi)
    node.freeze(AT_NS)
    node.gpus[0].plays(
        Segment(length_ns=2 * NS_PER_S, power_w=400, limits=frozenset({"ppt"})),
        Segment(power_w=100),
        origin_ns=AT_NS,
    )
    start = over.metrics()
    node.freeze(AT_NS + 3 * NS_PER_S)
    end = over.metrics()
    # 2 s of 400 W and 1 s of 100 W; 2 s of 3 under the power limit; 10 ns steps; ns since start
    assert field(end, "energy_accumulator") - field(start, "energy_accumulator") == 900 * 65536
    assert field(end, "ppt_residency_acc") - field(start, "ppt_residency_acc") == 2000
    assert field(end, "accumulation_counter") - field(start, "accumulation_counter") == 3000
    assert field(end, "firmware_timestamp") == (AT_NS + 3 * NS_PER_S) // 10
    assert field(end, "system_clock_counter") == AT_NS + 3 * NS_PER_S
    assert field(end, "current_socket_power") == 100
    below = end.xcp_stats[0].gfx_below_host_limit_ppt_acc
    assert list(below) == [2000] * 8


def test_segments_go_round_and_dies_move_each_by_itself(
    fake_amdsmi: FakeAmdSmi, opened: Open
) -> None:
    node, over = fake_amdsmi.node, opened(fake_amdsmi)
    high = (2100, 2000, *(132,) * 5, None)
    low = (900, 2000, *(132,) * 5, None)
    node.gpus[0].plays(
        Segment(length_ns=MS_NS * 10, die_clocks_mhz=high),
        Segment(length_ns=MS_NS * 30, die_clocks_mhz=low),
        origin_ns=AT_NS,
        repeats=True,
    )
    seen = []
    for ms in (0, 9, 10, 39, 40, 50):
        node.freeze(AT_NS + ms * MS_NS)
        seen.append(list(over.metrics().current_gfxclks)[:2])
    assert seen == [[2100, 2000]] * 2 + [[900, 2000]] * 2 + [[2100, 2000], [900, 2000]]
    assert list(over.metrics().current_gfxclks)[2:] == [132] * 5 + [0xFFFF]


def test_counters_go_on_where_something_else_plays(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    node, over = fake_amdsmi.node, opened(fake_amdsmi)
    node.freeze(AT_NS)
    before = field(over.metrics(), "energy_accumulator")
    node.plays(Segment(power_w=10))
    assert field(over.metrics(), "energy_accumulator") == before
    node.freeze(AT_NS + NS_PER_S)
    assert field(over.metrics(), "energy_accumulator") == before + 10 * 65536


def test_the_firmware_measures_each_millisecond_and_may_stop(
    fake_amdsmi: FakeAmdSmi, opened: Open
) -> None:
    node, over = fake_amdsmi.node, opened(fake_amdsmi)
    node.freeze(AT_NS + 700_000)
    assert field(over.metrics(), "firmware_timestamp") == AT_NS // 10
    assert field(over.metrics(), "system_clock_counter") == AT_NS + 700_000
    node.gpus[0].freezes(AT_NS)
    node.freeze(AT_NS + NS_PER_S)
    assert field(over.metrics(), "firmware_timestamp") == AT_NS // 10
    assert field(over.metrics(), "system_clock_counter") == AT_NS + NS_PER_S


def test_residencies_wrap_at_32_bits(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    fake_amdsmi.node.freeze(2**32 * MS_NS + 5 * MS_NS)
    assert field(opened(fake_amdsmi).metrics(), "accumulation_counter") == 5


def test_metrics_show_what_they_are_told(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    gpu, over = fake_amdsmi.node.gpus[0], opened(fake_amdsmi)
    gpu.shows(current_gfxclks=(60000, 1), energy_accumulator=7, current_socket_power=12345)
    gpu.lacks("temperature_mem", "xcp_stats.0.gfx_busy_inst")
    metrics = over.metrics()
    assert list(metrics.current_gfxclks)[:3] == [60000, 1, 2100]
    assert field(metrics, "energy_accumulator") == 7
    assert field(metrics, "current_socket_power") == 12345
    assert field(metrics, "temperature_mem") == 0xFFFF
    assert list(metrics.xcp_stats[0].gfx_busy_inst) == [2**32 - 1] * 8


def test_a_torn_block_is_new_and_then_old(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    node, over = fake_amdsmi.node, opened(fake_amdsmi)
    node.freeze(AT_NS)
    gpu = node.gpus[0]
    gpu.plays(Segment(power_w=100), Segment(power_w=700), origin_ns=AT_NS - NS_PER_S)
    after = type(over.metrics()).firmware_timestamp.offset
    gpu.tears(METRICS, after, lag_ns=10 * MS_NS)
    torn = over.metrics()
    assert field(torn, "firmware_timestamp") == (AT_NS - 10 * MS_NS) // 10
    assert field(torn, "system_clock_counter") == AT_NS  # lies before
    assert field(torn, "current_socket_power") == 100  # lies after
    gpu.tears(METRICS, after, older=b"\x11" * len(bytes(torn)))
    assert field(over.metrics(), "average_gfx_activity") == 100
    assert field(over.metrics(), "gfxclk_lock_status") == 0x11111111
    gpu.tears(METRICS, -1)
    assert field(over.metrics(), "current_socket_power") == 700


def test_a_block_may_be_cut_short(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    over = opened(fake_amdsmi)
    fake_amdsmi.node.gpus[0].cuts(METRICS, 30)
    metrics = bytes(over.metrics())
    assert metrics[29] != 0xEE
    assert metrics[30:] == b"\xee" * (len(metrics) - 30)


def test_calls_fail_as_told_and_are_counted(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    gpu, over = fake_amdsmi.node.gpus[0], opened(fake_amdsmi)
    gpu.fails(calls.NO_PERM, METRICS)
    assert over.code(METRICS) == calls.NO_PERM
    with pytest.raises(over.api.AmdSmiLibraryException):
        over.api.amdsmi_get_gpu_metrics_info(over.handles[0])
    gpu.heals()
    assert over.code(METRICS) == calls.SUCCESS
    assert gpu.calls_of(METRICS) == 3
    fake_amdsmi.node.forgets()
    assert gpu.calls_total() == 0


def test_what_is_not_invented_is_not_supported(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    over = opened(fake_amdsmi)
    assert over.raw.amdsmi_get_gpu_od_volt_info(over.handles[0], None) == calls.NOT_SUPPORTED
    assert fake_amdsmi.node.unanswered == 1


def test_calls_at_once_are_counted(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    over, lock = opened(fake_amdsmi), threading.Lock()
    fake_amdsmi.node.takes(20_000, METRICS)

    def with_lock() -> None:
        with lock:
            over.metrics()

    for target, most in ((with_lock, 1), (over.metrics, 2)):
        fake_amdsmi.node.forgets()
        threads = [threading.Thread(target=target) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert fake_amdsmi.node.most_at_once == most


def test_handles_are_of_one_initialisation(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    over = opened(fake_amdsmi)
    over.api.amdsmi_shut_down()
    assert over.code(METRICS) == calls.NOT_INIT
    over.api.amdsmi_init()
    assert over.code(METRICS) == calls.INVAL
    over.handles = over.api.amdsmi_get_processor_handles()
    assert over.code(METRICS) == calls.SUCCESS


def test_partitions_share_a_socket_and_the_memory(
    make_fake_amdsmi: MakeFakeAmdSmi, opened: Open
) -> None:
    fake = make_fake_amdsmi([mi300x()])
    fake.node.add_partitions(mi300x().at(1), 2, compute="DPX")
    over = opened(fake)
    assert len(over.api.amdsmi_get_socket_handles()) == 2
    addresses = [over.api.amdsmi_get_gpu_device_bdf(handle) for handle in over.handles]
    assert addresses == ["0000:0c:00.0", "0000:1c:00.0", "0000:1c:00.1"]
    totals = [over.api.amdsmi_get_gpu_vram_usage(h)["vram_total"] for h in over.handles]
    assert totals == [196592] * 3
    assert [over.code(METRICS, gpu) for gpu in range(3)] == [0, 0, calls.NOT_SUPPORTED]
    kfd = [over.api.amdsmi_get_gpu_kfd_info(handle) for handle in over.handles]
    assert [(k["node_id"], k["current_partition_id"]) for k in kfd] == [(2, 0), (3, 0), (4, 1)]
    assert over.api.amdsmi_get_gpu_compute_partition(over.handles[1]) == "DPX"


def test_a_partition_may_say_all_ones(make_fake_amdsmi: MakeFakeAmdSmi, opened: Open) -> None:
    fake = make_fake_amdsmi([mi300x()])
    fake.node.add_partitions(mi300x().at(1), 2, compute="DPX", says_ones=True)
    assert set(bytes(opened(fake).metrics(2))) == {0xFF}


def test_the_second_die_of_a_mi250x_knows_no_power(
    make_fake_amdsmi: MakeFakeAmdSmi, opened: Open
) -> None:
    over = opened(make_fake_amdsmi(mi250x_pair()))
    assert [field(over.metrics(gpu), "average_socket_power") for gpu in (0, 1)] == [500, 0xFFFF]
    assert field(over.metrics(1), "energy_accumulator") == 2**64 - 1
    assert over.raw.amdsmi_get_power_cap_info(
        over.handles[1], 0, ctypes.byref(over.raw.amdsmi_power_cap_info_t())
    ) == (calls.NOT_SUPPORTED)


def test_energy_stands_still_on_a_mi100(make_fake_amdsmi: MakeFakeAmdSmi, opened: Open) -> None:
    fake = make_fake_amdsmi([mi100()])
    over = opened(fake)
    fake.node.freeze(AT_NS)
    before = over.metrics()
    fake.node.freeze(AT_NS + NS_PER_S)
    assert field(over.metrics(), "energy_accumulator") == field(before, "energy_accumulator")


def test_a_guest_has_no_metrics_and_no_energy(
    make_fake_amdsmi: MakeFakeAmdSmi, opened: Open
) -> None:
    over = opened(make_fake_amdsmi([Card(guest=True)]))
    assert over.code(METRICS) == calls.NOT_SUPPORTED
    with pytest.raises(over.api.AmdSmiLibraryException):
        over.api.amdsmi_get_energy_count(over.handles[0])
    assert over.api.amdsmi_get_power_info(over.handles[0])["current_socket_power"] == 500


def test_processes_are_listed(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    gpu, over = fake_amdsmi.node.gpus[0], opened(fake_amdsmi)
    assert over.api.amdsmi_get_gpu_process_list(over.handles[0]) == []
    gpu.runs((11, 5 << 30), (12, 1 << 20))
    listed = over.api.amdsmi_get_gpu_process_list(over.handles[0])
    assert [(p["pid"], p["mem"]) for p in listed] == [(11, 5 << 30), (12, 1 << 20)]


def test_the_binding_finds_the_library_by_rocm_path_in_another_process(
    fake_amdsmi: FakeAmdSmi,
) -> None:
    code = (
        "import amdsmi; amdsmi.amdsmi_init(); h = amdsmi.amdsmi_get_processor_handles()[0];"
        "print(amdsmi.amdsmi_get_temp_metric(h, amdsmi.AmdSmiTemperatureType.HOTSPOT,"
        " amdsmi.AmdSmiTemperatureMetric.CRITICAL)); amdsmi.amdsmi_shut_down()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=fake_amdsmi.environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "100\n"
    assert fake_amdsmi.node.gpus[0].calls_of("amdsmi_get_temp_metric") == 1


@pytest.mark.parametrize("version", [pytest.param("6.4.4", marks=pytest.mark.compat), INSTALLED])
def test_a_library_may_lack_a_function(make_fake_amdsmi: MakeFakeAmdSmi, version: str) -> None:
    fake = make_fake_amdsmi(version=version, without=frozenset({"amdsmi_get_gpu_kfd_info"}))
    with pytest.raises(AttributeError, match="amdsmi_get_gpu_kfd_info"):
        fake.imported()


def test_a_node_is_changed_from_another_process(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    over = opened(fake_amdsmi)
    node = type(fake_amdsmi.node).attached(fake_amdsmi.node.path, of=INSTALLED)
    gpu: SmiGpu = node.gpus[0]
    gpu.plays(Segment(power_w=321))
    assert field(over.metrics(), "current_socket_power") == 321


def test_a_call_hangs_until_it_is_healed(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    gpu, over = fake_amdsmi.node.gpus[0], opened(fake_amdsmi)
    gpu.fails(calls.HANGS, METRICS)
    thread = threading.Thread(target=over.metrics)
    thread.start()
    wait_for(lambda: gpu.calls_of(METRICS) == 1, "the call")
    assert thread.is_alive()
    assert over.api.amdsmi_get_gpu_device_bdf(over.handles[0]) == "0000:0c:00.0"
    gpu.heals()
    thread.join()


def test_a_call_may_end_the_process(fake_amdsmi: FakeAmdSmi) -> None:
    fake_amdsmi.node.system.fails(calls.CRASHES, "amdsmi_init")
    code = "import amdsmi; amdsmi.amdsmi_init()"
    done = subprocess.run([sys.executable, "-c", code], env=fake_amdsmi.environment(), check=False)
    assert done.returncode == -signal.SIGSEGV


def test_violation_status_takes_a_tenth_of_a_second(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    over = opened(fake_amdsmi)
    start_ns = time.monotonic_ns()
    status = over.raw.amdsmi_violation_status_t()
    over.raw.amdsmi_get_violation_status(over.handles[0], ctypes.byref(status))
    assert time.monotonic_ns() - start_ns >= 100 * MS_NS
    assert fake_amdsmi.node.gpus[0].calls_of("amdsmi_get_violation_status") == 1


def test_without_a_library_the_binding_prints_and_fails(fake_amdsmi: FakeAmdSmi) -> None:
    fake_amdsmi.loses_library()
    done = subprocess.run(
        [sys.executable, "-c", "import amdsmi"],
        env=fake_amdsmi.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Unable to find libamd_smi.so" in done.stdout
    assert "KeyError: 'libamd_smi.so'" in done.stderr


@pytest.mark.parametrize(("in_uuid", "second"), [(False, "5bff74a1"), (True, "5b0174a1")])
def test_partitions_have_one_uuid_unless_it_tells_them(
    make_fake_amdsmi: MakeFakeAmdSmi, opened: Open, in_uuid: bool, second: str
) -> None:
    fake = make_fake_amdsmi([mi300x()])
    fake.node.add_partitions(mi300x().at(1), 2, compute="DPX", in_uuid=in_uuid)
    over = opened(fake)
    assert over.api.amdsmi_get_gpu_device_uuid(over.handles[2]).startswith(f"{second}-0000-1000")


def test_errors_are_counted(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    over = opened(fake_amdsmi)
    fake_amdsmi.node.gpus[0].has_errors(uncorrectable=2)
    count = over.api.amdsmi_get_gpu_total_ecc_count(over.handles[0])
    assert (count["uncorrectable_count"], count["correctable_count"]) == (2, 0)


@pytest.mark.parametrize(
    ("version", "first", "second"),
    [
        (OLDEST, ("year", 24), ("major", 6)),
        pytest.param("6.4.4", ("year", 25), ("major", 5), marks=pytest.mark.compat),
    ],
)
def test_the_library_tells_its_version(
    make_fake_amdsmi: MakeFakeAmdSmi, version: str, first: tuple[str, int], second: tuple[str, int]
) -> None:
    raw = make_fake_amdsmi(version=version).imported().amdsmi_interface.amdsmi_wrapper
    told = raw.amdsmi_version_t()
    assert raw.amdsmi_get_lib_version(ctypes.byref(told)) == calls.SUCCESS
    assert [(name, getattr(told, name)) for name, *_ in told._fields_][:2] == [first, second]


def test_more_segments_may_play_than_before(fake_amdsmi: FakeAmdSmi, opened: Open) -> None:
    over, node = opened(fake_amdsmi), fake_amdsmi.node
    for power_w in range(100, 120):
        node.plays(Segment(length_ns=MS_NS, power_w=1, temperature_c=99), Segment(power_w=power_w))
        node.freeze(node.now_ns + NS_PER_S)
        assert field(over.metrics(), "current_socket_power") == power_w


def test_counters_never_fall_while_what_plays_is_changed(
    fake_amdsmi: FakeAmdSmi, opened: Open
) -> None:
    over, node, done = opened(fake_amdsmi), fake_amdsmi.node, threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.append(field(over.metrics(), "energy_accumulator"))

    reader = threading.Thread(target=read)
    reader.start()
    for power_w in range(100, 180):
        node.plays(Segment(power_w=power_w, length_ns=MS_NS), Segment(power_w=power_w + 1))
    done.set()
    reader.join()
    assert seen == sorted(seen)
    assert seen[-1] < 2**63
