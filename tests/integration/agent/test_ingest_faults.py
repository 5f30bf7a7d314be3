"""What goes wrong over a trace is counted and said, and the next trace has its turn."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from chopperd.model.captures import TraceState
from chopperd.units import NS_PER_S
from tests.integration.agent.node import ADMIN, BASE_S, CLOCK, SCRIPTED, Node, trace
from tests.integration.processes import is_alive
from tests.tools import ROOT
from tests.waiting import wait_for


def script(node: Node, second: int, deed: str) -> None:
    """Have the worker do this over the trace that begins in that second."""
    (node.recorder / str(BASE_S + second)).write_text(deed)


def test_a_trace_that_kills_the_worker_twice_is_given_up_and_the_next_is_analysed(
    tmp_path: Path,
) -> None:
    with Node(tmp_path, command=SCRIPTED) as node:
        script(node, 1, "die")
        node.drop("poison.json", trace(1))
        node.drop("fine.json", trace(2))
        wait_for(lambda: node.outcomes() == {"analysed": 1, "killed": 1})
        poison, fine = node.traces()["poison.json"], node.traces()["fine.json"]
        assert (poison.state, fine.state) == (TraceState.KILLED, TraceState.ANALYSED)
        assert poison.reason == "the analysis worker died over it (status -9)"
        assert node.service.live().worker_losses == 2
        assert [p.name for p in (tmp_path / "rejected").glob("*.json")] == [
            f"{poison.id}-poison.json"
        ]
        node.drop("again.json", trace(1))
        wait_for(lambda: node.outcomes().get("duplicate") == 1)
        assert node.service.live().worker_losses == 2


def test_a_trace_whose_worker_is_killed_from_outside_is_tried_again(tmp_path: Path) -> None:
    with Node(tmp_path, command=SCRIPTED) as node:
        script(node, 1, "hang")
        node.drop("unlucky.json", trace(1))
        wait_for((node.recorder / "hanging").exists)
        live = node.service.live()
        assert live.working_on == node.traces()["unlucky.json"].id
        assert live.worker_pid is not None
        script(node, 1, "")
        os.kill(live.worker_pid, signal.SIGKILL)
        wait_for(lambda: node.outcomes() == {"analysed": 1})
        assert node.service.live().worker_losses == 1


def test_a_trace_over_its_deadline_fails_and_the_next_goes_on(tmp_path: Path) -> None:
    with Node(tmp_path, command=SCRIPTED, analysis__timeout_s=4) as node:
        script(node, 1, "hang")
        for second in (1, 2):
            node.drop(f"{second}.json", trace(second), age_s=60 - second)
        wait_for(lambda: node.outcomes() == {"analysed": 1, "failed": 1})
        slow, fine = (node.traces()[f"{second}.json"] for second in (1, 2))
        assert slow.state is TraceState.FAILED
        assert slow.reason == "it took longer than analysis.timeout_s"
        assert fine.state is TraceState.ANALYSED
        assert node.service.live().worker_losses == 1


def test_a_trace_over_the_memory_cap_fails_and_costs_no_worker(tmp_path: Path) -> None:
    """400 MiB are asked for under a cap of 300."""
    with Node(tmp_path, command=SCRIPTED) as node:
        script(node, 1, "eat")
        for second in (1, 2):
            node.drop(f"{second}.json", trace(second), age_s=60 - second)
        wait_for(lambda: node.outcomes() == {"analysed": 1, "failed": 1})
        large = node.traces()["1.json"]
        assert large.state is TraceState.FAILED
        assert large.reason == "needs more than analysis.memory_max_bytes"
        assert node.service.live().worker_losses == 0


def test_what_is_no_trace_is_refused_with_the_reason_and_the_newest_five_are_kept(
    tmp_path: Path,
) -> None:
    with Node(tmp_path) as node:
        for number in range(7):
            node.drop(f"{number}.json", b'{"number": %d}' % number, age_s=60 - number)
        wait_for(lambda: node.outcomes() == {"rejected": 7})
        entries = node.traces()
    assert entries["3.json"].state is TraceState.REJECTED
    reason = "3.json is JSON but not a Kineto trace: it has no traceEvents list"
    assert entries["3.json"].reason == reason
    kept = sorted(path.name.partition("-")[2] for path in (tmp_path / "rejected").iterdir())
    assert kept == [f"{n}.json{end}" for n in range(2, 7) for end in ("", ".reason")]


def test_a_perfetto_file_is_rejected_with_what_to_write_instead(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.drop("rank0.pftrace", b"\x0a\x02\x08\x01" * 8)
        wait_for(lambda: node.outcomes() == {"rejected": 1})
        reason = node.traces()["rank0.pftrace"].reason
    assert reason is not None
    assert reason.startswith("rank0.pftrace is a Perfetto trace (protobuf), not Kineto JSON: have")


def test_a_trace_that_tells_nothing_does_not_hide_the_one_before(tmp_path: Path) -> None:
    """A fragment is salvaged as a trace without events; its bytes hold no step and no kernel."""
    with Node(tmp_path) as node:
        node.drop("good.json", trace(1))
        wait_for(lambda: node.outcomes() == {"analysed": 1})
        node.drop("fragment.json", b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ca')
        wait_for(lambda: node.outcomes() == {"analysed": 1, "rejected": 1})
        assert node.traces()["fragment.json"].reason == (
            "fragment.json has neither a step nor a device record"
        )
        document = node.store.latest_document(None, ADMIN)
    assert document is not None
    assert document.trace.path == "good.json"


def test_a_pause_stops_the_analysis_at_once_and_its_end_begins_it_anew(tmp_path: Path) -> None:
    with Node(tmp_path, command=SCRIPTED) as node:
        script(node, 1, "hang")
        node.drop("paused.json", trace(1))
        wait_for((node.recorder / "hanging").exists)
        pid = node.service.live().worker_pid
        assert pid is not None
        node.service.pause()
        assert wait_for(lambda: not is_alive(pid)) < 1.0
        script(node, 1, "")
        node.drop("later.json", trace(2))
        CLOCK.sleep_until(CLOCK.mono_ns() + 700_000_000)
        live = node.service.live()
        assert (live.working_on, live.worker_pid, live.waiting) == (None, None, 1)
        assert [path.name for path in node.inbox_files()] == ["later.json"]
        node.service.resume()
        wait_for(lambda: node.outcomes() == {"analysed": 2})
        assert node.service.live().worker_losses == 0


def test_an_agent_that_stops_over_a_trace_analyses_it_when_it_runs_again(tmp_path: Path) -> None:
    with Node(tmp_path, command=SCRIPTED) as node:
        script(node, 1, "hang")
        node.drop("kept.json", trace(1), "job")
        wait_for((node.recorder / "hanging").exists)
        pid = node.service.live().worker_pid
        begin_ns = CLOCK.mono_ns()
        node.service.stop()
        assert CLOCK.mono_ns() - begin_ns < 5 * NS_PER_S  # 1 s, with 5x slack
        assert pid is not None
        wait_for(lambda: not is_alive(pid), "the worker's end")
        assert node.traces()["kept.json"].state is TraceState.QUEUED
    script(node, 1, "")
    with Node(tmp_path, command=SCRIPTED) as node:
        wait_for(lambda: node.outcomes() == {"analysed": 1})
        assert node.traces()["kept.json"].job == "job"


def test_traces_are_taken_from_the_spool_alone_when_the_store_is_lost(tmp_path: Path) -> None:
    with Node(tmp_path, analysis__mode="spool") as node:
        node.drop("rank3.json", trace(1), "job")
        wait_for(lambda: node.outcomes() == {"spooled": 1})
    for path in tmp_path.glob("store.sqlite*"):
        path.unlink()
    with Node(tmp_path) as node:
        wait_for(lambda: node.ended("rank3.json"))
        entry = node.traces()["rank3.json"]
    assert (entry.state, entry.job, entry.rank) == (TraceState.ANALYSED, "job", 3)


def test_a_trace_whose_file_is_gone_is_said_to_have_failed(tmp_path: Path) -> None:
    with Node(tmp_path, analysis__mode="spool") as node:
        node.drop("gone.json", trace(1))
        wait_for(lambda: node.outcomes() == {"spooled": 1})
    for path in (tmp_path / "traces").iterdir():
        path.unlink()
    with Node(tmp_path) as node:
        wait_for(lambda: node.ended("gone.json"))
        entry = node.traces()["gone.json"]
    assert (entry.state, entry.reason) == (TraceState.FAILED, "its file is gone")


def test_a_worker_that_does_not_start_is_said_and_costs_no_trace(tmp_path: Path) -> None:
    broken = (sys.executable, "-c", "raise SystemExit(3)")
    with Node(tmp_path, command=broken) as node:
        node.drop("waits.json", trace(1))
        wait_for(lambda: node.service.live().trouble)
        live = node.service.live()
        assert live.trouble == "the analysis worker does not start: status 3"
        assert live.worker_losses == 0
        assert node.traces()["waits.json"].state is TraceState.QUEUED
    with Node(tmp_path) as node:
        wait_for(lambda: node.ended("waits.json"))
        assert node.traces()["waits.json"].state is TraceState.ANALYSED


def test_a_full_disk_leaves_files_in_the_inbox_and_is_said(tmp_path: Path) -> None:
    """Half of the disk must stay free, which here it does not: as if it were full."""
    disk = os.statvfs(tmp_path)
    if disk.f_bavail > disk.f_blocks // 2:
        pytest.skip("more than half of this disk is free")
    with Node(tmp_path, store__min_free_ratio=0.5) as node:
        node.drop("waits.json", trace(1))
        wait_for(lambda: node.service.live().trouble)
        trouble = node.service.live().trouble
        assert trouble == (
            "there is no room: the disk is nearly full; free some, or set store.min_free_ratio"
        )
        assert [path.name for path in node.inbox_files()] == ["waits.json"]


def test_a_trace_waits_in_the_inbox_while_those_that_wait_fill_the_spool(tmp_path: Path) -> None:
    """Of 2048 bytes the first takes 2000."""
    content = trace(1)
    with Node(tmp_path, analysis__mode="spool", analysis__spool_max_bytes=2048) as node:
        node.drop("first.json", content.ljust(2000))
        wait_for(lambda: node.outcomes() == {"spooled": 1})
        node.drop("second.json", content)
        wait_for(lambda: node.service.live().trouble)
        assert "analysis.spool_max_bytes" in (node.service.live().trouble or "")
        assert [path.name for path in node.inbox_files()] == ["second.json"]


def test_with_analysis_off_nothing_is_touched(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    with Node(tmp_path, analysis__mode="off") as node:
        node.drop("left.json", trace(1))
        CLOCK.sleep_until(CLOCK.mono_ns() + 800_000_000)
        assert [path.name for path in node.inbox_files()] == ["left.json"]
        assert node.service.live().mode == "off"
        assert node.outcomes() == {}


def test_a_defect_of_ours_is_counted_and_the_next_trace_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_trace_id: str) -> None:
        raise LookupError("a defect")

    with Node(tmp_path) as node:
        with monkeypatch.context() as patched:
            patched.setattr(node.store, "known", broken)
            node.drop("first.json", trace(1))
            wait_for(lambda: node.faults)
            assert node.service.live().trouble == "LookupError: a defect"
        node.drop("second.json", trace(2))
        wait_for(lambda: node.ended("second.json"))
        assert node.service.live().trouble is None


def test_traces_analysed_while_the_store_can_not_write_have_their_report_later(
    tmp_path: Path,
) -> None:
    """Another holds the file locked; the trace stays in the spool until its report is written."""
    with Node(tmp_path) as node:
        with closing(sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            node.drop("late.json", trace(1))
            wait_for(lambda: node.store.live().in_memory == 2)
            assert node.traces() == {}
            other.execute("COMMIT")
        assert node.service.live().spool_bytes > 0
        node.store._queue.flush(at_once=True)
        wait_for(lambda: node.ended("late.json"))
        assert node.traces()["late.json"].state is TraceState.ANALYSED
        assert len(node.documents()) == 1
        assert node.faults == []


_AGENT = """
import sys
from pathlib import Path
from tests.integration.agent.node import Node, SCRIPTED
from tests.waiting import wait_for
with Node(Path(sys.argv[1]), command=SCRIPTED) as node:
    wait_for((node.recorder / "hanging").exists)
    print(node.service.live().worker_pid, flush=True)
    wait_for(lambda: False, within_s=60)
