"""Traces through the inbox into the store, by real workers: what is filed is what a report says."""

import gzip
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from isal import igzip
from msgspec.structs import replace

from chopperd.model.captures import StepQuery, TraceState
from chopperd.model.report import ReportDocument
from chopperd.model.samples import SampleSet
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.chunk import Origin
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_S
from tests.fakes.recorded import records_of, triples_every_second
from tests.fakes.samples import recording
from tests.fakes.simulated_job import play
from tests.integration.agent.node import ADMIN, CLOCK, MIB, Node, trace
from tests.integration.cases import Cases
from tests.waiting import wait_for


def record(samples: SampleSet, folder: Path) -> None:
    """Put samples into a flight recorder, of a machine that started 1000 s before them."""
    less_ns = int(samples.gpus[0].t_unix_ns[0]) - 1000 * NS_PER_S
    begin_ns = min(int(each.t_unix_ns[0]) for each in samples.gpus) - less_ns
    end_ns = max(int(each.t_unix_ns[-1]) for each in samples.gpus) - less_ns
    limits = DiskLimits(max_bytes=64 * MIB, max_days=1e6, min_free_ratio=0.0)
    recorder = FlightRecorder(folder, limits, CLOCK)
    origin = Origin(
        gpus=tuple(each.gpu for each in samples.gpus),
        backend="simulated",
        simulated=True,
        node="here",
        asked_hz=samples.asked_hz or 10.0,
        boot_id="boot",
    )
    records = {slot: records_of(each, less_ns) for slot, each in enumerate(samples.gpus)}
    triples = triples_every_second(begin_ns - 1, end_ns + NS_PER_S, less_ns)
    recorder.append(origin, records, triples)
    recorder.close()


def named(document: ReportDocument) -> ReportDocument:
    """Without the folders that the files lay in, and the time of making."""
    traces = tuple(replace(each, path=Path(each.path).name) for each in document.traces)
    generated = replace(document.generated, time="")
    return replace(document, trace=traces[0], traces=traces, generated=generated)


def codes(document: ReportDocument) -> set[str]:
    return {note.code for note in document.notes}


def test_ranks_that_come_one_after_another_make_the_report_that_their_files_make(
    tmp_path: Path,
) -> None:
    """Truth: `report_files` over the same files and the same recorded samples, in this process."""
    job = play("fsdp2-h100", tmp_path, seconds=2.0, hz=20.0)
    state = tmp_path / "state"
    record(job.samples, state / "recorder")
    with Node(state) as node:
        early, late = job.paths[:4], job.paths[4:]
        for path in early:
            node.drop(path.name, path.read_bytes())
        wait_for(lambda: node.ended(*(path.name for path in early)))
        assert len(node.document(None).traces) == 4
        for path in late:
            node.drop(path.name, path.read_bytes())
        wait_for(lambda: node.ended(*(path.name for path in late)))
        document = node.document(None)
        entries = node.traces().values()
        steps = node.store.step(job.first_step, StepQuery(), ADMIN)
    expected = report_files(
        job.paths, samples=RecordedSamples(state / "recorder"), options=ReportOptions()
    )
    assert named(document) == named(expected)
    assert {entry.capture for entry in entries} == {next(iter(entries)).capture}
    assert {entry.rank for entry in entries} == set(range(8))
    assert {row.peers and row.peers.n for row in steps} == {8}
    assert [row.is_critical for row in steps].count(True) == 1
    assert not list((state / "traces").iterdir())


def test_a_gpu_told_by_elimination_for_two_traces_of_one_time_is_taken_from_both(
    tmp_path: Path,
) -> None:
    """One GPU is sampled: alone, a trace must be of it; of two at a time, nobody can tell which.

    The file of the first trace is gone by then. Truth: `report_files` over both.
    """
    record(recording(), tmp_path / "state" / "recorder")
    paths = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        path.write_bytes(trace(rank=rank))
    with Node(tmp_path / "state") as node:
        node.drop("rank0.json", paths[0].read_bytes())
        wait_for(lambda: node.ended("rank0.json"))
        assert [device.gpu for device in node.document().devices] == ["0"]
        node.drop("rank1.json", paths[1].read_bytes())
        wait_for(lambda: node.ended("rank1.json"))
        document = node.document()
        samples = RecordedSamples(node.recorder)
    assert [device.gpu for device in document.devices] == [None, None]
    assert "device_unmapped" in {note.code for note in document.notes}
    options = ReportOptions(join=JoinOptions(in_agent=True))
    expected = report_files(paths, samples=samples, options=options)
    assert named(document) == named(expected)


def test_a_trace_is_not_looked_at_before_its_last_samples_can_be_recorded(tmp_path: Path) -> None:
    """Written 0.5 s ago: it may have ended then, and its samples are there 2 s after its end."""
    with Node(tmp_path) as node:
        begin_ns = CLOCK.mono_ns()
        node.drop("fresh.json", trace(), age_s=0.5)
        wait_for(lambda: node.ended("fresh.json"))
        assert CLOCK.mono_ns() - begin_ns >= 1_500_000_000


