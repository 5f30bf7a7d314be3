"""Device memory of real files and of public cases; snapshots read by the child that the CLI starts.

Expected values are those of the files' own JSON, read by the standard library, and of each case's
`answers.json` and `expected.md`.
"""

import json
import os
import pickle
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from chopperd.config.paths import own_command
from chopperd.errors import TraceError
from chopperd.model.memory import MemoryRows, SnapshotAction
from chopperd.model.trace import Trace
from chopperd.pipeline.memory import snapshots_of
from chopperd.traces.read.reader import read_trace
from chopperd.traces.read.snapshot import aligned, read_snapshot
from tests.fuzz.pickles import FAILURES, hostile, outcome
from tests.integration.reference_reader import read_json
from tests.layouts import complete_event, encode

COMMAND = own_command("_snapshot")
GIB = 1 << 30


def row(event: dict[str, object], base_ns: int) -> tuple[int, ...] | None:
    """Time, device, bytes, address and totals of a device's row; None of any other event."""
    if event.get("ph") != "i" or event["name"] != "[memory]":
        return None
    args, us = event["args"], event["ts"]
    assert isinstance(args, dict)
    assert isinstance(us, int | Decimal)
    if args["Device Type"] == 0 or args["Device Id"] < 0:
        return None
    numbers = (args.get(key, -1) for key in ("Addr", "Total Allocated", "Total Reserved"))
    return round(Decimal(us) * 1000) + base_ns, args["Device Id"], args["Bytes"], *numbers


def rows_of(memory: MemoryRows) -> list[tuple[int, ...]]:
    columns = (memory.at_ns, memory.device, memory.bytes, memory.address)
    totals = (memory.allocated_bytes, memory.reserved_bytes)
    return list(zip(*(column.tolist() for column in (*columns, *totals)), strict=True))


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "count", "kind", "device", "allocated", "reserved"),
    [
        ("hta_v100_ddp_memory", 26_770, 1, 1, 6_629_508_096, 12_782_141_440),
        ("kineto2021_v100_resnet50.pt.trace", 8_220, 1, 0, -1, -1),
        ("tracelens_h100_qwen15_05b", 2_250, 1, 0, 2_088_508_416, 2_629_828_608),
        ("tracelens_mi300x_qwen15_05b", 2_588, 6, 0, 2_219_047_936, 2_533_359_616),
        ("hta_a100_nccl_ddp", 0, None, None, None, None),
        ("cpu_fsdp1_rank0.pt.trace", 0, None, None, None, None),
        ("cpu_ondemand_5_iterations", 0, None, None, None, None),
        ("hta_mtia_inference", 0, None, None, None, None),
    ],
)
def test_rows_of_real_files(
    shared: Path,
    real_trace: Callable[[str], Trace],
    name: str,
    count: int,
    kind: int | None,
    device: int | None,
    allocated: int | None,
    reserved: int | None,
) -> None:
    document = read_json(shared / "traces" / f"{name}.json.gz")
    base_ns = document.get("baseTimeNanoseconds", 0)
    events = [(found, event) for event in document["traceEvents"] if (found := row(event, base_ns))]
    memory = real_trace(name).memory
    assert rows_of(memory) == sorted((found for found, _ in events), key=lambda each: each[0])
    assert (len(memory), len(events)) == (count, count)
    if count:
        assert {event["args"]["Device Type"] for _, event in events} == {kind}
        assert set(memory.device.tolist()) == {device}
        assert (memory.allocated_bytes.max(), memory.reserved_bytes.max()) == (allocated, reserved)
        assert not memory.is_oom.any()
    if allocated != -1:
        assert breaks(memory) == 0


