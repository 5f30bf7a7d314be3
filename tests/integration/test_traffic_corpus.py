"""Copies, collectives, contention and Chopper's times of the real traces, against plain Python.

What is expected comes from the files' own JSON, one event after another; some of it by hand.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil, isnan, nan
from pathlib import Path

import pytest

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import CollectiveTraffic, Row
from chopperd.model.trace import RecordKind
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.traces.kernels.names import family
from tests.integration import reference_reader as plain
from tests.integration.test_real_traces import GPU_FILES

pytestmark = pytest.mark.corpus

A100, V100 = "hta_a100_nccl_ddp", "hta_v100_ddp_memory"
MI300X, B200 = "tracelens_mi300x_resnet_act_checkpoint", "tracelens_b200_vllm_eager"
DTYPE_BYTES = {"Float": 4, "BFloat16": 2, "Long": 8}


@dataclass(frozen=True, slots=True)
class Record:
    """A device record with what its event and its call's say."""

    row: plain.Row
    args: plain.Event
    call: plain.Event | None

    @property
    def ns(self) -> int:
        return self.row.end_ns - self.row.start_ns


@dataclass(frozen=True, slots=True)
class File:
    document: ReportDocument
    records: list[Record]


Files = Callable[[str], File]


@pytest.fixture(scope="module")
def files(shared: Path, plain_rows: Callable[[str], list[plain.Row]]) -> Files:
    """The real traces by name: the report on each, and its records as the file has them."""

    @cache
    def read(name: str) -> File:
        path = shared / "traces" / f"{name}.json.gz"
        events = [e for e in plain.read_json(path)["traceEvents"] if e.get("ph") == "X"]
        calls = {
            event["args"]["correlation"]: event
            for event in events
            if str(event.get("cat", "")).lower() in plain.CALLS
        }
        device = [e for e in events if str(e.get("cat", "")).lower() in plain.RECORD_KINDS]
        records = [
            Record(row, event["args"], calls.get(event["args"]["correlation"]))
            for row, event in zip(plain_rows(name), device, strict=True)
        ]
        document = report_files([path], samples=None, options=ReportOptions())
        return File(document, records)

    return read


def of_rows(file: File) -> Iterable[tuple[Row, list[Record]]]:
    """The rows of a report on one device, each with the records that count for it."""
    for row in file.document.steps:
        if not row.host_only:
            yield row, [each for each in file.records if each.row.step == row.step]
    (total,) = file.document.totals
    yield total, file.records


def direction(record: Record) -> str | None:
    if record.row.kind is RecordKind.MEMSET:
        return "memset"
    if record.row.kind is RecordKind.MEMCPY:
        return {"HtoD": "h2d", "DtoH": "d2h", "DtoD": "d2d"}[record.row.name.split()[1]]
    return None


def copied(record: Record) -> int | None:
    if "bytes" in record.args:
        return int(record.args["bytes"])
    told = {} if record.call is None else record.call["args"]
    return int(told["size"]) if "size" in told else None


@pytest.mark.parametrize("name", GPU_FILES)
def test_copies_by_direction_are_those_of_the_file(files: Files, name: str) -> None:
    for row, records in of_rows(files(name)):
        expected = {}
        for way in ("h2d", "d2h", "d2d", "memset"):
            mine = [each for each in records if direction(each) == way]
            sized = [(size, each.ns) for each in mine if (size := copied(each)) is not None]
            if not mine:
                continue
            moved, time_ns = sum(size for size, _ in sized), sum(ns for _, ns in sized)
            rate = pytest.approx(moved * 1e9 / time_ns) if time_ns else None
            expected[way] = (
                *(len(mine), sum(each.ns for each in mine), len(sized)),
                *(moved if sized else None, rate),
            )
        assert {
            each.direction: (
                *(each.count, each.time_ns, each.sized_count),
                *(each.bytes, each.rate_bytes_per_s),
            )
            for each in row.copies
        } == expected


