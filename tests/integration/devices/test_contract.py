"""The contract of `DeviceBackend`, kept by every back end that runs without hardware."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from chopperd.clock import SystemClock
from chopperd.devices.base import DeviceBackend
from chopperd.devices.registry import open_backend
from chopperd.devices.replay import ReplayBackend
from chopperd.model.samples import SampleSet
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.nvml.fixtures import MakeFakeNvml
from tests.fakes.nvml.scenario import Segment
from tests.fakes.samples import START_UNIX_NS, column, track
from tests.integration.devices.contract import BackendContract


class TestNvml(BackendContract):
    @pytest.fixture
    def backend(self, make_fake_nvml: MakeFakeNvml) -> DeviceBackend:
        fake = make_fake_nvml(gpu_count=3)
        for gpu in fake.scenario.gpus:
            gpu.plays(
                Segment(length_ns=3 * NS_PER_MS, sm_clock_mhz=1980),
                Segment(length_ns=2 * NS_PER_MS, sm_clock_mhz=1410, reasons=0x24),
                origin_unix_ns=START_UNIX_NS,
                repeats=True,
            )
        return fake.open()


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
        backend = ReplayBackend(SampleSet(gpus=(held, other)), SystemClock())
        yield backend
        backend.close()


class TestSimulated(BackendContract):
    @pytest.fixture
    def backend(self) -> Iterator[DeviceBackend]:
        backend = open_backend("simulated")
        yield backend
        backend.close()
