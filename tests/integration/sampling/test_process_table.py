"""The table of processes: on processes of this machine, and on files written as the kernel does."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopperd.clock import SystemClock
from chopperd.model.devices import GpuInfo, GpuProcess, Vendor
from chopperd.model.samples import ProcessRow
from chopperd.sampling.memory.slow_state import SlowState
from chopperd.sampling.process_table import ProcessTable, descendants, merged_processes
from tests.waiting import wait_for

S = 1_000_000_000
SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


@contextmanager
def running(*command: str, **env: str) -> Iterator[int]:
    """The pid of a command that has begun, with these variables and no others."""
    with subprocess.Popen(command, env=env) as process:
        try:
            wait_for(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
            yield process.pid
        finally:
            process.kill()


def own(rows: tuple[ProcessRow, ...], pid: int) -> ProcessRow:
    (row,) = [row for row in rows if row.pid == pid]
    return row


def test_what_proc_shows_of_a_process_is_read_while_it_lives() -> None:
    table, before_ns = ProcessTable(SystemClock()), time.time_ns()
    env = {"CUDA_VISIBLE_DEVICES": "3", "LOCAL_RANK": "1", "SECRET": "x", "HOSTNAME": "pod"}
    with running(*SLEEP, **env) as pid:
        row = own(table.update({pid: {"GPU-3": 7}}), pid)
        assert row.ns_pids == (pid,)
        assert row.gpus == {"GPU-3": 7}
        assert row.visible == {"CUDA_VISIBLE_DEVICES": "3", "LOCAL_RANK": "1"}
        assert row.hosts == (os.uname().nodename, "pod")
        assert row.container is False
        assert row.gone_unix_ns is None
        assert row.listed_unix_ns is not None
        assert abs((row.started_unix_ns or 0) - before_ns) < 5 * S
        # More memory on another GPU; less on the first.
        row = own(table.update({pid: {"GPU-3": 5, "GPU-0": None}}), pid)
        assert row.gpus == {"GPU-3": 7, "GPU-0": None}
    ended = own(table.update({}), pid)
    assert ended.gone_unix_ns is not None
    assert ended.visible == {"CUDA_VISIBLE_DEVICES": "3", "LOCAL_RANK": "1"}
    assert table.update({}) == ()
    assert table.rows() == (ended,)


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace takes root")
def test_a_process_in_a_namespace_has_the_pid_that_it_knows_itself_by() -> None:
    with running("unshare", "-p", "-f", "--mount-proc", *SLEEP, PATH=os.environ["PATH"]) as pid:
        wait_for(lambda: bool(descendants(pid)))
        (child,) = descendants(pid)
        assert child in descendants(os.getpid())
        row = own(ProcessTable(SystemClock()).update({}, [child]), child)
        assert row.ns_pids == (child, 1)
        assert row.own_pid == 1
        assert row.container is False, "its files are ours"


def write(proc: Path, pid: int, ticks: int, environ: bytes | None = b"A=1\0") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["S", *["0"] * 18, str(ticks), "0"]
    (folder / "stat").write_text(f"{pid} (a name) with ) odd) {' '.join(fields)}\n")
    (folder / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\n")
    if environ is not None:
        (folder / "environ").write_bytes(environ)


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    table = ProcessTable(SystemClock(), tmp_path)
    write(tmp_path, 7, 1_000)
    table.update({7: {"GPU-1": 1}})
    write(tmp_path, 7, 5_000)
    table.update({7: {"GPU-2": 1}})
    first, second = table.rows()
    assert first.gone_unix_ns == second.started_unix_ns
    assert (second.started_unix_ns or 0) - (first.started_unix_ns or 0) == pytest.approx(
        4_000 * S / os.sysconf("SC_CLK_TCK"), abs=S
    )
    assert (list(first.gpus), list(second.gpus)) == (["GPU-1"], ["GPU-2"])


@pytest.mark.parametrize("environ", [None, b"", b"CUDA_VISIBLE_DEVICES=" + b"0," * 4096 + b"\0"])
def test_an_environment_that_is_not_readable_is_unknown_and_not_empty(
    tmp_path: Path, environ: bytes | None
) -> None:
    write(tmp_path, 7, 1_000, environ)
    (row,) = ProcessTable(SystemClock(), tmp_path).update({7: {}})
    assert row.visible is None
    write(tmp_path, 8, 1_000)
    (row,) = ProcessTable(SystemClock(), tmp_path).update({8: {}})
    assert row.visible == {}


def test_a_process_that_can_not_be_seen_is_kept_without_a_start(tmp_path: Path) -> None:
    table = ProcessTable(SystemClock(), tmp_path)
    (row,) = table.update({4711: {"GPU-1": 5}})
    assert (row.ns_pids, row.started_unix_ns, row.visible) == ((), None, None)
    assert row.gpus == {"GPU-1": 5}
    (row,) = table.update({})
    assert row.gone_unix_ns is not None


def test_the_table_is_bounded_and_forgets_what_ended_first(tmp_path: Path) -> None:
    table = ProcessTable(SystemClock(), tmp_path)
    for pid in range(1000, 1700):
        table.update({pid: {}})
    assert len(table.rows()) == 512
    assert table.rows()[-1].pid == 1699


def aside(at_mono_ns: int | None, *processes: GpuProcess) -> SlowState:
    return SlowState(processes_mono_ns=at_mono_ns, processes=processes)


def test_only_a_new_list_is_taken_over(tmp_path: Path) -> None:
    gpus = [
        GpuInfo(gpu=str(n), index=n, uuid=uuid, name="H100", vendor=Vendor.NVIDIA)
        for n, uuid in enumerate(["GPU-a", ""])
    ]
    write(tmp_path, 7, 1_000)
    table = ProcessTable(SystemClock(), tmp_path)
    assert table.follow(gpus, [aside(None), aside(None)]) == ()
    lists = [aside(5, GpuProcess(pid=7, memory_used_bytes=3)), aside(6, GpuProcess(pid=7))]
    (row,) = table.follow(gpus, lists)
    assert row.gpus == {"GPU-a": 3, "1": None}
    assert table.follow(gpus, lists) == ()
    assert len(table.follow(gpus, [lists[0], aside(7)])) == 1


def row(pid: int, started_s: float | None, **changes: object) -> ProcessRow:
    started_ns = None if started_s is None else round(started_s * S)
    return replace(ProcessRow(pid=pid, started_unix_ns=started_ns), **changes)


def test_rows_of_one_process_are_one_and_the_next_of_its_pid_ends_it() -> None:
    """As chunks of a recorder hold them; the agent was started again in between."""
    env: Mapping[str, str] = {"LOCAL_RANK": "0"}
    noted = [
        row(7, 100, gpus={"a": 5}, visible=env, listed_unix_ns=110 * S),
        row(8, 100, gone_unix_ns=150 * S),
        row(7, 100.5, gpus={"a": 3, "b": 9}, listed_unix_ns=120 * S),
        row(7, 200, gpus={"c": 1}),
        row(9, None),
        row(9, None, gpus={"d": None}),
    ]
    first, second, eight, nine = merged_processes(noted)
    assert (first.gpus, first.visible, first.listed_unix_ns) == ({"a": 5, "b": 9}, env, 120 * S)
    assert (first.started_unix_ns, first.gone_unix_ns) == (100 * S, 200 * S)
    assert (second.started_unix_ns, second.gone_unix_ns) == (200 * S, None)
    assert eight.gone_unix_ns == 150 * S
    assert nine.gpus == {"d": None}
