"""The kernel's binary tables of metrics: `gpu_metrics` v1.0-1.8, 2.0-2.4, 3.0.

Source: the structures of `drivers/gpu/drm/amd/include/kgd_pp_interface.h` (Linux 6.17). They are
laid out as a C compiler lays them out; v1.9 is no structure, see `attributes`. Names are those of
`amdsmi_gpu_metrics_t` where the kernel's differ.
"""

from ctypes import Structure, c_uint8, c_uint16, c_uint32, c_uint64
from functools import cache
from typing import Any, Final

_WIDTHS: Final = {"B": c_uint8, "H": c_uint16, "I": c_uint32, "Q": c_uint64}
#: The kernel's names on the left.
RENAMED: Final = {
    "curr_socket_power": "current_socket_power",
    "mem_max_bandwidth": "vram_max_bandwidth",
}

_TEMPERATURES = "temperature_edge temperature_hotspot temperature_mem temperature_vrgfx"
_V1_HEAD = f"{_TEMPERATURES} temperature_vrsoc temperature_vrmem average_gfx_activity"
_ENGINES = ["gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1"]
_V1_CLOCKS = " ".join(
    [*(f"average_{e}_frequency" for e in _ENGINES), *(f"current_{e}" for e in _ENGINES)]
)
#: Width, then names; a number after a name says how many there are of it.
_V1_0 = f"""
    Q system_clock_counter
    H {_V1_HEAD} average_umc_activity average_mm_activity average_socket_power
    I energy_accumulator
    H {_V1_CLOCKS}
    I throttle_status
    H current_fan_speed
    B pcie_link_width pcie_link_speed
"""
_V1_1 = f"""
    H {_V1_HEAD} average_umc_activity average_mm_activity average_socket_power
    Q energy_accumulator system_clock_counter
    H {_V1_CLOCKS}
    I throttle_status
    H current_fan_speed pcie_link_width pcie_link_speed padding
    I gfx_activity_acc mem_activity_acc
    H temperature_hbm:4
"""
_V1_2 = _V1_1 + "Q firmware_timestamp\n"
_V1_3 = (
    _V1_2
    + """
    H voltage_soc voltage_gfx voltage_mem padding1
    Q indep_throttle_status
"""
)
_V1_4_HEAD = """
    H temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power
    H average_gfx_activity average_umc_activity
"""
_LINKS = """
    I gfxclk_lock_status
    H pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed
    I gfx_activity_acc mem_activity_acc
    Q pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc
    Q pcie_replay_count_acc pcie_replay_rover_count_acc
"""
_NAKS = "I pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc\n"
_XGMI = "Q xgmi_read_data_acc:8 xgmi_write_data_acc:8\n"
_DIES = """
    Q firmware_timestamp
    H current_gfxclks:8 current_socclks:4 current_vclk0s:4 current_dclk0s:4 current_uclk
"""
_V1_4 = f"""
    {_V1_4_HEAD} H vcn_activity:4
    Q energy_accumulator system_clock_counter
    I throttle_status
    {_LINKS} {_XGMI} {_DIES} H padding
"""
_V1_5 = f"""
    {_V1_4_HEAD} H vcn_activity:4 jpeg_activity:32
    Q energy_accumulator system_clock_counter
    I throttle_status
    {_LINKS} {_NAKS} {_XGMI} {_DIES} H padding
"""
_RESIDENCIES = """
    Q energy_accumulator system_clock_counter
    I accumulation_counter prochot_residency_acc ppt_residency_acc socket_thm_residency_acc
    I vr_thm_residency_acc hbm_thm_residency_acc
"""
_PARTITIONS = "H num_partition\n {} xcp_stats:8\n I pcie_lc_perf_other_end_recovery\n"
_V1_6 = f"""
    {_V1_4_HEAD} {_RESIDENCIES} {_LINKS} {_NAKS} {_XGMI} {_DIES}
    {_PARTITIONS.format("xcp_1_0")}
"""
_V1_7 = f"""
    {_V1_4_HEAD} Q mem_max_bandwidth
    {_RESIDENCIES} {_LINKS} {_NAKS} {_XGMI} H xgmi_link_status:8 padding
    {_DIES} {{partitions}}
"""
_V2_0_HEAD = """
    H temperature_gfx temperature_soc temperature_core:8 temperature_l3:2
    H average_gfx_activity average_mm_activity
"""
_V2_POWERS = """
    H average_socket_power average_cpu_power average_soc_power average_gfx_power
    H average_core_power:8
    H average_gfxclk_frequency average_socclk_frequency average_uclk_frequency
    H average_fclk_frequency average_vclk_frequency average_dclk_frequency
    H current_gfxclk current_socclk current_uclk current_fclk current_vclk current_dclk
    H current_coreclk:8 current_l3clk:2
    I throttle_status
    H fan_pwm
"""
_V2_0 = f"Q system_clock_counter\n {_V2_0_HEAD} {_V2_POWERS} H padding\n"
_V2_1 = f"{_V2_0_HEAD} Q system_clock_counter\n {_V2_POWERS} H padding:3\n"
_V2_2 = _V2_1 + "Q indep_throttle_status\n"
_V2_3 = (
    _V2_2
    + """
    H average_temperature_gfx average_temperature_soc average_temperature_core:8
    H average_temperature_l3:2
"""
)
_V2_4 = (
    _V2_3
    + """
    H average_cpu_voltage average_soc_voltage average_gfx_voltage
    H average_cpu_current average_soc_current average_gfx_current
"""
)
_V3_0 = """
    H temperature_gfx temperature_soc temperature_core:16 temperature_skin
    H average_gfx_activity average_vcn_activity average_ipu_activity:8
    H average_core_c0_activity:16
    H average_dram_reads average_dram_writes average_ipu_reads average_ipu_writes
    Q system_clock_counter
    I average_socket_power
    H average_ipu_power
    I average_apu_power average_gfx_power average_dgpu_power average_all_core_power
    H average_core_power:16 average_sys_power stapm_power_limit current_stapm_power_limit
    H average_gfxclk_frequency average_socclk_frequency average_vpeclk_frequency
    H average_ipuclk_frequency average_fclk_frequency average_vclk_frequency
    H average_uclk_frequency average_mpipu_frequency
    H current_coreclk:16 current_core_maxfreq current_gfx_maxfreq
    I throttle_residency_prochot throttle_residency_spl throttle_residency_fppt
    I throttle_residency_sppt throttle_residency_thm_core throttle_residency_thm_gfx
    I throttle_residency_thm_soc time_filter_alphavalue
"""
_XCP_1_0 = "I gfx_busy_inst:8\n H jpeg_busy:32 vcn_busy:4\n Q gfx_busy_acc:8\n"
_XCP_1_2 = """
    I gfx_busy_inst:8
    H jpeg_busy:40 vcn_busy:4
    Q gfx_busy_acc:8 gfx_below_host_limit_ppt_acc:8 gfx_below_host_limit_thm_acc:8
    Q gfx_low_utilization_acc:8 gfx_below_host_limit_total_acc:8
"""

