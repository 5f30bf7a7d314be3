"""AMD SMI's library: its start and end, and its calls, of which one is made at a time.

AMD promises thread safety of no version of it (older than ROCm 7.2 has none), so one lock is held
around each call, planned ones too: a call that hangs holds up all GPUs until this process is
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

from chopperd.devices.amd.smi.binding import Binding, contained_noise, fits, import_binding, rocm_of
from chopperd.devices.read_plan import SharedLock
from chopperd.errors import BackendUnavailableError

logger = logging.getLogger(__name__)

#: Room behind each structure, so that a library with larger ones overruns nothing.
SPARE_BYTES: Final = 16_384
_GPUS: Final = "AMDSMI_INIT_AMD_GPUS"
#: The library's version begins with three numbers: year, major and minor, or, from ROCm 6.4 on,
#: major, minor and release. Source: amdsmi_version_t.
_VERSION: Final = Struct("<3I")

_HANDLE, _OUT, _KEY = c_void_p, c_void_p, c_uint32
#: How each call is made; all return `amdsmi_status_t`. Source: amdsmi.h of ROCm 6.2 to 7.0.
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
    """A call failed.

    Attributes:
        code: AMD SMI's.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Room:
    """A structure, or nothing but bytes, with more room behind it than any library fills.

    Args:
        structure: As the binding has it; None for plain bytes.
    """

    def __init__(self, structure: type[Structure] | type[Union] | None = None) -> None:
        size = 0 if structure is None else sizeof(structure)
        self.buffer: Array[c_char] = create_string_buffer(size + SPARE_BYTES)
        self.fields: Any = None if structure is None else structure.from_buffer(self.buffer)
        self.address = addressof(self.buffer)


class Library:
    """The library under a binding, from its start until `close`.

    Args:
        binding: Has loaded it.

    Raises:
        BackendUnavailableError: It does not start, or is not the one that the binding was made for.
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
        """Its version, for people."""
        return ".".join(map(str, self.version))

    def has(self, name: str) -> bool:
        """Whether there is a call of this name."""
        return self.binding.address(name) is not None

    def call(self, name: str, *arguments: object) -> None:
        """Make a call.

        Raises:
            SmiError: It fails, or this version has none of the name.
        """
        function = self._functions.get(name) or self._function(name)
        with self.lock:
            code = function(*arguments)
        if code:
            raise self.error(code)

    def error(self, code: int) -> SmiError:
        """A return code with the library's words for it."""
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
        """End the library; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        try:
            with contained_noise():
                self.call("amdsmi_shut_down")
        except SmiError as error:
            logger.warning("amdsmi_shut_down failed: %s", error)

    def _function(self, name: str) -> Callable[..., int]:
        address = self.binding.address(name)
        if address is None:
            raise SmiError(2, f"this version of AMD SMI has no {name}")
        function: Callable[..., int] = CFUNCTYPE(c_uint32, *_ARGUMENTS[name])(address)
        self._functions[name] = function
        return function

    def _start(self) -> None:
        try:
            with contained_noise():
                self.call("amdsmi_init", self.binding.number(_GPUS) or 2)
        except SmiError as error:
            raise BackendUnavailableError(
                f"AMD SMI does not start: {error} (AMD SMI code {error.code})"
            ) from error
        self._open = True

    def _checked_version(self) -> tuple[int, ...]:
        """The version, read into room enough before any other structure."""
        room = Room()
        try:
            self.call("amdsmi_get_lib_version", room.address)
        except SmiError as error:
            raise BackendUnavailableError(f"AMD SMI does not tell its version: {error}") from error
        version = _VERSION.unpack_from(room.buffer)
        if fits(self.binding.version, version) is False:
            raise self.mismatch(version, "")
        return version

    def mismatch(self, version: tuple[int, ...], detail: str) -> BackendUnavailableError:
        """Why a library can't be called through this binding, and what to do."""
        numbers = ".".join(map(str, version))
        rocm = rocm_of(version)
        other = f", or pip install 'amdsmi=={rocm}.*'" if rocm else ""
        return BackendUnavailableError(
            f"AMD's binding {self.binding.version} ({self.binding.folder}) was not made for the "
            f"library {numbers} ({self.binding.library_path}){detail}: set ROCM_PATH to the ROCm "
            f"whose share/amd_smi belongs to that library{other}"
        )


def open_library() -> Library:
    """The library of this machine, started.

    Raises:
        BackendUnavailableError: There is none that can be used: why.
    """
    return Library(import_binding())