def test_rocm_6_2_copies_are_sized_by_their_calls(files: Files) -> None:
    """Its records have no bytes, its two calls the texts "4096" and "1024"."""
    (total,) = files("hta_mi250_rocm62_minitoy").document.totals
    (h2d,) = total.copies
    assert (h2d.direction, h2d.sized_count, h2d.bytes) == ("h2d", 2, 4096 + 1024)


@pytest.mark.parametrize("name", GPU_FILES)
def test_collectives_by_group_are_those_of_the_file(files: Files, name: str) -> None:
    """By kernels' own metadata, which all linked ones have where a file has any."""
    for row, records in of_rows(files(name)):
        expected: defaultdict[tuple[str | None, ...], Counter[str]] = defaultdict(Counter)
        for each in records:
            if not plain.is_comm(each.row):
                continue
            told = each.args.get("Collective name")
            name_of = told.strip("_").removesuffix("_base") if told else spelled(each)
            sums = expected[name_of, each.args.get("Process Group Name")]
            sums.update(count=1, ns=each.ns)
            if told:
                elements = max(each.args["In msg nelems"], each.args["Out msg nelems"])
                sums["bytes"] += elements * DTYPE_BYTES[each.args["dtype"]]
        assert {
            (each.name, each.group): Counter(
                count=each.count, ns=each.time_ns, **({"bytes": each.bytes} if each.bytes else {})
            )
            for each in row.collectives
        } == expected


def spelled(record: Record) -> str:
    """What NCCL's older kernels and those over symmetric memory are called; RCCL's say nothing."""
    said = any(text in record.row.name for text in ("AllReduce", "all_reduce"))
    return "allreduce" if said else "unknown"


def only(found: Iterable[CollectiveTraffic], name: str) -> CollectiveTraffic:
    (each,) = (each for each in found if each.name == name)
    return each


def test_bandwidths_of_an_a100_all_reduce_by_hand(files: Files) -> None:
    """DDP's five buckets a step, in floats, three steps, over two ranks, in 46.762159 ms."""
    (total,) = files(A100).document.totals
    reduced = only(total.collectives, "allreduce")
    moved = 4 * (6637568 + 2431040 + 2049000 + 7875584 + 6563840) * 3
    assert moved == 306_684_384
    assert (reduced.bytes, reduced.count, reduced.group_size) == (moved, 15, 2)
    assert reduced.time_ns == 46_762_159
    assert reduced.algorithm_bytes_per_s == pytest.approx(6.55838803e9)
    assert reduced.bus_bytes_per_s == pytest.approx(6.55838803e9 * 2 * (2 - 1) / 2)


def test_bandwidths_of_other_files_by_hand(files: Files) -> None:
    """Eight ranks: the all-reduce's factor is 2 * 7 / 8, the all-gather's 7 / 8."""
    (total,) = files(MI300X).document.totals
    reduced = only(total.collectives, "allreduce")
    moved = 2 * (2873320 + 8816192) * 3
    assert reduced.bytes == moved
    assert reduced.bus_bytes_per_s == pytest.approx(moved / reduced.time_ns * 1e9 * 1.75)
    (total,) = files(B200).document.totals
    gathered = only(total.collectives, "allgather")
    assert (gathered.bytes, gathered.time_ns) == (2 * 201088, 21953)
    assert gathered.bus_bytes_per_s == pytest.approx(402176 / 21953 * 1e9 * 0.875)


def test_where_a_file_tells_no_size_there_is_no_bandwidth(files: Files) -> None:
    (total,) = files(V100).document.totals
    (reduced,) = total.collectives
    assert (reduced.name, reduced.group, reduced.count) == ("allreduce", None, 2020)
    assert (reduced.sized_count, reduced.bytes, reduced.bus_bytes_per_s) == (0, None, None)


def test_kernels_that_nothing_tells_of_are_unknown(files: Files) -> None:
    """Five of RCCL's kernels were launched before the recording: nothing tells what they are."""
    (total,) = files(MI300X).document.totals
    unknown = only(total.collectives, "unknown")
    assert (unknown.count, unknown.sized_count, unknown.bus_bytes_per_s) == (5, 0, None)