"""


def test_the_worker_ends_with_an_agent_that_is_killed_also_in_the_middle_of_a_trace(
    tmp_path: Path,
) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "recorder").mkdir()
    (tmp_path / "recorder" / str(BASE_S + 1)).write_text("hang")
    (tmp_path / "inbox" / "trace.json").write_bytes(trace(1))
    agent = subprocess.Popen(
        [sys.executable, "-c", _AGENT, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    assert is_alive(pid)
    agent.kill()
    agent.wait()
    agent.stdout.close()
    assert wait_for(lambda: not is_alive(pid)) < 2.0
    (tmp_path / "recorder" / str(BASE_S + 1)).unlink()
    with Node(tmp_path, command=SCRIPTED) as node:
        wait_for(lambda: node.ended("trace.json"))
        assert node.traces()["trace.json"].state is TraceState.ANALYSED


def mode(folder: Path) -> int | None:
    """Its mode; None while it is not there."""
    with suppress(FileNotFoundError):
        return folder.stat().st_mode & 0o7777
    return None


def test_folders_that_are_removed_are_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    with Node(state, command=SCRIPTED) as node:
        for name in ("inbox", "traces", "rejected"):
            (state / name).rename(tmp_path / name)
        modes = {"inbox": 0o1733, "traces": 0o700, "rejected": 0o700}
        wait_for(lambda: all(mode(state / name) == modes[name] for name in modes), "the folders")
        node.drop("fine.json", trace(1))
        wait_for(lambda: node.outcomes() == {"analysed": 1})
    assert "Traceback" not in caplog.text
