"""Tables of NVML's numbers: return codes, bits of limits, field ids by driver version."""

import re
from collections.abc import Mapping
from typing import Final

from chopperd.devices.faults import failed_call
from chopperd.errors import (
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from chopperd.model.kinds import Cause

#: Every `NVML_ERROR_*` code. Source: enum nvmlReturn_t of nvml.h 13.5.
ERROR_BY_CODE: Final[Mapping[int, type[DeviceError]]] = {
    1: DeviceLostError,  # UNINITIALIZED
    2: UnsupportedFieldError,  # INVALID_ARGUMENT: so old drivers answer field ids they don't know
    3: UnsupportedFieldError,  # NOT_SUPPORTED
    4: UnsupportedFieldError,  # NO_PERMISSION
    5: TransientDeviceError,  # ALREADY_INITIALIZED
    6: UnsupportedFieldError,  # NOT_FOUND
    7: UnsupportedFieldError,  # INSUFFICIENT_SIZE
    8: DeviceLostError,  # INSUFFICIENT_POWER: external power cables are not attached
    9: DeviceLostError,  # DRIVER_NOT_LOADED
    10: TransientDeviceError,  # TIMEOUT
    11: DeviceLostError,  # IRQ_ISSUE
    12: DeviceLostError,  # LIBRARY_NOT_FOUND
    13: UnsupportedFieldError,  # FUNCTION_NOT_FOUND: an older driver
    14: UnsupportedFieldError,  # CORRUPTED_INFOROM
    15: DeviceLostError,  # GPU_IS_LOST
    16: DeviceLostError,  # RESET_REQUIRED
    17: TransientDeviceError,  # OPERATING_SYSTEM
    18: DeviceLostError,  # LIB_RM_VERSION_MISMATCH: the driver was replaced under us
    19: TransientDeviceError,  # IN_USE
    20: TransientDeviceError,  # MEMORY
    21: TransientDeviceError,  # NO_DATA
    22: UnsupportedFieldError,  # VGPU_ECC_NOT_SUPPORTED
    23: TransientDeviceError,  # INSUFFICIENT_RESOURCES
    24: UnsupportedFieldError,  # FREQ_NOT_SUPPORTED
    25: UnsupportedFieldError,  # ARGUMENT_VERSION_MISMATCH: an older driver
    26: UnsupportedFieldError,  # DEPRECATED
    27: TransientDeviceError,  # NOT_READY
    28: DeviceLostError,  # GPU_NOT_FOUND
    29: TransientDeviceError,  # INVALID_STATE
    30: UnsupportedFieldError,  # RESET_TYPE_NOT_SUPPORTED
    999: TransientDeviceError,  # UNKNOWN
}


def error_class(code: int) -> type[DeviceError]:
    """Return the class of error of a return code; codes of later versions are transient."""
    return ERROR_BY_CODE.get(code, TransientDeviceError)


def device_error(code: int | None, text: str, *, operation: str, device_index: int) -> DeviceError:
    """Return the `DeviceError` of a failed call, by NVML's return code and text; not raised here.

    `code` is None if the call has not returned.
    """
    kind = TransientDeviceError if code is None else error_class(code)
    shown = "" if code is None else f" (NVML code {code})"
    return failed_call(
        kind, text, operation=operation, device_index=device_index, code=code, shown=shown
    )


# Bits of `nvmlDeviceGetCurrentClocksEventReasons`. Those that are not here (0x200 board limit and
# 0x400 reliability among them) are `Cause.UNKNOWN`. Source: nvmlClocksEventReasons in nvml.h.
_CAUSE_BY_BIT: Final[Mapping[int, Cause]] = {
    0x1: Cause.LOW_UTILIZATION,
    0x2: Cause.USER_LIMIT,
    0x4: Cause.POWER_CAP,
    0x8: Cause.HW_SLOWDOWN,
    0x10: Cause.SYNC_BOOST,
    0x20: Cause.THERMAL,
    0x40: Cause.HW_THERMAL,
    0x80: Cause.POWER_BRAKE,
    0x100: Cause.USER_LIMIT,
}
_KNOWN_BITS: Final = sum(_CAUSE_BY_BIT)


def causes_of(reason_bits: int) -> frozenset[Cause]:
    """Return every limit whose bit is set, generic and specific ones (the join ranks them)."""
    causes = {cause for bit, cause in _CAUSE_BY_BIT.items() if reason_bits & bit}
    if reason_bits & ~_KNOWN_BITS:
        causes.add(Cause.UNKNOWN)
    return frozenset(causes)


#: Power at this instant, mW, GPU scope. Source: NVML_FI_DEV_POWER_INSTANT of nvml.h.
POWER_INSTANT_FIELD: Final = 186

# Time under each limit since the driver loaded, in ns ("all counters are in nanoseconds", nvml.h;
# confirmed on hardware in NVIDIA/dcgm-exporter#589). These two have had the same id since Kepler.
_STABLE_LIMIT_FIELDS: Final[Mapping[int, Cause]] = {74: Cause.POWER_CAP, 76: Cause.SYNC_BOOST}
_LATER_LIMITS: Final = (Cause.THERMAL, Cause.HW_THERMAL, Cause.POWER_BRAKE)


def limit_fields(driver_version: str | None) -> Mapping[int, Cause]:
    """Return causes by the field ids of this driver's cumulative limit counters (ns).

    NVIDIA renumbered three of them: 575 to 580.65 have them at 251-253 and power smoothing at
    256-273; from 580.82 on they are at 269-271 and power smoothing at 251-268; before 575 only
    power smoothing exists. The wrong numbering would give ramp rates as throttled time, so of an
    unknown driver only the two stable ids are read.

    Source: NVML_FI_DEV_CLOCKS_EVENT_REASON_* in nvidia-ml-py 12.570.86, 12.575.51, 13.580.65,
    13.580.82, 13.590.44 and in nvml.h 13.5; NVIDIA/k8s-test-infra#691 (traced on 580.65.06).
    """
    version = _version(driver_version or "")
    if (575,) <= version < (580, 66):
        first = 251
    elif version >= (580, 82):
        first = 269
    else:
        return _STABLE_LIMIT_FIELDS
    return {**_STABLE_LIMIT_FIELDS, **dict(enumerate(_LATER_LIMITS, start=first))}


def _version(text: str) -> tuple[int, ...]:
    """Parse a dotted version at the start of a text into numbers; () if there is none."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
