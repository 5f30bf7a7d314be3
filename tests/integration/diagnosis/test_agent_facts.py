"""Facts of an agent's folders, addresses and socket, on this machine."""

import os
import socket
from pathlib import Path

import pytest

from chopperd import __version__
from chopperd.config.load import load_config
from chopperd.config.sections import Config
from chopperd.diagnosis import agent_facts
from tests.fakes import api_answers
from tests.fakes.http_agent import FakeAgent, Reply, as_json, problem, serving


def config(tmp_path: Path, **others: str) -> Config:
    variables = {
        "CHOPPERD_PATHS__STATE": str(tmp_path / "state"),
        "CHOPPERD_PATHS__RUNTIME": str(tmp_path),
        "CHOPPERD_METRICS__LISTEN": "",
        "CHOPPERD_API__LISTEN": "",
    }
    return load_config(None, variables | others)


def test_folders_that_are_not_there_yet_can_be_made(tmp_path: Path) -> None:
    state, runtime = agent_facts.folders_of(config(tmp_path))
    assert (state.path, state.problem) == (str(tmp_path / "state"), None)
    assert (runtime.path, runtime.problem) == (str(tmp_path), None)
    assert state.free_ratio is not None
    assert 0 < state.free_ratio < 1
    assert state.least_free_ratio == 0.05
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    state, _ = agent_facts.folders_of(config(tmp_path))
    assert state.problem == f"{tmp_path / 'state'} is not a folder"


def test_what_is_in_the_way_of_the_socket_is_named(tmp_path: Path) -> None:
    (tmp_path / "api.sock").write_text("")
    _, runtime = agent_facts.folders_of(config(tmp_path))
    assert runtime.problem == "api.sock in it is not a socket"
    far = tmp_path / ("x" * 100)
    _, runtime = agent_facts.folders_of(config(tmp_path, CHOPPERD_PATHS__RUNTIME=str(far)))
    assert runtime.problem == "its path is too long for a socket"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_another_user_is_told_from_one_that_can_t_be_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    state, runtime = agent_facts.folders_of(config(tmp_path))
    assert state.problem == f"can't be made in {tmp_path}"
    assert runtime.problem == "this user may not write to it"
    tmp_path.chmod(0o755)


def test_an_address_that_something_listens_on_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = {
            "CHOPPERD_METRICS__LISTEN": f"127.0.0.1:{port}",
            "CHOPPERD_API__LISTEN": "127.0.0.1:0",
        }
        (taken,) = agent_facts.listeners_of(config(tmp_path, **settings))
    assert (taken.key, taken.is_taken) == ("metrics.listen", True)
    (free,) = agent_facts.listeners_of(config(tmp_path, **settings))
    assert not free.is_taken


def test_no_agent_is_no_version_and_no_refusal(tmp_path: Path) -> None:
    found = agent_facts.agent_of(config(tmp_path))
    assert (found.version, found.refusal, found.own_version) == (None, None, __version__)


def test_an_agent_says_its_version_trouble_and_process(tmp_path: Path) -> None:
    fake = FakeAgent({"/api/v1/status": as_json(api_answers.status("the loop stalls"))})
    with serving(fake, tmp_path / "api.sock"):
        found = agent_facts.agent_of(config(tmp_path))
    assert (found.version, found.problem) == ("1.2.3", "the loop stalls")


@pytest.mark.parametrize("reply", [problem(403, "not for you"), as_json({"other": "program"})])
def test_what_refuses_or_is_no_agent_is_there_all_the_same(reply: Reply, tmp_path: Path) -> None:
    with serving(FakeAgent({"/api/v1/status": reply}), tmp_path / "api.sock"):
        found = agent_facts.agent_of(config(tmp_path))
    assert found.version is None
    assert found.refusal


def test_a_pause_file_is_read_whatever_it_holds(tmp_path: Path) -> None:
    settings = config(tmp_path)
    assert agent_facts.pause_of(settings) is None
    (tmp_path / "pause").write_text("reason=maintenance\n")
    found = agent_facts.pause_of(settings)
    assert found is not None
    assert found.reason == "maintenance"
    (tmp_path / "pause").unlink()
    (tmp_path / "pause").mkdir()
    assert agent_facts.pause_of(settings) is not None
