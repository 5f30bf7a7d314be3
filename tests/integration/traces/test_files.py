"""`read_trace` on files: how they are stored, cut, limited and refused."""

import gzip
import hashlib
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopperd.errors import TraceFormatError
from chopperd.model.trace import Damage, Trace
from chopperd.traces.read.reader import read_trace
from chopperd.traces.read.source import ReadLimits
from tests.decoders import read_without_scanner
from tests.layouts import LAYOUTS, Event, Layout, compact, complete_event, encode, native

MIB = 1 << 20
KEYS = {"distributedInfo": {"rank": 0, "world_size": 2}, "baseTimeNanoseconds": 10**18}
EVENTS: list[Event] = [
    complete_event("cuda_runtime", "cudaLaunchKernel", 1000, 5, correlation=1),
    complete_event("kernel", "gemm", 1010.5, 30, device=0, stream=7, correlation=1),
    complete_event("cpu_op", 'odd "},{"ph":"X" name', 990, 40),
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "ts": 1000},
    complete_event("kernel", "softmax", 1050, 0.25, device=0, stream=7, correlation=2),
]


def stored(tmp_path: Path, data: bytes, name: str = "trace.json") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def refusal(path: Path, limits: ReadLimits | None = None) -> str:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path, limits=limits or ReadLimits())
    assert caught.value.path == str(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message.removeprefix(str(path)).strip()


def kernels(trace: Trace) -> list[str]:
    return [trace.names[number] for number in trace.records.name]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_is_read_in_every_layout_plain_or_compressed(
    tmp_path: Path, layout: Layout, pack: Callable[[bytes], bytes]
) -> None:
    data = pack(layout(EVENTS, KEYS))
    trace = read_trace(stored(tmp_path, data, "rank0.json"))
    assert kernels(trace) == ["gemm", "softmax"]
    base_ns = 0 if trace.meta.base_time_unix_ns is None else 10**18
    assert (trace.records.start_ns - base_ns).tolist() == [1_010_500, 1_050_000]
    assert (trace.records.end_ns - base_ns).tolist() == [1_040_500, 1_050_250]
    assert trace.meta.event_count == 5
    assert trace.meta.event_counts == {"cuda_runtime": 1, "kernel": 2, "cpu_op": 1, "ac2g": 1}
    assert trace.meta.sha256 == hashlib.sha256(data).hexdigest()
    assert trace.damage == Damage()
    assert trace.meta.rank == 0
    assert trace.meta.runtime == "cuda"


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 5])
def test_a_byte_order_mark_may_come_in_pieces(tmp_path: Path, block_bytes: int) -> None:
    path = stored(tmp_path, b"\xef\xbb\xbf" + compact(EVENTS, KEYS))
    assert kernels(read_trace(path, limits=ReadLimits(block_bytes=block_bytes))) == [
        "gemm",
        "softmax",
    ]


def test_our_own_keys_are_reported(tmp_path: Path) -> None:
    keys = {
        "chopperd_simulated": True,
        "chopperd_job": "job",
        "chopperd_run": "run",
        "chopperd_devices": [{"device": 0, "uuid": "GPU-0", "pci_bus_id": "0", "name": "H100"}],
    }
    meta = read_trace(stored(tmp_path, native(EVENTS, keys))).meta
    assert (meta.simulated, meta.job, meta.run) == (True, "job", "run")
    assert (meta.devices[0].uuid, meta.devices[0].name) == ("GPU-0", "H100")


def test_a_trace_without_events_is_a_trace(tmp_path: Path) -> None:
    trace = read_trace(stored(tmp_path, b'{"traceEvents": []}'))
    assert (trace.meta.event_count, len(trace.records), trace.span_ns) == (0, 0, (0, 0))
    assert trace.damage == Damage()


