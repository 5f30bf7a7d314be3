"""What goes wrong with GPUs behind AMD SMI, over the real binding."""

import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from chopperd.clock import SystemClock
from chopperd.devices.amd.smi.backend import AmdSmiBackend, Paths
from chopperd.devices.amd.smi.library import open_library
from chopperd.devices.faults import Timeouts
from chopperd.devices.read_plan import ReadPlan
from chopperd.errors import BackendUnavailableError, DeviceLostError, TransientDeviceError
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.model.kinds import Cause
from chopperd.testing import carried_out, reported
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.amd.cards import Card, mi100, mi210, mi300x
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.smi.calls import (
    DRIVER_NOT_LOADED,
    HANGS,
    IO,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    UNKNOWN_ERROR,
)
from tests.fakes.amd.smi.fixtures import FakeAmdSmi, MakeFakeAmdSmi
from tests.fakes.amd.smi.gpu import METRICS
from tests.integration.devices.amdsmi import Stepped, open_amdsmi
from tests.waiting import wait_for

Step = Callable[[FakeAmdSmi], Stepped]


@pytest.fixture
def step(tmp_path: Path) -> Iterator[Step]:
    """Opens the back end over a fake whose time is the test's."""
    made: list[Stepped] = []

    def stepped(fake: FakeAmdSmi) -> Stepped:
        made.append(Stepped(fake, tmp_path))
        return made[-1]

    yield stepped
    for each in made:
        each.backend.close()


def plan(stepped: Stepped, scope: ReadScope = ReadScope.FAST, gpu: int = 0) -> ReadPlan | None:
    return stepped.backend.read_plan(stepped.backend.devices()[gpu], scope)


# ---- lost, and back ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [NOT_FOUND, DRIVER_NOT_LOADED])
def test_a_lost_gpu_leaves_the_others_and_comes_back_under_its_uuid(
    make_fake_amdsmi: MakeFakeAmdSmi, step: Step, code: int
) -> None:
    fake = make_fake_amdsmi([mi300x()] * 3)
    stepped = step(fake).settle()
    fake.node.gpus[1].fails(code)
    for scope in ReadScope:
        with pytest.raises(DeviceLostError, match=rf"AMD SMI code {code}\)"):
            stepped.read(1, scope)
    assert reported(stepped.read(0)) == reported(stepped.read(2))
    assert plan(stepped, gpu=1) is None
    trouble = stepped.backend.trouble(stepped.backend.devices()[1])
    assert f"code {code}" in (trouble or "")
    fake.node.gpus[1].heals()
    back = stepped.read(1)
    assert back.sm_clock_mhz == 2100
    assert back.energy_j is None  # its counter may be another: it is checked anew
    stepped.settle()
    assert stepped.read(1).energy_j is not None
    assert stepped.backend.trouble(stepped.backend.devices()[1]) is None


def test_a_gpu_whose_pci_device_is_gone_is_lost_whatever_code_its_calls_have(
    make_fake_amdsmi: MakeFakeAmdSmi, step: Step, tmp_path: Path
) -> None:
    fake = make_fake_amdsmi([mi300x()] * 2)
    folders = [tmp_path / "sys/bus/pci/devices" / f"0000:{bus}:00.0" for bus in ("0c", "1c")]
    for folder in folders:
        folder.mkdir(parents=True)
    stepped = step(fake)
    fake.node.gpus[1].fails(UNKNOWN_ERROR)
    with pytest.raises(TransientDeviceError):
        stepped.read(1)
    shutil.rmtree(folders[1])
    with pytest.raises(DeviceLostError, match=r"0000:1c:00\.0 is gone"):
        stepped.read(1)
    folders[1].mkdir()
    fake.node.gpus[1].heals()
    assert stepped.read(1).power_w == 500


