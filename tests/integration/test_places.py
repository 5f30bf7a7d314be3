"""Where state and sockets are kept, by configuration, user and environment."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from chopperd.config import paths
from chopperd.config.load import load_config
from chopperd.config.paths import (
    readable_runtime_folders,
    readable_state_folders,
    runtime_folder,
    state_folder,
)
from chopperd.config.sections import Config
from chopperd.errors import ConfigError


def config(**folders: Path) -> Config:
    variables = {f"CHOPPERD_PATHS__{name.upper()}": str(path) for name, path in folders.items()}
    return load_config(None, variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    state: Path
    runtime: Path


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    """The system's places, which do not exist; the environment is empty."""
    monkeypatch.setattr(paths, "SYSTEM_STATE", tmp_path / "var")
    monkeypatch.setattr(paths, "SYSTEM_RUNTIME", tmp_path / "run")
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME"):
        monkeypatch.delenv(name, raising=False)
    return System(state=tmp_path / "var", runtime=tmp_path / "run")


@pytest.fixture
def setenv(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    def set_all(variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is not root's."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("root", "system")
def test_what_is_configured_wins(tmp_path: Path) -> None:
    given = config(state=tmp_path / "a", runtime=tmp_path / "b")
    assert state_folder(given) == tmp_path / "a"
    assert runtime_folder(given) == tmp_path / "b"


@pytest.mark.usefixtures("root")
def test_root_takes_the_systems_places_also_where_they_are_yet_to_be_made(system: System) -> None:
    assert state_folder(config()) == system.state
    assert runtime_folder(config()) == system.runtime


@pytest.mark.usefixtures("user")
def test_a_user_takes_the_systems_places_where_they_may_be_written(system: System) -> None:
    system.state.mkdir()
    system.runtime.mkdir()
    assert state_folder(config()) == system.state
    assert runtime_folder(config()) == system.runtime


@pytest.mark.usefixtures("user", "system")
def test_a_user_without_them_takes_his_own(setenv: Callable[[Mapping[str, str]], None]) -> None:
    variables = {"XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r", "HOME": "/home/u"}
    setenv(variables)
    assert state_folder(config()) == Path("/s/chopperd")
    assert runtime_folder(config()) == Path("/r/chopperd")


@pytest.mark.usefixtures("user", "system")
@pytest.mark.parametrize("unusable", [{}, {"XDG_STATE_HOME": "s", "XDG_RUNTIME_DIR": ""}])
def test_variables_that_are_not_set_or_relative_are_passed_over(
    setenv: Callable[[Mapping[str, str]], None], unusable: dict[str, str]
) -> None:
    setenv({"HOME": "/home/u", **unusable})
    own = Path("/home/u/.local/state/chopperd")
    assert state_folder(config()) == own
    assert runtime_folder(config()) == own / "run"


def test_readers_look_where_something_is_system_first(
    system: System, tmp_path: Path, setenv: Callable[[Mapping[str, str]], None]
) -> None:
    setenv({"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    own = tmp_path / "chopperd"
    assert readable_state_folders(config()) == ()
    own.mkdir()
    assert readable_state_folders(config()) == (own,)
    system.state.mkdir()
    system.runtime.mkdir()
    assert readable_state_folders(config()) == (system.state, own)
    assert readable_runtime_folders(config()) == (system.runtime, own)


def test_readers_of_a_configured_place_look_nowhere_else(system: System, tmp_path: Path) -> None:
    system.state.mkdir()
    system.runtime.mkdir()
    given = config(state=tmp_path / "a", runtime=tmp_path / "b")
    assert readable_state_folders(given) == ()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert readable_state_folders(given) == (tmp_path / "a",)
    assert readable_runtime_folders(given) == (tmp_path / "b",)


@pytest.mark.usefixtures("user")
def test_a_user_without_a_home_is_told_what_to_set_and_finds_what_the_system_has(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs under a number that has no name."""
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    for folder_of in (state_folder, runtime_folder):
        with pytest.raises(ConfigError, match=r"paths\.state and paths\.runtime: must be set"):
            folder_of(config())
    assert readable_state_folders(config()) == ()
    system.runtime.mkdir()
    assert readable_runtime_folders(config()) == (system.runtime,)
