"""From files to a document: several traces, some of them unusable, and the search for traces."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopperd.errors import TraceFormatError, UnrelatedTracesError
from chopperd.model.run import device_map_of
from chopperd.model.samples import SampleSet
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.traces.read.sniff import is_kineto, kineto_files
from chopperd.traces.read.source import ReadLimits
from tests.document_checks import check_document
from tests.fakes.clock import ScriptedClock
from tests.unit.correlate.builders import gpu_samples

BASE_NS = 1_750_000_000_000_000_000
Json = dict[str, Any]


def kineto(
    *, rank: int | None = None, steps: tuple[int, ...] = (1, 2), at_us: int = 0, **keys: object
) -> Json:
    """A trace whose steps take 100 us on the device, 60 us of them busy."""
    events: list[Json] = []
    for nth, step in enumerate(steps):
        start = at_us + 100 * nth
        common: Json = {"ph": "X", "pid": 1, "tid": 1}
        launch = {"correlation": step}
        on_device = {"device": 0, "stream": 7, "correlation": step}
        events += [
            common | {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": start,
                      "dur": 100},
            common | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 1, "dur": 2,
                      "args": launch},
            common | {"cat": "kernel", "name": "gemm", "ts": start + 10, "dur": 60, "pid": 0,
                      "args": on_device},
        ]  # fmt: skip
    named = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, **named, **keys,
            "traceEvents": events}  # fmt: skip


def written(path: Path, document: Json) -> Path:
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def one_gpu(until_us: int = 1000) -> SampleSet:
    t_ns = [BASE_NS + us * 1000 for us in range(-20, until_us, 10)]
    return SampleSet(gpus=(gpu_samples(t_ns, [1485.0] * len(t_ns)),))


def test_a_document_is_dated_and_made_of_all_traces(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"r{rank}.json", kineto(rank=rank)) for rank in (0, 1)]
    clock = ScriptedClock(unix_ns=BASE_NS)
    document = report_files(paths, samples=None, options=ReportOptions(), clock=clock)
    assert document.generated.time == "2025-06-15T15:06:40.000000000Z"
    assert [trace.rank for trace in document.traces] == [0, 1]
    assert [(row.step, row.rank) for row in document.steps] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    check_document(document)


def test_a_trace_that_cant_be_read_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = written(tmp_path / "good.json", kineto(rank=0))
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"\x00\x01binary")
    missing = tmp_path / "missing.json"
    document = report_files([bad, good, missing], samples=None, options=ReportOptions())
    assert [trace.path for trace in document.traces] == [str(good)]
    left_out = [note.text for note in document.notes if note.code == "trace_left_out"]
    assert len(left_out) == 2
    assert left_out[0].startswith(f"left out: {bad} is not JSON")
    assert left_out[1].startswith(f"left out: {missing} can't be read: No such file")
    assert len(caplog.records) == 2


def test_where_no_trace_can_be_read_the_first_reason_is_raised(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(TraceFormatError, match=r"a\.json is an empty trace"):
        report_files(
            [tmp_path / "a.json", tmp_path / "b.json"], samples=None, options=ReportOptions()
        )


@pytest.mark.parametrize("hashes", [True, False])
def test_the_same_bytes_twice_count_once(tmp_path: Path, hashes: bool) -> None:
    """Their hashes are compared even if none is shown."""
    first = written(tmp_path / "a.json", kineto(rank=0))
    again = written(tmp_path / "b.json", kineto(rank=0))
    document = report_files([first, again], samples=None, options=ReportOptions(hashes=hashes))
    assert document.traces[0].sha256
    assert len(document.traces) == len(document.totals) == 1
    assert [note.text for note in document.notes if note.code == "trace_repeated"] == [
        f"{again} has the same bytes as {first}: counted once"
    ]
    assert "rank_conflict" not in {note.code for note in document.notes}


def test_one_rank_claimed_by_two_files_is_a_conflict(tmp_path: Path) -> None:
    first = written(tmp_path / "a.json", kineto(rank=0))
    other = written(tmp_path / "b.json", kineto(rank=0, at_us=3))
    document = report_files([first, other], samples=None, options=ReportOptions(merge=True))
    (conflict,) = [note.text for note in document.notes if note.code == "rank_conflict"]
    assert str(first) in conflict
    assert str(other) in conflict
    assert len([row for row in document.steps if row.step == 1]) == 2


HOUR_US = 3600 * 10**6


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (
            {"rank": 3, "distributedInfo": {"rank": 3, "world_size": 8}},
            "its world size is 8, not 2",
        ),
        ({"rank": 3, "chopperd_run": "b"}, "its run is b, not unnamed"),
        ({"rank": 3, "at_us": HOUR_US}, "it has the same steps 60 minutes apart"),
        ({"rank": 3, "at_us": 30 * HOUR_US, "steps": (70, 71)}, "it was traced 30 hours apart"),
    ],
)
def test_files_that_are_not_of_one_job_are_refused_by_name_unless_merged(
    odd: Json, why: str, tmp_path: Path
) -> None:
    """Ranks 0 to 2 of one job, and a file of another, which is named wherever it comes."""
    paths = [written(tmp_path / f"r{rank}.json", kineto(rank=rank)) for rank in (0, 1, 2)]
    other = written(tmp_path / "other.json", kineto(**odd, extra=1))
    for files in ([*paths, other], [other, *paths]):
        with pytest.raises(UnrelatedTracesError) as refused:
            report_files(files, samples=None, options=ReportOptions())
        said = str(refused.value)
        assert said.startswith(f"{other} is not of the same job as {tmp_path}/r")
        assert f": {why}. Name the files of one job, " in said
        assert "--merge" in said
        assert "\n" not in said
    document = report_files([*paths, other], samples=None, options=ReportOptions(merge=True))
    assert len(document.traces) == 4


def test_a_rank_that_comes_twice_is_refused(tmp_path: Path) -> None:
    first = written(tmp_path / "a.json", kineto(rank=0))
    other = written(tmp_path / "b.json", kineto(rank=0, at_us=3))
    with pytest.raises(UnrelatedTracesError, match=r"b\.json is not .*a\.json: both are rank 0\. "):
        report_files([first, other], samples=None, options=ReportOptions())


def test_how_many_more_files_are_of_other_jobs_is_said(tmp_path: Path) -> None:
    first = [written(tmp_path / f"a{rank}.json", kineto(rank=rank)) for rank in (0, 1, 2)]
    second = [written(tmp_path / f"b{r}.json", kineto(rank=r, chopperd_run="b")) for r in (0, 1)]
    with pytest.raises(UnrelatedTracesError, match=r"b0\.json is not .* \(nor are 1 more\)\. Name"):
        report_files([*first, *second], samples=None, options=ReportOptions())


def test_cycles_of_one_rank_and_files_without_ranks_are_one_job(tmp_path: Path) -> None:
    cycles = [
        written(
            tmp_path / f"{n}.json", kineto(rank=0, steps=(10 * n, 10 * n + 1), at_us=n * HOUR_US)
        )
        for n in (1, 2, 3)
    ]
    assert len(report_files(cycles, samples=None, options=ReportOptions()).traces) == 3
    alike = [written(tmp_path / f"x{n}.json", kineto(at_us=n)) for n in (0, 1)]
    assert len(report_files(alike, samples=None, options=ReportOptions()).traces) == 2


@pytest.mark.parametrize("apart_s", [3.2, -3.2])
def test_a_rank_whose_clock_is_seconds_off_is_noted_and_has_no_interval(
    apart_s: float, tmp_path: Path
) -> None:
    """Three ranks in lock-step; the clock of rank 2's host is 3.2 s off."""
    off_us = round(apart_s * 1e6)
    paths = [
        written(tmp_path / f"r{rank}.json", kineto(rank=rank, at_us=off_us if rank == 2 else rank))
        for rank in (0, 1, 2)
    ]
    t_ns = [BASE_NS + (off_us + us) * 1000 for us in range(-20, 1000, 10)]
    samples = SampleSet(gpus=(gpu_samples(t_ns, [1485.0] * len(t_ns)),))
    options = ReportOptions(join=JoinOptions(device_map=device_map_of("2:0=0", "x")))
    document = report_files(paths, samples=samples, options=options)
    (text,) = [note.text for note in document.notes if note.code == "clocks_differ"]
    side = "after" if apart_s > 0 else "before"
    assert text.startswith(f"rank 2: its steps begin 3.2 s {side} those of the other ranks")
    assert document.alignment.offset_uncertainty_ns is not None
    assert document.alignment.offset_uncertainty_ns >= 3_200_000_000
    rows = [row for row in (*document.totals, *document.steps) if row.rank == 2]
    assert {row.dvfs.gap_ratio for row in rows} == {0.25}
    assert {(row.dvfs.gap_low, row.dvfs.gap_high) for row in rows} == {(None, None)}
    clocks = [row.clock.compute for row in rows if row.clock and row.clock.compute]
    assert {(each.low_mhz, each.high_mhz) for each in clocks} == {(None, None)}
    assert document.summary is not None
    assert (document.summary.gap_low, document.summary.gap_high) == (None, None)
    assert {row.run for row in document.steps} == {None}  # one run, whatever the clocks say
    check_document(document)