def test_ranks_with_trace_ids_of_their_own_become_one_report_with_peers(tmp_path: Path) -> None:
    """As torchrun and torch.profiler write them: eight trace ids, one world size and group."""
    job = play("fsdp2-h100", tmp_path, seconds=2.0, hz=20.0)
    state = tmp_path / "state"
    record(job.samples, state / "recorder")
    with Node(state) as node:
        for path in job.paths:
            node.drop(path.name, path.read_bytes())
            wait_for(partial(node.ended, path.name))
        (document,) = node.documents()
        entries = node.traces().values()
    assert sorted(trace.rank or 0 for trace in document.traces) == list(range(8))
    assert {trace.run for trace in document.traces} == {None} == {each.run for each in entries}
    assert {row.peers.n for row in document.totals if row.peers} == {8}
    assert all(row.dvfs.excess_ns is not None for row in document.totals)
    assert "peers_untraced" not in {note.code for note in document.notes}


@pytest.mark.corpus
def test_two_files_of_one_rank_are_two_runs_and_bytes_sent_again_change_nothing(
    shared: Path, tmp_path: Path
) -> None:
    """Case 12, as its expected.md says: busy 30, 60, 45, 20 us; the rank from the name is 2.

    One rank twice is two runs (DESIGN section 2): the second file has a report of its own.
    """
    folder = Cases(shared).folder(12)
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.json"))}
    with Node(tmp_path) as node:
        for name in ("node-a_rank0.json", "job7_rank2.pt.trace.json", "capture.json"):
            node.drop(name, files[name], "job7")
            wait_for(partial(node.ended, name))
        first = node.document("job7")
        node.drop("node-b_rank0.json", files["node-b_rank0.json"], "job7")
        wait_for(lambda: node.ended("node-b_rank0.json"))
        node.drop("again.json", files["node-a_rank0.json"], "job7")
        wait_for(lambda: node.outcomes().get("duplicate"))
        assert node.outcomes() == {"analysed": 4, "duplicate": 1}
        wait_for(lambda: all("rank_conflict" in codes(each) for each in node.documents()))
        before, after = node.documents()
    assert [trace.path for trace in first.traces] == [trace.path for trace in before.traces]
    for document in (before, after):
        (conflict,) = (note.text for note in document.notes if note.code == "rank_conflict")
        assert "node-a_rank0.json" in conflict
        assert "node-b_rank0.json" in conflict
    assert before.trace.run != after.trace.run
    known = {
        trace.path: (trace.rank, trace.rank_source, row.busy_ns, row.rank)
        for document in (before, after)
        for trace, row in zip(document.traces, document.totals, strict=True)
    }
    assert known == {
        "node-a_rank0.json": (0, "distributedInfo", 30_000, 0),
        "node-b_rank0.json": (0, "distributedInfo", 60_000, 0),
        "job7_rank2.pt.trace.json": (2, "file name", 45_000, 2),
        "capture.json": (None, None, 20_000, None),
    }
    assert {trace.job for each in (before, after) for trace in each.traces} == {"job7"}


@pytest.mark.corpus
def test_a_trace_of_a_million_events_is_read_in_little_memory_while_nobody_waits(
    shared: Path, tmp_path: Path
) -> None:
    """Case 14: 100,000 kernels of 40 us, one each 100 us: 4.0 s busy of 10.0 s."""
    script = Cases(shared).folder(14) / "make_trace.py"
    content = subprocess.run(
        [sys.executable, script, "1000000"], capture_output=True, check=True
    ).stdout
    with Node(tmp_path) as node:
        node.drop("plain.json", content, "plain")
        node.drop("packed.json.gz", igzip.compress(content, 1), "packed")
        slowest_s = 0.0
        peak_kib = 0
        last_ns = CLOCK.mono_ns() + 120 * NS_PER_S
        while not node.ended("plain.json", "packed.json.gz"):
            assert CLOCK.mono_ns() < last_ns, "waited in vain"
            slowest_s = max(slowest_s, longest_call_s(node))
            peak_kib = max(peak_kib, peak_rss_kib(node))
            CLOCK.sleep_until(CLOCK.mono_ns() + 100_000_000)
        totals = [node.document(job).totals[0] for job in ("plain", "packed")]
    print(f"worker's peak RSS {peak_kib / 1024:.0f} MiB; longest call {1000 * slowest_s:.1f} ms")
    for row in totals:
        assert row.busy_ns == 4_000_000_000
        assert row.window_ns == 9_999_940_000  # from the first kernel's start to the last one's end
    assert 0 < peak_kib < 400 * 1024
    assert slowest_s < 1.0


