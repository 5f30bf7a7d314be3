"""NVML's numbers: return codes, bits of limits, field ids by driver version; tables only."""

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from chopperd.errors import (
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from chopperd.model.kinds import Cause


class Outcome(Enum):
    """Classes of return codes."""

    UNSUPPORTED = auto()
    TRANSIENT = auto()
    LOST = auto()
    UNAVAILABLE = auto()


#: Every `NVML_ERROR_*` code. Source: enum nvmlReturn_t of nvml.h 13.5.
OUTCOME_BY_CODE: Final[Mapping[int, Outcome]] = {
    1: Outcome.UNAVAILABLE,  # UNINITIALIZED
    2: Outcome.UNSUPPORTED,  # INVALID_ARGUMENT: so old drivers answer field ids they don't know
    3: Outcome.UNSUPPORTED,  # NOT_SUPPORTED
    4: Outcome.UNSUPPORTED,  # NO_PERMISSION
    5: Outcome.TRANSIENT,  # ALREADY_INITIALIZED
    6: Outcome.UNSUPPORTED,  # NOT_FOUND
    7: Outcome.UNSUPPORTED,  # INSUFFICIENT_SIZE
    8: Outcome.LOST,  # INSUFFICIENT_POWER: external power cables are not attached
    9: Outcome.UNAVAILABLE,  # DRIVER_NOT_LOADED
    10: Outcome.TRANSIENT,  # TIMEOUT
    11: Outcome.LOST,  # IRQ_ISSUE
    12: Outcome.UNAVAILABLE,  # LIBRARY_NOT_FOUND
    13: Outcome.UNSUPPORTED,  # FUNCTION_NOT_FOUND: an older driver
    14: Outcome.UNSUPPORTED,  # CORRUPTED_INFOROM
    15: Outcome.LOST,  # GPU_IS_LOST
    16: Outcome.LOST,  # RESET_REQUIRED
    17: Outcome.TRANSIENT,  # OPERATING_SYSTEM
    18: Outcome.UNAVAILABLE,  # LIB_RM_VERSION_MISMATCH: the driver was replaced under us
    19: Outcome.TRANSIENT,  # IN_USE
    20: Outcome.TRANSIENT,  # MEMORY
    21: Outcome.TRANSIENT,  # NO_DATA
    22: Outcome.UNSUPPORTED,  # VGPU_ECC_NOT_SUPPORTED
    23: Outcome.TRANSIENT,  # INSUFFICIENT_RESOURCES
    24: Outcome.UNSUPPORTED,  # FREQ_NOT_SUPPORTED
    25: Outcome.UNSUPPORTED,  # ARGUMENT_VERSION_MISMATCH: an older driver
    26: Outcome.UNSUPPORTED,  # DEPRECATED
    27: Outcome.TRANSIENT,  # NOT_READY
    28: Outcome.LOST,  # GPU_NOT_FOUND
    29: Outcome.TRANSIENT,  # INVALID_STATE
    30: Outcome.UNSUPPORTED,  # RESET_TYPE_NOT_SUPPORTED
    999: Outcome.TRANSIENT,  # UNKNOWN
}

# A device whose driver is gone is lost like one that fell off the bus.
_ERROR_BY_OUTCOME: Final[Mapping[Outcome, type[DeviceError]]] = {
    Outcome.UNSUPPORTED: UnsupportedFieldError,
    Outcome.TRANSIENT: TransientDeviceError,
    Outcome.LOST: DeviceLostError,
    Outcome.UNAVAILABLE: DeviceLostError,
}


def outcome_of(code: int) -> Outcome:
    """The class of a return code; codes of later versions are transient."""
    return OUTCOME_BY_CODE.get(code, Outcome.TRANSIENT)


def device_error(code: int | None, text: str, *, operation: str, device_index: int) -> DeviceError:
    """The `DeviceError` of a failed call, by NVML's return code and text; not raised here.

    `code` is None if the call has not returned.
    """
    kind = TransientDeviceError if code is None else _ERROR_BY_OUTCOME[outcome_of(code)]
    named = "" if code is None else f" (NVML code {code})"
    return kind(
        f"GPU {device_index}: {operation} failed: {text}{named}",
        operation=operation,
        device_index=device_index,
        vendor_code=code,
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
    """Every limit whose bit is set, generic and specific ones (the join ranks them)."""
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
    """Causes by the field ids of the cumulative limit counters (ns) that this driver has.

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
    """A dotted version as numbers; () if there is none."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
