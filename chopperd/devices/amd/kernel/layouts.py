"""Layout of the kernel's file `gpu_metrics`, by the version in its header.

An unknown version is refused, never guessed: members move between versions. Source: `struct
gpu_metrics_v*` and `enum amdgpu_metrics_attr_id` of drivers/gpu/drm/amd/include/kgd_pp_interface.h,
and SMU_METRICS_* of pm/swsmu/smu_cmn.h (Linux 6.18).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception class
from typing import Final, TypeAlias

from chopperd.devices.amd.block import MetricsLayout, MetricSlot
from chopperd.devices.read_plan import UNSIGNED_BY_BYTES

#: Size of the structure, format and content revision.
HEADER: Final = Struct("<HBB")
_PARTITIONS: Final = 8
_DIES: Final = 8


class UnknownMetricsError(Exception):
    """The version of the block is not known, or the block is not complete."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A number of a structure, or an array of `count` numbers."""

    name: str
    number_bytes: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class _Group:
    """An array of `count` structures within the structure."""

    members: tuple[_Member, ...]
    count: int


_Members: TypeAlias = tuple[_Member | _Group, ...]


def _members(number_bytes: int, names: str) -> tuple[_Member, ...]:
    """Make members of one type, from names like "current_uclk" and "current_gfxclks*8"."""
    parts = (word.partition("*") for word in names.split())
    return tuple(_Member(name, number_bytes, int(count or 1)) for name, _, count in parts)


_u16, _u32, _u64 = (partial(_members, size) for size in (2, 4, 8))

# Names are those of AMD SMI, or the kernel's where it has none. Members that are not read determine
# the offsets of the others.
_SENSORS: Final = _u16(
    "temperature_edge temperature_hotspot temperature_mem temperature_vrgfx temperature_vrsoc "
    "temperature_vrmem average_gfx_activity average_umc_activity average_mm_activity "
    "average_socket_power"
)
_CLOCKS: Final = _u16(
    "average_gfxclk_frequency average_socclk_frequency average_uclk_frequency "
    "average_vclk0_frequency average_dclk0_frequency average_vclk1_frequency "
    "average_dclk1_frequency current_gfxclk current_socclk current_uclk current_vclk0 "
    "current_dclk0 current_vclk1 current_dclk1"
)
_V1_0: Final[_Members] = (
    *_u64("system_clock_counter"),
    *_SENSORS,
    *_u32("energy_accumulator"),
    *_CLOCKS,
    *_u32("throttle_status"),
    *_u16("current_fan_speed"),
    *_members(1, "pcie_link_width pcie_link_speed"),
)
_V1_1: Final[_Members] = (
    *_SENSORS,
    *_u64("energy_accumulator system_clock_counter"),
    *_CLOCKS,
    *_u32("throttle_status"),
    *_u16("current_fan_speed pcie_link_width pcie_link_speed padding"),
    *_u32("gfx_activity_acc mem_activity_acc"),
    *_u16("temperature_hbm*4"),
)
_V1_2: Final[_Members] = (*_V1_1, *_u64("firmware_timestamp"))
_V1_3: Final[_Members] = (
    *_V1_2,
    *_u16("voltage_soc voltage_gfx voltage_mem padding1"),
    *_u64("indep_throttle_status"),
)

_SOCKET: Final = _u16(
    "temperature_hotspot temperature_mem temperature_vrsoc current_socket_power "
    "average_gfx_activity average_umc_activity"
)
_LINKS: Final = (
    *_u16("pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed"),
    *_u32("gfx_activity_acc mem_activity_acc"),
    *_u64(
        "pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc pcie_replay_count_acc "
        "pcie_replay_rover_count_acc"
    ),
)
_NAKS: Final = _u32("pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc")
_XGMI: Final = _u64("xgmi_read_data_acc*8 xgmi_write_data_acc*8")
_XGMI_STATUS: Final = _u16("xgmi_link_status*8 padding")
_NOW: Final = (
    *_u64("firmware_timestamp"),
    *_u16("current_gfxclks*8 current_socclks*4 current_vclk0s*4 current_dclk0s*4 current_uclk"),
)
_ENERGY: Final = _u64("energy_accumulator system_clock_counter")
_THROTTLE: Final = _u32("throttle_status gfxclk_lock_status")
_RESIDENCY: Final = _u32(
    "accumulation_counter prochot_residency_acc ppt_residency_acc socket_thm_residency_acc "
    "vr_thm_residency_acc hbm_thm_residency_acc gfxclk_lock_status"
)
_V1_4: Final[_Members] = (
    *_SOCKET,
    *_u16("vcn_activity*4"),
    *_ENERGY,
    *_THROTTLE,
    *_LINKS,
    *_XGMI,
    *_NOW,
    *_u16("padding"),
)
_V1_5: Final[_Members] = (
    *_SOCKET,
    *_u16("vcn_activity*4 jpeg_activity*32"),
    *_ENERGY,
    *_THROTTLE,
    *_LINKS,
    *_NAKS,
    *_XGMI,
    *_NOW,
    *_u16("padding"),
)


