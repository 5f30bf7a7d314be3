"""`annotate` on small traces, damaged ones and all real ones, against plain json.

Clocks are constant, 1485 of 1980 MHz: a quarter of compute is lost wherever samples cover it.
"""

import gzip
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopperd import cli
from chopperd.errors import TraceError
from chopperd.model.run import DeviceMap, device_map_of
from chopperd.model.samples import SampleSet
from chopperd.pipeline.annotation import annotate_file
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.store.samples.files import write_samples
from tests.integration import reference_reader as plain
from tests.integration.clocked_traces import compute_intervals
from tests.integration.test_real_traces import GPU_FILES, HOST_ONLY
from tests.layouts import Event, complete_event, native
from tests.unit.correlate.builders import gpu_samples

MS = 1_000_000
BASE_NS = 1_790_857_026_000_000_000
T0_NS = BASE_NS + 5_000 * MS
CLOCK_MHZ = 1485.0
Document = dict[str, Any]
Link = Callable[[Path, Path], None]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command line configures logging for its process; here that is the tests'."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def kernel(start_ms: float, length_ms: float, pid: int | str = 0) -> Event:
    start_us = (T0_NS - BASE_NS) // 1000 + round(start_ms * 1000)
    event = complete_event("kernel", "gemm", start_us, round(length_ms * 1000), device=0, stream=7)
    return {**event, "pid": pid}


def small_document(pid: int | str = 0, **keys: object) -> bytes:
    """Compute from 0 to 40 and from 60 to 100 ms."""
    events = [kernel(0, 40, pid), kernel(60, 40, pid)]
    return native(events, {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, **keys})


