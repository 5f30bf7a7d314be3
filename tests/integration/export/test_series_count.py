"""Public case 39: what runs on a node does not add series."""

from msgspec.structs import replace

from chopperd.live.traced import TracedLedger
from chopperd.model.live import TracedTotals
from chopperd.units import NS_PER_S
from tests.exposition import rendered, series
from tests.fakes.clock import ScriptedClock
from tests.fakes.snapshots import TAKEN_UNIX_NS, full_snapshot
from tests.unit.live.test_traced import ROW, document


def test_case_39_a_thousand_traces_make_no_more_series_than_one() -> None:
    """Each trace is of ten steps: 10,000 steps in all."""
    clock = ScriptedClock(unix_ns=TAKEN_UNIX_NS)
    traced = TracedLedger(clock)
    snapshot = full_snapshot(8)
    counts, before = [], dict[str, TracedTotals]()
    for turn in range(1000):
        row = replace(ROW, start_unix_ns=clock.unix_ns() - 2 * NS_PER_S, job=f"job-{turn}")
        rows = [replace(row, rank=gpu, gpu=str(gpu)) for gpu in range(8)]
        traced.add(replace(document(*rows), steps=tuple(replace(row, step=n) for n in range(10))))
        found = traced.recent()
        for gpu, sums in before.items():
            assert found[gpu].kernel_s["gemm"] >= sums.kernel_s["gemm"]
        before = dict(found)
        if turn in {0, 999}:
            counts.append(len(series(rendered(replace(snapshot, traced=found)))))
        clock.advance(5 * NS_PER_S)
    assert counts[0] == counts[1]
