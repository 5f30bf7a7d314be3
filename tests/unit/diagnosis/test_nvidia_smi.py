"""nvidia-smi's answers, in the forms that its versions print."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.diagnosis.probe import QUERY, numbers_of, with_smi_numbers
from tests.unit.diagnosis.facts import entry, inventory

FIELDS = QUERY[0].removeprefix("--query-gpu=").split(",")
LINE = (
    "GPU-0, 1980, 2619, 112.58, 36, 1, 7, 700.00, 700.00, 1980, 2619, 81559\n"
    "GPU-1, [N/A], [Not Supported], [Unknown Error], [GPU requires reset], N/A, , "
    "[Insufficient Permissions], 7e2, nan, -5, 1.5.2\n"
)


def test_numbers_come_in_our_units() -> None:
    """MiB are 2^20 bytes, percent are hundredths."""
    assert numbers_of(LINE)["GPU-0"] == {
        "sm_clock_mhz": 1980.0,
        "mem_clock_mhz": 2619.0,
        "power_average_w": 112.58,
        "temperature_c": 36.0,
        "memory_used_bytes": 1_048_576.0,
        "activity_ratio": 0.07,
        "power_limit_w": 700.0,
        "power_limit_default_w": 700.0,
        "sm_clock_max_mhz": 1980.0,
        "mem_clock_max_mhz": 2619.0,
        "memory_size_bytes": 81559.0 * 1_048_576,
    }


def test_what_is_no_number_is_left_out() -> None:
    assert numbers_of(LINE)["GPU-1"] == {"mem_clock_max_mhz": -5.0}


def test_lines_of_another_form_are_left_out() -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n\n"
    assert numbers_of(said) == {}


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="0123456789.,- \n[]NAGPU", max_size=200))
def test_no_answer_breaks_the_reading_of_it(text: str) -> None:
    for numbers in numbers_of(text).values():
        assert all(isinstance(value, float) for value in numbers.values())


def test_gpus_that_it_does_not_know_stay_without_numbers() -> None:
    numbers = {"GPU-1": {"sm_clock_mhz": 5.0}}
    found = with_smi_numbers(inventory(entry(0), entry(1)), numbers)
    assert [each.nvidia_smi for each in found.gpus] == [None, {"sm_clock_mhz": 5.0}]


def test_one_call_asks_for_the_identity_first() -> None:
    assert FIELDS[0] == "uuid"
    assert len(set(FIELDS)) == len(FIELDS)
