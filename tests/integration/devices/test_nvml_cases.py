"""The public cases about NVML, each over the real binding; numbers are their `expected.md`'s."""

import json
from pathlib import Path

import pytest

from chopperd.devices.nvml.identity import SystemMemory
from chopperd.model.devices import ReadScope
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_MS
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import NOT_SUPPORTED, Segment
from tests.fakes.samples import START_UNIX_NS
from tests.integration.cases import Cases
from tests.integration.devices.h100 import H100, STEP_A, STEP_B, read_at

pytestmark = pytest.mark.corpus


@pytest.fixture
def cases(shared: Path) -> Cases:
    return Cases(shared)


def test_case_15_shared_memory_is_the_system_s_and_own_memory_is_not_invented(
    cases: Cases, make_fake_nvml: MakeFakeNvml
) -> None:
    described = json.loads((cases.folder(15) / "fake_nvml.json").read_text())
    fake = make_fake_nvml(gpu_count=len(described))
    for gpu, said in zip(fake.scenario.gpus, described, strict=True):
        gpu.name, gpu.uuid = said["name"].encode(), said["uuid"].encode()
        gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
        if said.get("max_clock_mem") == "NotSupported":
            gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetMaxClockInfo")
        gpu.plays(
            Segment(
                power_mw=said["power_mw"],
                temperature_c=said["temperature"],
                activity_percent=said["utilization"]["gpu"],
            )
        )
    backend = fake.open(system_memory=SystemMemory(cases.folder(15) / "meminfo"))
    gb10, a10 = backend.devices()
    shared, own = (backend.read(device, ReadScope.FULL) for device in (gb10, a10))
    assert (shared.power_w, shared.temperature_c, shared.activity_ratio) == (11.2, 35, 0)
    assert (gb10.memory_source, gb10.memory_size_bytes) == ("system", 128_849_018_880)
    assert shared.memory_used_bytes == 32_212_254_720
    assert (a10.memory_source, a10.memory_size_bytes, own.memory_used_bytes) == (None, None, None)
    assert (own.power_w, own.temperature_c, own.activity_ratio) == (20.1, 41, 0.03)


def described_memory(cases: Cases, fake: FakeNvml) -> None:
    said = json.loads((cases.folder(16) / "fake_nvml.json").read_text())
    gpu = fake.scenario.gpus[0]
    gpu.memory_total_bytes = said["total"]
    gpu.memory_reserved_bytes = said["v2"]["reserved"]
    gpu.memory_used_bytes = said["v2"]["used"]


def test_case_16_memory_v2_tells_the_reserve_apart(cases: Cases, fake_nvml: FakeNvml) -> None:
    described_memory(cases, fake_nvml)
    backend = fake_nvml.open()
    reading = backend.read(H100, ReadScope.FULL)
    assert backend.devices()[0].memory_source == "v2"
    assert (reading.memory_used_bytes, reading.memory_reserved_bytes) == (8388608, 1040187392)


@pytest.mark.parametrize("code", [None, 25])
def test_case_16_memory_v1_is_flagged_and_has_no_reserve(
    cases: Cases, make_fake_nvml: MakeFakeNvml, code: int | None
) -> None:
    """By a missing function, or by a version that the driver does not know."""
    v2 = "nvmlDeviceGetMemoryInfo_v2"
    fake = make_fake_nvml(without=frozenset() if code else frozenset({v2}))
    described_memory(cases, fake)
    if code:
        fake.scenario.gpus[0].fails(code, v2)
    backend = fake.open()
    reading = backend.read(H100, ReadScope.FULL)
    assert backend.devices()[0].memory_source == "v1"
    assert (reading.memory_used_bytes, reading.memory_reserved_bytes) == (1048576000, None)


def test_case_21_the_average_and_the_counter_are_those_of_the_case(
    cases: Cases, fake_nvml: FakeNvml
) -> None:
    """Average power and energy counter of each of its samples."""
    gpu = fake_nvml.scenario.gpus[0]
    lines = (cases.folder(21) / "samples.csv").read_text().splitlines()[1:]
    expected = [tuple(map(float, line.split(","))) for line in lines]
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    found = []
    for ms, _, _ in expected:
        reading = read_at(fake_nvml, round(ms))
        assert reading.energy_j is not None
        found.append((ms, reading.power_average_w, reading.energy_j * 1000))
    assert found == expected
    assert fake_nvml.opened[0].devices()[0].power_source == "instant"


NEW = "nvmlDeviceGetCurrentClocksEventReasons"
OLD = "nvmlDeviceGetCurrentClocksThrottleReasons"


@pytest.mark.parametrize("without", [frozenset(), frozenset({NEW}), frozenset({OLD})])
def test_case_22_reasons_are_counted_alike_by_either_name(
    cases: Cases, make_fake_nvml: MakeFakeNvml, without: frozenset[str]
) -> None:
    reasons = [
        int(text, 16) for text in json.loads((cases.folder(22) / "samples.json").read_text())
    ]
    fake = make_fake_nvml(without=without)
    fake.scenario.gpus[0].plays(
        *(Segment(length_ns=NS_PER_MS, reasons=bits) for bits in reasons),
        origin_unix_ns=START_UNIX_NS,
    )
    seen = [read_at(fake, index, ReadScope.FAST).causes for index in range(len(reasons))]
    assert None not in seen
    count = {cause: sum(cause in (causes or ()) for causes in seen) for cause in Cause}
    expected = {
        Cause.LOW_UTILIZATION: 1,
        Cause.USER_LIMIT: 1,
        Cause.POWER_CAP: 2,
        Cause.HW_THERMAL: 1,
        Cause.UNKNOWN: 1,
    }
    assert {cause: times for cause, times in count.items() if times} == expected
