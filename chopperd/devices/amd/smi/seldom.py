"""What of a GPU is asked seldom, by another thread than the one that reads it."""

from collections.abc import Iterator
from ctypes import addressof, c_uint32, create_string_buffer, sizeof
from typing import Final

from chopperd.devices.amd.smi.codes import OUT_OF_RESOURCES
from chopperd.devices.amd.smi.library import SPARE_BYTES, Library, Room, SmiError
from chopperd.devices.channel import DeviceFaults
from chopperd.model.devices import GpuProcess

_PROCESSES: Final = "amdsmi_get_gpu_process_list"
_MOST_PROCESSES: Final = 256
_BAD_PAGES: Final = "amdsmi_get_gpu_bad_page_info"


class ProcessList:
    """The compute processes of one GPU; used by one thread.

    Source: amdsmi_get_gpu_process_list: pid, of the initial pid namespace where the library sees
    that, and bytes of device memory.
    """

    def __init__(self, library: Library, handle: int, faults: DeviceFaults) -> None:
        self._library = library
        self._handle = handle
        self._faults = faults
        self._one = library.binding.structure("amdsmi_proc_info_t")

    def now(self) -> tuple[GpuProcess, ...] | None:
        """The processes; None where AMD SMI does not say.

        Raises:
            TransientDeviceError: The call failed this time.
            DeviceLostError: The GPU is gone.
        """
        if self._one is None:
            return None
        self._faults.begin_look()
        try:
            return self._faults.plausible_processes(self._listed())
        except SmiError as error:
            self._faults.absent(error, _PROCESSES)
            if self._faults.transient is not None:
                raise self._faults.transient from error
            return None

    def _listed(self) -> Iterator[GpuProcess]:
        one = self._one
        assert one is not None
        room = create_string_buffer(_MOST_PROCESSES * sizeof(one) + SPARE_BYTES)
        count = c_uint32(_MOST_PROCESSES)
        try:
            self._library.call(_PROCESSES, self._handle, addressof(count), addressof(room))
        except SmiError as error:
            if error.code != OUT_OF_RESOURCES:  # more than there is room for: these at least
                raise
        for place in range(min(count.value, _MOST_PROCESSES)):
            row = one.from_buffer(room, place * sizeof(one))
            yield GpuProcess(
                pid=int(getattr(row, "pid", 0)), memory_used_bytes=int(getattr(row, "mem", 0))
            )


def troubles(library: Library, handle: int) -> Iterator[str]:
    """What AMD SMI knows to be wrong with a GPU, a line each; never raises.

    Source: amdsmi_get_gpu_total_ecc_count, amdsmi_get_gpu_bad_page_info.
    """
    room = Room(library.binding.structure("amdsmi_error_count_t"))
    try:
        library.call("amdsmi_get_gpu_total_ecc_count", handle, room.address)
        count = int(getattr(room.fields, "uncorrectable_count", 0))
        if 0 < count < 1 << 63:
            yield f"{count} uncorrectable memory errors since the driver loaded"
    except SmiError:
        pass
    count_of_pages = c_uint32(0)
    try:
        library.call(_BAD_PAGES, handle, addressof(count_of_pages), None)
    except SmiError:
        return
    if count_of_pages.value:
        yield f"{count_of_pages.value} bad memory pages"
