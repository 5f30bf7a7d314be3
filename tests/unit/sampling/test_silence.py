"""When no GPU answers any more, and when a new process is to try."""

from dataclasses import dataclass

from chopperd.sampling.sampler_health import GIVE_UP_NS, Silence
from tests.fakes.clock import ScriptedClock


@dataclass
class Gpu:
    silence: str | None = None


def test_gpus_are_silent_only_together() -> None:
    gpus = [Gpu(), Gpu()]
    heard = Silence(gpus, ScriptedClock())
    assert not heard.look()
    gpus[0].silence = "code 999"
    assert not heard.look()
    gpus[1].silence = "code 15"
    assert heard.look()
    assert heard.reason == "code 999"
    assert not heard.look()  # as before
    gpus[1].silence = None
    assert heard.look()
    assert not heard.is_final


def test_a_silence_is_final_after_a_while_and_not_while_it_is_broken() -> None:
    gpu, clock = Gpu("code 999"), ScriptedClock()
    heard = Silence([gpu], clock)
    heard.look()
    clock.advance(GIVE_UP_NS)
    assert not heard.is_final
    gpu.silence = None
    heard.look()
    gpu.silence = "code 999"
    heard.look()
    clock.advance(GIVE_UP_NS)
    assert not heard.is_final
    clock.advance(1)
    assert heard.is_final


def test_without_gpus_nothing_is_silent() -> None:
    heard = Silence([], ScriptedClock())
    assert not heard.look()
    assert not heard.is_final
