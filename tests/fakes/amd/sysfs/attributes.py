"""The kernel's table of attributes: `gpu_metrics` v1.9.

Behind a header (4 bytes) and the number of attributes (int32) each attribute is a uint64 that says
what it is, followed by its numbers; nothing is aligned.

Source: `kgd_pp_interface.h` (`AMDGPU_METRICS_ENC_ATTR`: unit << 24 | type << 20 | id << 10 |
number of instances) and `smu_v13_0.h`/`amdgpu_smu.h` of Linux 6.18 (`DECLARE_SMU_METRICS_CLASS`).
"""

import struct
from dataclasses import dataclass
from typing import Final

_NONE, _CLOCK, _TEMP, _POWER, _NS, _TEN_NS, _SPEED, _TENTH_SPEED, _BW, _KB, _PERCENT = range(11)
_TYPES: Final = {"B": 0, "H": 2, "I": 4, "Q": 6}
_BYTES: Final = {"B": 1, "H": 2, "I": 4, "Q": 8}
HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Attribute:
    """One of the table: its metric's name, unit, width, how many numbers."""

    name: str
    unit: int
    width: str
    count: int = 1


#: In the order of their ids, from 0 on; the names are those of the structures.
ATTRIBUTES: Final = (
    Attribute("temperature_hotspot", _TEMP, "H"),
    Attribute("temperature_mem", _TEMP, "H"),
    Attribute("temperature_vrsoc", _TEMP, "H"),
    Attribute("current_socket_power", _POWER, "H"),
    Attribute("average_gfx_activity", _PERCENT, "H"),
    Attribute("average_umc_activity", _PERCENT, "H"),
    Attribute("vram_max_bandwidth", _BW, "Q"),
    Attribute("energy_accumulator", _NONE, "Q"),
    Attribute("system_clock_counter", _NS, "Q"),
    Attribute("accumulation_counter", _NONE, "I"),
    Attribute("prochot_residency_acc", _NONE, "I"),
    Attribute("ppt_residency_acc", _NONE, "I"),
    Attribute("socket_thm_residency_acc", _NONE, "I"),
    Attribute("vr_thm_residency_acc", _NONE, "I"),
    Attribute("hbm_thm_residency_acc", _NONE, "I"),
    Attribute("gfxclk_lock_status", _NONE, "I"),
    Attribute("pcie_link_width", _NONE, "H"),
    Attribute("pcie_link_speed", _TENTH_SPEED, "H"),
    Attribute("xgmi_link_width", _NONE, "H"),
    Attribute("xgmi_link_speed", _SPEED, "H"),
    Attribute("gfx_activity_acc", _PERCENT, "I"),
    Attribute("mem_activity_acc", _PERCENT, "I"),
    Attribute("pcie_bandwidth_acc", _PERCENT, "Q"),
    Attribute("pcie_bandwidth_inst", _BW, "Q"),
    Attribute("pcie_l0_to_recov_count_acc", _NONE, "Q"),
    Attribute("pcie_replay_count_acc", _NONE, "Q"),
    Attribute("pcie_replay_rover_count_acc", _NONE, "Q"),
    Attribute("pcie_nak_sent_count_acc", _NONE, "I"),
    Attribute("pcie_nak_rcvd_count_acc", _NONE, "I"),
    Attribute("xgmi_read_data_acc", _KB, "Q", 8),
    Attribute("xgmi_write_data_acc", _KB, "Q", 8),
    Attribute("xgmi_link_status", _NONE, "H", 8),
    Attribute("firmware_timestamp", _TEN_NS, "Q"),
    Attribute("current_gfxclks", _CLOCK, "H", 8),
    Attribute("current_socclks", _CLOCK, "H", 4),
    Attribute("current_vclk0s", _CLOCK, "H", 4),
    Attribute("current_dclk0s", _CLOCK, "H", 4),
    Attribute("current_uclk", _CLOCK, "H"),
    Attribute("num_partition", _NONE, "H"),
    Attribute("pcie_lc_perf_other_end_recovery", _NONE, "I"),
    Attribute("gfx_busy_inst", _PERCENT, "I", 8),
    Attribute("jpeg_busy", _PERCENT, "H", 40),
    Attribute("vcn_busy", _PERCENT, "H", 4),
    Attribute("gfx_busy_acc", _PERCENT, "Q", 8),
    Attribute("gfx_below_host_limit_ppt_acc", _NONE, "Q", 8),
    Attribute("gfx_below_host_limit_thm_acc", _NONE, "Q", 8),
    Attribute("gfx_low_utilization_acc", _NONE, "Q", 8),
    Attribute("gfx_below_host_limit_total_acc", _NONE, "Q", 8),
)
ALL_IDS: Final = tuple(range(len(ATTRIBUTES)))


@dataclass(frozen=True, slots=True)
class AttributeTable:
    """A table of some attributes, in an order that a driver may choose.

    Attributes:
        ids: Which.
        unknown: Such that no version has yet, between the first two: unit, width, count.
    """

    ids: tuple[int, ...] = ALL_IDS
    unknown: tuple[Attribute, ...] = ()

    def _laid_out(self) -> tuple[tuple[int, Attribute, int], ...]:
        """Id, attribute and offset of its encoding."""
        known = [(id_, ATTRIBUTES[id_]) for id_ in self.ids]
        made_up = [(900 + place, attribute) for place, attribute in enumerate(self.unknown)]
        offset, placed = HEADER_BYTES, []
        for id_, attribute in [*known[:1], *made_up, *known[1:]]:
            placed.append((id_, attribute, offset))
            offset += 8 + _BYTES[attribute.width] * attribute.count
        return tuple(placed)

    @property
    def size_bytes(self) -> int:
        """Of the whole."""
        _, last, offset = self._laid_out()[-1]
        return offset + 8 + _BYTES[last.width] * last.count

    def place_of(self, name: str, place: int = 0) -> tuple[int, int] | None:
        """Offset and width of a number; None: it isn't in the table."""
        bare = name.removeprefix("xcp_stats.0.")
        for _, attribute, offset in self._laid_out():
            if attribute.name == bare and place < attribute.count:
                width = _BYTES[attribute.width]
                return offset + 8 + place * width, width
        return None

    def empty(self) -> bytearray:
        """The table with all ones for each number."""
        block = bytearray(b"\xff" * self.size_bytes)
        placed = self._laid_out()
        struct.pack_into("<HBBi", block, 0, self.size_bytes & 0xFFFF, 1, 9, len(placed))
        for id_, attribute, offset in placed:
            encoding = attribute.unit << 24 | _TYPES[attribute.width] << 20 | id_ << 10
            struct.pack_into("<Q", block, offset, encoding | attribute.count)
        return block


#: All that there are.
ALL_ATTRIBUTES: Final = AttributeTable()
