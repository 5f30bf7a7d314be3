import pytest

from chopperd.errors import ConfigError
from chopperd.sampling.settings import SamplerSettings


def test_settings_travel_on_a_command_line() -> None:
    settings = SamplerSettings(hz=100.0, slow_hz=0.5, budget_ratio=0.002, seed=2**60 + 1)
    option, text = settings.to_argv()
    assert option == "--settings"
    assert SamplerSettings.from_json(text) == settings


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hz": "fast"}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--settings"):
        SamplerSettings.from_json(text)


def test_all_values_out_of_range_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        SamplerSettings(hz=0, slow_hz=1001)
    assert caught.value.problems == [
        "hz is 0: must be 0.1 to 1000.0",
        "slow_hz is 1001: must be 0.01 to 1000.0",
    ]


def test_the_ring_holds_the_history_asked_for() -> None:
    assert SamplerSettings(hz=100.0, history_s=30.0).capacity == 3000
    assert SamplerSettings(hz=1.0, history_s=1.0).capacity == 256