def breaks(memory: MemoryRows) -> int:
    """Rows whose total is not that of the row before and their own bytes."""
    total = memory.allocated_bytes
    return int(np.count_nonzero(total[1:] != total[:-1] + memory.bytes[1:]))


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "count", "kind"),
    [("81-memory-v1-delayed", 800, 1), ("82-memory-v2-immediate-hip", 1704, 6)],
)
def test_81_82_rows_go_on_from_one_to_the_next(
    shared: Path, name: str, count: int, kind: int
) -> None:
    folder = shared / "cases" / name
    told = json.loads((folder / "answers.json").read_text())["devices"]["0"]
    assert (told["rows"], told["device_types"]) == (count, [kind])
    trace = read_trace(folder / "trace.json.gz")
    memory = trace.memory
    assert (len(memory), set(memory.device.tolist()), breaks(memory)) == (count, {0}, 0)
    assert memory.allocated_bytes.max() == max(step["peak_allocated"] for step in told["steps"])
    assert memory.reserved_bytes.max() == max(step["peak_reserved"] for step in told["steps"])
    on_main = memory.thread == trace.threads.index((4242, 4242))
    assert np.count_nonzero(~on_main) == told["rows_on_other_threads"]


@pytest.mark.corpus
def test_48_rows_of_the_host_do_not_pull_the_reserved_size_to_0(shared: Path) -> None:
    memory = read_trace(shared / "cases" / "48-fsdp1-allocation-retries" / "trace.json").memory
    assert (memory.reserved_bytes // GIB).tolist()[:1] == [70]
    assert (memory.reserved_bytes.min(), memory.reserved_bytes.max()) == (64 * GIB, 72 * GIB)
    assert memory.allocated_bytes.max() == 61 * GIB


@pytest.mark.corpus
def test_81_a_snapshot_joins_its_trace(shared: Path) -> None:
    folder = shared / "cases" / "81-memory-v1-delayed"
    path = folder / "trace.json.gz"
    trace = read_trace(path)
    (snapshot,) = snapshots_of(path, trace, {0: str(folder / "snapshot.pickle")})
    with (folder / "snapshot.pickle").open("rb") as file:
        tree = pickle.load(file)  # a file of ours
    entries = tree["device_traces"][0]
    names = [SnapshotAction(action).name.lower() for action in snapshot.action.tolist()]
    assert names == [entry["action"] for entry in entries]
    assert snapshot.address.tolist() == [entry["addr"] for entry in entries]
    assert snapshot.bytes.tolist() == [entry["size"] for entry in entries]
    assert snapshot.reserved_bytes == sum(each["total_size"] for each in tree["segments"])
    assert (snapshot.expandable, snapshot.skipped, snapshot.is_cut) == (False, 0, False)
    # The same clock, but in whole microseconds.
    assert snapshot.shift_ns is not None
    assert abs(snapshot.shift_ns) < 1000
    assert snapshot.at_ns is not None
    unix_ns = np.array([entry["time_us"] * 1000 for entry in entries])
    assert (unix_ns - snapshot.at_ns == snapshot.shift_ns).all()
    (again,) = read_snapshot(folder / "snapshot.pickle", COMMAND)
    assert aligned(again, trace.memory, anchored=True).shift_ns == snapshot.shift_ns


def snapshot_file(folder: Path, name: str, at_us: int = 5) -> Path:
    entries = [
        {"action": "alloc", "addr": 512 * n, "size": 9, "stream": 0, "time_us": at_us + 10 * n}
        for n in range(50)
    ]
    segment = {"device": 0, "total_size": 2 << 20, "allocated_size": 512, "blocks": []}
    path = folder / name
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [entries]}))
    return path