def _partitions(jpeg_count: int, counters: str) -> _Group:
    """Make the group with the statistics of each partition; `counters` are names of u64 arrays."""
    return _Group(
        (
            *_u32(f"gfx_busy_inst*{_DIES}"),
            *_u16(f"jpeg_busy*{jpeg_count} vcn_busy*4"),
            *_u64(f"gfx_busy_acc*{_DIES}"),
            *_u64(" ".join(f"{name}*{_DIES}" for name in counters.split())),
        ),
        _PARTITIONS,
    )


_V1_6: Final[_Members] = (
    *_SOCKET,
    *_ENERGY,
    *_RESIDENCY,
    *_LINKS,
    *_NAKS,
    *_XGMI,
    *_NOW,
    *_u16("num_partition"),
    _partitions(32, ""),
    *_u32("pcie_lc_perf_other_end_recovery"),
)


def _v1_7_on(partitions: _Group) -> _Members:
    return (
        *_SOCKET,
        *_u64("mem_max_bandwidth"),
        *_ENERGY,
        *_RESIDENCY,
        *_LINKS,
        *_NAKS,
        *_XGMI,
        *_XGMI_STATUS,
        *_NOW,
        *_u16("num_partition"),
        partitions,
        *_u32("pcie_lc_perf_other_end_recovery"),
    )


_BELOW_HOST_LIMIT: Final = (
    "gfx_below_host_limit_ppt_acc gfx_below_host_limit_thm_acc gfx_low_utilization_acc "
    "gfx_below_host_limit_total_acc"
)

# Of processors with graphics (APUs) only the clocks are read: the units of the rest differ between
# chips (W or mW, C or hundredths), and those of hwmon are documented.
_APU_SENSORS: Final = _u16("apu_temperature*12 apu_activity*2")
_APU_POWER: Final = _u16("apu_power*12")
_APU_CLOCKS: Final = _u16(
    "average_gfxclk_frequency average_socclk_frequency average_uclk_frequency "
    "average_fclk_frequency average_vclk_frequency average_dclk_frequency current_gfxclk "
    "current_socclk current_uclk current_fclk current_vclk current_dclk current_coreclk*8 "
    "current_l3clk*2"
)
_V2_0: Final[_Members] = (
    *_u64("system_clock_counter"),
    *_APU_SENSORS,
    *_APU_POWER,
    *_APU_CLOCKS,
    *_u32("throttle_status"),
    *_u16("fan_pwm padding"),
)
_V2_1: Final[_Members] = (
    *_APU_SENSORS,
    *_u64("system_clock_counter"),
    *_APU_POWER,
    *_APU_CLOCKS,
    *_u32("throttle_status"),
    *_u16("fan_pwm padding*3"),
)
_V2_2: Final[_Members] = (*_V2_1, *_u64("indep_throttle_status"))
_V2_3: Final[_Members] = (*_V2_2, *_u16("apu_average_temperature*12"))
_V2_4: Final[_Members] = (*_V2_3, *_u16("apu_voltage*3 apu_current*3"))

_VERSIONS: Final[Mapping[tuple[int, int], _Members]] = {
    (1, 0): _V1_0,
    (1, 1): _V1_1,
    (1, 2): _V1_2,
    (1, 3): _V1_3,
    (1, 4): _V1_4,
    (1, 5): _V1_5,
    (1, 6): _V1_6,
    (1, 7): _v1_7_on(_partitions(32, "gfx_below_host_limit_acc")),
    (1, 8): _v1_7_on(_partitions(40, _BELOW_HOST_LIMIT)),
    (2, 0): _V2_0,
    (2, 1): _V2_1,
    (2, 2): _V2_2,
    (2, 3): _V2_3,
    (2, 4): _V2_4,
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
def _layout(version: str, members: _Members) -> MetricsLayout:
    slots: dict[str, MetricSlot] = {}
    widest = 2  # that of the header
    end = HEADER.size
    for member in members:
        group = member if isinstance(member, _Group) else _Group((member,), 1)
        start = end
        for name, number_bytes, offset in _placed(group, start):
            widest = max(widest, number_bytes)
            end = offset + number_bytes
            if number_bytes in UNSIGNED_BY_BYTES:
                known = slots.get(name)
                offsets = (*known.offsets, offset) if known else (offset,)
                slots[name] = MetricSlot(kind=UNSIGNED_BY_BYTES[number_bytes], offsets=offsets)
    return MetricsLayout(version=version, size_bytes=_aligned(end, widest), slots=slots)


def _placed(group: _Group, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and offset (bytes) of each number of a group, aligned from `start` on."""
    widest = max(member.number_bytes for member in group.members)
    offset = start
    for _ in range(group.count):
        offset = _aligned(offset, widest)
        for member in group.members:
            offset = _aligned(offset, member.number_bytes)
            for _ in range(member.count):
                yield member.name, member.number_bytes, offset
                offset += member.number_bytes


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