def test_a_driver_that_goes_away_leaves_all_gpus_lost_until_it_is_back(
    make_fake_amdsmi: MakeFakeAmdSmi, step: Step
) -> None:
    fake = make_fake_amdsmi([mi300x()] * 2)
    stepped = step(fake)
    for each in fake.node.gpus:
        each.fails(DRIVER_NOT_LOADED)
    for gpu in (0, 1):
        with pytest.raises(DeviceLostError):
            stepped.read(gpu)
    for each in fake.node.gpus:
        each.heals()
    assert [stepped.read(gpu).sm_clock_mhz for gpu in (0, 1)] == [2100, 2100]


def test_what_once_came_is_asked_for_again_at_once_whatever_code_it_fails_with(
    fake_amdsmi: FakeAmdSmi, step: Step
) -> None:
    """During a reset a driver says "not supported" or "no permission" of what it has."""
    stepped = step(fake_amdsmi)
    fake_amdsmi.node.gpus[0].fails(NOT_SUPPORTED, METRICS)
    assert stepped.read().sm_clock_mhz is None
    with pytest.raises(TransientDeviceError, match="AMD SMI code 2"):
        stepped.read(scope=ReadScope.FAST)
    fake_amdsmi.node.gpus[0].heals()
    assert stepped.read().sm_clock_mhz == 2100


def test_one_failing_call_hides_no_other_field(fake_amdsmi: FakeAmdSmi, step: Step) -> None:
    stepped = step(fake_amdsmi)
    fake_amdsmi.node.gpus[0].fails(IO, "amdsmi_get_gpu_memory_usage")
    reading = stepped.read()
    assert (reading.memory_used_bytes, reading.power_limit_w) == (None, 750)


# ---- values ------------------------------------------------------------------------------------


def test_absurd_values_are_dropped_by_field_and_sample_and_counted(
    fake_amdsmi: FakeAmdSmi, step: Step
) -> None:
    stepped = step(fake_amdsmi).settle()
    good = stepped.read()
    gpu = fake_amdsmi.node.gpus[0]
    gpu.shows(
        current_gfxclks=(60000, 2100),
        temperature_hotspot=999,
        average_gfx_activity=101,
        current_uclk=20000,
    )
    bad = stepped.read()
    assert bad.die_clocks_mhz == (None, *good.die_clocks_mhz[1:])
    assert (bad.temperature_c, bad.activity_ratio, bad.mem_clock_mhz) == (None, None, None)
    assert (bad.power_w, bad.sm_clock_mhz) == (500, 2100)
    assert stepped.backend.implausible_total() == {
        ("0", "current_gfxclks"): 1,
        ("0", "temperature_c"): 1,
        ("0", "activity_ratio"): 1,
        ("0", "mem_clock_mhz"): 1,
    }
    gpu.plays(Segment())
    assert reported(stepped.read()) == reported(good)


def test_a_block_whose_firmware_stands_still_gives_nothing_and_is_counted(
    fake_amdsmi: FakeAmdSmi, step: Step
) -> None:
    stepped = step(fake_amdsmi).settle()
    fake_amdsmi.node.gpus[0].freezes(stepped.at_ns)
    assert stepped.after(NS_PER_S - NS_PER_MS).sm_clock_mhz == 2100
    stale = stepped.after(2 * NS_PER_MS)
    assert (stale.sm_clock_mhz, stale.power_w, stale.energy_j) == (None, None, None)
    assert stale.die_clocks_mhz == ()
    assert stale.causes is None
    assert stale.limited_ns == {}
    assert stale.memory_used_bytes is not None  # by a call of its own
    assert stepped.backend.implausible_total() == {("0", "firmware_timestamp"): 1}
    fake_amdsmi.node.gpus[0].freezes(0)
    assert stepped.after(NS_PER_MS).sm_clock_mhz == 2100