def test_ranks_within_a_step_or_a_second_have_one_clock(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / f"r{rank}.json", kineto(rank=rank, at_us=900_000 * rank))
        for rank in (0, 1)
    ]
    document = report_files(paths, samples=None, options=ReportOptions())
    assert "clocks_differ" not in {note.code for note in document.notes}


def test_a_rank_that_is_said_is_the_files_rank(tmp_path: Path) -> None:
    first = written(tmp_path / "a.json", kineto(rank=0))
    other = written(tmp_path / "b.json", kineto(rank=0, at_us=3))
    document = report_files(
        [first, other], samples=None, options=ReportOptions(), rank_of={other: 1}
    )
    said = [(trace.rank, trace.rank_source) for trace in document.traces]
    assert said == [(0, "distributedInfo"), (1, "command line")]
    assert sorted({row.rank for row in document.steps if row.rank is not None}) == [0, 1]
    assert "rank_conflict" not in {note.code for note in document.notes}


def test_two_ranks_are_not_both_the_only_gpu_sampled(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"r{rank}.json", kineto(rank=rank)) for rank in (0, 1)]
    alone = report_files(paths[:1], samples=one_gpu(), options=ReportOptions())
    assert [device.mapping for device in alone.devices] == ["only_one"]
    assert alone.totals[0].dvfs.gap_ratio == pytest.approx(0.25)
    both = report_files(paths, samples=one_gpu(), options=ReportOptions())
    assert [(device.gpu, device.mapping) for device in both.devices] == [(None, None)] * 2
    assert [row.dvfs.gap_ratio for row in both.totals] == [None, None]
    assert "device_unmapped" in {note.code for note in both.notes}


