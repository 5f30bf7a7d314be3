"""What the README says of settings and commands is so."""

import json
import re
from pathlib import Path

import click
import pytest

from chopperd.cli.commands import app
from chopperd.config.table import SETTINGS, Setting
from chopperd.model.report_rows import LostKind

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_is_listed_with_its_default(setting: Setting) -> None:
    (line,) = [line for line in README.splitlines() if line.startswith(f"| `{setting.key}` |")]
    shown = "not set" if setting.default is None else f"`{json.dumps(setting.default)}`"
    assert line.split("|")[2].strip() == shown
    assert setting.help in line


def test_every_kind_of_loss_is_listed_with_its_meaning() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    for kind in LostKind:
        assert f"| `{kind.value}` | {kind.meaning} |" in rows


def test_every_command_is_mentioned_and_those_mentioned_exist() -> None:
    commands = _commands().keys()
    code = _code()
    mentioned = {
        word for text in code for word in re.findall(r"^chopperd ([a-z][a-z-]*)", text, re.M)
    }
    assert mentioned - commands == set()
    words = set(re.findall(r"[a-z-]+", " ".join(code)))
    assert commands - words <= {"version"}


def test_every_option_of_a_mentioned_command_exists() -> None:
    commands = _commands()
    for text in _code():
        for name, rest in re.findall(r"^chopperd ([a-z][a-z-]*)(.*)", text, re.M):
            ours = rest.partition(" -- ")[0].partition("#")[0]
            known = {option for each in commands[name].params for option in each.opts}
            assert set(re.findall(r"(?<= )--?[a-z-]+", ours)) <= known, text


def test_every_file_and_make_target_that_is_mentioned_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for text in _code():
        for path in re.findall(r"^(?:docs|helm|dashboards|bench|deploy|chopperd)/\S*$", text, re.M):
            assert (ROOT / path).exists(), path
        for target in re.findall(r"^make ([a-z-]+)", text, re.M):
            assert f"\n{target}:" in makefile, target


def _commands() -> dict[str, click.Command]:
    """All commands by their names."""
    context = click.Context(app)
    found = {name: app.get_command(context, name) for name in app.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def _code() -> list[str]:
    """What stands between backquotes, and in blocks of code."""
    block = re.compile(r"```\n(.*?)```", re.DOTALL)
    return [*block.findall(README), *re.findall(r"`([^`\n]+)`", block.sub("", README))]
