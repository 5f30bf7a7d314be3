"""AMD SMI's library: starts it, makes its calls one at a time, and classifies its return codes.

AMD does not promise thread safety for any version (those before ROCm 7.2 have none), so one lock is
held around each call, also planned ones: a call that hangs blocks all GPUs until this process is
replaced.
"""

import logging
from collections.abc import Callable, Mapping
from ctypes import (
    CFUNCTYPE,
    Array,
    Structure,
    Union,
    addressof,
    byref,
    c_char,
    c_char_p,
    c_uint32,
    c_uint64,
    c_void_p,
    create_string_buffer,
    sizeof,
)
from struct import Struct
from typing import Any, Final

from chopperd.devices.amd.smi.binding import Binding, captured_output, fits, import_binding, rocm_of
from chopperd.devices.faults import failed_call
from chopperd.devices.read_plan import SharedLock
from chopperd.errors import (
    BackendUnavailableError,
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)

logger = logging.getLogger(__name__)

#: Spare bytes after each structure, so that a library with larger ones overwrites nothing else.
SPARE_BYTES: Final = 16_384
_GPUS: Final = "AMDSMI_INIT_AMD_GPUS"
#: The version begins with three numbers: year, major and minor, or, from ROCm 6.4 on, major, minor
#: and release. Source: amdsmi_version_t.
_VERSION: Final = Struct("<3I")

_HANDLE, _OUT, _KEY = c_void_p, c_void_p, c_uint32
#: Argument types of each call; all return `amdsmi_status_t`. Source: amdsmi.h of ROCm 6.2 to 7.0.
_ARGUMENTS: Final[Mapping[str, tuple[type[Any], ...]]] = {
    "amdsmi_init": (c_uint64,),
    "amdsmi_shut_down": (),
    "amdsmi_get_lib_version": (_OUT,),
    "amdsmi_status_code_to_string": (_KEY, _OUT),
    "amdsmi_get_socket_handles": (_OUT, _OUT),
    "amdsmi_get_processor_handles": (_HANDLE, _OUT, _OUT),
    "amdsmi_get_gpu_device_bdf": (_HANDLE, _OUT),
    "amdsmi_get_gpu_asic_info": (_HANDLE, _OUT),
    "amdsmi_get_gpu_kfd_info": (_HANDLE, _OUT),
    "amdsmi_get_gpu_driver_info": (_HANDLE, _OUT),
    "amdsmi_get_gpu_metrics_info": (_HANDLE, _OUT),
    "amdsmi_get_gpu_memory_total": (_HANDLE, _KEY, _OUT),
    "amdsmi_get_gpu_memory_usage": (_HANDLE, _KEY, _OUT),
    "amdsmi_get_power_cap_info": (_HANDLE, _KEY, _OUT),
    "amdsmi_get_power_info": (_HANDLE, _OUT),
    "amdsmi_get_clock_info": (_HANDLE, _KEY, _OUT),
    "amdsmi_get_gpu_activity": (_HANDLE, _OUT),
    "amdsmi_get_temp_metric": (_HANDLE, _KEY, _KEY, _OUT),
    "amdsmi_get_gpu_process_list": (_HANDLE, _OUT, _OUT),
    "amdsmi_get_gpu_total_ecc_count": (_HANDLE, _OUT),
    "amdsmi_get_gpu_bad_page_info": (_HANDLE, _OUT, _OUT),
}