def test_one_gpu_traced_twice_is_one_gpu(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / f"{k}.json", kineto(steps=steps, at_us=at_us))
        for k, (steps, at_us) in enumerate((((1, 2), 0), ((5, 6), 500)))
    ]
    document = report_files(paths, samples=one_gpu(), options=ReportOptions())
    assert [device.gpu for device in document.devices] == ["0", "0"]
    assert document.summary is not None
    assert [(line.gpu, line.slowest_steps) for line in document.summary.gpus] == [("0", 2)]


def test_progress_tells_the_bytes_read(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", kineto())
    seen: list[tuple[int, int | None]] = []
    report_files(
        [path],
        samples=None,
        options=ReportOptions(limits=ReadLimits(block_bytes=100)),
        progress=lambda done, size: seen.append((done, size)),
    )
    size = path.stat().st_size
    assert seen[-1] == (size, size)
    assert np.all(np.diff([done for done, _ in seen]) > 0)


# --- the search for traces


def test_traces_are_found_by_content_whatever_their_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    names = ("a.pt.trace.json", "b.json.gz", "deep/c")
    found = [written(tmp_path / name, kineto()) for name in names]
    (tmp_path / "other.json").write_text('{"loss": [1, 2]}')
    (tmp_path / "array.json").write_text("[1, 2]")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"{}")[:9])
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "weights.bin").write_bytes(b"\x80\x02traceEvents" * 1000)
    (tmp_path / "log.txt").write_text('wrote "traceEvents" to {file}')
    assert kineto_files(tmp_path, newer_than_unix_ns=0) == sorted(found)


def test_older_traces_are_left_alone(tmp_path: Path) -> None:
    old, new = (written(tmp_path / f"{name}.json", kineto()) for name in ("old", "new"))
    os.utime(old, ns=(BASE_NS - 1, BASE_NS - 1))
    os.utime(new, ns=(BASE_NS, BASE_NS))
    assert kineto_files(tmp_path, newer_than_unix_ns=BASE_NS) == [new]


def test_folders_are_searched_three_levels_deep_and_links_are_not(tmp_path: Path) -> None:
    paths = []
    for depth in range(4):
        folder = tmp_path.joinpath(*"abc"[:depth])
        folder.mkdir(exist_ok=True)
        paths.append(written(folder / "t.json", kineto()))
    (tmp_path / "link").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "broken.json").symlink_to(tmp_path / "nowhere")
    assert kineto_files(tmp_path, newer_than_unix_ns=0) == sorted(paths[:3])
    assert kineto_files(tmp_path, newer_than_unix_ns=0, depth=1) == paths[:1]


def test_a_folder_that_is_not_there_has_no_traces(tmp_path: Path) -> None:
    assert kineto_files(tmp_path / "nowhere", newer_than_unix_ns=0) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"traceEvents": []}', True),
        (b'\xef\xbb\xbf \n{"a": 1, "traceEvents": []}', True),
        (b'{"a": "' + b"x" * 200_000 + b'", "traceEvents": [', True),
        (b'{"a": "' + b"x" * 2_000_000 + b'", "traceEvents": [', False),
        (b'["traceEvents"]', False),
        (b"", False),
        (b"\x1f\x8b", False),
    ],
)
def test_a_trace_is_told_by_the_start_of_its_text(
    tmp_path: Path, text: bytes, expected: bool
) -> None:
    plain, packed = tmp_path / "t", tmp_path / "t.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    assert is_kineto(plain) is expected
    assert is_kineto(packed) is expected
