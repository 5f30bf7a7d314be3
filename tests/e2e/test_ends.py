"""However chopperd ends, it ends soon, with the right status, and leaves nothing behind."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from chopperd import cli
from tests.e2e.running import PYTHON, SLACK, Chopperd
from tests.waiting import settled, wait_for

#: A sampler asked to stop, and whatever waits for it, may take so long.
END_S = 2.0 * SLACK
SLEEP = ("sleep", "60")
RECORD = ("record", "--backend", "simulated", "--hz", "10", "--", *SLEEP)
DEMO = ("demo", "--seconds", "60")


def started(chopperd: Chopperd, arguments: tuple[str, ...]) -> "subprocess.Popen[str]":
    """A command under way: eight GPUs are being sampled, a thread each."""
    process = chopperd.start(*arguments)
    wait_for(lambda: any(_threads(pid) > 8 for pid in chopperd.samplers()), "its sampler")
    if arguments is RECORD:
        wait_for(lambda: _jobs(chopperd), "its job")
    else:
        time.sleep(0.5)  # into the writing of traces, whenever that is
    return process


def _jobs(chopperd: Chopperd) -> list[int]:
    """The processes that run what `RECORD` records."""
    return chopperd.running(SLEEP[0])


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").glob("*")))


def status_after(process: "subprocess.Popen[str]") -> int:
    """The exit status; fails where the end takes too long."""
    begin = time.monotonic()
    process.communicate(timeout=60)
    assert time.monotonic() - begin < END_S
    return process.returncode


@pytest.mark.parametrize("arguments", [RECORD, DEMO])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_the_shells_status(
    number: signal.Signals, arguments: tuple[str, ...], chopperd: Chopperd
) -> None:
    process = started(chopperd, arguments)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    assert status_after(process) == 128 + number
    chopperd.nothing_left(within_s=END_S)


def test_ctrl_c_at_a_terminal_reaches_the_job_once(chopperd: Chopperd) -> None:
    """The terminal signals the job itself; a second signal from us could cut its clean-up short."""
    code = (
        "import signal, sys, time; seen = []; signal.signal(2, lambda *_: seen.append(2));"
        "print('under way', flush=True);"
        "[time.sleep(0.01) for _ in iter(lambda: bool(seen), True)]; time.sleep(1);"
        "sys.exit(10 + len(seen))"
    )
    ours, theirs = os.openpty()
    record = ("record", "--backend", "simulated", "--hz", "10", "--", PYTHON, "-c", code)
    with subprocess.Popen(
        ["setsid", "--ctty", PYTHON, "-m", "chopperd", *record],
        cwd=chopperd.folder,
        env=chopperd.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        while b"under way" not in shown:
            shown += os.read(ours, 1024)
        os.write(ours, b"\x03")
        assert process.wait(timeout=60) == 11
    os.close(ours)


def test_a_killed_demo_leaves_no_sampler_and_no_file(chopperd: Chopperd) -> None:
    process = started(chopperd, DEMO)
    process.kill()
    assert status_after(process) == -signal.SIGKILL
    chopperd.nothing_left(within_s=END_S)


def test_a_killed_record_leaves_the_job_alone_but_no_sampler(chopperd: Chopperd) -> None:
    process = started(chopperd, RECORD)
    (job,) = _jobs(chopperd)
    process.kill()
    # The job holds our standard output, so that there is no end of file to wait for.
    assert process.wait(timeout=60) == -signal.SIGKILL
    wait_for(lambda: chopperd.processes() == [job], "the sampler's end", within_s=END_S)
    os.kill(job, signal.SIGTERM)
    process.communicate(timeout=60)


def test_a_killed_sampler_is_replaced_and_the_recording_goes_on(chopperd: Chopperd) -> None:
    process = started(chopperd, RECORD)
    (first,) = chopperd.samplers()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: chopperd.samplers() not in ([], [first]), "a successor")
    process.send_signal(signal.SIGTERM)
    assert status_after(process) == 128 + signal.SIGTERM


def test_a_job_killed_by_a_signal_gives_the_shells_status(chopperd: Chopperd) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = chopperd.run("record", "--backend", "simulated", "--hz", "10", "--", PYTHON, "-c", code)
    assert done.returncode == 128 + signal.SIGKILL


def test_a_job_inherits_the_standard_streams_and_nothing_else(chopperd: Chopperd) -> None:
    code = "import os; fd = os.open('/', 0); print(fd, os.listdir('/proc/self/fd'))"
    alone = subprocess.run(
        [PYTHON, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    arguments = ("record", "--backend", "simulated", "--hz", "10", "--", PYTHON, "-c", code)
    # Then the report on its samples.
    assert chopperd.run(*arguments).stdout.startswith(alone.stdout + " SIMULATED DATA")


def test_recordings_in_one_process_leave_no_descriptor_thread_or_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["record", "--backend", "simulated", "--hz", "10", "--", "true"]

    def held() -> tuple[list[str], int, int]:
        """Open files, threads, and mapped memory files of this process."""
        targets = [
            str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.exists()
        ]
        threads = len(list(Path("/proc/self/task").iterdir()))
        return sorted(targets), threads, Path("/proc/self/maps").read_text().count("memfd")

    assert cli.run(arguments) == 0
    before = settled(held)
    for _ in range(3):
        assert cli.run(arguments) == 0
    wait_for(lambda: held() == before, f"all to be given back of {before}", END_S)
