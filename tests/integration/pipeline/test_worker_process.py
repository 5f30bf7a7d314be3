"""The worker process by itself: what it takes, how it stands back, when it ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chopperd.ingest.service import worker_command
from chopperd.ingest.worker_process import AnalysisWorker, Loss, Lost
from chopperd.pipeline.reports import Origin, ReportOptions
from chopperd.pipeline.worker import (
    Analyse,
    Analysed,
    Compose,
    Composed,
    Failed,
    Reply,
    Request,
    framed,
)
from tests.integration.agent.node import CLOCK, MIB, trace
from tests.integration.processes import is_alive
from tests.waiting import wait_for


@pytest.fixture
def worker() -> Iterator[AnalysisWorker]:
    """Of this program, idle for at most 0.3 s."""
    command = [*worker_command(256 * MIB), "--in-foreground"]
    own = AnalysisWorker(command, idle_s=0.3, clock=CLOCK)
    yield own
    own.close()


def outcome(worker: AnalysisWorker, request: Request, timeout_s: float = 30.0) -> Reply | Lost:
    worker.ask(request, timeout_s)
    while (found := worker.poll(0.2)) is None:
        pass
    return found


def analyse(path: Path) -> Analyse:
    return Analyse(
        id="id",
        path=str(path),
        origin=Origin(name="rank4.json", job="job"),
        recorder=None,
        options=ReportOptions(names="hashed"),
    )


def test_a_trace_becomes_a_report_and_reports_a_document_without_names(
    worker: AnalysisWorker, tmp_path: Path
) -> None:
    path = tmp_path / "stored"
    path.write_bytes(trace(1, kernel="secret_kernel"))
    analysed = outcome(worker, analyse(path))
    assert isinstance(analysed, Analysed)
    assert (analysed.trace.job, analysed.trace.identity.rank) == ("job", 4)
    assert b"secret" not in analysed.trace.report
    composed = outcome(worker, Compose(reports=(analysed.trace.report,)))
    assert isinstance(composed, Composed)
    (row,) = composed.document.totals
    assert row.busy_ns == 30_000
    assert composed.document.trace.path == "rank4.json"


def test_what_can_not_be_read_is_a_reply_that_names_the_file_and_the_place(
    worker: AnalysisWorker, tmp_path: Path
) -> None:
    path = tmp_path / "stored"
    path.write_bytes(b"  no trace")
    failed = outcome(worker, analyse(path))
    assert failed == Failed(rejected=True, message="rank4.json is not JSON (byte 2)", offset=2)
    gone = outcome(worker, analyse(tmp_path / "absent"))
    assert gone == Failed(
        rejected=True, message="rank4.json can't be read: No such file or directory"
    )
    broken = outcome(worker, Compose(reports=(b"\x01",)))
    assert isinstance(broken, Failed)
    assert not broken.rejected
    assert "a stored report can't be read" in broken.message


def test_it_takes_what_nobody_else_wants_and_goes_first() -> None:
    worker = AnalysisWorker(worker_command(256 * MIB), idle_s=60, clock=CLOCK)
    outcome(worker, Compose(reports=(b"\x01",)))
    pid = worker.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    assert f"{256 * MIB}" in Path(f"/proc/{pid}/limits").read_text()
    assert os.getpriority(os.PRIO_PROCESS, 0) < 19
    worker.close()


def test_it_ends_when_it_is_idle_and_is_there_again_for_the_next(
    worker: AnalysisWorker, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(trace(1))
    outcome(worker, analyse(tmp_path / "a"))
    first = worker.pid
    assert first is not None
    assert worker.poll(0) is None
    assert worker.pid == first
    wait_for(lambda: worker.poll(0) is None and worker.pid is None)
    wait_for(lambda: not is_alive(first))
    assert isinstance(outcome(worker, analyse(tmp_path / "a")), Analysed)
    assert worker.pid != first


def test_one_that_was_interrupted_while_idle_costs_the_next_request_nothing(
    worker: AnalysisWorker, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(trace(1))
    outcome(worker, analyse(tmp_path / "a"))
    worker.interrupt()
    assert isinstance(outcome(worker, analyse(tmp_path / "a")), Analysed)


@pytest.mark.parametrize(
    ("program", "loss", "reason"),
    [
        ("raise SystemExit(3)", Loss.NOT_STARTED, "does not start: status 3"),
        ("import time; time.sleep(60)", Loss.TOO_SLOW, "analysis.timeout_s"),
        ("print('x' * 8, flush=True); input()", Loss.DIED, "talks nonsense"),
        (
            "import os; os.write(1, bytes([12, 0, 0, 0, 129, 164]) + b'type' + b'\\xa5ready')",
            Loss.DIED,
            "died over it (status 0)",
        ),
    ],
)
def test_a_process_that_does_not_reply_is_an_outcome(
    tmp_path: Path, program: str, loss: Loss, reason: str
) -> None:
    worker = AnalysisWorker([sys.executable, "-c", program], idle_s=1, clock=CLOCK)
    lost = outcome(worker, analyse(tmp_path), timeout_s=1.0)
    worker.close()
    assert isinstance(lost, Lost)
    assert lost.how is loss
    assert reason in lost.reason


def test_a_program_that_is_not_there_is_an_outcome(tmp_path: Path) -> None:
    worker = AnalysisWorker([str(tmp_path / "absent")], idle_s=1, clock=CLOCK)
    lost = outcome(worker, analyse(tmp_path))
    worker.close()
    assert isinstance(lost, Lost)
    assert lost.how is Loss.NOT_STARTED


def test_it_ends_quietly_where_nobody_takes_its_reply(tmp_path: Path) -> None:
    """As when the agent is killed while a reply is on its way; its requests are still open."""
    with subprocess.Popen(
        [*worker_command(256 * MIB), "--in-foreground"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)  # it is ready
        process.stdout.close()
        process.stdin.write(framed(analyse(tmp_path / "absent")))
        process.stdin.flush()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
