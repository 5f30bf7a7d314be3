"""The agent of `demo --stay`: it answers where it says it does, and goes without a trace."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest

from tests.e2e.running import SLACK, Chopperd, complaints
from tests.waiting import wait_for

STAY: Final = ("demo", "--stay", "--seconds", "1")
END_S: Final = 2.0 * SLACK
LAST_LINE: Final = "chopperd report"


@dataclass(frozen=True, slots=True)
class Staying:
    """A demo whose report is out, and what it printed."""

    process: "subprocess.Popen[str]"
    printed: str
    client: Chopperd

    def url(self, name: str) -> str:
        """The address printed under a name."""
        (found,) = re.findall(rf"^{name} +(?:curl )?(http://\S+)$", self.printed, re.MULTILINE)
        return str(found)

    def fetched(self, name: str) -> str:
        """What is answered there."""
        with urlopen(self.url(name), timeout=10) as answer:
            return str(answer.read().decode())

    @property
    def status(self) -> Any:  # noqa: ANN401
        """What the API says of the node."""
        return json.loads(self.fetched("API"))


def staying(chopperd: Chopperd, *more: str) -> Staying:
    """Start a demo and wait for its report; `more` are options of the command."""
    process = chopperd.start(*STAY, *more)
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.rstrip().endswith(LAST_LINE):
            break
    printed = "".join(lines)
    (runtime,) = set(re.findall(r"CHOPPERD_PATHS__RUNTIME=(\S+) ", printed))
    environment = {**chopperd.environment, "CHOPPERD_PATHS__RUNTIME": runtime}
    return Staying(process, printed, replace(chopperd, environment=environment))


@pytest.fixture
def running(chopperd: Chopperd) -> Iterator[Staying]:
    demo = staying(chopperd)
    yield demo
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    _, said = demo.process.communicate(timeout=END_S)
    assert (demo.process.returncode, complaints(said)) == (0, [])


def test_it_answers_where_it_says_it_does(running: Staying) -> None:
    assert running.printed.startswith(" SIMULATED DATA: ")
    wait_for(lambda: running.status["gpus_up"] == 8, "all GPUs")
    wait_for(lambda: 'chopperd_gpu_up{gpu="7"} 1' in running.fetched("metrics"), "their metrics")
    assert "chopperd_agent_simulated 1" in running.fetched("metrics")
    assert running.status["backend"]["simulated"] is True
    assert "<html" in running.fetched("docs")
    _check_commands(running.client)


def _check_commands(client: Chopperd) -> None:
    """The commands that it names, asked over its socket."""
    wait_for(  # the report is out at once, the count with the next snapshot
        lambda: " 8 analysed" in client.run("status").stdout, "its traces to be counted"
    )
    status, top = client.run("status"), client.run("top", "--once")
    for done in (status, top):
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert done.stdout.startswith(" SIMULATED DATA: ")
    gpus = top.stdout.partition("\n\n")[0].splitlines()
    assert len([line for line in gpus if line[:1].isdecimal()]) == 8
    document = client.document("report")
    assert document.generated.simulated
    assert {trace.job for trace in document.traces} == {"demo"}
    listed = json.loads(client.run("steps", "--job", "demo", "--format", "json").stdout)
    assert listed["simulated"] is True
    assert {row["gpu"] for row in listed["steps"]} == {str(index) for index in range(8)}
    assert client.run("metrics").stdout.count("chopperd_gpu_up{") == 8


def test_it_takes_other_ports_where_the_usual_ones_are_taken(chopperd: Chopperd) -> None:
    with ExitStack() as taken:
        for port in (9469, 9470):
            listening = taken.enter_context(socket.socket())
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # somebody else has it
                listening.bind(("127.0.0.1", port))
                listening.listen()
        demo = staying(chopperd)
        ports = {demo.url(name).split(":")[2].split("/")[0] for name in ("metrics", "API")}
        assert len(ports) == 2
        assert ports.isdisjoint({"9469", "9470"})
        assert "chopperd_gpu_up" in demo.fetched("metrics")
        demo.process.send_signal(signal.SIGTERM)
        demo.process.communicate(timeout=END_S)
        assert demo.process.returncode == 0


def test_killed_it_leaves_neither_process_nor_folder(chopperd: Chopperd) -> None:
    demo = staying(chopperd)
    (folder,) = chopperd.temporary.glob("chopperd*")
    assert (folder / "api.sock").is_socket()
    demo.process.kill()
    demo.process.communicate()
    chopperd.nothing_left(within_s=END_S)
    assert not Path(folder).exists()
