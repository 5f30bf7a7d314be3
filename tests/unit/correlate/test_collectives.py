"""Collectives by group: sizes and bandwidths worked out by hand, after nccl-tests' formulas."""

import pytest
from msgspec.structs import replace

from chopperd.correlate.traffic import (
    MOST_KINDS,
    OTHER_COLLECTIVES,
    UNKNOWN_COLLECTIVE,
    bus_factor,
    collective_bytes,
    collective_totals,
)
from chopperd.model.kinds import KernelClass
from chopperd.model.trace import Collective
from tests.unit.correlate.builders import Rec, device

COMM = KernelClass.COMM
REDUCE = Collective(
    name="allreduce",
    dtype="BFloat16",
    in_elements=1000,
    out_elements=1000,
    group="0",
    group_description="default_pg",
    group_size=8,
)
GATHER = Collective(
    name="allgather", dtype="Float", in_elements=10, out_elements=80, group="1", group_size=8
)


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [
        ("allreduce", 8, 1.75),
        ("allreduce", 2, 1.0),
        ("allgather", 8, 0.875),
        ("reducescatter", 4, 0.75),
        ("alltoall", 4, 0.75),
        ("gather", 4, 0.75),
        ("scatter", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("sendrecv", 2, 1.0),
        ("send", None, 1.0),
        ("allreduce", None, None),
        ("allreduce", 1, None),
        ("broadcast", 1, None),
        ("alltoallv", 8, None),
        ("barrier", 8, None),
        ("unknown", 8, None),
    ],
)
def test_the_factor_of_the_bus_is_that_of_nccl_tests(
    name: str, ranks: int | None, factor: float | None
) -> None:
    assert bus_factor(name, ranks) == factor


@pytest.mark.parametrize(
    ("dtype", "element_bytes"),
    [
        ("Byte", 1),
        ("Char", 1),
        ("Bool", 1),
        ("Float8_e4m3fn", 1),
        ("Float8_e5m2", 1),
        ("Half", 2),
        ("BFloat16", 2),
        ("Int", 4),
        ("Float", 4),
        ("Long", 8),
        ("Double", 8),
        ("ComplexDouble", 16),
        ("Undefined", None),
        (None, None),
    ],
)
def test_elements_have_the_size_of_their_type(dtype: str | None, element_bytes: int | None) -> None:
    size = collective_bytes(replace(REDUCE, dtype=dtype))
    assert size == (None if element_bytes is None else 1000 * element_bytes)


def test_the_size_is_all_that_is_gathered_or_taken_apart() -> None:
    assert collective_bytes(GATHER) == 80 * 4
    assert collective_bytes(replace(GATHER, in_elements=80, out_elements=10)) == 80 * 4
    assert collective_bytes(replace(REDUCE, in_elements=0, out_elements=0)) is None
    assert collective_bytes(replace(REDUCE, in_elements=None, out_elements=None)) is None


def test_kernels_are_put_together_by_name_and_group_whatever_their_size() -> None:
    """Two all-reduces of 2,000 and 8,000 bytes in group 0, one of 4,000 in group 2."""
    collectives = (
        REDUCE,
        replace(REDUCE, in_elements=4000, out_elements=4000),
        replace(REDUCE, in_elements=2000, out_elements=2000, group="2"),
    )
    totals = collective_totals(
        device(
            [
                Rec(0, 10, COMM, collective=0),
                Rec(10, 40, COMM, collective=1),
                Rec(50, 57, COMM, collective=2, step=1),
                Rec(60, 62, COMM, step=1),
                Rec(0, 100, collective=-1),
            ],
            windows=[(0, 50), (50, 100)],
        ),
        collectives,
    )
    first, second, unknown = totals.kinds
    assert (first.group, second.group, unknown) == ("0", "2", UNKNOWN_COLLECTIVE)
    assert first.dtype is None
    assert totals.count.tolist() == [[2, 0, 0], [0, 1, 1], [2, 1, 1]]
    assert totals.time_ns.tolist() == [[40, 0, 0], [0, 7, 2], [40, 7, 2]]
    assert totals.moved_bytes.tolist() == [[10_000, 0, 0], [0, 4000, 0], [10_000, 4000, 0]]
    assert totals.sized_count[-1].tolist() == [2, 1, 0]
    assert totals.sized_time_ns[-1].tolist() == [40, 7, 0]


def test_a_device_that_does_not_communicate_has_none() -> None:
    assert not collective_totals(device([Rec(0, 10)]), ()).count.any()


def test_of_very_many_groups_those_with_the_least_time_are_one_of_no_group() -> None:
    """Group k's kernel takes k + 1 ns; beyond the 64 longest are those of 1, 2 and 3 ns."""
    groups = tuple(replace(REDUCE, group=str(at)) for at in range(MOST_KINDS + 3))
    records = [Rec(100 * at, 101 * at + 1, COMM, collective=at) for at in range(len(groups))]
    totals = collective_totals(device(records), groups)
    assert len(totals.kinds) == MOST_KINDS + 1
    assert totals.kinds[-1] == OTHER_COLLECTIVES
    assert totals.kinds[0].group == "3"
    assert (totals.count[-1, -1], totals.time_ns[-1, -1]) == (3, 6)
    assert totals.moved_bytes[-1, -1] == 3 * 2000
    assert totals.time_ns[-1].sum() == sum(range(1, MOST_KINDS + 4))


def test_collectives_of_other_devices_take_no_place() -> None:
    totals = collective_totals(device([Rec(0, 10, COMM, collective=1)]), (REDUCE, GATHER))
    assert [each.name for each in totals.kinds] == ["allgather"]


def test_groups_of_one_name_with_other_ranks_are_apart() -> None:
    groups = (replace(REDUCE, ranks="[0, 1]"), replace(REDUCE, ranks="[2, 3]"))
    records = [Rec(0, 10, COMM, collective=0), Rec(20, 31, COMM, collective=1)]
    totals = collective_totals(device(records), groups)
    assert [each.ranks for each in totals.kinds] == ["[0, 1]", "[2, 3]"]
    assert totals.time_ns[-1].tolist() == [10, 11]