class SmiError(Exception):
    """A call failed with AMD SMI's return `code`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class OutBuffer:
    """A buffer for a structure of the binding (None: plain bytes), with spare bytes after it."""

    def __init__(self, structure: type[Structure] | type[Union] | None = None) -> None:
        size = 0 if structure is None else sizeof(structure)
        self.buffer: Array[c_char] = create_string_buffer(size + SPARE_BYTES)
        self.fields: Any = None if structure is None else structure.from_buffer(self.buffer)
        self.address = addressof(self.buffer)


class Library:
    """Starts the library that a binding has loaded, and makes its calls until `close`.

    Raises:
        BackendUnavailableError: It does not start, or the binding was made for another version.
    """

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.lock = SharedLock()
        self._functions: dict[str, Callable[..., int]] = {}
        self._open = False
        self._start()
        try:
            self.version = self._checked_version()
        except BaseException:
            self.close()
            raise

    @property
    def version_text(self) -> str:
        """The library's version as text ("26.0.2")."""
        return ".".join(map(str, self.version))

    def call(self, name: str, *arguments: object) -> None:
        """Make the call `name` while holding the lock; raises SmiError."""
        function = self._functions.get(name) or self._function(name)
        with self.lock:
            code = function(*arguments)
        if code:
            raise self.error(code)

    def filled(self, call: str, handle: int, structure: str) -> OutBuffer | None:
        """Make a call that fills a structure; None if it fails, or the binding has no such one."""
        out = OutBuffer(self.binding.structure(structure))
        if out.fields is None:
            return None
        try:
            self.call(call, handle, out.address)
        except SmiError:
            return None
        return out

    def error(self, code: int) -> SmiError:
        """Return the error of a return code, with the library's text; not raised here."""
        text = c_char_p()
        function = self._functions.get("amdsmi_status_code_to_string")
        try:
            function = function or self._function("amdsmi_status_code_to_string")
            with self.lock:
                function(code, byref(text))
        except SmiError:
            return SmiError(code, f"code {code}")
        words = (text.value or b"").decode(errors="replace")
        return SmiError(code, words.partition("\n")[0] or f"code {code}")

    def close(self) -> None:
        """Shut the library down; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        try:
            with captured_output():
                self.call("amdsmi_shut_down")
        except SmiError as error:
            logger.warning("amdsmi_shut_down failed: %s", error)

    def _function(self, name: str) -> Callable[..., int]:
        address = self.binding.address(name)
        if address is None:
            raise SmiError(NOT_SUPPORTED, f"this version of AMD SMI has no {name}")
        function: Callable[..., int] = CFUNCTYPE(c_uint32, *_ARGUMENTS[name])(address)
        self._functions[name] = function
        return function

    def _start(self) -> None:
        try:
            with captured_output():
                self.call("amdsmi_init", self.binding.number(_GPUS) or 2)
        except SmiError as error:
            raise BackendUnavailableError(
                f"AMD SMI does not start: {error} (AMD SMI code {error.code})"
            ) from error
        self._open = True

    def _checked_version(self) -> tuple[int, ...]:
        """Read the version and check that the binding fits; raises BackendUnavailableError."""
        out = OutBuffer()
        try:
            self.call("amdsmi_get_lib_version", out.address)
        except SmiError as error:
            raise BackendUnavailableError(
                f"AMD SMI does not report its version: {error}"
            ) from error
        version = _VERSION.unpack_from(out.buffer)
        if fits(self.binding.version, version) is False:
            raise self.mismatch(version, "")
        return version

    def mismatch(self, version: tuple[int, ...], detail: str) -> BackendUnavailableError:
        """Return the error for a binding that was made for another library, with the remedy."""
        numbers = ".".join(map(str, version))
        rocm = rocm_of(version)
        other = f", or pip install 'amdsmi=={rocm}.*'" if rocm else ""
        return BackendUnavailableError(
            f"AMD's binding {self.binding.version} ({self.binding.folder}) was not made for the "
            f"library {numbers} ({self.binding.library_path}){detail}: set ROCM_PATH to the ROCm "
            f"whose share/amd_smi belongs to that library{other}"
        )


def open_library() -> Library:
    """Import the binding and start this machine's library.

    Raises:
        BackendUnavailableError: No library can be used; the text says why.
    """
    return Library(import_binding())


METRICS_CALL: Final = "amdsmi_get_gpu_metrics_info"
NOT_SUPPORTED: Final = 2
NOT_FOUND: Final = 31
OUT_OF_RESOURCES: Final = 15


#: Every `AMDSMI_STATUS_*` but success. Source: amdsmi_status_t of amdsmi.h, ROCm 6.2 to 7.0.
ERROR_BY_CODE: Final[Mapping[int, type[DeviceError]]] = {
    1: UnsupportedFieldError,  # INVAL
    2: UnsupportedFieldError,  # NOT_SUPPORTED
    3: UnsupportedFieldError,  # NOT_YET_IMPLEMENTED
    4: DeviceLostError,  # FAIL_LOAD_MODULE
    5: UnsupportedFieldError,  # FAIL_LOAD_SYMBOL
    6: TransientDeviceError,  # DRM_ERROR
    7: TransientDeviceError,  # API_FAILED
    8: TransientDeviceError,  # TIMEOUT
    9: TransientDeviceError,  # RETRY
    10: UnsupportedFieldError,  # NO_PERM
    11: TransientDeviceError,  # INTERRUPT
    12: TransientDeviceError,  # IO
    13: TransientDeviceError,  # ADDRESS_FAULT
    14: TransientDeviceError,  # FILE_ERROR
    15: TransientDeviceError,  # OUT_OF_RESOURCES
    16: TransientDeviceError,  # INTERNAL_EXCEPTION
    17: UnsupportedFieldError,  # INPUT_OUT_OF_BOUNDS
    18: DeviceLostError,  # INIT_ERROR
    19: TransientDeviceError,  # REFCOUNT_OVERFLOW
    20: UnsupportedFieldError,  # DIRECTORY_NOT_FOUND
    30: TransientDeviceError,  # BUSY
    31: UnsupportedFieldError,  # NOT_FOUND: of the metrics, the GPU
    32: DeviceLostError,  # NOT_INIT
    33: DeviceLostError,  # NO_SLOT
    34: DeviceLostError,  # DRIVER_NOT_LOADED
    39: TransientDeviceError,  # MORE_DATA
    40: TransientDeviceError,  # NO_DATA
    41: UnsupportedFieldError,  # INSUFFICIENT_SIZE
    42: TransientDeviceError,  # UNEXPECTED_SIZE
    43: TransientDeviceError,  # UNEXPECTED_DATA
    44: UnsupportedFieldError,  # NON_AMD_CPU
    45: UnsupportedFieldError,  # NO_ENERGY_DRV
    46: UnsupportedFieldError,  # NO_MSR_DRV
    47: UnsupportedFieldError,  # NO_HSMP_DRV
    48: UnsupportedFieldError,  # NO_HSMP_SUP
    49: UnsupportedFieldError,  # NO_HSMP_MSG_SUP
    50: TransientDeviceError,  # HSMP_TIMEOUT
    51: DeviceLostError,  # NO_DRV
    52: UnsupportedFieldError,  # FILE_NOT_FOUND
    53: UnsupportedFieldError,  # ARG_PTR_NULL
    54: DeviceLostError,  # AMDGPU_RESTART_ERR
    55: UnsupportedFieldError,  # SETTING_UNAVAILABLE
    56: TransientDeviceError,  # CORRUPTED_EEPROM
    57: TransientDeviceError,  # MORE_DATA, in ROCm 6.4
    0xFFFF_FFFE: TransientDeviceError,  # MAP_ERROR
    0xFFFF_FFFF: TransientDeviceError,  # UNKNOWN_ERROR
}


def error_class(code: int, operation: str) -> type[DeviceError]:
    """Return the class of error of a return code; codes of later versions are transient."""
    if code == NOT_FOUND and operation == METRICS_CALL:
        return DeviceLostError
    return ERROR_BY_CODE.get(code, TransientDeviceError)


def device_error(code: int, text: str, *, operation: str, device_index: int) -> DeviceError:
    """Return the `DeviceError` of a failed call, by AMD SMI's code and text; not raised here."""
    kind, shown = error_class(code, operation), f" (AMD SMI code {code})"
    return failed_call(
        kind, text, operation=operation, device_index=device_index, code=code, shown=shown
    )
