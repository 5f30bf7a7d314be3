import pynvml
import pytest

from chopperd.devices.nvml.buffered import SAMPLING_TYPES, spacing_ns
from chopperd.units import NS_PER_MS


def test_kinds_of_samples_are_the_binding_s_constants() -> None:
    assert SAMPLING_TYPES == {
        "power_w": pynvml.NVML_TOTAL_POWER_SAMPLES,
        "sm_clock_mhz": pynvml.NVML_PROCESSOR_CLK_SAMPLES,
    }


@pytest.mark.parametrize(
    ("times_us", "spacing"),
    [
        ([20_000, 40_000, 60_000, 80_000], 20 * NS_PER_MS),
        ([60_000, 20_000, 80_000, 40_000], 20 * NS_PER_MS),  # a ring told from its middle
        ([0, 0, 20_000, 40_000, 60_000], 20 * NS_PER_MS),  # places not filled yet
        ([20_000, 20_000, 40_000, 60_000], 20 * NS_PER_MS),  # one told twice
        ([20_000, 40_000, 60_000, 900_000, 920_000], 20 * NS_PER_MS),  # a gap
        ([20_000, 40_000], None),
        ([7_000, 7_000, 7_000], None),
        ([], None),
    ],
)
def test_spacing_is_the_usual_step_between_samples(
    times_us: list[int], spacing: int | None
) -> None:
    assert spacing_ns(times_us) == spacing
