"""What Chopper counts, efficiency and types of groups: by hand, and groups that sum to the row."""

import numpy as np
import pytest

from chopperd.correlate.groups import MOST_GROUPS, group_totals, places_in, record_figures
from chopperd.correlate.join import GroupWork, JoinedDevice, join_device
from chopperd.model.devices import MI300X
from chopperd.model.kinds import DType, KernelClass
from tests.unit.correlate.builders import MS, Rec, device, host

GEMM, NORM, COMM = KernelClass.GEMM, KernelClass.NORM, KernelClass.COMM
#: 1307.4 TFLOP/s of MI300X, for one ms.
ONE_MS_OF_PEAK = 1307.4e12 / 1000


def gemm(start_ms: int, end_ms: int, work_ms: float) -> Rec:
    """A product in layer 0 with the work of so many ms at the stated peak."""
    start = start_ms * MS
    return Rec(
        start,
        end_ms * MS,
        layer=0,
        call=max(start - MS // 2, 0),
        thread=0,
        flops=work_ms * ONE_MS_OF_PEAK,
        dtype=DType.BF16,
    )


def joined() -> JoinedDevice:
    """One step: layer 0 has gemm [0, 2), norm [3, 4) and gemm [6, 10) ms, layer 1 gemm [4, 6) ms.

    Their calls begin 0.5 ms before, of the gemm at 6 ms in its predecessor. Communication
    [5, 7) ms. The gemms at 0 and 6 have the work of 1 and 2 ms at the stated peak, that at 4 none.
    """
    half = MS // 2
    records = [
        gemm(0, 2, 1.0),
        Rec(3 * MS, 4 * MS, NORM, layer=0, call=3 * MS - half, thread=0),
        Rec(4 * MS, 6 * MS, GEMM, layer=1, call=4 * MS - half, thread=0),
        gemm(6, 10, 2.0),
        Rec(5 * MS, 7 * MS, COMM, stream=8, call=5 * MS, thread=0),
    ]
    return join_device(device(records, windows=[(0, 10 * MS)]), (host(),), None, None, spec=MI300X)


def of_layer(found: JoinedDevice, layer: int) -> tuple[GroupWork, int]:
    return found.work["layer"], found.layers.group.tolist().index(layer)


def test_a_layers_gaps_are_those_before_its_own_kernels() -> None:
    """Before the norm 1 ms, half of it prep; nothing before the gemms at 4 and 6 ms."""
    work, at = of_layer(joined(), 0)
    chopper = work.chopper
    assert chopper.kernel_count[at] == 3
    assert chopper.kernel_ns[at] == 7 * MS
    assert chopper.launch_ns[at] == MS
    assert chopper.prep_ns[at] == chopper.call_ns[at] == MS // 2
    assert chopper.overlap_ratio[at] == pytest.approx(1 / 7)
    work, at = of_layer(joined(), 1)
    assert work.chopper.launch_ns[at] == 0
    assert work.chopper.overlap_ratio[at] == pytest.approx(1 / 2)


def test_a_layers_efficiency_is_of_its_own_kernels() -> None:
    """3 ms of work at the peak in 6 ms; layer 1 has no known work."""
    work, at = of_layer(joined(), 0)
    assert work.efficiency.rated_ns[at] == 6 * MS
    assert work.efficiency.theoretical_ns[at] == pytest.approx(3 * MS)
    assert DType(int(work.efficiency.dtype[at])) is DType.BF16
    work, at = of_layer(joined(), 1)
    assert work.efficiency.shaped_ns[at] == 0
    assert work.efficiency.matrix_ns[at] == 2 * MS


def test_groups_of_every_kind_sum_to_the_row() -> None:
    found = joined()
    for work in found.work.values():
        for name in ("kernel_count", "kernel_ns", "launch_ns", "prep_ns", "call_ns"):
            assert getattr(work.chopper, name).sum() == getattr(found.traffic.chopper, name)[-1]
        assert work.efficiency.flops.sum() == pytest.approx(found.efficiency.flops[-1])
        assert work.efficiency.rated_ns.sum() == found.efficiency.rated_ns[-1]


def test_times_of_types_are_of_kernels_of_known_work() -> None:
    """6 of 9 ms of compute; the step launched all."""
    found = joined()
    assert found.type_ns[:, DType.BF16].tolist() == [6 * MS, 6 * MS]
    assert found.type_ns.sum() == 12 * MS
    assert found.kernel_ns.tolist() == [9 * MS, 9 * MS]


def test_records_of_merged_groups_are_in_none() -> None:
    """The shortest of `MOST_GROUPS` and one layers, 0, is merged with the next, 1."""
    records = [Rec(10_000 * at, 10_000 * at + 10 + at, layer=at) for at in range(MOST_GROUPS + 2)]
    timeline = device(records)
    figures = record_figures(timeline, None, None, np.empty(0, np.int64), np.empty(0))
    totals = group_totals(timeline.layer, figures)
    places = places_in(totals, timeline.layer)
    assert places[:2].tolist() == [-1, -1]
    assert totals.group[places[2:]].tolist() == list(range(2, MOST_GROUPS + 2))


def test_unknown_is_a_group_of_its_own() -> None:
    timeline = device([Rec(0, 10), Rec(20, 25, layer=4)])
    figures = record_figures(timeline, None, None, np.empty(0, np.int64), np.empty(0))
    totals = group_totals(timeline.layer, figures)
    assert totals.group[places_in(totals, timeline.layer)].tolist() == [-1, 4]
