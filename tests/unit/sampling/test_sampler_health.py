"""When no GPU answers any more, and when a new process is to try."""

from dataclasses import dataclass

from chopperd.sampling.sampler_health import GIVE_UP_NS, SilenceWatch
from tests.fakes.clock import ScriptedClock


@dataclass
class Gpu:
    read_error: str | None = None


def test_gpus_are_silent_only_together() -> None:
    gpus = [Gpu(), Gpu()]
    watch = SilenceWatch(gpus, ScriptedClock())
    assert not watch.update()
    gpus[0].read_error = "code 999"
    assert not watch.update()
    gpus[1].read_error = "code 15"
    assert watch.update()
    assert watch.reason == "code 999"
    assert not watch.update()  # as before
    gpus[1].read_error = None
    assert watch.update()
    assert not watch.is_final


def test_a_silence_is_final_after_a_while_and_not_while_it_is_broken() -> None:
    gpu, clock = Gpu("code 999"), ScriptedClock()
    watch = SilenceWatch([gpu], clock)
    watch.update()
    clock.advance(GIVE_UP_NS)
    assert not watch.is_final
    gpu.read_error = None
    watch.update()
    gpu.read_error = "code 999"
    watch.update()
    clock.advance(GIVE_UP_NS)
    assert not watch.is_final
    clock.advance(1)
    assert watch.is_final


def test_without_gpus_nothing_is_silent() -> None:
    watch = SilenceWatch([], ScriptedClock())
    assert not watch.update()
    assert not watch.is_final