@pytest.mark.parametrize("layout", [native, compact])
def test_a_file_cut_at_any_byte_gives_the_whole_events_before_the_cut(
    tmp_path: Path, layout: Layout
) -> None:
    events = EVENTS[1:4]
    data = layout(events, KEYS)
    opening = data.index(b"[", data.index(b"traceEvents"))
    # Where each event ends is known from the event's own last bytes.
    ends = [at for at in range(opening, len(data)) if _closes_event(data, opening, at)]
    assert len(ends) == len(events)
    for cut in range(1, len(data)):
        path = stored(tmp_path, data[:cut])
        if cut <= opening:
            refusal(path)
            continue
        trace = read_trace(path)
        assert trace.meta.event_count == sum(end < cut for end in ends)
        assert trace.damage.damaged_events == trace.damage.undecodable_events == 0
        assert trace.damage.truncated or trace.damage.unclosed


def _closes_event(data: bytes, opening: int, at: int) -> bool:
    """Whether the byte closes an element, by counting brackets outside strings."""
    depth, inside, escaped = 0, False, False
    for byte in data[opening : at + 1]:
        if inside:
            inside = escaped or byte != ord('"')
            escaped = byte == ord("\\") and not escaped
        elif byte == ord('"'):
            inside = True
        else:
            depth += (byte in b"[{") - (byte in b"]}")
    return data[at] == ord("}") and not inside and depth == 1


def test_a_compressed_file_cut_at_any_byte_is_read_as_far_as_it_goes_or_refused(
    tmp_path: Path,
) -> None:
    data = gzip.compress(native(EVENTS, KEYS))
    for cut in range(1, len(data)):
        path = stored(tmp_path, data[:cut])
        try:
            trace = read_trace(path)
        except TraceFormatError:
            continue
        assert trace.damage.truncated
        assert trace.meta.event_count <= len(EVENTS)


def test_gzip_members_one_after_another_are_one_text(tmp_path: Path) -> None:
    data = native(EVENTS, KEYS)
    members = b"".join(gzip.compress(data[at : at + 50]) for at in range(0, len(data), 50))
    for block_bytes in (7, 64, MIB):
        for padding in (b"", b"\0" * 100, b"no gzip"):
            path = stored(tmp_path, members + padding)
            trace = read_trace(path, limits=ReadLimits(block_bytes=block_bytes))
            assert (kernels(trace), trace.damage) == (["gemm", "softmax"], Damage())


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(native(EVENTS, KEYS)))
    data[-6] ^= 1
    assert "broken gzip" in refusal(stored(tmp_path, bytes(data)))


def test_a_gzip_stream_broken_in_its_middle_is_read_up_to_there(tmp_path: Path) -> None:
    first = gzip.compress(native(EVENTS, KEYS)[:-200])
    trace = read_trace(stored(tmp_path, first + b"\x1f\x8b\x08\xff" + b"\xee" * 50))
    assert trace.damage.truncated
    assert 0 < trace.meta.event_count < len(EVENTS)


