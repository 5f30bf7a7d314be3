"""The live page over a made-up agent, in a real browser: names, empty states, ways in."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import click
import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page

from chopperd.api.app import build_api
from chopperd.cli.commands import app
from chopperd.model.captures import TraceState
from chopperd.model.kinds import Cause
from chopperd.model.live import LiveTotals, NodeSnapshot, Pause, SamplerCondition, SamplerLive
from chopperd.units import NS_PER_S
from tests.browser import Seen, chromium, looking, serious
from tests.fakes.api_services import CAPTURE, TOKEN, FakeAgent, step_row, trace_entry
from tests.fakes.snapshots import full_snapshot
from tests.integration.api.serving import PATIENT_S, loopback, serving

HOSTILE = "<img src=x onerror=\"document.title='owned'\">'\"&amp;" + "x" * 60
Open = Callable[..., Seen]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def show(browser: Browser) -> Iterator[Open]:
    """Opens the page of an agent, at the end of whose address `fragment` stands."""
    with ExitStack() as stack:

        def opened(agent: FakeAgent, fragment: str = "", width: int = 1440) -> Seen:
            listening = loopback()
            host, port = listening.getsockname()
            stack.enter_context(serving(build_api(agent.services()), [listening], PATIENT_S))
            address = f"http://{host}:{port}/{fragment}"
            seen = stack.enter_context(looking(browser, address, width=width))
            seen.page.wait_for_selector("h2")
            return seen

        yield opened


def commands(page: Page) -> list[str]:
    """The commands that the page names."""
    return [each.inner_text() for each in page.query_selector_all(".command code")]


def text_of(page: Page, name: str) -> str:
    return page.get_by_role("region", name=name, exact=True).inner_text()


def test_names_are_shown_as_they_are_and_never_run(show: Open) -> None:
    agent = FakeAgent()
    agent.steps.entries = [trace_entry("0123456789abcdef", job=HOSTILE)]
    agent.steps.rows = [step_row(1, job=HOSTILE)]
    gpu = agent.snapshots.current.gpus[0]
    named = replace(gpu, info=replace(gpu.info, name=HOSTILE), trouble=HOSTILE)
    agent.snapshots.current = replace(agent.snapshots.current, node=HOSTILE, gpus=(named,))
    seen = show(agent, f"#token={TOKEN}", width=390)
    seen.page.wait_for_function("() => document.body.innerText.includes('1 capture')")
    for region in ("Captures", "Jobs"):
        assert HOSTILE in text_of(seen.page, region)
    assert HOSTILE in seen.page.inner_text("header")
    assert seen.page.query_selector_all("img, main script") == []
    assert "owned" not in seen.page.title().replace(HOSTILE, "")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert "token" not in seen.page.url
    assert seen.complaints == []


def test_who_is_not_known_is_told_how_to_be(show: Open) -> None:
    agent = FakeAgent()
    agent.steps.entries = [trace_entry("0123456789abcdef", job="llama")]
    seen = show(agent)
    page = seen.page
    page.wait_for_selector("#token")
    assert "llama" not in page.inner_text("body")
    assert any(each.startswith("ssh -L ") for each in commands(page))
    assert page.query_selector("text=Pause sampling") is None
    assert serious(page) == []
    assert seen.complaints == []  # nothing was asked for that is refused
    page.fill("#token", "wrong-token-of-nobody")
    page.press("#token", "Enter")
    page.wait_for_selector(".wrong")
    assert "not that of api.token_file" in page.inner_text(".wrong")
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    page.wait_for_selector("text=llama")
    assert page.query_selector("text=Pause sampling") is not None


def test_without_a_gpu_it_says_why_and_what_to_run(show: Open) -> None:
    agent = FakeAgent()
    reason = "libnvidia-ml.so.1 not found, so no NVIDIA driver is visible here"
    sampler = SamplerLive(condition=SamplerCondition.UNAVAILABLE, reason=reason)
    agent.snapshots.current = replace(
        agent.snapshots.current, gpus=(), backend_up=False, sampler=sampler
    )
    seen = show(agent, f"#token={TOKEN}")
    seen.page.wait_for_selector("text=No capture yet")
    assert seen.page.inner_text("h1") == "No GPU can be read"
    assert reason in text_of(seen.page, "GPUs")
    named = commands(seen.page)
    assert "chopperd doctor" in named
    check_commands([each for each in named if each.startswith("chopperd ")])
    assert serious(seen.page) == []
    assert seen.complaints == []


def check_commands(named: list[str]) -> None:
    """Commands and options that the page names exist."""
    context = click.Context(app)
    for text in named:
        name, *rest = text.removeprefix("chopperd ").partition(" -- ")[0].split()
        command = app.get_command(context, name)
        assert command is not None, text
        options = {option for each in command.params for option in each.opts}
        assert set(re.findall(r"--[a-z-]+", " ".join(rest))) <= options, text


def test_figures_that_stay_the_same_snapshot_are_not_called_live(show: Open) -> None:
    """The agent goes on answering, but what takes its snapshots does not go on."""
    seen = show(FakeAgent())
    seen.page.wait_for_selector(".strip.stale", timeout=15_000)
    assert "has no new figures" in seen.page.inner_text(".strip.stale")
    assert "stale" in (seen.page.get_attribute("main", "class") or "")
    assert seen.page.title().startswith("not live")
    assert seen.complaints == []


def after(first: NodeSnapshot, seconds: int, excess_s: float, braked_s: float) -> NodeSnapshot:
    """Eight busy GPUs, 0 of them slower; what it lost by a brake and, since, by its power cap."""
    gpus = []
    for gpu in first.gpus:
        is_slow = gpu.info.index == 0
        lost_s = {Cause.POWER_CAP: seconds - braked_s, Cause.POWER_BRAKE: braked_s}
        totals = replace(
            gpu.totals or LiveTotals(),
            sampled_s=100.0 + seconds,
            busy_sampled_s=100.0 + seconds,
            busy_sm_cycles=(100.0 + seconds) * 1.5e9 - is_slow * braked_s * 6e8,
            lost_s={cause: lost * is_slow for cause, lost in lost_s.items()},
        )
        now = replace(
            gpu, totals=totals, excess_s=excess_s * is_slow, excess_ratio=excess_s * is_slow / 10
        )
        gpus.append(now)
    taken_ns = first.taken_unix_ns + seconds * NS_PER_S
    return replace(first, taken_unix_ns=taken_ns, gpus=tuple(gpus))


def test_the_cause_is_that_of_the_seconds_whose_loss_is_shown(show: Open) -> None:
    """By hand: of ten seconds compared, nine under a brake at 900 of 1,500 MHz, 540 MHz below."""
    agent = FakeAgent()
    first = after(full_snapshot(8), 0, 0.0, 0.0)
    agent.snapshots.current = first
    page = show(agent).page
    page.wait_for_selector("section[aria-label=GPUs]")
    for seconds in (10, 18):  # nothing was compared anew at the second
        agent.snapshots.current = after(first, seconds, 3.6, 9.0)
        page.wait_for_selector("text=GPU 0 is slow: 540 MHz below its peers", timeout=15_000)
        page.wait_for_function(f"() => document.body.innerText.includes('08:00:{seconds}')")
        assert "GPU 0 is slow: 540 MHz below its peers" in page.inner_text("h1")
        assert "power brake in 90 % of its loss" in text_of(page, "Why")


def test_the_focus_stays_where_it_is_when_a_row_above_goes(show: Open) -> None:
    agent = FakeAgent()
    analysed = replace(trace_entry("0123456789abcdef"), state=TraceState.ANALYSED, capture=CAPTURE)
    agent.steps.entries = [trace_entry("fedcba9876543210", job="waits"), analysed]
    page = show(agent, f"#token={TOKEN}").page
    page.focus("section[aria-label=Captures] button.link")
    agent.steps.entries = [analysed]
    page.wait_for_selector("section[aria-label=Captures] >> text=waits", state="detached")
    assert page.evaluate("document.activeElement.innerText") == "Text"


def test_a_pause_is_said_and_ended_by_an_administrator(show: Open) -> None:
    agent = FakeAgent()
    pause = Pause(reason="firmware update", until_unix_ns=None)
    agent.snapshots.current = replace(agent.snapshots.current, pause=pause)
    seen = show(agent, f"#token={TOKEN}")
    page = seen.page
    page.wait_for_selector("text=Resume sampling")
    assert page.inner_text("h1") == "Sampling is paused"
    assert "firmware update" in page.inner_text(".problems")
    page.click("text=Resume sampling")
    agent.snapshots.current = replace(agent.snapshots.current, pause=None)
    page.wait_for_selector("text=Pause sampling")
    page.click("text=Pause sampling")
    page.click("text=1 hour")
    page.wait_for_function("() => !document.getElementById('dialog').open")
    assert seen.complaints == []
