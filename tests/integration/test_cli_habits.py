"""What everyone expects of a command line: completion, examples, near names, hints that work."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from chopperd import cli
from chopperd.cli.commands import app
from chopperd.cli.output import program

NAMES = app.list_commands(click.Context(app))
EXAMPLE = re.compile(r"^    ((?:eval .*)?chopperd .*)$", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder first on PATH with a `chopperd` of this tree."""
    own = tmp_path / "bin" / "chopperd"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m chopperd "$@"\n', encoding="utf-8")
    own.chmod(0o755)
    return own.parent


def completed(folder: Path, words: Sequence[str], script: str | None = None) -> list[str]:
    """What a real bash offers where the last of these words is followed by the Tab key."""
    source = script or 'eval "$(chopperd completion bash)"'
    ask = f"""
        {source}
        COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}
        function=$(complete -p chopperd | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        $function {shlex.quote(words[0])}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", ask],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["chopperd", "re"], ["record", "report"]),
        (["chopperd", "report", "--sam"], ["--samples"]),
        (["chopperd", "report", "--format", "js"], ["json"]),
        (["chopperd", "completion", ""], ["bash", "zsh", "fish"]),
        (["chopperd", "explain", "prof"], ["profiler"]),
    ],
)
def test_a_real_bash_completes(folder: Path, words: list[str], offered: list[str]) -> None:
    assert completed(folder, words) == offered


def test_a_program_that_is_called_by_its_path_is_completed(folder: Path) -> None:
    assert completed(folder, [str(folder / "chopperd"), "demo", "--se"]) == ["--seconds", "--seed"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_CHOPPERD_COMPLETE={shell}_complete" in script
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("name", ["", *NAMES])
def test_every_help_ends_with_two_examples_that_parse(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([*([name] if name else []), "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    head, _, tail = text.rpartition("\n  Examples:\n")
    assert head
    examples = EXAMPLE.findall(tail)
    assert len(examples) == 2
    assert tail.split("\n") == [*(f"    {example}" for example in examples), ""]
    for example in examples:
        call = example.partition(" > ")[0].removeprefix('eval "$(').removesuffix(')"')
        words = shlex.split(call)[1:]
        command = app.get_command(click.Context(app), words[0])
        if command is None:
            assert words == ["--version"]
        else:
            assert not name or words[0] == name
            command.make_context(words[0], words[1:])


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["repotr"], "report"),
        (["report", "--sampels", "x"], "--samples"),
        (["explain", "launch.buond"], "launch.bound"),
    ],
)
def test_what_is_mistyped_names_what_is_spelt_alike(
    arguments: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.lower().partition("did you mean ")[2].strip("'?") == near


@pytest.mark.parametrize("arguments", [["report", "{}"], ["report", "x.json", "--samples", "{}"]])
def test_a_missing_file_names_those_of_its_folder_that_are_spelt_alike(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "k"}]}')
    Path("rank0.trace.json.gz").touch()
    Path("other").touch()
    missing = "rank0.trace.json"
    assert cli.run([each.format(missing) for each in arguments]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert missing in line
    assert line.endswith("No such file or directory; did you mean rank0.trace.json.gz?")


def test_a_missing_folder_has_no_near_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "/nowhere/at/all.json"]) == 4
    assert capsys.readouterr().err.endswith("No such file or directory\n")


def test_hints_name_the_program_as_it_can_be_called(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = folder / "chopperd"
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin")
    assert program(str(own)) == "chopperd"
    monkeypatch.setenv("PATH", "/usr/bin")
    assert program(str(own)) == "bin/chopperd"
    monkeypatch.chdir("/")
    assert program(str(own)) == str(own)


def test_hints_of_a_module_that_was_run_name_the_script_beside_its_python(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `make demo` runs it: `.venv/bin/python -m chopperd demo`, not on PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    module = str(Path(cli.__file__).parent.parent / "__main__.py")
    assert program(module, str(folder / "python3")) == "bin/chopperd"
    (folder / "chopperd").unlink()
    assert program(module, str(folder / "python3")) == f"{folder / 'python3'} -m chopperd"
