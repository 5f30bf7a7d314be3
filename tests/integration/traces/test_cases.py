"""The public bug reports about trace files; expected values are those of each `expected.md`."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chopperd.errors import TraceFormatError
from chopperd.model.trace import Damage, Trace
from chopperd.traces.read.reader import read_trace

pytestmark = pytest.mark.corpus

US = 1000


def case(shared: Path, name: str) -> Trace:
    return read_trace(shared / "cases" / name)


def busy_us(trace: Trace) -> list[float]:
    """Length of each device record in start order; the cases' records do not overlap."""
    return [float(ns) / US for ns in trace.records.end_ns - trace.records.start_ns]


def names(trace: Trace) -> list[str]:
    return [trace.names[number] for number in trace.records.name]


def test_01_damaged_names_cost_their_own_rows_only(shared: Path) -> None:
    trace = case(shared, "01-bad-bytes-in-names/trace.json")
    assert busy_us(trace) == [120, 80]
    assert trace.damage == Damage(damaged_events=3)
    assert trace.meta.event_count == 8


def test_01_stray_bytes_and_ids_above_int64_are_survived(shared: Path) -> None:
    trace = case(shared, "01-bad-bytes-in-names/bigint-and-badutf8.json")
    assert busy_us(trace) == [40]
    assert names(trace) == ["ncclDevKernel_\ufffd_x"]
    assert trace.damage == Damage()


@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz"])
def test_03_a_file_cut_inside_a_kernel_keeps_what_is_whole(shared: Path, name: str) -> None:
    trace = case(shared, f"03-truncated/{name}")
    assert busy_us(trace) == [30, 40]
    assert (len(trace.calls), len(trace.spans)) == (3, 3)
    assert trace.damage == Damage(truncated=True)


def test_03_a_missing_bracket_is_accepted(shared: Path) -> None:
    trace = case(shared, "03-truncated/no-closing-bracket.json")
    assert busy_us(trace) == [30, 40, 50]
    assert trace.damage == Damage(unclosed=True)


def test_03_plain_text_under_a_compressed_name_is_told_by_content(shared: Path) -> None:
    trace = case(shared, "03-truncated/plain-but-named.json.gz")
    assert busy_us(trace) == [30, 40, 50]
    assert trace.damage == Damage()


@pytest.mark.parametrize("name", ["empty.json.gz", "zero-bytes.json"])
def test_03_empty_files_are_refused(shared: Path, name: str) -> None:
    with pytest.raises(TraceFormatError, match="empty trace"):
        case(shared, f"03-truncated/{name}")


def test_05_records_without_a_time_or_with_a_negative_length_are_left_out(shared: Path) -> None:
    trace = case(shared, "05-zero-ts-negative-dur/trace.json")
    assert busy_us(trace) == [50, 70]
    assert trace.damage == Damage(invalid_records=2, zeroed_records=1)
    assert trace.span_ns[1] - trace.span_ns[0] == 600 * US
    assert trace.span_ns[0] == 1_615_207_264_505_000_000


def test_06_kernels_shorter_than_a_microsecond_keep_their_length(shared: Path) -> None:
    trace = case(shared, "06-sub-microsecond-and-float/sub_us.json")
    assert (trace.records.end_ns - trace.records.start_ns).tolist() == [200, 400, 500]


def test_06_absolute_times_with_decimals_are_exact(shared: Path) -> None:
    trace = case(shared, "06-sub-microsecond-and-float/absolute_fraction.json")
    assert trace.records.start_ns.tolist() == [1750000000000100130, 1750000000000121124]
    assert trace.records.end_ns.tolist() == [1750000000000121120, 1750000000000131124]


@pytest.mark.parametrize(
    ("name", "start_ns"),
    [
        ("rank0", 1_700_000_005_000_000_000),
        ("rank1", 1_700_000_005_000_250_000),
        ("rank2", 1_700_000_005_000_100_500),
    ],
)
def test_08_the_base_time_is_found_first_last_or_in_the_times(
    shared: Path, name: str, start_ns: int
) -> None:
    trace = case(shared, f"08-base-time-anchor/{name}.json")
    assert trace.spans.start_ns.tolist() == [start_ns]
    assert trace.meta.anchored


def test_08_small_times_without_a_base_are_placed_nowhere(shared: Path) -> None:
    trace = case(shared, "08-base-time-anchor/no_anchor.json")
    assert not trace.meta.anchored
    assert busy_us(trace) == [10_000]
    assert trace.span_ns[1] - trace.span_ns[0] == 20_000 * US


@pytest.mark.parametrize(
    ("name", "rank", "source", "busy"),
    [
        ("node-a_rank0.json", 0, "distributedInfo", 30),
        ("node-b_rank0.json", 0, "distributedInfo", 60),
        ("job7_rank2.pt.trace.json", 2, "file name", 45),
        ("capture.json", None, None, 20),
    ],
)
def test_12_the_rank_is_that_of_the_file_or_its_name_or_unknown(
    shared: Path, name: str, rank: int | None, source: str | None, busy: float
) -> None:
    trace = case(shared, f"12-rank-missing-or-twice/{name}")
    assert (trace.meta.rank, trace.meta.rank_source) == (rank, source)
    assert busy_us(trace) == [busy]


def test_14_a_large_trace_is_read_without_growing_as_large(shared: Path, tmp_path: Path) -> None:
    maker = shared / "cases/14-large-trace-memory/make_trace.py"
    path = tmp_path / "large.json"
    with path.open("wb") as out:
        subprocess.run([sys.executable, str(maker), "100000"], stdout=out, check=True)
    trace = read_trace(path)
    assert trace.meta.event_count == 120_001
    assert len(trace.records) == 10_000
    busy_ns = int((trace.records.end_ns - trace.records.start_ns).sum())
    step_ns = int((trace.spans.end_ns - trace.spans.start_ns).sum())
    assert (busy_ns, step_ns) == (400_000_000, 1_000_000_000)
    assert bool(np.all(trace.records.end_ns[:-1] <= trace.records.start_ns[1:]))