_PARTS: Final = {
    "xcp_1_0": _XCP_1_0,
    "xcp_1_1": _XCP_1_0 + "Q gfx_below_host_limit_acc:8\n",
    "xcp_1_2": _XCP_1_2,
}
_TABLES: Final = {
    (1, 0): _V1_0, (1, 1): _V1_1, (1, 2): _V1_2, (1, 3): _V1_3, (1, 4): _V1_4, (1, 5): _V1_5,
    (1, 6): _V1_6,
    (1, 7): _V1_7.format(partitions=_PARTITIONS.format("xcp_1_1")),
    (1, 8): _V1_7.format(partitions=_PARTITIONS.format("xcp_1_2")),
    (2, 0): _V2_0, (2, 1): _V2_1, (2, 2): _V2_2, (2, 3): _V2_3, (2, 4): _V2_4, (3, 0): _V3_0,
}  # fmt: skip
#: The versions that are structures.
VERSIONS: Final = tuple(_TABLES)
HEADER = "H structure_size\n B format_revision content_revision\n"


@cache
def table(version: tuple[int, int]) -> type[Structure]:
    """The structure of a version."""
    name = f"gpu_metrics_v{version[0]}_{version[1]}"
    return _structure(name, HEADER + _TABLES[version])


@cache
def part(name: str) -> type[Structure]:
    """The structure of a partition's metrics in a table."""
    return _structure(name, _PARTS[name])


def _structure(name: str, described: str) -> type[Structure]:
    fields: list[tuple[str, Any]] = []
    kind: Any = None
    for word in described.split():
        if word in _WIDTHS or word in _PARTS:
            kind = _WIDTHS[word] if word in _WIDTHS else part(word)
            continue
        field, _, count = word.partition(":")
        fields.append((RENAMED.get(field, field), kind * int(count) if count else kind))
    return type(name, (Structure,), {"_fields_": fields})
