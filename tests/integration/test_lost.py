"""A trace with something of every kind of damage, through the command line; expected by hand.

Times are us from `T`. Stream 7 runs k1 [100, 200), k2 [190, 290), three kernels of a graph of 20
each and a kernel that no launch is known of, of 10: the union is 190 + 60 + 10 = 260.
"""

import json
from pathlib import Path

import pytest

from chopperd.pipeline.reports import ReportOptions, report_files
from tests.integration.test_bad_input import document, run
from tests.layouts import Event, complete_event, encode

T = 1_700_000_000_000_000


def host(name: str, at: int, correlation: int) -> Event:
    event = complete_event("cuda_runtime", name, T + at, 5, correlation=correlation)
    return event | {"pid": 42, "tid": 42}


def kernel(name: str, at: int, duration: int, correlation: int) -> Event:
    ids = {"device": 0, "stream": 7, "correlation": correlation}
    return complete_event("kernel", name, T + at, duration, **ids)


def hurt() -> bytes:
    step = complete_event("user_annotation", "ProfilerStep#1", T, 1000) | {"pid": 42, "tid": 42}
    launches = [host("cudaLaunchKernel", 10 * n, n) for n in range(1, 7)]
    events = [
        step,
        *launches,
        launches[0],  # the same call again
        host("cudaGraphLaunch", 70, 7),
        kernel("k1", 100, 100, 1),
        kernel("k1", 100, 100, 1),  # the same record again
        kernel("k2", 190, 100, 2),  # starts before k1 has ended
        kernel("unfinished", 300, -1, 3),
        kernel("zeroed", -T, 0, 4),
        kernel("endless", 310, 2**40, 5),
        kernel("g", 400, 20, 7),
        kernel("g", 430, 20, 7),
        kernel("g", 460, 20, 7),
        kernel("of nobody", 600, 10, 0),
        complete_event("cuda_sync", "Stream Sync", T + 700, 100, stream=-1),
        7,
    ]
    text = encode({"schemaVersion": 1, "traceEvents": events})
    name = (
        rb'{"ph":"X","cat":"python_function","name":"a"b"(3): f","pid":42,"tid":42,"ts":1,"dur":1}'
    )
    sync = b'{"ph":"X","cat":"cuda_sync"'
    assert sync in text
    return text.replace(sync, name + b"," + sync)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "hurt.json"
    written.write_bytes(hurt())
    return written


def test_what_was_lost_is_counted_by_kind_and_in_no_figure(path: Path) -> None:
    made = document(run("report", path, "--format", "json"))
    trace, totals = made["trace"], made["totals"]
    assert isinstance(trace, dict)
    assert isinstance(totals, list)
    assert trace["lost"] == {
        "damaged_events": 1,
        "undecodable_events": 1,
        "negative_records": 1,
        "zeroed_records": 1,
        "outlying_records": 1,
        "duplicate_records": 1,
        "duplicate_rows": 1,
        "launches_without_record": 4,
    }
    assert (trace["damaged_events"], trace["invalid_records"]) == (2, 3)
    assert (trace["unlinked_kernels"], trace["complete"]) == (1, False)
    (row,) = totals
    assert (row["window_ns"], row["busy_ns"]) == (510_000, 260_000)
    counts = {family["name"]: family["count"] for family in row["families"]}
    assert (counts["k1"], counts["k2"], counts["g"]) == (1, 1, 3)


def test_what_was_lost_is_said_in_a_line_each(path: Path) -> None:
    told = " ".join(run("report", path).stdout.split())
    for line in (
        "1 event that can't be read: left out",
        "1 event with impossible values: left out",
        "3 device records with impossible times (1 with a negative duration or none, 1 with "
        "neither start nor length, 1 far beyond all other rows): left out",
        "1 device record there twice: counted once",
        "1 row of the host there twice: counted once",
        "1 device record ended after the next of the stream had started",
        "1 device record without a launch in the file: counted by time only",
        "4 of 7 launches left no record",
    ):
        assert line in told, told


def test_a_trace_told_twice_over_is_that_trace(tmp_path: Path) -> None:
    """All events written a second time, as by a buffer that is flushed twice."""
    events = [
        complete_event("user_annotation", "ProfilerStep#1", T, 900) | {"pid": 42, "tid": 42},
        host("cudaLaunchKernel", 10, 1),
        host("cudaLaunchKernel", 20, 2),
        kernel("a", 100, 50, 1),
        kernel("b", 200, 50, 2),
    ]
    made = {}
    for name, several in (("once", events), ("twice", events * 2)):
        path = tmp_path / f"{name}.json"
        path.write_bytes(encode({"traceEvents": several}))
        made[name] = document(run("report", path, "--format", "json"))
    for part in ("totals", "steps"):
        assert json.dumps(made["once"][part]) == json.dumps(made["twice"][part])
    assert made["twice"]["trace"]["lost"] == {"duplicate_records": 2, "duplicate_rows": 3}  # type: ignore[index]
    assert made["twice"]["trace"]["complete"]  # type: ignore[index]


HANG_US = 11 * 60 * 1_000_000
IN_PROCESS = {"pid": 42, "tid": 42}


def hung(*, waited_for: bool, launched: bool) -> bytes:
    """200 kernels of a quarter of a ms, then a collective that ends 11 minutes later."""
    events = [complete_event("user_annotation", "ProfilerStep#1", T, 200_000) | IN_PROCESS]
    for n in range(1, 201):
        events += [host("cudaLaunchKernel", 1000 * n, n), kernel("k", 1000 * n + 100, 250, n)]
    events.append(kernel("ncclDevKernel_AllReduce", 202_000, HANG_US, 201))
    if launched:
        events.append(host("cudaLaunchKernel", 201_000, 201))
    if waited_for:
        wait = complete_event("cuda_runtime", "cudaStreamSynchronize", T + 201_500, HANG_US + 700)
        events.append(wait | IN_PROCESS)
    return encode({"schemaVersion": 1, "traceEvents": events})


@pytest.mark.parametrize(
    ("waited_for", "launched", "stays"),
    [(True, False, True), (False, True, True), (True, True, True), (False, False, False)],
)
def test_a_collective_that_hangs_until_the_job_is_killed_is_in_the_report(
    tmp_path: Path, *, waited_for: bool, launched: bool, stays: bool
) -> None:
    path = tmp_path / "hung.json"
    path.write_bytes(hung(waited_for=waited_for, launched=launched))
    made = report_files([path], samples=None, options=ReportOptions())
    (total,) = made.totals
    assert total.comm_ns == (HANG_US * 1000 if stays else 0)
    assert total.compute_ns == 200 * 250_000
    assert made.trace.lost == ({} if stays else {"outlying_records": 1})
