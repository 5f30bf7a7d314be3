"""Layout of the kernel's file `gpu_metrics`, by the version in its header.

An unknown version is refused, never guessed: members move between versions. Source: `struct
gpu_metrics_v*` and `enum amdgpu_metrics_attr_id` of drivers/gpu/drm/amd/include/kgd_pp_interface.h,
and SMU_METRICS_* of pm/swsmu/smu_cmn.h (Linux 6.18).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception class
from typing import Final

from chopperd.devices.amd.block import MetricsLayout, MetricSlot
from chopperd.devices.read_plan import UNSIGNED_BY_BYTES

#: Size of the structure, format and content revision.
HEADER: Final = Struct("<HBB")


class UnknownMetricsError(Exception):
    """The version of the block is not known, or the block is not complete."""


# A structure is given as text: "u2" or "u4" is the size in bytes of the numbers that follow,
# "name*4" an array, "[8" to "]" an array of structures. Names are those of AMD SMI, or the kernel's
# where it has none. Members that are not read determine the offsets of the others.
_SENSORS: Final = (
    "u2 temperature_edge temperature_hotspot temperature_mem temperature_vrgfx temperature_vrsoc "
    "temperature_vrmem average_gfx_activity average_umc_activity average_mm_activity "
    "average_socket_power "
)
_CLOCKS: Final = (
    "u2 average_gfxclk_frequency average_socclk_frequency average_uclk_frequency "
    "average_vclk0_frequency average_dclk0_frequency average_vclk1_frequency "
    "average_dclk1_frequency current_gfxclk current_socclk current_uclk current_vclk0 "
    "current_dclk0 current_vclk1 current_dclk1 u4 throttle_status u2 current_fan_speed "
)
_V1_0: Final = (
    f"u8 system_clock_counter {_SENSORS} u4 energy_accumulator {_CLOCKS} "
    "u1 pcie_link_width pcie_link_speed"
)
_V1_1: Final = (
    f"{_SENSORS} u8 energy_accumulator system_clock_counter {_CLOCKS} pcie_link_width "
    "pcie_link_speed padding u4 gfx_activity_acc mem_activity_acc u2 temperature_hbm*4"
)
_V1_2: Final = f"{_V1_1} u8 firmware_timestamp"
_V1_3: Final = f"{_V1_2} u2 voltage_soc voltage_gfx voltage_mem padding1 u8 indep_throttle_status"

_SOCKET: Final = (
    "u2 temperature_hotspot temperature_mem temperature_vrsoc current_socket_power "
    "average_gfx_activity average_umc_activity "
)
_LINKS: Final = (
    "u2 pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed "
    "u4 gfx_activity_acc mem_activity_acc "
    "u8 pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc pcie_replay_count_acc "
    "pcie_replay_rover_count_acc "
)
_NAKS: Final = "u4 pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc "
_XGMI: Final = "u8 xgmi_read_data_acc*8 xgmi_write_data_acc*8 "
_NOW: Final = (
    "u8 firmware_timestamp "
    "u2 current_gfxclks*8 current_socclks*4 current_vclk0s*4 current_dclk0s*4 current_uclk "
)
_ENERGY: Final = "u8 energy_accumulator system_clock_counter "
_THROTTLE: Final = "u4 throttle_status gfxclk_lock_status "
_RESIDENCY: Final = (
    "u4 accumulation_counter prochot_residency_acc ppt_residency_acc socket_thm_residency_acc "
    "vr_thm_residency_acc hbm_thm_residency_acc gfxclk_lock_status "
)
_V1_4: Final = f"{_SOCKET} vcn_activity*4 {_ENERGY}{_THROTTLE}{_LINKS}{_XGMI}{_NOW} padding"
_V1_5: Final = (
    f"{_SOCKET} vcn_activity*4 jpeg_activity*32 {_ENERGY}{_THROTTLE}{_LINKS}{_NAKS}{_XGMI}{_NOW} "
    "padding"
)
_BEFORE_XGMI_STATUS: Final = f"{_ENERGY}{_RESIDENCY}{_LINKS}{_NAKS}{_XGMI}"


def _partitioned(jpeg_count: int, counters: str = "") -> str:
    """Return the end of a structure, with statistics of each partition, of each die."""
    more = " ".join(f"{name}*8" for name in counters.split())
    return (
        f"{_NOW} num_partition [8 u4 gfx_busy_inst*8 u2 jpeg_busy*{jpeg_count} vcn_busy*4 "
        f"u8 gfx_busy_acc*8 {more} ] u4 pcie_lc_perf_other_end_recovery"
    )


_V1_6: Final = f"{_SOCKET}{_BEFORE_XGMI_STATUS}{_partitioned(32)}"
_V1_7_BEGIN: Final = (
    f"{_SOCKET} u8 mem_max_bandwidth {_BEFORE_XGMI_STATUS} u2 xgmi_link_status*8 padding "
)
_V1_7: Final = f"{_V1_7_BEGIN}{_partitioned(32, 'gfx_below_host_limit_acc')}"
_BELOW_HOST_LIMIT: Final = (
    "gfx_below_host_limit_ppt_acc gfx_below_host_limit_thm_acc gfx_low_utilization_acc "
    "gfx_below_host_limit_total_acc"
)
_V1_8: Final = f"{_V1_7_BEGIN}{_partitioned(40, _BELOW_HOST_LIMIT)}"

# Of processors with graphics (APUs) only the clocks are read: the units of the rest differ between
# chips (W or mW, C or hundredths), and those of hwmon are documented.
_APU_SENSORS: Final = "u2 apu_temperature*12 apu_activity*2 "
_APU_STATE: Final = (
    "u2 apu_power*12 "
    "average_gfxclk_frequency average_socclk_frequency average_uclk_frequency "
    "average_fclk_frequency average_vclk_frequency average_dclk_frequency current_gfxclk "
    "current_socclk current_uclk current_fclk current_vclk current_dclk current_coreclk*8 "
    "current_l3clk*2 u4 throttle_status u2 fan_pwm "
)
_V2_0: Final = f"u8 system_clock_counter {_APU_SENSORS}{_APU_STATE} padding"
_V2_1: Final = f"{_APU_SENSORS} u8 system_clock_counter {_APU_STATE} padding*3"
_V2_2: Final = f"{_V2_1} u8 indep_throttle_status"
_V2_3: Final = f"{_V2_2} u2 apu_average_temperature*12"
_V2_4: Final = f"{_V2_3} u2 apu_voltage*3 apu_current*3"

_VERSIONS: Final[Mapping[tuple[int, int], str]] = {
    (major, minor): members
    for major, versions in (
        (1, (_V1_0, _V1_1, _V1_2, _V1_3, _V1_4, _V1_5, _V1_6, _V1_7, _V1_8)),
        (2, (_V2_0, _V2_1, _V2_2, _V2_3, _V2_4)),
    )
    for minor, members in enumerate(versions)
}
_DESCRIBES_ITSELF: Final = (1, 9)


def layout_of(block: bytes) -> MetricsLayout:
    """Return where each metric is in a complete block, by the version in its header.

    Raises:
        UnknownMetricsError: Its version is not known, or its length is not that of the version.
    """
    if len(block) < HEADER.size:
        raise UnknownMetricsError(f"gpu_metrics has {len(block)} bytes")
    size_bytes, *version = HEADER.unpack_from(block)
    named = f"gpu_metrics v{version[0]}.{version[1]}"
    if tuple(version) == _DESCRIBES_ITSELF:
        return MetricsLayout(version=named, size_bytes=len(block), slots=_described(block))
    members = _VERSIONS.get((version[0], version[1]))
    if members is None:
        raise UnknownMetricsError(f"{named} is not known to this version of chopperd")
    layout = _layout(named, members)
    if not size_bytes == layout.size_bytes <= len(block):
        raise UnknownMetricsError(
            f"{named} says {size_bytes} bytes and came as {len(block)}, not {layout.size_bytes}"
        )
    return layout


@cache
def _layout(version: str, members: str) -> MetricsLayout:
    offsets: dict[str, tuple[int, list[int]]] = {}
    end, widest = HEADER.size, 2  # of the header
    for name, size, count in _members(members.split()):
        end, widest = _aligned(end, size), max(widest, size)
        _, places = offsets.setdefault(name, (size, []))
        places += range(end, end + size * count, size)
        end += size * count
    slots = {
        name: MetricSlot(kind=UNSIGNED_BY_BYTES[size], offsets=tuple(places))
        for name, (size, places) in offsets.items()
        if name and size in UNSIGNED_BY_BYTES
    }
    return MetricsLayout(version=version, size_bytes=_aligned(end, widest), slots=slots)


def _members(words: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield name, size in bytes and count of each number or array of a structure given as text."""
    size = 0
    for index, word in enumerate(words):
        name, _, count = word.partition("*")
        if word.startswith("["):
            end = words.index("]")
            for _ in range(int(word[1:])):
                yield "", 8, 0  # each is aligned to its widest numbers, of 8 bytes
                yield from _members(words[index + 1 : end])
            yield from _members(words[end + 1 :])
            return
        if word[0] == "u" and word[1:].isdecimal():
            size = int(word[1:])
        else:
            yield name, size, int(count or 1)