def longest_call_s(node: Node) -> float:
    """The longest of what others ask meanwhile: how it stands, an upload begun and given up."""
    begin_ns = CLOCK.mono_ns()
    node.service.live()
    middle_ns = CLOCK.mono_ns()
    upload = node.service.uploads.open_upload(name="x", job=None, owner_uid=None, expected_bytes=3)
    upload.write(b"abc")
    upload.abort()
    return max(middle_ns - begin_ns, CLOCK.mono_ns() - middle_ns) / 1e9


def peak_rss_kib(node: Node) -> int:
    """The worker's so far; 0 if there is none."""
    pid = node.service.live().worker_pid
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) if found else 0


def test_what_is_too_large_is_refused_with_the_limit_that_it_exceeds(tmp_path: Path) -> None:
    content = trace()
    bomb = gzip.compress(b" " * 20_000_000, 9)
    with Node(
        tmp_path, ingest__max_stored_bytes=50_000, ingest__max_decompressed_bytes=10_000_000
    ) as node:
        node.drop("large.json", content + b" " * 60_000)
        node.drop("bomb.json.gz", bomb)
        node.drop("fine.json", content)
        wait_for(lambda: node.ended("bomb.json.gz", "fine.json"))
        wait_for(lambda: node.outcomes() == {"analysed": 1, "rejected": 2})
        traces = node.traces()
        assert [path.name for path in node.inbox_files()] == ["large.json"]
    refused = traces["large.json"]
    assert (refused.state, refused.stored_bytes) == (TraceState.REJECTED, len(content) + 60_000)
    assert "ingest.max_stored_bytes" in (refused.reason or "")
    said = (tmp_path / "rejected" / "large.json.reason").read_text()
    assert said == (
        "large.json is too large: more than 0.0476837 MiB; profile fewer steps, or raise"
        " ingest.max_stored_bytes\n"
    )
    bombed = traces["bomb.json.gz"]
    assert bombed.state is TraceState.REJECTED
    assert bombed.reason is not None
    assert "decompressed text exceeds the limit" in bombed.reason
    kept = tmp_path / "rejected" / f"{bombed.id}-bomb.json.gz"
    assert kept.read_bytes() == bomb
    assert kept.with_name(f"{kept.name}.reason").read_text() == f"{bombed.reason}\n"


def test_a_sparse_file_of_gigabytes_is_refused_without_being_read(tmp_path: Path) -> None:
    """5 GB of nothing: within ingest.max_stored_bytes, over analysis.spool_max_bytes (2 GiB)."""
    with Node(tmp_path) as node:
        with (node.inbox / "sparse.json.part").open("wb") as file:
            file.truncate(5_000_000_000)
        (node.inbox / "sparse.json.part").rename(node.inbox / "sparse.json")
        wait_for(lambda: node.outcomes() == {"rejected": 1})
        assert node.service.live().spool_bytes == 0
    said = (tmp_path / "rejected" / "sparse.json.reason").read_text()
    assert "more than 2048 MiB; profile fewer steps, or raise analysis.spool_max_bytes" in said


def test_a_thousand_files_at_once_are_all_taken(tmp_path: Path) -> None:
    with Node(tmp_path, analysis__mode="spool") as node:
        for number in range(1000):
            node.drop(f"rank{number}.json", trace(rank=number))
        wait_for(lambda: node.outcomes() == {"spooled": 1000}, within_s=60)
        # A file leaves the inbox just after it is counted.
        wait_for(lambda: not node.inbox_files(), "the inbox to be empty")
        live = node.service.live()
        assert (live.mode, live.waiting, live.worker_pid) == ("spool", 1000, None)
        assert {entry.state for entry in node.traces().values()} == {TraceState.SPOOLED}
        assert live.spool_bytes == sum(len(trace(rank=number)) for number in range(1000))


def test_what_was_spooled_is_analysed_by_the_first_agent_that_does_that(tmp_path: Path) -> None:
    names = [f"rank{number}.json" for number in range(12)]
    with Node(tmp_path, analysis__mode="spool") as node:
        for number, name in enumerate(names):
            node.drop(name, trace(rank=number))
        wait_for(lambda: node.outcomes() == {"spooled": 12})
    with Node(tmp_path, analysis__keep_traces="true") as node:
        wait_for(lambda: node.outcomes() == {"analysed": 12})
        assert [each.rank for each in node.document().traces] == list(range(12))
        entries = node.traces()
        assert {entry.state for entry in entries.values()} == {TraceState.ANALYSED}
        kept = {path.name for path in (tmp_path / "traces").iterdir() if not path.suffix}
        assert kept == {entry.id for entry in entries.values()}
        assert node.service.live().waiting == 0
    with Node(tmp_path) as node:
        node.drop("again.json", trace(rank=0))
        wait_for(lambda: node.outcomes() == {"duplicate": 1})