def constant(t_ns: Sequence[int]) -> SampleSet:
    return SampleSet(gpus=(gpu_samples(t_ns, [CLOCK_MHZ] * len(t_ns)),), asked_hz=100.0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_bytes(small_document())
    return path


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Every 10 ms from 20 ms before the trace to 20 ms after it."""
    path = tmp_path / "samples.csv"
    write_samples(path, constant(range(T0_NS - 20 * MS, T0_NS + 121 * MS, 10 * MS)))
    return path


def read(path: Path) -> Document:
    data = path.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    document: Document = json.loads(text, parse_float=Decimal)
    return document


def divided(document: Document) -> tuple[list[Document], Document]:
    """Our counters, and the document without them."""
    counters = [e for e in document["traceEvents"] if e.get("cat") == "chopperd"]
    rest = [e for e in document["traceEvents"] if e.get("cat") != "chopperd"]
    return counters, {**document, "traceEvents": rest}


def run(*arguments: object) -> int:
    return cli.run(["annotate", *map(str, arguments)])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_trace_comes_back_with_the_clock_at_its_samples(
    trace: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert run(trace, "-o", out, "--samples", samples) == 0
    assert "device 0 is GPU 0" in capsys.readouterr().out
    counters, rest = divided(read(out))
    assert rest == read(trace)
    clock = [e for e in counters if e["name"] == "SM clock"]
    # 5 s after the base, in us; one sample before the trace and one at its end.
    assert [e["ts"] for e in clock] == [5_000_000 + 10_000 * k for k in range(11)]
    assert all(e["args"] == {"MHz": CLOCK_MHZ} and e["pid"] == 0 for e in clock)
    loss = {e["ts"]: e["args"]["%"] for e in counters if e["name"] == "clock loss"}
    assert loss[5_030_000] == pytest.approx(25)
    assert loss[5_050_000] == 0
    assert loss[5_060_000] == pytest.approx(25)


def test_not_a_byte_of_the_trace_is_another(trace: Path, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert run(trace, "-o", out, "--samples", samples) == 0
    before, after = trace.read_bytes().split(b'"traceEvents": [', 1)
    text = out.read_bytes()
    assert text.startswith(before + b'"traceEvents": [')
    assert text.endswith(b"," + after)


def test_the_file_is_its_owners_and_nothing_else_is_left(
    trace: Path, samples: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json.gz"
    assert run(trace, "-o", out, "--samples", samples) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert divided(read(out))[1] == read(trace)
    assert {path.name for path in tmp_path.iterdir()} == {"t.json", "samples.csv", "out.json.gz"}


def test_a_compressed_trace_with_a_text_for_its_device_is_annotated_there(
    samples: Path, tmp_path: Path
) -> None:
    trace, out = tmp_path / "t.json.gz", tmp_path / "out.json"
    trace.write_bytes(gzip.compress(small_document(pid="GPU zero")))
    assert run(trace, "-o", out, "--samples", samples) == 0
    counters, rest = divided(read(out))
    assert {e["pid"] for e in counters} == {"GPU zero"}
    assert rest == read(trace)


def test_epoch_times_keep_every_ns(tmp_path: Path) -> None:
    """As of 2023: no base, whole us since 1970."""
    trace, out = tmp_path / "t.json", tmp_path / "out.json"
    start_us = T0_NS // 1000
    events = [complete_event("kernel", "k", start_us, 50_000, device=0, stream=7)]
    trace.write_bytes(native(events, {"schemaVersion": 1}))
    times = [T0_NS + 7 + 10 * MS * k for k in range(-2, 8)]
    options = ReportOptions(join=JoinOptions(device_map=device_map_of("0=0", "")))
    annotate_file(trace, out, samples=constant(times), options=options)
    clock = [e["ts"] for e in divided(read(out))[0] if e["name"] == "SM clock"]
    inside = [t for t in times if T0_NS - 10 * MS < t < T0_NS + 60 * MS]
    assert clock == [Decimal(t) / 1000 for t in inside]


@pytest.mark.parametrize("link", [os.link, os.symlink, None])
def test_the_trace_is_never_written_to(
    trace: Path,
    samples: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    link: Link | None,
) -> None:
    out = trace if link is None else tmp_path / "link.json"
    if link is not None:
        link(trace, out)
    assert run(trace, "-o", out, "--samples", samples) == 2
    assert "is the trace itself" in said(capsys)
    assert trace.read_bytes() == small_document()


def test_what_was_there_stays_where_annotating_fails(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    out.write_text("before")
    assert run(trace, "-o", out, "--samples", tmp_path / "none.csv") == 4
    assert run(tmp_path / "none.json", "-o", out) == 4
    assert out.read_text() == "before"
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("out", ["missing/out.json", "."])
def test_a_place_where_nothing_can_be_written_is_a_usage_error(
    trace: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    assert run(trace, "-o", tmp_path / out, "--samples", samples) == 2
    assert said(capsys).startswith("chopperd: -o: ")


def test_a_trace_that_is_annotated_is_not_annotated_again(
    trace: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, "-o", tmp_path / "1.json", "--samples", samples) == 0
    assert run(tmp_path / "1.json", "-o", tmp_path / "2.json", "--samples", samples) == 4
    assert "annotate the original" in said(capsys)


def test_without_samples_it_says_how_to_name_them(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHOPPERD_PATHS__STATE", str(tmp_path / "state"))
    assert run(trace, "-o", tmp_path / "out.json") == 2
    assert "--samples" in said(capsys)


def test_samples_of_another_time_are_refused_with_both_times(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = tmp_path / "later.csv"
    write_samples(samples, constant(range(T0_NS + 60_000 * MS, T0_NS + 61_000 * MS, 10 * MS)))
    assert run(trace, "-o", tmp_path / "out.json", "--samples", samples) == 4
    line = said(capsys)
    assert f"{T0_NS / 1e9:.3f} s" in line
    assert "--samples" in line


def test_a_device_that_is_no_known_gpu_is_asked_for(
    trace: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert run(trace, "-o", out, "--samples", samples, "--device-map", "0=GPU-9") == 2
    assert "--device-map 0=GPU (sampled: 0)" in said(capsys)
    assert not out.exists()


@pytest.mark.parametrize(
    ("document", "advice"),
    [
        (native([kernel(0, 40)], {"schemaVersion": 1}), "baseTimeNanoseconds"),
        (native([{**kernel(0, 40), "cat": "cpu_op"}], {"schemaVersion": 1}), "no device records"),
        (b"[]", "no device records"),
    ],
    ids=["no base", "host only", "empty"],
)
def test_a_trace_that_no_clock_can_be_laid_over_is_refused(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], document: bytes, advice: str
) -> None:
    trace = tmp_path / "t.json"
    trace.write_bytes(document)
    assert run(trace, "-o", tmp_path / "out.json", "--samples", samples) == 4
    assert advice in said(capsys)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_trace_that_breaks_off_is_closed_and_that_is_said(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], compressed: bool
) -> None:
    trace, out = tmp_path / "t.json", tmp_path / "out.json"
    text = small_document()
    cut = text[: text.rindex(b'"ts"')]
    trace.write_bytes(gzip.compress(cut)[:-8] if compressed else cut)
    assert run(trace, "-o", out, "--samples", samples) == 0
    assert "breaks off" in said(capsys)
    _, rest = divided(read(out))
    assert rest["traceEvents"] == json.loads(text)["traceEvents"][:1]


def test_damaged_events_stay_and_are_said(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "t.json", tmp_path / "out.json"
    damaged = kernel(10, 1) | {"name": "bad"}
    text = native([kernel(0, 40), damaged, kernel(60, 40)], {"baseTimeNanoseconds": BASE_NS})
    trace.write_bytes(text.replace(b'"bad"', b'"b"d"'))
    assert run(trace, "-o", out, "--samples", samples) == 0
    assert "1 events are damaged" in said(capsys)
    assert out.read_bytes().endswith(trace.read_bytes().split(b'"traceEvents": [', 1)[1])


def test_simulated_clocks_are_marked(samples: Path, tmp_path: Path) -> None:
    trace, out = tmp_path / "t.json", tmp_path / "out.json"
    trace.write_bytes(small_document(chopperd_simulated=True))
    assert run(trace, "-o", out, "--samples", samples) == 0
    assert all(e["name"].endswith(" (simulated)") for e in divided(read(out))[0])


def test_names_that_reports_hide_are_said_to_be_in_the_file(
    trace: Path,
    samples: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHOPPERD_PRIVACY__NAMES", "hashed")
    assert run(trace, "-o", tmp_path / "out.json", "--samples", samples) == 0
    assert "privacy.names" in said(capsys)


def test_it_works_as_a_process_of_its_own(trace: Path, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json.gz"
    command = [sys.executable, "-m", "chopperd", "annotate", str(trace), "-o", str(out)]
    subprocess.run([*command, "--samples", str(samples)], check=True, capture_output=True)
    assert divided(read(out))[1] == read(trace)


# --- all real traces


@pytest.mark.corpus
@pytest.mark.parametrize("name", GPU_FILES)
def test_a_real_trace_comes_back_with_counters_that_plain_python_agrees_with(
    shared: Path, tmp_path: Path, name: str
) -> None:
    trace, out = shared / "traces" / f"{name}.json.gz", tmp_path / "out.json"
    compute = compute_intervals(plain.device_rows(trace))
    first, last = compute[0][0], compute[-1][1]
    step_ns = max((last - first) // 100, 1000)
    t_ns = list(range(first + 1, last, step_ns))
    original = plain.read_json(trace)
    devices = {
        e["args"]["device"]
        for e in original["traceEvents"]
        if str(e.get("cat")).lower() in plain.RECORD_KINDS
    }
    options = ReportOptions(
        join=JoinOptions(device_map=DeviceMap(entries=tuple((None, int(d), "0") for d in devices)))
    )
    samples = constant(t_ns)
    annotate_file(trace, out, samples=samples, options=options)

    counters, rest = divided(read(out))
    assert rest == original
    assert {e["pid"] for e in counters} == devices
    base_ns = original.get("baseTimeNanoseconds", 0)

    def at(name: str) -> dict[int, dict[str, float]]:
        own = (event for event in counters if event["name"] == name)
        return {base_ns + round(Decimal(event["ts"]) * 1000): event["args"] for event in own}

    clock = {t: args["MHz"] for t, args in at("SM clock").items()}
    assert [t for t, mhz in clock.items() if mhz == CLOCK_MHZ] == t_ns
    assert [mhz for t, mhz in clock.items() if t not in t_ns] == [0]  # after the last one
    loss = at("clock loss")
    assert list(loss) == t_ns
    starts, ends = np.array(compute).T
    for begin, end in pairwise(t_ns):
        covered_ns = int(np.maximum(np.minimum(ends, end) - np.maximum(starts, begin), 0).sum())
        expected_ns = covered_ns / 4  # a quarter; whole ns
        assert float(loss[begin]["%"]) / 100 * covered_ns == pytest.approx(expected_ns, abs=0.51)
        assert covered_ns or loss[begin]["%"] == 0
    for track in {(e["name"], e["pid"]) for e in counters}:
        times = [e["ts"] for e in counters if (e["name"], e["pid"]) == track]
        assert times == sorted(set(times))


def test_an_annotated_trace_has_the_report_of_its_original(trace: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out.json", ReportOptions()
    samples = constant(range(T0_NS - 20 * MS, T0_NS + 121 * MS, 10 * MS))
    annotate_file(trace, out, samples=samples, options=options)
    told = report_files([out], samples=samples, options=options)
    of_original = report_files([trace], samples=samples, options=options)
    assert (told.steps, told.totals) == (of_original.steps, of_original.totals)
    assert told.totals[0].dvfs.lost_ns == 20 * MS  # a quarter of 80 ms


@pytest.mark.corpus
@pytest.mark.parametrize("name", HOST_ONLY)
def test_a_real_trace_of_hosts_only_is_refused(shared: Path, tmp_path: Path, name: str) -> None:
    trace, out = shared / "traces" / f"{name}.json.gz", tmp_path / "out.json"
    with pytest.raises(TraceError, match="no device records"):
        annotate_file(trace, out, samples=constant([T0_NS]), options=ReportOptions())
    assert not out.exists()