def overlap_of(record: Record, union: list[tuple[int, int]]) -> float:
    parts = (min(record.row.end_ns, b) - max(record.row.start_ns, a) for a, b in union)
    return sum(part for part in parts if part > 0) / record.ns


def factor_of(kernels: list[tuple[float, int]]) -> float:
    """DESIGN.md's contention factor of (overlap, duration)."""
    ranked = sorted(kernels)
    middle = statistics.median(overlap for overlap, _ in ranked)
    least = ranked[ceil(len(ranked) / 10) - 1][0]
    if len(ranked) < 5 or middle <= least:
        return nan
    much = [duration for overlap, duration in ranked if overlap >= middle]
    little = [duration for overlap, duration in ranked if overlap <= least]
    return statistics.median(much) / statistics.median(little)


@pytest.mark.parametrize("name", [A100, MI300X, B200])
def test_the_contention_of_every_family_is_what_plain_python_finds(files: Files, name: str) -> None:
    file = files(name)
    union = plain.merged(each.row for each in file.records if plain.is_comm(each.row))
    kernels: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for each in file.records:
        if plain.is_compute(each.row) and each.ns:
            kernels[family(each.row.name)].append((overlap_of(each, union), each.ns))
    found = {
        each.name: each.contention
        for each in file.document.totals[0].families
        if each.contention is not None
    }
    assert found.keys() == kernels.keys()
    for name_of, contention in found.items():
        expected = factor_of(kernels[name_of])
        assert contention.count == len(kernels[name_of])
        if contention.reason is not None and "several sizes" in contention.reason:
            assert contention.factor is None
            assert not isnan(expected)
            continue
        assert contention.factor == (None if isnan(expected) else pytest.approx(expected))


def test_the_contention_of_one_family_by_hand(files: Files) -> None:
    """The A100's 27 of one batch norm: 12 beside nothing, 15 wholly beside communication.

    Their middle ones take 16.8155 and 51.999 us, 3.09 times as long. But both hold kernels of some
    17 us and of some 58 us, so that this is no contention.
    """
    name = "cudnn::bn_bw_1C11_singleread<float, 512, true, 1, 2, 0>"
    (one,) = (each for each in files(A100).document.totals[0].families if each.name == name)
    assert one.contention is not None
    assert (one.contention.count, one.contention.factor) == (27, None)
    assert one.contention.reason == "the kernels seem to be of several sizes"


def test_the_contention_of_another_family_by_hand(files: Files) -> None:
    """The MI300X's 32 of one convolution: 16 beside nothing, 21.439 us in the middle.

    The other 16, wholly beside communication, take 20.379 us in the middle.
    """
    found = [
        each.contention
        for each in files(MI300X).document.totals[0].families
        if each.contention is not None and each.contention.low is not None
    ]
    (one,) = (each for each in found if each.count == 32)
    assert one.factor == pytest.approx(20.379 / 21.439)


@pytest.mark.parametrize("name", [A100, V100, MI300X, "hta_mi250_rocm62_minitoy"])
def test_chopper_s_times_are_what_its_own_steps_give(files: Files, name: str) -> None:
    for row, records in of_rows(files(name)):
        if row.step is None:
            continue
        mine = [each for each in records if plain.is_compute(each.row) and each.call is not None]
        mine.sort(key=lambda each: (each.row.start_ns, each.row.end_ns))
        gaps = [max(0, after.row.start_ns - before.row.end_ns) for before, after in pairwise(mine)]
        if not mine:
            assert row.chopper is None
            continue
        assert row.chopper is not None
        assert row.chopper.kernel_count == len(mine)
        assert row.chopper.kernel_ns == sum(each.ns for each in mine)
        assert row.chopper.launch_ns == sum(gaps)
        assert row.chopper.prep_ns + row.chopper.call_ns == sum(gaps)
