"""`top` at a terminal, sampling by itself: keys and interrupts end it, and nothing is left."""

import os
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.running import PYTHON, SLACK, Chopperd, complaints
from tests.waiting import wait_for

END_S = 2.0 * SLACK


@dataclass(frozen=True, slots=True)
class AtTerminal:
    """`top` on a terminal of its own, of which we hold the other end."""

    process: "subprocess.Popen[bytes]"
    ours: int
    theirs: int

    def shown_until(self, text: bytes) -> bytes:
        """All that is shown until a text."""
        shown = b""
        while text not in shown:
            shown += os.read(self.ours, 4096)
        return shown


@contextmanager
def at_terminal(chopperd: Chopperd) -> Iterator[AtTerminal]:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (30, 110))
    command = [PYTHON, "-m", "chopperd", "top", "--backend", "simulated"]
    try:
        with subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            cwd=chopperd.folder,
            env={**chopperd.environment, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            yield AtTerminal(process, ours, theirs)
            assert process.wait(timeout=60) == 0
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("key", [b"q", b"\x1b", b"\x03"], ids=["q", "escape", "Ctrl-C"])
def test_a_key_ends_it_and_the_terminal_is_as_before(key: bytes, chopperd: Chopperd) -> None:
    with at_terminal(chopperd) as top:
        before = termios.tcgetattr(top.theirs)
        shown = top.shown_until(b"power cap")
        assert b"SIMULATED DATA" in shown
        assert chopperd.samplers()
        os.write(top.ours, key)
        top.shown_until(b"\x1b[?1049l")  # back from the alternate screen
        wait_for(lambda: top.process.poll() is not None, "the end", END_S)
        assert termios.tcgetattr(top.theirs) == before
    chopperd.nothing_left(within_s=END_S)


def test_a_pipe_gets_one_table(chopperd: Chopperd, tmp_path: Path) -> None:
    nowhere = {"CHOPPERD_PATHS__RUNTIME": str(tmp_path / "none"), "CHOPPERD_API__LISTEN": ""}
    alone = replace(chopperd, environment={**chopperd.environment, **nowhere})
    done = alone.run("top", "--backend", "simulated")
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    assert done.stdout.count("GPUS") == 1
    assert "\x1b" not in done.stdout
