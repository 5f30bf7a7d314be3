"""What AMD SMI's return codes mean for whoever reads GPUs; a plain table."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from chopperd.errors import (
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)

METRICS_CALL: Final = "amdsmi_get_gpu_metrics_info"
NOT_FOUND: Final = 31
OUT_OF_RESOURCES: Final = 15


class Outcome(Enum):
    """What a return code lets the caller do next."""

    UNSUPPORTED = auto()
    TRANSIENT = auto()
    LOST = auto()


#: Every `AMDSMI_STATUS_*` but success. Source: amdsmi_status_t of amdsmi.h, ROCm 6.2 to 7.0.
OUTCOME_BY_CODE: Final[Mapping[int, Outcome]] = {
    1: Outcome.UNSUPPORTED,  # INVAL
    2: Outcome.UNSUPPORTED,  # NOT_SUPPORTED
    3: Outcome.UNSUPPORTED,  # NOT_YET_IMPLEMENTED
    4: Outcome.LOST,  # FAIL_LOAD_MODULE
    5: Outcome.UNSUPPORTED,  # FAIL_LOAD_SYMBOL
    6: Outcome.TRANSIENT,  # DRM_ERROR
    7: Outcome.TRANSIENT,  # API_FAILED
    8: Outcome.TRANSIENT,  # TIMEOUT
    9: Outcome.TRANSIENT,  # RETRY
    10: Outcome.UNSUPPORTED,  # NO_PERM
    11: Outcome.TRANSIENT,  # INTERRUPT
    12: Outcome.TRANSIENT,  # IO
    13: Outcome.TRANSIENT,  # ADDRESS_FAULT
    14: Outcome.TRANSIENT,  # FILE_ERROR
    15: Outcome.TRANSIENT,  # OUT_OF_RESOURCES
    16: Outcome.TRANSIENT,  # INTERNAL_EXCEPTION
    17: Outcome.UNSUPPORTED,  # INPUT_OUT_OF_BOUNDS
    18: Outcome.LOST,  # INIT_ERROR
    19: Outcome.TRANSIENT,  # REFCOUNT_OVERFLOW
    20: Outcome.UNSUPPORTED,  # DIRECTORY_NOT_FOUND
    30: Outcome.TRANSIENT,  # BUSY
    31: Outcome.UNSUPPORTED,  # NOT_FOUND: of the metrics, the GPU
    32: Outcome.LOST,  # NOT_INIT
    33: Outcome.LOST,  # NO_SLOT
    34: Outcome.LOST,  # DRIVER_NOT_LOADED
    39: Outcome.TRANSIENT,  # MORE_DATA
    40: Outcome.TRANSIENT,  # NO_DATA
    41: Outcome.UNSUPPORTED,  # INSUFFICIENT_SIZE
    42: Outcome.TRANSIENT,  # UNEXPECTED_SIZE
    43: Outcome.TRANSIENT,  # UNEXPECTED_DATA
    44: Outcome.UNSUPPORTED,  # NON_AMD_CPU
    45: Outcome.UNSUPPORTED,  # NO_ENERGY_DRV
    46: Outcome.UNSUPPORTED,  # NO_MSR_DRV
    47: Outcome.UNSUPPORTED,  # NO_HSMP_DRV
    48: Outcome.UNSUPPORTED,  # NO_HSMP_SUP
    49: Outcome.UNSUPPORTED,  # NO_HSMP_MSG_SUP
    50: Outcome.TRANSIENT,  # HSMP_TIMEOUT
    51: Outcome.LOST,  # NO_DRV
    52: Outcome.UNSUPPORTED,  # FILE_NOT_FOUND
    53: Outcome.UNSUPPORTED,  # ARG_PTR_NULL
    54: Outcome.LOST,  # AMDGPU_RESTART_ERR
    55: Outcome.UNSUPPORTED,  # SETTING_UNAVAILABLE
    56: Outcome.TRANSIENT,  # CORRUPTED_EEPROM
    57: Outcome.TRANSIENT,  # MORE_DATA, in ROCm 6.4
    0xFFFF_FFFE: Outcome.TRANSIENT,  # MAP_ERROR
    0xFFFF_FFFF: Outcome.TRANSIENT,  # UNKNOWN_ERROR
}

_ERROR_BY_OUTCOME: Final[Mapping[Outcome, type[DeviceError]]] = {
    Outcome.UNSUPPORTED: UnsupportedFieldError,
    Outcome.TRANSIENT: TransientDeviceError,
    Outcome.LOST: DeviceLostError,
}


def outcome_of(code: int, operation: str) -> Outcome:
    """What a return code lets the caller do; codes of later versions count as transient."""
    if code == NOT_FOUND and operation == METRICS_CALL:
        return Outcome.LOST
    return OUTCOME_BY_CODE.get(code, Outcome.TRANSIENT)


def device_error(code: int, text: str, *, operation: str, device_index: int) -> DeviceError:
    """The error that a failed call on one GPU stands for, not yet raised.

    Args:
        code: AMD SMI's return code.
        text: Its words for it.
        operation: Name of the call.
        device_index: The GPU's index.
    """
    return _ERROR_BY_OUTCOME[outcome_of(code, operation)](
        f"GPU {device_index}: {operation} failed: {text} (AMD SMI code {code})",
        operation=operation,
        device_index=device_index,
        vendor_code=code,
    )
