"""Scrapes and questions cost the agent no thread and no file."""

from pathlib import Path
from typing import Final

from tests.e2e.agents import RunningAgent, agent_under, now_spec
from tests.e2e.running import wait_for

CALLS: Final = 200
#: Every kind of question; what is not there yet is an answer too.
PATHS: Final = (
    "/api/v1/status",
    "/api/v1/gpus",
    "/api/v1/gpus/3",
    "/api/v1/gpus/3/samples?points=100",
    "/api/v1/jobs",
    "/api/v1/steps",
    "/api/v1/traces",
    "/openapi.json",
)


def test_200_scrapes_and_200_calls_leave_threads_and_files_as_they_were(tmp_path: Path) -> None:
    with agent_under(tmp_path, now_spec()) as agent:
        wait_for("all GPUs", lambda: sum(_up(agent)) == 8)
        for path in PATHS:
            agent.text(path)
        before = _held(agent)
        for number in range(CALLS):
            assert agent.scrape()
            assert agent.text(PATHS[number % len(PATHS)])
        wait_for("connections to close", lambda: _held(agent) == before, 10)
        assert agent.stop() == 0


def _up(agent: RunningAgent) -> list[float]:
    return [value for name, value in agent.scrape().items() if name.startswith("chopperd_gpu_up[")]


def _held(agent: RunningAgent) -> tuple[list[tuple[str, int, int]], int]:
    """Threads and open files of the agent and of its children, by program; and how many."""
    held = []
    for pid in agent.chopperd.processes():
        process = Path("/proc") / str(pid)
        name = process.joinpath("cmdline").read_bytes().split(b"\0")[3].decode()
        held.append((name, _entries(process / "task"), _entries(process / "fd")))
    return sorted(held), len(held)


def _entries(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())
