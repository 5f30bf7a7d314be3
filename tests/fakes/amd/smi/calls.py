"""Which calls of libamd_smi the fake answers, and how each is called.

The C of their entry points is made from this: those that only fetch an answer differ by nothing
but their arguments.
"""

from enum import Enum


class Shape(Enum):
    """The arguments of a call that fetches an answer, and what it does with them.

    `key` is what chooses among several answers of a call.
    """

    BLOCK = "(void *handle, void *out) { return fetch(CALL_{0}, handle, 0, out); }"
    KEYED = "(void *handle, uint32_t key, void *out) { return fetch(CALL_{0}, handle, key, out); }"
    KEYED_TWICE = (
        "(void *handle, uint32_t key, uint32_t other, void *out)"
        " { return fetch(CALL_{0}, handle, key | (int64_t)other << 32, out); }"
    )
    TEXT = (
        "(void *handle, char *text, uint32_t length)"
        " { return fetch_text(CALL_{0}, handle, text, length); }"
    )
    SIZED_TEXT = (
        "(void *handle, uint32_t *length, char *text)"
        " { return fetch_text(CALL_{0}, handle, text, *length); }"
    )
    LONG_TEXT = (
        "(void *handle, size_t length, char *text)"
        " { return fetch_text(CALL_{0}, handle, text, length); }"
    )
    LIST = (
        "(void *handle, uint32_t *count, void *out)"
        " { return fetch_list(CALL_{0}, handle, count, out); }"
    )
    #: Written in C by hand.
    OWN = ""


CALLS: dict[str, Shape] = {
    "amdsmi_init": Shape.OWN,
    "amdsmi_shut_down": Shape.OWN,
    "amdsmi_get_lib_version": Shape.OWN,
    "amdsmi_status_code_to_string": Shape.OWN,
    "amdsmi_get_socket_handles": Shape.OWN,
    "amdsmi_get_socket_info": Shape.OWN,
    "amdsmi_get_processor_handles": Shape.OWN,
    "amdsmi_get_processor_handles_by_type": Shape.OWN,
    "amdsmi_get_processor_handle_from_bdf": Shape.OWN,
    "amdsmi_get_energy_count": Shape.OWN,
    "amdsmi_get_processor_type": Shape.BLOCK,
    "amdsmi_get_processor_info": Shape.LONG_TEXT,
    "amdsmi_get_gpu_device_bdf": Shape.BLOCK,
    "amdsmi_get_gpu_device_uuid": Shape.SIZED_TEXT,
    "amdsmi_get_gpu_enumeration_info": Shape.BLOCK,
    "amdsmi_get_gpu_id": Shape.BLOCK,
    "amdsmi_get_gpu_revision": Shape.BLOCK,
    "amdsmi_get_gpu_bdf_id": Shape.BLOCK,
    "amdsmi_get_gpu_virtualization_mode": Shape.BLOCK,
    "amdsmi_get_gpu_asic_info": Shape.BLOCK,
    "amdsmi_get_gpu_board_info": Shape.BLOCK,
    "amdsmi_get_gpu_kfd_info": Shape.BLOCK,
    "amdsmi_get_gpu_driver_info": Shape.BLOCK,
    "amdsmi_get_gpu_vram_info": Shape.BLOCK,
    "amdsmi_get_gpu_vram_usage": Shape.BLOCK,
    "amdsmi_get_gpu_memory_total": Shape.KEYED,
    "amdsmi_get_gpu_memory_usage": Shape.KEYED,
    "amdsmi_get_gpu_metrics_info": Shape.BLOCK,
    "amdsmi_get_gpu_metrics_header_info": Shape.BLOCK,
    "amdsmi_get_power_info": Shape.BLOCK,
    "amdsmi_get_power_cap_info": Shape.KEYED,
    "amdsmi_get_clock_info": Shape.KEYED,
    "amdsmi_get_temp_metric": Shape.KEYED_TWICE,
    "amdsmi_get_gpu_activity": Shape.BLOCK,
    "amdsmi_get_gpu_process_list": Shape.LIST,
    "amdsmi_get_gpu_compute_partition": Shape.TEXT,
    "amdsmi_get_gpu_memory_partition": Shape.TEXT,
    "amdsmi_get_violation_status": Shape.BLOCK,
    "amdsmi_get_gpu_total_ecc_count": Shape.BLOCK,
    "amdsmi_get_gpu_ecc_count": Shape.KEYED,
    "amdsmi_get_gpu_ecc_enabled": Shape.BLOCK,
    "amdsmi_get_gpu_ras_feature_info": Shape.BLOCK,
    "amdsmi_get_xgmi_info": Shape.BLOCK,
}
CALL_NAMES = tuple(CALLS)
#: What calls that concern no GPU and those of each GPU are counted and told to fail by.
SYSTEM_CALLS = frozenset(name for name, shape in CALLS.items() if shape is Shape.OWN) - {
    "amdsmi_get_energy_count"
}
NO_RESULT = frozenset({"amdsmi_free_name_value_pairs"})

SUCCESS = 0
INVAL = 1
NOT_SUPPORTED = 2
API_FAILED = 7
TIMEOUT = 8
RETRY = 9
NO_PERM = 10
IO = 12
FILE_ERROR = 14
OUT_OF_RESOURCES = 15
INTERNAL_EXCEPTION = 16
INIT_ERROR = 18
BUSY = 30
NOT_FOUND = 31
NOT_INIT = 32
DRIVER_NOT_LOADED = 34
NO_DATA = 40
UNEXPECTED_SIZE = 42
UNEXPECTED_DATA = 43
MAP_ERROR = 0xFFFFFFFE
UNKNOWN_ERROR = 0xFFFFFFFF
#: As codes: the call does not return while it stands; the call ends the process.
HANGS = -10
CRASHES = -20


def calls_header() -> str:
    """The calls as an enumeration in C."""
    return f"enum call {{ {', '.join(f'CALL_{name}' for name in CALLS)}, CALL_COUNT }};\n"


def entry_points(exported: frozenset[str]) -> str:
    """The C of the entry points that a binding wants, apart from those written by hand."""
    lines = ['#include "fake_amd_smi.h"\n']
    for name in sorted(exported):
        shape = CALLS.get(name)
        if shape is Shape.OWN:
            continue
        if name in NO_RESULT:
            lines.append(f"void {name}(void *pairs) {{ (void)pairs; }}\n")
        elif shape is None:
            lines.append(f"int {name}(void) {{ return unanswered(); }}\n")
        else:
            lines.append(f"int {name}{shape.value.replace('{0}', name)}\n")
    return "".join(lines)
