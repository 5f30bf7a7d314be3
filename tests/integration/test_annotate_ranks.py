"""`annotate` on several ranks, against plain json, and how the Perfetto UI gets the file."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from decimal import Decimal
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chopperd import cli
from chopperd.cli.perfetto import PORT, UI, show_in_perfetto
from chopperd.errors import ConfigError, TraceFormatError
from chopperd.model.run import DeviceMap
from chopperd.pipeline.annotation import annotate_file, annotate_ranks
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.store.samples.files import write_samples
from tests.integration import reference_reader as plain
from tests.integration.clocked_traces import compute_intervals
from tests.integration.test_annotate import BASE_NS, MS, T0_NS, Document, constant, kernel, read
from tests.layouts import Event, native
from tests.waiting import wait_for

SAMPLES = constant(range(T0_NS - 20 * MS, T0_NS + 121 * MS, 10 * MS))
#: Later bases make the same instants smaller numbers.
LATER_NS = 1_234_567


def rank_document(rank: int, base_ns: int, *more: Event) -> bytes:
    """One kernel on device 0, whose flow has the same id in every rank, and its process's name."""
    gemm = kernel(0, 40)
    at_us = float(Decimal(T0_NS - base_ns) / 1000)
    begin = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 5, "pid": 77, "tid": 77}
    end = {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 5, "pid": 0, "tid": 7, "bp": "e"}
    named = {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "args": {"name": "python"}}
    order = {"ph": "M", "name": "process_sort_index", "pid": 0, "args": {"sort_index": 5_000_000}}
    events = [{**each, "ts": at_us} for each in (gemm, begin, end, *more)]
    keys = {"baseTimeNanoseconds": base_ns, "distributedInfo": {"rank": rank, "world_size": 2}}
    return native([named, order, *events], {"schemaVersion": 1, **keys})


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_bytes(rank_document(rank, BASE_NS + rank * LATER_NS))
    return paths


def options(devices: Sequence[int] = (0,)) -> ReportOptions:
    entries = tuple((None, device, "0") for device in devices)
    return ReportOptions(join=JoinOptions(device_map=DeviceMap(entries=entries)))


def merged(traces: Sequence[Path], out: Path) -> list[Document]:
    annotate_ranks(traces, out, samples=SAMPLES, options=options())
    document = read(out)
    assert document["baseTimeNanoseconds"] == BASE_NS
    events: list[Document] = document["traceEvents"]
    return events


def test_ranks_share_a_time_axis_and_nothing_else(traces: list[Path], tmp_path: Path) -> None:
    """Both kernels ran at once; pids, flows and names of one rank are not those of the other."""
    events = merged(traces, tmp_path / "out.json")
    first, second = (event for event in events if event.get("cat") == "kernel")
    assert first["ts"] == second["ts"] == 5_000_000  # 5 s after the first base, to the ns
    assert first["pid"] != second["pid"]
    flows = [event for event in events if event.get("cat") == "ac2g"]
    assert [flow["id"] for flow in flows] == [10, 10, 11, 11]
    assert [flow["pid"] for flow in flows[1::2]] == [first["pid"], second["pid"]]
    names = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    assert [names[flow["pid"]] for flow in flows] == [
        *("rank 0: python", "rank 0", "rank 1: python", "rank 1")
    ]
    order = {
        event["pid"]: event["args"]["sort_index"]
        for event in events
        if event["name"] == "process_sort_index"
    }
    in_order = sorted(order, key=order.__getitem__)
    assert [names[pid] for pid in in_order] == [
        *("rank 0: python", "rank 0", "rank 1: python", "rank 1")
    ]


def test_each_rank_has_the_counters_that_it_has_alone(traces: list[Path], tmp_path: Path) -> None:
    events = merged(traces, tmp_path / "out.json.gz")
    for nth, path in enumerate(traces):
        annotate_file(path, tmp_path / "one.json", samples=SAMPLES, options=options())
        alone = [e for e in read(tmp_path / "one.json")["traceEvents"] if is_ours(e)]
        (pid,) = {e["pid"] for e in events if e.get("cat") == "kernel" and owner(e) == nth}
        together = [e for e in events if is_ours(e) and owner(e) == nth]
        shift_us = Decimal(nth * LATER_NS) / 1000
        assert together == [{**e, "pid": pid, "ts": e["ts"] + shift_us} for e in alone]
        assert alone


def is_ours(event: Document) -> bool:
    return event.get("cat") == "chopperd"


def owner(event: Document) -> int:
    """Which of two ranks a process is of, by its number."""
    return int((event["pid"] - 1) % 2)


