"""Which command lines start the agent without the libraries of the full parser."""

from pathlib import Path

import pytest

from chopperd.cli.agent import AgentOptions, plain_options


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["run"], AgentOptions()),
        (["run", "--config", "/c"], AgentOptions(config=Path("/c"))),
        (["run", "--backend", "nvml"], AgentOptions(backend="nvml")),
        (
            ["run", "--backend", "nvml", "--config", "c"],
            AgentOptions(config=Path("c"), backend="nvml"),
        ),
    ],
)
def test_run_with_its_own_options_is_read_at_once(
    arguments: list[str], options: AgentOptions
) -> None:
    assert plain_options(arguments) == options


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["report", "run"],
        ["--log-json", "run"],
        ["run", "--help"],
        ["run", "--config"],
        ["run", "--config=/c"],
        ["run", "--hz", "10"],
        ["run", "--config", "a", "--config", "b"],
        ["run", "x", "y"],
    ],
)
def test_anything_else_is_left_to_the_full_parser(arguments: list[str]) -> None:
    assert plain_options(arguments) is None