def test_a_block_of_another_version_gives_nothing(fake_amdsmi: FakeAmdSmi, step: Step) -> None:
    stepped = step(fake_amdsmi)
    header = getattr(fake_amdsmi.node.gpus[0].metrics, "common_header")  # noqa: B009
    header.content_revision = 3
    assert stepped.read().sm_clock_mhz is None
    assert stepped.backend.implausible_total() == {("0", "header"): 1}


def test_gated_dies_are_absent_or_switched_off_and_the_slowest_that_runs_governs(
    fake_amdsmi: FakeAmdSmi, step: Step
) -> None:
    stepped = step(fake_amdsmi).settle()
    gpu = fake_amdsmi.node.gpus[0]
    gpu.plays(Segment(die_clocks_mhz=(2100, 1900, 132, 0, 2000, 2000, 2000, None)))
    reading = stepped.read()
    assert list(reading.die_clocks_mhz) == [2100, 1900, 132, 0, 2000, 2000, 2000, None]
    assert reading.sm_clock_mhz == 1900
    # A plan for those that are told looks for no others: full looks are the back end's own then.
    assert plan(stepped, ReadScope.FULL) is None
    fast = plan(stepped, ReadScope.FAST)
    assert fast is not None
    assert carried_out(fast).die_clocks_mhz == reading.die_clocks_mhz[:7]
    gpu.plays(Segment(die_clocks_mhz=1500))
    again = stepped.read()
    assert list(again.die_clocks_mhz) == [1500] * 8
    assert plan(stepped, ReadScope.FULL) is not None


def test_dies_that_all_sleep_have_the_lowest_clock_and_none_where_all_are_off(
    fake_amdsmi: FakeAmdSmi, step: Step
) -> None:
    stepped = step(fake_amdsmi)
    gpu = fake_amdsmi.node.gpus[0]
    gpu.plays(Segment(die_clocks_mhz=(0, 132, 120, 0, 0, 0, 0, 0)))
    assert stepped.read().sm_clock_mhz == 120
    gpu.plays(Segment(die_clocks_mhz=0))
    assert stepped.read().sm_clock_mhz is None


def test_a_chip_with_one_die_has_its_clock_alone(
    make_fake_amdsmi: MakeFakeAmdSmi, step: Step
) -> None:
    stepped = step(make_fake_amdsmi([mi210()]))
    assert stepped.backend.shortfall() is None
    reading = stepped.read()
    assert (reading.sm_clock_mhz, reading.die_clocks_mhz) == (2100, ())
    assert reading.causes == frozenset()


def test_a_virtual_machine_s_gpu_is_read_by_the_calls_that_it_answers(
    make_fake_amdsmi: MakeFakeAmdSmi, step: Step
) -> None:
    """No metrics: clock, power and activity come by calls of their own."""
    stepped = step(make_fake_amdsmi([Card(guest=True)]))
    reading = stepped.read()
    assert (reading.sm_clock_mhz, reading.mem_clock_mhz) == (2100, 1300)
    assert (reading.power_w, reading.activity_ratio) == (500, 1.0)
    assert (reading.energy_j, reading.causes, reading.limited_ns) == (None, None, {})
    assert stepped.backend.shortfall() == "no metrics of GPU 0"


# ---- energy ------------------------------------------------------------------------------------


