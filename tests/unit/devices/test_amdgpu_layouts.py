"""Places of metrics against sizes and offsets that others have printed by a C compiler."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.devices.amd.kernel.layouts import UnknownMetricsError, layout_of
from chopperd.devices.read_plan import NumberKind

#: Source: sizeof of `struct gpu_metrics_v1_*` as printed by programs that read them.
SIZES = {(1, 3): 120, (1, 4): 288, (1, 6): 1664, (1, 7): 2208, (1, 8): 3872}


def block(version: tuple[int, int], size_bytes: int) -> bytes:
    return pack("<HBB", size_bytes, *version).ljust(size_bytes, b"\xff")


@pytest.mark.parametrize(("version", "size_bytes"), SIZES.items())
def test_a_version_is_as_long_as_the_kernel_s(version: tuple[int, int], size_bytes: int) -> None:
    assert layout_of(block(version, size_bytes)).size_bytes == size_bytes


def test_members_stand_where_the_kernel_puts_them() -> None:
    """Offsets by hand from the declarations, with C's alignment."""
    v1_3 = layout_of(block((1, 3), 120)).slots
    assert v1_3["energy_accumulator"].offsets == (24,)
    assert v1_3["current_gfxclk"].offsets == (54,)
    assert v1_3["firmware_timestamp"].offsets == (96,)
    assert v1_3["indep_throttle_status"].offsets == (112,)
    v1_6 = layout_of(block((1, 6), 1664)).slots
    assert v1_6["ppt_residency_acc"].offsets == (40,)
    assert v1_6["current_gfxclks"].offsets == tuple(range(264, 280, 2))
    assert v1_6["pcie_lc_perf_other_end_recovery"].offsets == (1656,)
    v1_8 = layout_of(block((1, 8), 3872)).slots
    assert v1_8["current_socket_power"].offsets == (10,)
    assert v1_8["accumulation_counter"].offsets == (40,)
    assert v1_8["current_uclk"].offsets == (336,)
    below = v1_8["gfx_below_host_limit_ppt_acc"]
    assert below.kind is NumberKind.UINT64
    # Eight partitions, 440 bytes apart, of eight dies each.
    assert below.offsets == tuple(344 + 184 + 440 * p + 8 * d for p in range(8) for d in range(8))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x78\x00\x01",
        block((1, 8), 3872)[:-1],
        block((1, 3), 288),
        block((1, 10), 4000),
        block((3, 0), 264),
        block((0, 0), 4),
        block((255, 255), 65535),
    ],
)
def test_what_is_not_known_or_not_whole_is_refused(bad: bytes) -> None:
    with pytest.raises(UnknownMetricsError):
        layout_of(bad)


def attribute(unit: int, kind: int, name_id: int, numbers: bytes, count: int) -> bytes:
    return pack("<Q", unit << 24 | kind << 20 | name_id << 10 | count) + numbers


def described(*attributes: bytes) -> bytes:
    return pack("<HBBi", 0, 1, 9, len(attributes)) + b"".join(attributes)


def test_a_block_that_describes_itself_is_read_by_what_it_says() -> None:
    layout = layout_of(
        described(
            attribute(2, 2, 0, pack("<H", 61), 1),
            attribute(0, 0, 19, b"\x07", 1),  # a byte: not of use
            attribute(1, 2, 33, pack("<8H", *range(2093, 2101)), 8),
            attribute(0, 6, 44, pack("<8Q", *range(8)), 8),
            attribute(5, 6, 32, pack("<Q", 12345), 1),
            attribute(1, 2, 1000, pack("<H", 1), 1),  # an id of a later kernel
        )
    )
    assert set(layout.slots) == {
        "temperature_hotspot",
        "current_gfxclks",
        "gfx_below_host_limit_ppt_acc",
        "firmware_timestamp",
    }
    # By hand: header 8, then 8 + 2; 8 + 1; 8 + 16; 8 + 64; 8 + 8; 8 + 2.
    assert layout.slots["temperature_hotspot"].offsets == (16,)
    assert layout.slots["current_gfxclks"].offsets == tuple(range(35, 51, 2))
    assert layout.slots["gfx_below_host_limit_ppt_acc"].offsets == tuple(range(59, 123, 8))
    assert layout.slots["firmware_timestamp"].offsets == (131,)


def test_an_attribute_in_another_unit_or_a_signed_one_is_left_out() -> None:
    layout = layout_of(
        described(
            attribute(4, 6, 32, pack("<Q", 12345), 1),  # ns, where 10 ns are expected
            attribute(3, 3, 3, pack("<h", -1), 1),
        )
    )
    assert layout.slots == {}


@pytest.mark.parametrize(
    "bad",
    [
        pack("<HBBi", 0, 1, 9, 1),
        described(attribute(2, 2, 0, b"", 1)),
        described(attribute(0, 6, 44, pack("<Q", 1), 8)),
        described(attribute(0, 9, 44, pack("<Q", 1), 1)),
        pack("<HBB", 0, 1, 9),
    ],
)
def test_a_block_that_ends_too_soon_is_refused(bad: bytes) -> None:
    with pytest.raises(UnknownMetricsError):
        layout_of(bad)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_places_never_lie_outside_of_the_block(rest: bytes) -> None:
    data = pack("<HBB", 120, 1, 9) + rest
    try:
        layout = layout_of(data)
    except UnknownMetricsError:
        return
    sizes = {NumberKind.UINT16: 2, NumberKind.UINT32: 4, NumberKind.UINT64: 8}
    for place in layout.slots.values():
        assert all(0 <= offset <= len(data) - sizes[place.kind] for offset in place.offsets)