@pytest.mark.parametrize("data", [b"", b" \n ", gzip.compress(b""), b"\x1f\x8b", b"\xef\xbb\xbf"])
def test_a_file_with_nothing_in_it_is_an_empty_trace(tmp_path: Path, data: bytes) -> None:
    assert "empty trace" in refusal(stored(tmp_path, data))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"time,value\n1,2\n", "is not JSON (byte 0)"),
        (b"\n  x", "is not JSON (byte 3)"),
        (b"\x00\x01\x02\x03", "is not JSON (byte 0)"),
        (b'{"a": nonsense}', "is not JSON (byte"),
        (b'{"a": 1}', "no traceEvents"),
        (b'{"traceEvents": {}}', "no traceEvents"),
        (b'{"a": {"traceEvents": []}}', "no traceEvents"),
        (b'{"traceEvents": [1, 2]}', "no event among the 2 elements"),
        (b'[{"a": 1}]', "no event among the 1 elements"),
        (b'{"schemaVersion": 1, "trace', "cut off before its events"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        (b"PK\x03\x04....", "zip"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(
    tmp_path: Path, data: bytes, problem: str
) -> None:
    assert problem in refusal(stored(tmp_path, data))


def test_a_directory_a_pipe_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "is a directory, not a trace file"
    os.mkfifo(pipe := tmp_path / "pipe")
    assert refusal(pipe) == "is not a regular file"
    assert refusal(tmp_path / "missing") == "can't be read: No such file or directory"


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, b"{}")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert refusal(path) == "can't be read: Permission denied"


def test_a_file_larger_than_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = stored(tmp_path, native(EVENTS, KEYS))
    limits = ReadLimits(stored_bytes=path.stat().st_size)
    assert read_trace(path, limits=limits).meta.event_count == 5
    smaller = replace(limits, stored_bytes=limits.stored_bytes - 1)
    assert "its file exceeds the limit" in refusal(path, smaller)


def test_text_larger_than_the_limit_after_decompression_is_refused(tmp_path: Path) -> None:
    data = native(EVENTS, KEYS)
    path = stored(tmp_path, gzip.compress(data))
    assert read_trace(path, limits=ReadLimits(expanded_bytes=len(data))).meta.event_count == 5
    assert "decompressed" in refusal(path, ReadLimits(expanded_bytes=len(data) - 1))


@pytest.mark.parametrize("fill", [b" ", b'{"ph":"X","name":"k","ts":1,"dur":1},', b"[", b"1,"])
def test_a_gzip_bomb_stops_at_the_limit_in_bounded_memory(tmp_path: Path, fill: bytes) -> None:
    body = fill * (24 * MIB // len(fill))
    path = stored(tmp_path, gzip.compress(b'{"traceEvents":[' + body, 1))
    del body
    tracemalloc.start()
    limits = ReadLimits(expanded_bytes=20 * MIB, element_bytes=4 * MIB)
    with pytest.raises(TraceFormatError):
        read_trace(path, limits=limits)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * MIB


@pytest.mark.parametrize(
    "data",
    [
        b'{"traceEvents":[{"ph":"X","name":"%s"}]}' % (b"n" * MIB),
        b'{"a":"%s","traceEvents":[]}' % (b"n" * MIB),
        b'{"traceEvents":[],"a":"%s"}' % (b"n" * MIB),
    ],
)
def test_one_event_or_header_beyond_its_limit_is_refused(tmp_path: Path, data: bytes) -> None:
    path = stored(tmp_path, data)
    limits = ReadLimits(element_bytes=MIB // 2, block_bytes=MIB // 8)
    assert "is larger than" in refusal(path, limits)
    trace = read_trace(path, limits=replace(limits, element_bytes=2 * MIB))
    assert trace.damage == Damage()


def test_progress_counts_stored_bytes_to_the_end(tmp_path: Path) -> None:
    path = stored(tmp_path, gzip.compress(native(EVENTS * 100, KEYS)))
    seen: list[tuple[int, int | None]] = []
    read_trace(path, limits=ReadLimits(block_bytes=256), progress=lambda *at: seen.append(at))
    size = path.stat().st_size
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)
    assert len(seen) == -(-size // 256)


def test_a_file_that_grows_while_it_is_read_is_marked(tmp_path: Path) -> None:
    path = stored(tmp_path, native(EVENTS, KEYS))

    def append(_done: int, _total: int | None) -> None:
        with path.open("ab") as file:
            file.write(b" ")

    # Bytes appended during the read are read too: twenty, then the writer stops.
    appends = iter(range(20))
    trace = read_trace(path, progress=lambda *at: append(*at) if next(appends, None) else None)
    assert not trace.damage.still_written
    trace = read_trace(path, progress=lambda *at: append(*at) if next(appends, 0) else None)
    assert trace.damage.still_written
    assert trace.damage.truncated


def test_half_of_the_keys_unreadable_is_said(tmp_path: Path) -> None:
    data = b'{"traceEvents": [%s], "INFO": ["a "word""]}' % encode(EVENTS[0])
    trace = read_trace(stored(tmp_path, data))
    assert trace.damage == Damage(unreadable_keys=True)


def test_no_file_stays_open(tmp_path: Path) -> None:
    path = stored(tmp_path, native(EVENTS, KEYS))
    before = set(_open_files())
    read_trace(path)
    refusal(stored(tmp_path, b"x", "bad.json"))
    refusal(tmp_path)
    assert set(_open_files()) == before


def _open_files() -> Iterator[str]:
    return (one.name for one in Path("/proc/self/fd").iterdir())


def test_a_file_that_was_called_otherwise_is_known_by_that(tmp_path: Path) -> None:
    path = stored(tmp_path, compact(EVENTS, {}), "0123abcd")
    trace = read_trace(path, name="rank7.json")
    assert (trace.meta.path, trace.meta.rank, trace.meta.rank_source) == (
        "rank7.json",
        7,
        "file name",
    )
    path.write_bytes(b"no trace")
    with pytest.raises(TraceFormatError, match=r"^rank7\.json is not JSON \(byte 0\)$") as caught:
        read_trace(path, name="rank7.json")
    assert caught.value.path == "rank7.json"


@pytest.mark.parametrize(("count", "refused"), [(128, False), (129, True)])
def test_a_trace_of_more_devices_than_a_machine_has_is_refused(
    tmp_path: Path, count: int, refused: bool
) -> None:
    events = [complete_event("kernel", "k", at, 1, device=2 * at) for at in range(count)]
    path = stored(tmp_path, b'{"traceEvents":' + encode(events) + b"}")
    with pytest.raises(TraceFormatError, match="129 devices") if refused else nullcontext():
        assert len(read_trace(path).records) == count


@pytest.mark.parametrize("border", [b',"traceEvents":', b'}\n{"traceEvents":'])
@pytest.mark.parametrize("native_scanner", [True, False])
def test_events_of_a_second_list_are_counted_as_lost(
    tmp_path: Path, border: bytes, native_scanner: bool
) -> None:
    events = [complete_event("kernel", f"k{number}", number, 1) for number in range(5)]
    lists = encode(events[:2]), encode(events[2:])
    data = b'{"traceEvents":' + lists[0] + border + lists[1] + b"}"
    trace = (read_trace if native_scanner else read_without_scanner)(stored(tmp_path, data))
    assert kernels(trace) == ["k0", "k1"]
    assert trace.damage == Damage(further_events=3)
    assert trace.meta.event_count == 5


@pytest.mark.parametrize("native_scanner", [True, False])
@pytest.mark.parametrize(
    ("processes", "streams", "refused"),
    [
        ((100_000, 200_000), (7, 7), True),
        (("[TP00] 0", "[TP01] 0"), (7, 7), True),
        ((0, "[TP01] 0"), (7, 7), True),
        (("GPU 0", "GPU 0"), (7, 7), False),
        (("GPU 0 stream 7", "GPU 0 stream 20"), (7, 20), False),  # by one process and stream
        ((0, 0), (7, 7), False),
    ],
)
def test_records_of_one_stream_under_several_processes_are_ranks_merged(
    tmp_path: Path,
    processes: tuple[object, object],
    streams: tuple[int, int],
    refused: bool,
    native_scanner: bool,
) -> None:
    """Without rows of the host nothing else tells that."""
    events = [
        complete_event("kernel", "k", 10 * at, 5, device=0, stream=streams[at % 2])
        | {"pid": processes[at % 2]}
        for at in range(6)
    ]
    path = stored(tmp_path, b'{"traceEvents":' + encode(events) + b"}")
    message = "several processes on device 0"
    with pytest.raises(TraceFormatError, match=message) if refused else nullcontext():
        assert len((read_trace if native_scanner else read_without_scanner)(path).records) == 6


def test_one_record_under_another_process_is_damage(tmp_path: Path) -> None:
    events = [complete_event("kernel", "k", 10 * at, 5, device=0, stream=7) for at in range(6)]
    events[3]["pid"] = 4
    path = stored(tmp_path, b'{"traceEvents":' + encode(events) + b"}")
    assert len(read_trace(path).records) == 6
