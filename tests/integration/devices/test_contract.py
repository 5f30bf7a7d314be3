"""The contract of `DeviceBackend`, kept by every back end that runs without hardware."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.clock import SystemClock
from chopperd.devices.base import DeviceBackend
from chopperd.devices.registry import open_backend
from chopperd.devices.replay import ReplayBackend
from chopperd.model.devices import GpuInfo, ReadScope
from chopperd.model.samples import SampleSet
from chopperd.testing import BackendContract
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.amd.cards import mi250x_pair, mi300x
from tests.fakes.amd.motion import Segment as AmdSegment
from tests.fakes.amd.smi.bindings import INSTALLED, OLDER
from tests.fakes.amd.smi.calls import NOT_FOUND
from tests.fakes.amd.smi.fixtures import FakeAmdSmi, MakeFakeAmdSmi
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import GPU_IS_LOST, Segment
from tests.fakes.samples import START_UNIX_NS, column, track
from tests.integration.devices.amdsmi import Stepped, open_amdsmi

DOCUMENT = Path(__file__).parents[3] / "docs" / "backends.md"


class TestNvml(BackendContract):
    fake: FakeNvml

    @pytest.fixture
    def backend(self, make_fake_nvml: MakeFakeNvml) -> DeviceBackend:
        self.fake = make_fake_nvml(gpu_count=3)
        for gpu in self.fake.scenario.gpus:
            gpu.plays(
                Segment(length_ns=3 * NS_PER_MS, sm_clock_mhz=1980),
                Segment(length_ns=2 * NS_PER_MS, sm_clock_mhz=1410, reasons=0x24),
                origin_unix_ns=START_UNIX_NS,
                repeats=True,
            )
        return self.fake.open()

    def lose(self, backend: DeviceBackend) -> GpuInfo | None:
        self.fake.scenario.gpus[1].fails(GPU_IS_LOST)
        return backend.devices()[1]


class TestNvmlWithOneGpu(BackendContract):
    @pytest.fixture
    def backend(self, fake_nvml: FakeNvml) -> DeviceBackend:
        return fake_nvml.open()


class TestNvmlOnAnOldDriver(BackendContract):
    @pytest.fixture
    def backend(self, make_fake_nvml: MakeFakeNvml) -> DeviceBackend:
        fake = make_fake_nvml(
            gpu_count=2,
            without=frozenset(
                {
                    "nvmlDeviceGetCurrentClocksEventReasons",
                    "nvmlDeviceGetMemoryInfo_v2",
                    "nvmlDeviceGetTemperatureV",
                    "nvmlDeviceGetFieldValues",
                }
            ),
        )
        fake.scenario.driver("450.51.06", first_limit_field=0)
        return fake.open()


class TestAmdSmi(BackendContract):
    """Three MI300X whose dies, limits and counters move."""

    fake: FakeAmdSmi

    @pytest.fixture
    def backend(self, make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path) -> Iterator[DeviceBackend]:
        self.fake = make_fake_amdsmi([mi300x()] * 3)
        for gpu in self.fake.node.gpus:
            gpu.plays(
                AmdSegment(length_ns=3 * NS_PER_MS, die_clocks_mhz=2100),
                AmdSegment(length_ns=2 * NS_PER_MS, die_clocks_mhz=1410, limits=frozenset({"ppt"})),
                repeats=True,
            )
        with closing(open_amdsmi(tmp_path)) as opened:
            yield opened

    def lose(self, backend: DeviceBackend) -> GpuInfo | None:
        self.fake.node.gpus[1].fails(NOT_FOUND)
        return backend.devices()[1]


class TestAmdSmiSettled(BackendContract):
    """GPUs whose counters are checked and timed, so that their reads are planned."""

    @pytest.fixture
    def backend(self, make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path) -> Iterator[DeviceBackend]:
        fake = make_fake_amdsmi([mi300x(), *mi250x_pair()])
        fake.node.plays(AmdSegment(die_clocks_mhz=1600))
        stepped = Stepped(fake, tmp_path).settle()
        with closing(stepped.backend) as opened:
            for device in opened.devices():
                assert opened.read_plan(device, ReadScope.FULL)
            yield opened


class TestAmdSmiOfDiesAndPartitions(BackendContract):
    """Both dies of a MI250X, which know different things, and a card in two partitions."""

    @pytest.fixture
    def backend(self, make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path) -> Iterator[DeviceBackend]:
        with dies_and_partitions(make_fake_amdsmi, tmp_path) as opened:
            yield opened


@pytest.mark.parametrize("version", OLDER)
def test_older_bindings_keep_the_contract_s_rules_for_values(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path, version: str
) -> None:
    """What rests on a version's structures; its back end is the newest one's in all else."""
    rules = BackendContract()
    with dies_and_partitions(make_fake_amdsmi, tmp_path, version) as backend:
        rules.test_nothing_has_changed_at_first(backend)
        rules.test_a_back_end_says_what_it_is(backend)
        rules.test_every_gpu_has_an_identity_of_its_own(backend)
        rules.test_a_partition_names_a_card(backend)
        rules.test_identities_stay_the_same(backend)
        rules.test_what_stands_still_is_credible_or_none(backend)
        rules.test_a_full_look_holds_credible_values_in_the_contract_s_units(backend)
        rules.test_every_whole_gpu_has_a_clock(backend)
        rules.test_clocks_stay_below_the_highest_clock(backend)
        rules.test_a_fast_look_fills_no_other_fields_and_none_that_a_full_one_lacks(backend)
        rules.test_limits_are_causes_that_a_driver_can_report(backend)
        rules.test_cumulative_counters_never_fall(backend)
        rules.test_what_is_reported_once_is_reported_again(backend)
        rules.test_probes_name_fields_and_say_why_one_does_not_answer(backend)
        rules.test_processes_are_listed_once_each(backend)
        rules.test_a_planned_read_gives_what_a_read_gives(backend)


class TestReplay(BackendContract):
    @pytest.fixture
    def backend(self) -> Iterator[DeviceBackend]:
        """A recording of a minute: two samples of a steady GPU hold for all of a test."""
        held = replace(
            track(0),
            t_unix_ns=START_UNIX_NS + 60 * NS_PER_S * np.arange(5, dtype=np.int64),
            power_w=column(700, 700, 700, 700, 700),
        )
        other = replace(held, gpu=replace(held.gpu, gpu="1", index=1, uuid="GPU-1"))
        with closing(ReplayBackend(SampleSet(gpus=(held, other)), SystemClock())) as opened:
            yield opened


class TestSimulated(BackendContract):
    @pytest.fixture
    def backend(self) -> Iterator[DeviceBackend]:
        with closing(open_backend("simulated")) as opened:
            yield opened


class TestBackEndOfAnotherPackage(BackendContract):
    """The one that the documentation shows, installed as its package would be."""

    @pytest.fixture
    def backend(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceBackend]:
        install_example(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        with closing(open_backend("example")) as opened:
            yield opened


@pytest.mark.hardware
class TestHardware(BackendContract):
    """Whatever this machine has."""

    @pytest.fixture
    def backend(self) -> Iterator[DeviceBackend]:
        with closing(open_backend("auto")) as opened:
            yield opened


@contextmanager
def dies_and_partitions(
    make_fake_amdsmi: MakeFakeAmdSmi, folder: Path, version: str = INSTALLED
) -> Iterator[DeviceBackend]:
    """An open back end over two dies of one card and two partitions of another."""
    fake = make_fake_amdsmi(mi250x_pair(), version=version)
    fake.node.add_partitions(mi300x().at(2), 2, compute="DPX")
    fake.node.plays(AmdSegment(die_clocks_mhz=1600))
    with closing(open_amdsmi(folder)) as opened:
        yield opened


def install_example(folder: Path) -> None:
    """The documented package, with the metadata that an installer writes."""
    text = DOCUMENT.read_text(encoding="utf-8")
    module = next(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))[1]
    named = re.search(r'^example = "(.*)"$', text, re.MULTILINE)
    assert named is not None
    (folder / "example_gpus.py").write_text(module)
    metadata = folder / "example_gpus-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example-gpus\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[chopperd.backends]\nexample = {named[1]}\n")
