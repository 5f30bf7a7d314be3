import pynvml
import pytest

from chopperd.devices.nvml.codes import ERROR_BY_CODE, causes_of, device_error, limit_fields
from chopperd.errors import (
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from chopperd.model.kinds import Cause

BINDING_CODES = {
    name.removeprefix("NVML_ERROR_"): getattr(pynvml, name)
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_")
}

# By what an operator would do next, written down apart from the table: read on without the field;
# stop reading this GPU. All others are worth another try.
ABSENT = {
    "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND", "INSUFFICIENT_SIZE",
    "FUNCTION_NOT_FOUND", "CORRUPTED_INFOROM", "VGPU_ECC_NOT_SUPPORTED", "FREQ_NOT_SUPPORTED",
    "ARGUMENT_VERSION_MISMATCH", "DEPRECATED", "RESET_TYPE_NOT_SUPPORTED",
}  # fmt: skip
GONE = {
    "GPU_IS_LOST", "RESET_REQUIRED", "IRQ_ISSUE", "INSUFFICIENT_POWER", "GPU_NOT_FOUND",
    "UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH",
}  # fmt: skip


def expected_class(name: str) -> type[DeviceError]:
    if name in ABSENT:
        return UnsupportedFieldError
    return DeviceLostError if name in GONE else TransientDeviceError


@pytest.mark.parametrize("name", sorted(BINDING_CODES))
def test_every_code_of_the_binding_is_classed(name: str) -> None:
    assert BINDING_CODES[name] in ERROR_BY_CODE


@pytest.mark.parametrize("name", sorted(BINDING_CODES))
def test_a_code_gives_the_error_that_its_caller_can_act_on(name: str) -> None:
    code = BINDING_CODES[name]
    error = device_error(code, "words", operation="nvmlDeviceGetClockInfo", device_index=3)
    assert type(error) is expected_class(name)
    assert str(error) == f"GPU 3: nvmlDeviceGetClockInfo failed: words (NVML code {code})"
    assert (error.operation, error.device_index, error.vendor_code) == (
        "nvmlDeviceGetClockInfo", 3, code,
    )  # fmt: skip


def test_what_is_no_answer_of_the_driver_has_no_code() -> None:
    error = device_error(None, "no answer", operation="enumeration", device_index=1)
    assert isinstance(error, TransientDeviceError)
    assert (str(error), error.vendor_code) == ("GPU 1: enumeration failed: no answer", None)


def test_a_code_of_a_later_driver_is_worth_another_try() -> None:
    error = device_error(4711, "?", operation="x", device_index=0)
    assert isinstance(error, TransientDeviceError)


# Case 22 of the public reports: 0x44 is a power cap and a hardware thermal slowdown at once.
@pytest.mark.parametrize(
    ("bits", "causes"),
    [
        (0x0, set()),
        (0x1, {Cause.LOW_UTILIZATION}),
        (0x4, {Cause.POWER_CAP}),
        (0x44, {Cause.POWER_CAP, Cause.HW_THERMAL}),
        (0x2, {Cause.USER_LIMIT}),
        (0x100, {Cause.USER_LIMIT}),
        (0x48, {Cause.HW_SLOWDOWN, Cause.HW_THERMAL}),
        (0x10, {Cause.SYNC_BOOST}),
        (0xA0, {Cause.THERMAL, Cause.POWER_BRAKE}),
        (0x200, {Cause.UNKNOWN}),
        (0x404, {Cause.POWER_CAP, Cause.UNKNOWN}),
        (1 << 63, {Cause.UNKNOWN}),
    ],
)
def test_every_reason_bit_is_shown_as_its_cause(bits: int, causes: set[Cause]) -> None:
    assert causes_of(bits) == causes


STABLE = {74: Cause.POWER_CAP, 76: Cause.SYNC_BOOST}
AT_251 = STABLE | {251: Cause.THERMAL, 252: Cause.HW_THERMAL, 253: Cause.POWER_BRAKE}
AT_269 = STABLE | {269: Cause.THERMAL, 270: Cause.HW_THERMAL, 271: Cause.POWER_BRAKE}


# The versions are those of the bindings whose numbering was looked up, and their neighbours.
@pytest.mark.parametrize(
    ("driver", "fields"),
    [
        ("470.256.02", STABLE),
        ("570.86.15", STABLE),
        ("575.51.03", AT_251),
        ("580.65.06", AT_251),
        ("580.76.05", STABLE),
        ("580.82.07", AT_269),
        ("580.126.09", AT_269),
        ("590.44.01", AT_269),
        ("615.71", AT_269),
        ("unknown", STABLE),
        ("", STABLE),
        (None, STABLE),
    ],
)
def test_limit_counters_are_asked_for_by_the_driver_s_own_numbering(
    driver: str | None, fields: dict[int, Cause]
) -> None:
    assert limit_fields(driver) == fields


def test_the_newest_numbering_is_that_of_the_installed_binding() -> None:
    assert AT_269 == {
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP: Cause.POWER_CAP,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST: Cause.SYNC_BOOST,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: Cause.THERMAL,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: Cause.HW_THERMAL,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: Cause.POWER_BRAKE,
    }