def trace_file(folder: Path, rank: int) -> Path:
    at_us = 1_790_857_026_000_000
    memory = [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
        | {"ts": at_us + 10 * n, "args": {"Bytes": 512, "Addr": 512 * n}
        | {"Device Type": 1, "Device Id": 0, "Total Allocated": 512 * n}}
        for n in range(50)
    ]  # fmt: skip
    step = complete_event("user_annotation", "ProfilerStep#3", at_us, 5000) | {"pid": 1, "tid": 1}
    kernel = complete_event("kernel", "gemm", at_us + 9, 9, device=0, stream=7, correlation=3)
    job = {"rank": rank, "world_size": 2, "backend": "nccl"}
    path = folder / f"rank{rank}.json"
    path.write_bytes(encode({"distributedInfo": job, "traceEvents": [step, kernel, *memory]}))
    return path


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "chopperd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_clock_that_is_off_by_more_than_a_millisecond_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = trace_file(tmp_path, 0)
    snapshot = snapshot_file(tmp_path, "a.pickle", 1_790_857_026_000_000 + 1300)
    # Rows before the first entry have no part.
    files: dict[int | str, str] = {str(trace): str(snapshot)}
    assert snapshots_of(trace, read_trace(trace), files)[0].shift_ns is None
    entries = pickle.loads(snapshot.read_bytes())
    early = {"action": "alloc", "addr": 1, "size": 1, "time_us": 1_790_857_020_000_000}
    entries["device_traces"][0].insert(0, early)
    snapshot.write_bytes(pickle.dumps(entries))
    assert snapshots_of(trace, read_trace(trace), files)[0].shift_ns == 1_300_000
    assert "its clock differs from the trace's by 1.3 ms" in caplog.text


def test_snapshots_are_given_by_rank_or_in_order(tmp_path: Path) -> None:
    traces = [trace_file(tmp_path, rank) for rank in (0, 1)]
    for name in ("rank1_memory_snapshot.pickle", "rank0.pickle", "a.pickle", "rank7.pickle"):
        snapshot_file(tmp_path, name)
    report = ["report", *map(str, traces), "--format", "json"]
    for given in (["rank1_memory_snapshot.pickle", "rank0.pickle"], ["a.pickle"], ["rank0.pickle"]):
        done = run(*report, *(arg for name in given for arg in ("--memory", str(tmp_path / name))))
        assert done.returncode == 0, done.stderr
    wrong = ("--memory", str(tmp_path / "rank7.pickle"), "--memory", str(tmp_path / "rank0.pickle"))
    done = run(*report, *wrong)
    assert (done.returncode, "no trace of rank 7" in done.stderr) == (2, True)
    (tmp_path / "a.pickle").write_bytes(b"cos\nabort\n(tR.")
    done = run(*report, "--memory", str(tmp_path / "a.pickle"))
    assert done.returncode == 4
    assert re.search(r"a\.pickle: unreadable snapshot of memory", done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1
    done = run(*report, *("--memory", "x") * 3)
    assert (done.returncode, "3 files for 2 traces" in done.stderr) == (2, True)


def unreadable(path: Path, **options: float) -> str:
    with pytest.raises(TraceError, match="unreadable snapshot") as raised:
        read_snapshot(path, COMMAND, **options)
    return str(raised.value)


@pytest.mark.parametrize(
    "data",
    [
        b"]r\x00\x00\x00\x04.", b"\x80\x05\x96\x00\x00\x00\x00\x00\x01\x00\x00.", b"", b"PK",
        b"}N" + b"\x85" * 1_000_000 + b"Ns.", pickle.dumps([]), b"{}",
    ],
)  # fmt: skip
def test_a_file_that_asks_for_much_or_is_none_is_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.pickle"
    path.write_bytes(data)
    assert "\n" not in unreadable(path)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 900 << 10


def test_nothing_of_a_pickle_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    path = tmp_path / "bad.pickle"
    path.write_bytes(b"cos\nsystem\n(Vtouch %s\ntR." % os.fsencode(mark))
    unreadable(path)
    assert not mark.exists()


def test_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    assert "No such file" in unreadable(tmp_path / "missing")
    assert "no file" in unreadable(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "no file" in unreadable(tmp_path / "pipe")
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, GIB + 1)
    assert "larger than 1 GiB" in unreadable(large)
    late = tmp_path / "late"
    late.write_bytes(b"}N" + b"2\x86" * 60 + b"Ns.")  # a key of 2**60 parts, all shared
    assert "longer than 0.5 s" in unreadable(late, time_limit_s=0.5)


def test_a_short_part_of_the_hostile_pickles_of_make_fuzz() -> None:
    found = {outcome(hostile(number, 5)) for number in range(60)}
    assert found <= {"read", "refused", "died"}
    assert not found & FAILURES