def test_energy_is_withheld_until_its_counter_agrees_with_the_power(
    fake_amdsmi: FakeAmdSmi, step: Step
) -> None:
    stepped = step(fake_amdsmi)
    looks = [stepped.after(NS_PER_S // 2).energy_j for _ in range(8)]
    told = [energy_j for energy_j in looks if energy_j is not None]
    assert looks[0] is looks[1] is looks[2] is None
    assert [b - a for a, b in pairwise(told)] == [250.0] * (len(told) - 1)
    assert len(told) >= 3


def test_a_counter_that_stands_still_is_never_told(
    make_fake_amdsmi: MakeFakeAmdSmi, step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    stepped = step(make_fake_amdsmi([mi100()]))
    assert all(stepped.after(NS_PER_S).energy_j is None for _ in range(15))
    assert "GPU 0: its counter of energy rises by 0 J while its power makes" in caplog.text
    assert plan(stepped) is not None  # without it


def test_a_counter_of_another_unit_is_never_told(fake_amdsmi: FakeAmdSmi, step: Step) -> None:
    """As of GPUs that count ten times too slowly: 500 W for a second are 50 J there."""
    stepped = step(fake_amdsmi)
    for second in range(15):
        fake_amdsmi.node.gpus[0].shows(energy_accumulator=10**9 + second * 50 * 65536)
        assert stepped.after(NS_PER_S).energy_j is None


# ---- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 7), (1, 8)])
def test_times_under_limits_are_the_cycles_that_the_firmware_counted(
    make_fake_amdsmi: MakeFakeAmdSmi, step: Step, version: tuple[int, int]
) -> None:
    """A cycle is a millisecond here. With 1.8, each die's own counters are taken."""
    fake = make_fake_amdsmi([mi300x(version)])
    stepped = step(fake).settle()
    before = stepped.read().limited_ns
    fake.node.gpus[0].plays(
        Segment(length_ns=NS_PER_S, limits=frozenset({"ppt"})),
        Segment(length_ns=2 * NS_PER_S, limits=frozenset({"socket_thm"})),
        Segment(),
    )
    after = stepped.after(4 * NS_PER_S).limited_ns
    risen = {cause: after[cause] - before[cause] for cause in after}
    assert risen[Cause.POWER_CAP] == pytest.approx(NS_PER_S, rel=1e-3)
    assert risen[Cause.THERMAL] == pytest.approx(2 * NS_PER_S, rel=1e-3)
    others = {Cause.UNEXPLAINED, Cause.LOW_UTILIZATION} if version == (1, 8) else set(after)
    assert all(risen[each] == 0 for each in others - {Cause.POWER_CAP, Cause.THERMAL})


def test_what_a_die_was_held_below_its_limit_for_no_reason_is_unexplained(
    fake_amdsmi: FakeAmdSmi, step: Step
) -> None:
    """Means over the dies: half of them were, for 400 of 1000 cycles, 100 of them by power."""
    gpu, halves = fake_amdsmi.node.gpus[0], [int(die < 4) for die in range(8)]

    def counts(total: int, power: int) -> None:
        for kind, cycles in (("total", total), ("ppt", power)):
            name = f"xcp_stats.0.gfx_below_host_limit_{kind}_acc"
            gpu.shows(**{name: tuple(1000 + cycles * half for half in halves)})

    counts(0, 0)
    stepped = step(fake_amdsmi).settle()
    start = stepped.read().limited_ns
    counts(400, 100)
    after = stepped.after(NS_PER_S).limited_ns
    assert after[Cause.POWER_CAP] - start[Cause.POWER_CAP] == pytest.approx(50e6, rel=1e-3)
    assert after[Cause.UNEXPLAINED] - start[Cause.UNEXPLAINED] == pytest.approx(150e6, rel=1e-3)


def test_a_chip_without_counters_says_its_limits_as_bits(
    make_fake_amdsmi: MakeFakeAmdSmi, step: Step
) -> None:
    fake = make_fake_amdsmi([mi210()])
    stepped = step(fake).settle()
    limits = frozenset({"ppt", "socket_thm", "prochot"})
    fake.node.gpus[0].plays(Segment(limits=limits, temperature_c=95))  # critical from 100 on
    expected = frozenset({Cause.POWER_CAP, Cause.THERMAL, Cause.HW_SLOWDOWN})
    assert stepped.read().causes == expected
    planned = plan(stepped)
    assert planned is not None
    assert carried_out(planned).causes == expected


# ---- hangs -------------------------------------------------------------------------------------


def test_calls_are_made_one_at_a_time_planned_ones_too(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path
) -> None:
    fake = make_fake_amdsmi([mi300x()] * 3)
    fake.node.takes(300, METRICS)
    backend = open_amdsmi(tmp_path)
    fake.node.forgets()

    def watch(index: int) -> None:
        for _ in range(20):
            backend.read(backend.devices()[index], ReadScope.FAST)

    threads = [
        threading.Thread(target=watch, args=(n,), name=f"chopperd-test-{n}") for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert fake.node.most_at_once == 1
    backend.close()


def test_a_call_that_hangs_holds_up_the_others_until_it_returns(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path
) -> None:
    """What no lock could better: the library may be called by one thread at a time."""
    fake = make_fake_amdsmi([mi300x()] * 2)
    backend = open_amdsmi(tmp_path)
    read: list[DeviceReading] = []
    fake.node.gpus[1].fails(HANGS, METRICS)

    def look(backend: AmdSmiBackend, index: int) -> None:
        read.append(backend.read(backend.devices()[index], ReadScope.FAST))

    called = fake.node.gpus[1].calls_of(METRICS)
    threads = [
        threading.Thread(target=look, args=(backend, n), name=f"chopperd-test-{n}") for n in (1, 0)
    ]
    threads[0].start()
    wait_for(lambda: fake.node.gpus[1].calls_of(METRICS) > called)
    threads[1].start()
    threads[1].join(0.2)
    assert read == []
    fake.node.gpus[1].heals()
    for thread in threads:
        thread.join(30)
    assert len(read) == 2
    backend.close()


def test_first_calls_that_hang_make_the_back_end_unavailable(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path
) -> None:
    fake = make_fake_amdsmi([mi300x()] * 2)
    fake.node.gpus[1].fails(HANGS, "amdsmi_get_gpu_asic_info")
    with pytest.raises(BackendUnavailableError, match="AMD SMI hangs: its first calls"):
        AmdSmiBackend(
            open_library(), SystemClock(), Paths(sysfs=tmp_path), Timeouts(first_s=0.5, later_s=0.5)
        )
    fake.node.gpus[1].fails(SUCCESS)
    wait_for(
        lambda: not any(t.name == "chopperd-timed-calls" for t in threading.enumerate()),
        "the calls to return",
    )
    # Nobody may end a library that was called into: here the test does, after it has returned.
    fake.imported().amdsmi_shut_down()


# ---- what comes and goes -----------------------------------------------------------------------


def test_what_came_or_went_is_told_once_it_is_seen(
    make_fake_amdsmi: MakeFakeAmdSmi, step: Step
) -> None:
    fake = make_fake_amdsmi([mi300x()])
    stepped = step(fake)
    assert stepped.backend.changed() is None
    fake.node.add(mi300x())
    assert stepped.backend.changed() == "AMD SMI lists 2 processors, not 1 as before"


def test_processes_and_memory_errors_are_told(fake_amdsmi: FakeAmdSmi, step: Step) -> None:
    stepped, gpu = step(fake_amdsmi), fake_amdsmi.node.gpus[0]
    [device] = stepped.backend.devices()
    assert stepped.backend.processes(device) == ()
    gpu.runs((11, 5 << 30), (12, 1 << 20))
    listed = stepped.backend.processes(device) or ()
    assert [(each.pid, each.memory_used_bytes) for each in listed] == [(11, 5 << 30), (12, 1 << 20)]
    assert stepped.backend.trouble(device) is None
    errors = gpu.view("amdsmi_get_gpu_total_ecc_count", "amdsmi_error_count_t")
    setattr(errors, "uncorrectable_count", 3)  # noqa: B010
    assert (
        stepped.backend.trouble(device) == "3 uncorrectable memory errors since the driver loaded"
    )
    gpu.fails(IO, "amdsmi_get_gpu_process_list")
    with pytest.raises(TransientDeviceError):
        stepped.backend.processes(device)
