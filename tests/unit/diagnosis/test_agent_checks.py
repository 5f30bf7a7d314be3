"""Each finding about settings, folders, addresses, the agent and clocks, from its facts."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from chopperd.diagnosis import checks
from chopperd.diagnosis.facts import Agent, Clocks, Facts, Finding, Folder, Listener, Verdict
from chopperd.model.live import Pause
from tests.unit.diagnosis.facts import HEALTHY


def only(check: Callable[[Facts], Iterator[Finding]], facts: Facts) -> Finding:
    (finding,) = check(facts)
    return finding


def test_each_problem_of_the_configuration_is_one() -> None:
    found = list(checks.configuration(replace(HEALTHY, problems=("a", "b"))))
    assert [(each.verdict, each.text) for each in found] == [
        (Verdict.PROBLEM, "a"),
        (Verdict.PROBLEM, "b"),
    ]


def test_a_folder_that_can_t_be_written_to_names_its_key() -> None:
    folder = Folder(what="state", key="paths.state", path="/x", problem="can't be made in /")
    found = only(checks.folders, replace(HEALTHY, folders=(folder,)))
    assert (found.check, found.verdict) == ("state folder", Verdict.PROBLEM)
    assert found.text == "/x: can't be made in /"
    assert found.fix == "let this user write there, or set paths.state"


def test_a_disk_below_the_floor_is_a_problem() -> None:
    folder = replace(HEALTHY.folders[0], free_ratio=0.031)
    found = only(checks.folders, replace(HEALTHY, folders=(folder,)))
    assert (found.verdict, found.text) == (
        Verdict.PROBLEM,
        "/var/lib/chopperd: 3.1 % of its disk is free",
    )


@pytest.mark.parametrize(
    ("agent", "verdict", "text"),
    [
        (HEALTHY.agent, Verdict.OK, "127.0.0.1:1 is in use, and an agent runs"),
        (Agent(own_version="1"), Verdict.PROBLEM, "another program listens at 127.0.0.1:1"),
    ],
)
def test_an_address_is_free_in_use_with_an_agent_or_in_the_way(
    agent: Agent, verdict: Verdict, text: str
) -> None:
    taken = Listener(key="api.listen", address="127.0.0.1:1", is_taken=True)
    found = only(checks.listeners, replace(HEALTHY, agent=agent, listeners=(taken,)))
    assert found.verdict is verdict
    assert found.text.startswith(text)
    free = replace(taken, is_taken=False)
    found = only(checks.listeners, replace(HEALTHY, agent=agent, listeners=(free,)))
    assert (found.verdict, found.text) == (Verdict.OK, "127.0.0.1:1 is free")


@pytest.mark.parametrize(
    ("agent", "verdict", "text"),
    [
        (Agent(own_version="1"), Verdict.OK, "none runs"),
        (Agent(own_version="1", version="1"), Verdict.OK, "1 runs and is healthy"),
        (Agent(own_version="2", version="1"), Verdict.PROBLEM, "1 runs, and this is 2"),
        (Agent(own_version="1", version="1", problem="loop stalls"), Verdict.PROBLEM, "loop"),
        (Agent(own_version="1", refusal="HTTP 403"), Verdict.PROBLEM, "no answer: HTTP 403"),
    ],
)
def test_the_agent_as_it_answers(agent: Agent, verdict: Verdict, text: str) -> None:
    found = only(checks.agent, replace(HEALTHY, agent=agent))
    assert found.verdict is verdict
    assert text in found.text


def test_a_pause_is_a_problem_with_its_reason() -> None:
    assert list(checks.pause(HEALTHY)) == []
    paused = Pause(reason="benchmark of ours", until_unix_ns=None)
    found = only(checks.pause, replace(HEALTHY, pause=paused))
    assert found.verdict is Verdict.PROBLEM
    assert found.text.endswith("benchmark of ours")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_of_the_wall_clock_is_told_from_a_slew(sign: int) -> None:
    """In 10 s the kernel may slew by 5 ms, its 500 ppm; with 1 ms for the reads that is 6 ms."""
    second_ns = 1_000_000_000
    slewed = Clocks(step_ns=sign * 5_900_000, watched_ns=10 * second_ns, synchronised=True)
    assert only(checks.clocks, replace(HEALTHY, clocks=slewed)).verdict is Verdict.OK
    stepped = replace(slewed, step_ns=sign * 6_100_000)
    found = only(checks.clocks, replace(HEALTHY, clocks=stepped))
    assert found.verdict is Verdict.PROBLEM
    assert "6.1 ms in 10.0 s" in found.text


@pytest.mark.parametrize("synchronised", [None, False])
def test_an_unknown_ntp_state_is_said_and_no_problem(synchronised: bool | None) -> None:
    clocks = replace(HEALTHY.clocks, synchronised=synchronised)
    found = only(checks.clocks, replace(HEALTHY, clocks=clocks))
    assert found.verdict is Verdict.UNKNOWN
    assert "clock source tsc" in found.text