def _aligned(offset: int, size: int) -> int:
    return -(-offset // size) * size


# The block of v1.9: header, count (int32), then for each attribute 64 bits that describe it, and
# its numbers; nothing is aligned.
_ATTRIBUTES_COUNT: Final = Struct("<i")
_ENCODING: Final = Struct("<Q")
_NUMBER_BYTES: Final = (1, 1, 2, 2, 4, 4, 8, 8)
_SIGNED_TYPES: Final = frozenset({1, 3, 5, 7})
_NAME_BY_ID: Final[Mapping[int, str]] = {
    0: "temperature_hotspot",
    1: "temperature_mem",
    3: "current_socket_power",
    4: "average_gfx_activity",
    7: "energy_accumulator",
    8: "system_clock_counter",
    9: "accumulation_counter",
    10: "prochot_residency_acc",
    11: "ppt_residency_acc",
    12: "socket_thm_residency_acc",
    13: "vr_thm_residency_acc",
    14: "hbm_thm_residency_acc",
    15: "gfxclk_lock_status",
    32: "firmware_timestamp",
    33: "current_gfxclks",
    37: "current_uclk",
    38: "num_partition",
    43: "gfx_busy_acc",
    44: "gfx_below_host_limit_ppt_acc",
    45: "gfx_below_host_limit_thm_acc",
    46: "gfx_low_utilization_acc",
    47: "gfx_below_host_limit_total_acc",
}
#: The expected unit of each, by AMD's numbers: MHz 1, C 2, W 3, ns 4, 10 ns 5, % 10. An attribute
#: in another unit is left out.
_UNIT_BY_NAME: Final[Mapping[str, int]] = {
    "temperature_hotspot": 2,
    "temperature_mem": 2,
    "current_socket_power": 3,
    "average_gfx_activity": 10,
    "system_clock_counter": 4,
    "firmware_timestamp": 5,
    "current_gfxclks": 1,
    "current_uclk": 1,
}


def _described(block: bytes) -> dict[str, MetricSlot]:
    return {
        name: MetricSlot(kind=UNSIGNED_BY_BYTES[size], offsets=offsets)
        for name, size, offsets in _attributes(block)
    }


def _attributes(block: bytes) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Yield name, size of a number and offsets (bytes) of each usable attribute of a v1.9 block."""
    try:
        (count,) = _ATTRIBUTES_COUNT.unpack_from(block, HEADER.size)
        offset = HEADER.size + _ATTRIBUTES_COUNT.size
        for _ in range(count):
            (encoding,) = _ENCODING.unpack_from(block, offset)
            offset += _ENCODING.size
            unit, kind, name_id, numbers = _parts(encoding)
            size = _NUMBER_BYTES[kind]
            offsets = tuple(range(offset, offset + size * numbers, size))
            offset += size * numbers
            name = _NAME_BY_ID.get(name_id)
            is_usable = kind not in _SIGNED_TYPES and size in UNSIGNED_BY_BYTES and numbers > 0
            if name and is_usable and unit == _UNIT_BY_NAME.get(name, unit):
                yield name, size, offsets
    except IndexError as error:
        raise UnknownMetricsError("gpu_metrics v1.9 holds an attribute of no known type") from error
    except StructError as error:
        raise UnknownMetricsError("gpu_metrics v1.9 ends within an attribute") from error
    if offset > len(block):
        raise UnknownMetricsError("gpu_metrics v1.9 ends within an attribute")


def _parts(encoding: int) -> Iterable[int]:
    """Split an attribute's 64 bits into unit, type, id and count."""
    return encoding >> 24 & 0xFF, encoding >> 20 & 0xF, encoding >> 10 & 0x3FF, encoding & 0x3FF
