"""Output of `amd-smi metric -w 1 --csv`, shortened, in the form that people published."""

import numpy as np
import pytest

from chopperd.errors import StoreError
from chopperd.model.devices import Vendor
from chopperd.model.kinds import Cause
from chopperd.store.samples.monitors import looks_like_amd_smi, parsed_amd_smi

PROMPT = "'CTRL' + 'C' to stop watching output:\n"
HEADER = (
    "timestamp,gpu,gfx_activity,vcn_activity,socket_power,throttle_status,gfx_0_clk,gfx_0_min_clk,"
    "gfx_0_max_clk,gfx_1_clk,mem_0_clk,edge,hotspot,mem\n"
)
FIRST = (
    "1772939616,0,95,\"['N/A', 'N/A']\",750,N/A,1980,500,2100,2010,900,N/A,72,65\n"
    "1772939616,1,0,\"['N/A', 'N/A']\",N/A,N/A,132,500,2100,N/A,900,38,N/A,24\n"
)
SECOND = "1772939617,0,40,\"['N/A', 'N/A']\",600.5,N/A,N/A,500,2100,2000,900,N/A,71,65\n"
T0_NS = 1_772_939_616_500_000_000


def test_readings_are_read_in_our_units_at_the_middle_of_their_second() -> None:
    samples = parsed_amd_smi((PROMPT + HEADER + FIRST + HEADER + SECOND).encode(), path="f.csv")
    first, second = samples.gpus
    assert (first.gpu.gpu, first.gpu.index, first.gpu.vendor) == ("0", 0, Vendor.AMD)
    assert first.gpu.sm_clock_max_mhz == 2100
    assert first.t_unix_ns.tolist() == [T0_NS, T0_NS + 1_000_000_000]
    assert first.read_span_ns.tolist() == [1_000_000_000] * 2
    np.testing.assert_array_equal(first.sm_clock_mhz, [1980, np.nan])
    np.testing.assert_array_equal(first.power_w, [750, 600.5])
    np.testing.assert_array_equal(first.temperature_c, [72, 71])
    np.testing.assert_allclose(first.activity_ratio, [0.95, 0.4])
    np.testing.assert_array_equal(first.die_clocks_mhz, [[1980, 2010], [np.nan, 2000]])
    assert np.isnan(first.energy_j).all()
    # The other GPU tells no hot spot and one die.
    np.testing.assert_array_equal(second.temperature_c, [38])
    assert np.isnan(second.power_w).all()


def test_nothing_is_known_of_causes_and_times_are_said_to_be_coarse() -> None:
    samples = parsed_amd_smi((HEADER + FIRST).encode(), path="f.csv")
    assert samples.gpus[0].causes.tolist() == [Cause.UNKNOWN.bit]
    assert [note.code for note in samples.notes] == ["amd_smi_seconds"]
    assert samples.backend == "amd-smi"


def test_where_every_gpu_has_one_die_there_are_none_to_choose_from() -> None:
    header = "timestamp,gpu,socket_power,gfx_0_clk\n"
    samples = parsed_amd_smi((header + "1772939616,0,20,2482\n").encode(), path="f.csv")
    assert samples.gpus[0].die_clocks_mhz is None


def test_a_line_that_was_cut_off_is_passed_over() -> None:
    samples = parsed_amd_smi((HEADER + FIRST + SECOND[:30]).encode(), path="f.csv")
    assert [len(gpu) for gpu in samples.gpus] == [1, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu,socket_power,gfx_0_clk\n0,20,2482\n", "line 2: no times"),
        ("timestamp,gpu,gfx_0_clk\n2026-01-01T00:00:00,0,2482\n", "line 2: timestamp"),
        ("timestamp,gpu,gfx_0_clk\n1772939616,0,fast\n", "line 2: gfx_0_clk 'fast'"),
    ],
)
def test_what_can_not_be_read_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        parsed_amd_smi(text.encode(), path="f.csv")


def test_it_is_told_from_other_files_by_its_header() -> None:
    assert looks_like_amd_smi((PROMPT + HEADER).encode())
    assert not looks_like_amd_smi(b"t_unix_ns,gpu,sm_clock_mhz\n")
    assert not looks_like_amd_smi(b"timestamp, index, clocks.current.sm [MHz]\n")
    assert not looks_like_amd_smi(b"\xff\xfe")