@pytest.mark.corpus
def test_real_traces_come_back_whole_in_one_file(shared: Path, tmp_path: Path) -> None:
    """Every event, in order, with the number of its process, time and flow changed and no more."""
    names = ("hta_a100_nccl_ddp", "tracelens_h100_qwen15_05b", "tracelens_mi300x_compile_triton")
    paths = [shared / "traces" / f"{name}.json.gz" for name in names]
    originals = [plain.read_json(path) for path in paths]
    spans = [compute_intervals(plain.device_rows(path)) for path in paths]
    t_ns = sorted({t for s in spans for t in range(s[0][0], s[-1][1], (s[-1][1] - s[0][0]) // 50)})
    out = tmp_path / "out.json"
    annotate_ranks(paths, out, samples=constant(t_ns), options=options(range(16)))
    document = read(out)
    events = iter(e for e in document["traceEvents"] if not is_ours(e))
    for nth, original in enumerate(originals):
        base_ns = original.get("baseTimeNanoseconds", 0) - document["baseTimeNanoseconds"]
        check_rank(events, original["traceEvents"], nth, len(paths), Decimal(base_ns) / 1000)
    assert list(events) == []


def check_rank(
    events: Iterator[Document],
    originals: Sequence[Document],
    nth: int,
    ranks: int,
    shift_us: Decimal,
) -> None:
    pids: dict[object, int] = {}
    for original in originals:
        if original.get("name") == "process_sort_index":
            pids.setdefault(original["pid"], 0)
            continue
        event, expected = next(events), dict(original)
        if "pid" in original:
            expected["pid"] = event["pid"]
            assert (event["pid"] - 1) % ranks == nth
            assert pids.get(original["pid"]) in (None, 0, event["pid"])
            pids[original["pid"]] = event["pid"]
        if "ts" in original:
            assert Decimal(event["ts"]) == Decimal(original["ts"]) + shift_us
            expected["ts"] = event["ts"]
        if isinstance(original.get("id"), int):
            expected["id"] = original["id"] * ranks + nth
        elif "id" in original:
            assert event["id"] != original["id"]
            expected["id"] = event["id"]
        if original.get("name") == "process_name":
            name = event["args"]["name"]
            assert name.endswith(original["args"]["name"])
            expected["args"] = {**original["args"], "name": name}
        assert event == expected
    own = [pid for pid in pids.values() if pid]
    assert len(set(own)) == len(own)
    ordered: list[int] = []
    while len(ordered) < len(pids):
        event = next(events)
        assert event["name"] in ("process_name", "process_sort_index")
        ordered += [event["pid"]] if event["name"] == "process_sort_index" else []
    assert len(set(ordered)) == len(ordered)


def test_a_rank_that_breaks_off_is_named(traces: list[Path], tmp_path: Path) -> None:
    traces[1].write_bytes(traces[1].read_bytes()[:-200])
    out = tmp_path / "out.json"
    with pytest.raises(TraceFormatError, match=r"rank1.json .*annotate it alone"):
        annotate_ranks(traces, out, samples=SAMPLES, options=options())
    assert not out.exists()


def test_reports_are_made_of_the_originals_only(traces: list[Path], tmp_path: Path) -> None:
    """In one file, records of the ranks would be taken for those of one process."""
    merged(traces, tmp_path / "out.json")
    with pytest.raises(TraceFormatError, match="of several ranks"):
        report_files([tmp_path / "out.json"], samples=SAMPLES, options=options())


def test_one_trace_twice_is_refused(traces: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with pytest.raises(ConfigError, match="named twice"):
        annotate_ranks([traces[0]] * 2, out, samples=SAMPLES, options=options())


# --- the command's default name, and the Perfetto UI


def fetch(link: str, method: str = "GET", **headers: str) -> HTTPResponse:
    address = urlsplit(link.partition("?url=")[2])
    connection = HTTPConnection(address.netloc, timeout=10)
    connection.request(method, address.path, headers=headers)
    return connection.getresponse()


def test_the_ui_gets_the_file_once_and_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "rank 0.json"
    file.write_bytes(b"[]" * 100_000)
    said: list[str] = []
    serving = threading.Thread(target=show_in_perfetto, args=(file, said.append, 0))
    serving.start()
    wait_for(lambda: said, "the link")
    link = said[0].splitlines()[0]
    assert link.startswith(f"{UI}/#!/?url=http://127.0.0.1:")
    assert link.endswith("/rank%200.json")
    guessed = f"{link.rpartition('/')[0].rpartition('/')[0]}/rank%200.json"
    assert fetch(guessed).status == 404
    assert fetch(link, Host="rebound.example:9001").status == 404
    asked = fetch(link, "OPTIONS", Origin=UI)
    assert asked.status == 204
    assert asked.headers["Access-Control-Allow-Private-Network"] == "true"
    with closing(fetch(link, Origin=UI)) as answer:
        assert answer.status == 200
        assert answer.headers["Access-Control-Allow-Origin"] == UI
        assert answer.read() == file.read_bytes()
    serving.join(10)
    assert not serving.is_alive()
    with pytest.raises(ConnectionRefusedError):
        fetch(link)


def test_the_name_is_made_up_and_a_port_in_use_is_said(
    traces: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path / "s.csv", SAMPLES)
    arguments = ["annotate", *map(str, traces), "--samples", "s.csv", "--open"]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # somebody else has it
            taken.bind(("127.0.0.1", PORT))
            taken.listen()
        assert cli.run(arguments) == 2
    said = capsys.readouterr()
    assert "ranks.clocks.json.gz: " in said.out
    assert "rank 1 device 0 is GPU 0" in said.out
    assert f"port {PORT}" in said.err
    assert len(read(tmp_path / "ranks.clocks.json.gz")["traceEvents"]) > 10
