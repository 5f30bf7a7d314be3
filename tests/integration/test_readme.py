"""The README and the pages of docs/ agree with the program."""

import re
from pathlib import Path

import click
import pytest

from chopperd.cli.commands import app
from tests.reference_docs import DOCS, PARTS, generated

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("runbooks/*.md")))
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("page", PARTS)
def test_generated_parts_of_the_pages_are_up_to_date(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert generated(page, text) == text, "generate them again: make reference"


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="the marks of metrics are missing"):
        generated("metrics.md", "# Metrics\n")


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8_000


def test_every_link_between_pages_leads_to_a_file() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


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
    """Text between backquotes, and in blocks of code."""
    block = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
    return [*block.findall(TEXT), *re.findall(r"`([^`\n]+)`", block.sub("", TEXT))]
