"""Input that can't be used, through the real command line: one line, a status, no report.

The command line runs in this process, and as a process of its own where that matters.
"""

import gzip
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from time import sleep
from unittest.mock import patch

import pytest

from chopperd import cli
from chopperd.store.samples.files import write_samples
from tests.integration.test_pipeline import BASE_NS, kineto, one_gpu, written

USED, BAD_USAGE, BAD_INPUT = 0, 2, 4


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    stdout: str
    stderr: str


def run(*arguments: str | Path, **environment: str) -> Outcome:
    """`chopperd ARGUMENTS` in this process; an error that it does not handle fails the test."""
    out, err = StringIO(), StringIO()
    own = patch.dict(os.environ, environment)
    with redirect_stdout(out), redirect_stderr(err), logging_as_before(), own:
        status = cli.run([str(argument) for argument in arguments])
    return Outcome(status, out.getvalue(), err.getvalue())


@contextmanager
def logging_as_before() -> Iterator[None]:
    """The command line configures logging for its process; here that is the tests'."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def run_apart(*arguments: str | Path) -> Outcome:
    """`chopperd ARGUMENTS` as a process of its own.

    For what may hang, and for samples that are refused: a thread that reads the trace ahead then
    stays until the process ends.
    """
    done = subprocess.run(
        [sys.executable, "-m", "chopperd", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def refused(outcome: Outcome, *says: str, status: int = BAD_INPUT) -> None:
    """One line on stderr that says so, nothing on stdout, no traceback."""
    assert outcome.status == status
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert "Traceback" not in line
    for each in says:
        assert each in line


def document(outcome: Outcome) -> dict[str, object]:
    assert outcome.status == USED
    loaded: dict[str, object] = json.loads(outcome.stdout)
    return loaded


def codes(outcome: Outcome) -> set[str]:
    return {note["code"] for note in document(outcome)["notes"]}  # type: ignore[attr-defined]


GOOD = json.dumps(kineto(rank=0)).encode()

OLD_ROW = '{"name": "aten::mm", "ph": "X", "ts": 1, "dur": 2, "tid": 1, "pid": "CPU functions"}'

REFUSED: dict[str, tuple[bytes, str]] = {
    "empty.json": (b"", "is an empty trace"),
    "blank.json": (b" \n ", "is an empty trace"),
    "empty.json.gz": (gzip.compress(b""), "is an empty trace"),
    "text.json": (b"step 1 took 30 ms\n", "is not JSON"),
    "binary.json": (bytes(range(256)) * 64, "is not JSON"),
    "zeros.json": (bytes(4096), "is not JSON"),
    "config.json": (b'{"a": 1}', "is JSON but not a Kineto trace"),
    "list.json": (b'{"traceEvents": {"a": 1}}', "not a Kineto trace"),
    "numbers.json": (b"[1, 2, 3]", "has no event"),
    "old.json": (f"[{OLD_ROW}, {OLD_ROW}]".encode(), "the old torch.autograd.profiler"),
    "rank0.pftrace": (b"\x0a\x02\x08\x01" * 8, "is a Perfetto trace"),
    "head.json": (GOOD[:40], "is cut off before its events"),
    "trace.json.zst": (b"\x28\xb5\x2f\xfd" + bytes(100), "is compressed with zstd"),
    "broken.json.gz": (b"\x1f\x8b\x08\x00" + b"\xff" * 200, "broken gzip"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_no_traces_are_refused_with_their_reason(tmp_path: Path, name: str) -> None:
    content, reason = REFUSED[name]
    path = tmp_path / name
    path.write_bytes(content)
    refused(run("report", path), str(path), reason)


def test_a_process_of_its_own_says_the_same(tmp_path: Path) -> None:
    bad, good = tmp_path / "text.json", written(tmp_path / "good.json", kineto(rank=0))
    bad.write_bytes(REFUSED[bad.name][0])
    refused(run_apart("report", bad), str(bad), REFUSED[bad.name][1])
    assert run_apart("report", good) == run("report", good)
    refused(run_apart("report", good, "--format", "xml"), status=BAD_USAGE)


def a_missing_file(tmp_path: Path) -> Path:
    return tmp_path / "missing.json"


def a_directory(tmp_path: Path) -> Path:
    return tmp_path


def a_path_through_a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(GOOD)
    return tmp_path / "file" / "trace.json"


def a_pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe.json")
    return tmp_path / "pipe.json"


def a_broken_link(tmp_path: Path) -> Path:
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere")
    return tmp_path / "link.json"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (a_missing_file, "can't be read: No such file"),
        (a_directory, "is a directory"),
        (a_path_through_a_file, "can't be read: Not a directory"),
        (a_pipe, "is not a regular file"),
        (a_broken_link, "can't be read: No such file"),
    ],
)
def test_paths_without_a_readable_file_are_refused(
    tmp_path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    path = make(tmp_path)
    read = run_apart if make is a_pipe else run  # it must not wait for a writer
    refused(read("report", path), str(path), reason)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", kineto())
    path.chmod(0)
    refused(run("report", path), "can't be read: Permission denied")


@pytest.mark.parametrize(
    ("key", "name", "what"),
    [
        ("CHOPPERD_INGEST__MAX_STORED_BYTES", "big.json", "its file exceeds"),
        ("CHOPPERD_INGEST__MAX_DECOMPRESSED_BYTES", "bomb.json.gz", "its decompressed text"),
    ],
)
def test_files_over_a_limit_are_refused(tmp_path: Path, key: str, name: str, what: str) -> None:
    padded = kineto(rank=0, padding="x" * 3_000_000)
    path = written(tmp_path / name, padded)
    refused(run("report", path, **{key: str(1 << 20)}), "is too large", what, "1 MiB")
    assert run("report", path).status == USED


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gzip-in-disguise.json", gzip.compress(GOOD)),
        ("plain.json.gz", GOOD),
        ("mark.json", b"\xef\xbb\xbf" + GOOD),
        ("two-members.json.gz", gzip.compress(GOOD[:200]) + gzip.compress(GOOD[200:])),
    ],
)
def test_content_counts_not_the_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    outcome = run("report", path, "--format", "json")
    assert codes(outcome) == {"no_samples"}
    assert outcome.stderr == ""


@pytest.mark.parametrize(
    ("name", "content"),
    [("cut.json", GOOD[: GOOD.rindex(b'"kernel"')]), ("cut.json.gz", gzip.compress(GOOD)[:-40])],
)
def test_a_cut_file_is_used_and_said_to_be_cut(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    outcome = run("report", path, "--format", "json")
    assert "incomplete" in codes(outcome)
    assert document(outcome)["trace"]["complete"] is False  # type: ignore[index]
    text = run("report", path)
    assert text.status == USED
    assert "1 trace incomplete" in text.stdout


def test_a_file_that_is_being_written_is_used_as_far_as_it_is_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", kineto(rank=0, steps=tuple(range(1, 2000))))
    stop = threading.Event()

    def append() -> None:
        with path.open("ab") as file:
            while not stop.is_set():
                file.write(b" " * 64)
                file.flush()
                sleep(0.001)

    writer = threading.Thread(target=append)
    writer.start()
    try:
        outcome = run("report", path, "--format", "json")
    finally:
        stop.set()
        writer.join()
    assert "incomplete" in codes(outcome)
    assert document(outcome)["trace"]["complete"] is False  # type: ignore[index]


def test_one_bad_file_of_several_is_left_out_and_named(tmp_path: Path) -> None:
    good, bad = written(tmp_path / "good.json", kineto(rank=0)), tmp_path / "bad.json"
    bad.write_bytes(b"")
    outcome = run("report", bad, good)
    assert outcome.status == USED
    assert "trace_left_out" in outcome.stdout
    (line,) = outcome.stderr.splitlines()
    assert f"left out: {bad} is an empty trace" in line


# --- samples


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"\x00\xff\x00\xff" * 100, "not"),
        (b"hello world\n", "not a sample file"),
        (b"t_unix_ns,gpu\n1,0\n", "no column sm_clock_mhz"),
        (b"t_unix_ns,gpu,sm_clock_mhz\n1,0,fast\n2,0,3\n", "line 2"),
        (b"# chopperd-samples/1 {broken\nt_unix_ns,gpu,sm_clock_mhz\n", "line 1"),
        (gzip.compress(b"t_unix_ns,gpu,sm_clock_mhz\n1,0,5\n")[:-9], "gzip"),
    ],
)
def test_sample_files_that_cant_be_used_are_refused(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    trace, samples = written(tmp_path / "t.json", kineto()), tmp_path / "samples.csv"
    samples.write_bytes(content)
    refused(run_apart("report", trace, "--samples", samples), str(samples), reason)


def test_a_missing_sample_file_is_refused(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", kineto())
    missing = tmp_path / "none.csv"
    refused(run_apart("report", trace, "--samples", missing), str(missing), "No such file")


def with_samples(tmp_path: Path, trace: Path, *arguments: str) -> Outcome:
    samples = tmp_path / "samples.csv"
    write_samples(samples, one_gpu())
    return run("report", trace, "--samples", samples, "--format", "json", *arguments)


def clock_figures(outcome: Outcome) -> list[object]:
    """Clock, loss and loss in the waterfall, of all rows."""
    rows = [*document(outcome)["steps"], *document(outcome)["totals"]]  # type: ignore[misc]
    return [
        value
        for row in rows
        for value in (row["clock"], *row["dvfs"].values(), row["waterfall_ns"]["dvfs_loss"])
    ]


def test_samples_of_another_time_give_unknown_clocks_and_a_note(tmp_path: Path) -> None:
    later = kineto(rank=0) | {"baseTimeNanoseconds": BASE_NS + 3_600_000_000_000}
    outcome = with_samples(tmp_path, written(tmp_path / "t.json", later))
    assert set(clock_figures(outcome)) == {None}
    assert "no_overlap" in codes(outcome)
    assert outcome.stderr == ""


def test_samples_of_another_gpu_give_unknown_clocks_and_a_note(tmp_path: Path) -> None:
    other = kineto(rank=0, chopperd_devices=[{"device": 0, "uuid": "GPU-other"}])
    outcome = with_samples(tmp_path, written(tmp_path / "t.json", other))
    assert set(clock_figures(outcome)) == {None}
    assert "device_unmapped" in codes(outcome)


def test_samples_that_fit_give_clocks(tmp_path: Path) -> None:
    outcome = with_samples(tmp_path, written(tmp_path / "t.json", kineto(rank=0)))
    totals = json.loads(outcome.stdout)["totals"]
    # 1485 of 1980 MHz
    assert [total["dvfs"]["gap_ratio"] for total in totals] == [pytest.approx(0.25)]
    assert "device_unmapped" not in codes(outcome)


def test_samples_without_a_single_row_give_unknown_clocks(tmp_path: Path) -> None:
    trace, samples = written(tmp_path / "t.json", kineto(rank=0)), tmp_path / "samples.csv"
    samples.write_text("t_unix_ns,gpu,sm_clock_mhz\n")
    outcome = run("report", trace, "--samples", samples, "--format", "json")
    assert set(clock_figures(outcome)) == {None}
    assert codes(outcome) & {"no_overlap", "device_unmapped", "no_samples"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--device-map", "nonsense"),
        ("--format", "xml"),
        ("--last", "0"),
        ("--reference-mhz", "fast"),
        ("--samples",),
    ],
)
def test_wrong_options_are_usage_errors(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    trace = written(tmp_path / "t.json", kineto())
    refused(run("report", trace, *arguments), status=BAD_USAGE)
