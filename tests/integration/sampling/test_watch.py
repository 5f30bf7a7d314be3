"""What is seldom asked of a driver, by a clock that the test moves."""

import os
import threading
from collections.abc import Iterator

import pytest

from chopperd.errors import TransientDeviceError
from chopperd.model.devices import GpuInfo, GpuProcess
from chopperd.sampling.memory.layout import GpuState, RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.watch import DriverWatch, WatchedGpu
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.integration.sampling.scripted_sampler import ScriptedBackend


class Knowing(ScriptedBackend):
    """A driver that tells all; each question takes 3 ms."""

    def __init__(self, clock: ScriptedClock) -> None:
        super().__init__(2, None)
        self._clock = clock
        self.asked: list[str] = []
        self.trouble_of: dict[str, str] = {}
        self.change: str | None = None
        self.failure: Exception | None = None
        self.dropped: dict[tuple[str, str], int] = {}
        self.memory_used_bytes: int | None = None

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        self._ask(f"processes {device.gpu}")
        return (GpuProcess(pid=100 + device.index, memory_used_bytes=self.memory_used_bytes),)

    def trouble(self, device: GpuInfo) -> str | None:
        self._ask(f"trouble {device.gpu}")
        return self.trouble_of.get(device.gpu)

    def changed(self) -> str | None:
        self._ask("changed")
        return self.change

    def implausible_total(self) -> dict[tuple[str, str], int]:
        return self.dropped

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        self._clock.advance(3 * NS_PER_MS)
        if self.failure is not None:
            raise self.failure


class Bench:
    """A watch over two GPUs and the ring that it writes to."""

    def __init__(self, fd: int) -> None:
        self.clock = ScriptedClock()
        self.backend = Knowing(self.clock)
        devices = self.backend.devices()
        self.ring = RingWriter(fd, RingDescription(gpus=devices), 16)
        self.reader = RingReader(fd)
        self.gpus = [
            WatchedGpu(
                device=device,
                label=device.gpu,
                gpu=self.ring.gpu(slot),
                slow_state=self.ring.slow_state(slot),
            )
            for slot, device in enumerate(devices)
        ]
        for each in self.gpus:
            each.gpu.set_state(GpuState.UP)
        self.changes: list[str] = []
        self.watch = self.watch_over(self.backend)

    def watch_over(self, backend: ScriptedBackend) -> DriverWatch:
        return DriverWatch(
            backend,
            self.gpus,
            SamplerSettings(),
            self.clock,
            threading.Event(),
            on_change=self.changes.append,
        )

    def pass_time(self, seconds: float) -> list[str]:
        """Look twice a second; what was asked meanwhile."""
        self.backend.asked.clear()
        end_ns = self.clock.mono_ns() + round(seconds * NS_PER_S)
        while self.clock.mono_ns() < end_ns:
            self.clock.advance(NS_PER_S // 2)
            self.watch.ask(self.clock.mono_ns())
        return list(self.backend.asked)


@pytest.fixture
def bench() -> Iterator[Bench]:
    fd = os.memfd_create("ring")
    made = Bench(fd)
    yield made
    made.reader.close()
    made.ring.close()
    os.close(fd)


def test_each_question_is_asked_as_seldom_as_it_is_to_be(bench: Bench) -> None:
    """By hand: lists at 1, 4, ... 31, 41, ... 111 s, trouble at 1 and 61 s, changes at 60 s."""
    asked = bench.pass_time(116)
    assert asked.count("processes 0") == asked.count("processes 1") == 19
    assert asked.count("trouble 0") == 2
    assert asked.count("changed") == 1


def test_what_is_found_lies_beside_the_gpu_with_what_it_cost(bench: Bench) -> None:
    bench.backend.trouble_of["1"] = "the GPU must be reset"
    asked = bench.pass_time(2)
    zero, one = bench.reader.slow_state(0), bench.reader.slow_state(1)
    assert (zero.processes, one.processes) == ((GpuProcess(pid=100),), (GpuProcess(pid=101),))
    assert (zero.trouble, one.trouble) == (None, "the GPU must be reset")
    assert zero.driver_rare_ns + one.driver_rare_ns == 3 * NS_PER_MS * len(asked)


def test_dropped_values_are_counted_by_gpu_and_never_twice(bench: Bench) -> None:
    bench.backend.dropped = {("0", "power_w"): 2, ("0", "sm_clock_mhz"): 1}
    bench.pass_time(2)
    bench.backend.dropped = {("0", "power_w"): 4, ("0", "sm_clock_mhz"): 1, ("1", "power_w"): 1}
    bench.pass_time(2)
    assert [bench.reader.slow_state(slot).invalid_count for slot in (0, 1)] == [5, 1]


def test_a_gpu_that_is_lost_is_explained_at_once_and_once(bench: Bench) -> None:
    bench.pass_time(2)
    bench.backend.trouble_of["0"] = "XID 79"
    bench.gpus[0].gpu.set_state(GpuState.LOST)
    assert [each for each in bench.pass_time(5) if each != "processes 1"] == ["trouble 0"]
    assert bench.reader.slow_state(0).trouble == "XID 79"
    # Nobody lists the processes on it meanwhile.
    assert "processes 0" not in bench.pass_time(30)


def test_a_gpu_that_is_lost_again_is_explained_again(bench: Bench) -> None:
    bench.pass_time(2)
    bench.gpus[0].gpu.set_state(GpuState.LOST)
    assert "trouble 0" in bench.pass_time(1)
    bench.gpus[0].gpu.set_state(GpuState.UP)
    assert bench.pass_time(70).count("trouble 0") == 1
    bench.gpus[0].gpu.set_state(GpuState.LOST)
    assert bench.pass_time(1) == ["trouble 0"]


def test_a_change_is_handed_on(bench: Bench) -> None:
    bench.backend.change = "GPU 2 (GPU-2) is there"
    bench.pass_time(62)
    assert bench.changes == ["GPU 2 (GPU-2) is there"]


@pytest.mark.parametrize(
    "failure", [TransientDeviceError("timed out", operation="processes"), KeyError("odd")]
)
def test_a_failed_question_tells_nothing_and_costs_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    bench.backend.failure = failure
    asked = bench.pass_time(2)
    assert {"processes 0", "processes 1", "trouble 0", "trouble 1"} <= set(asked)
    assert bench.reader.slow_state(0).processes_mono_ns is None
    assert len(caplog.records) == 2  # one a GPU, then at most one a minute


def test_a_back_end_that_tells_none_of_this_has_no_thread(bench: Bench) -> None:
    assert bench.watch.has_work
    assert not bench.watch_over(ScriptedBackend(2, None)).has_work


def test_an_absurd_size_of_a_process_is_not_known_and_spoils_nothing(bench: Bench) -> None:
    """All bits but the last: one beside the driver's own word for "not available"."""
    bench.backend.memory_used_bytes = 2**64 - 2
    bench.backend.trouble_of["1"] = "the GPU must be reset"
    bench.pass_time(2)
    aside = bench.reader.slow_state(1)
    assert aside.trouble == "the GPU must be reset"
    assert aside.processes == (GpuProcess(pid=101),)
