"""The live page of whole agents in a real browser: its figures, and what it does at faults."""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page

from tests.browser import chromium, forwarded, looking, serious
from tests.e2e.agents import RunningAgent, agent_under, nvml_environment
from tests.e2e.running import Chopperd
from tests.e2e.test_demo_agent import Staying, staying
from tests.fakes.nvml.scenario import GPU_IS_LOST, HANGS, SUCCESS, Scenario, Segment

NONE: Final = "\N{EN DASH}"
SLOW_MS: Final = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Staying]:
    """A demo whose first report is out; read only."""
    running = staying(Chopperd.under(tmp_path_factory.mktemp("page")))
    yield running
    running.process.terminate()
    running.process.communicate(timeout=30)


@pytest.fixture(scope="module")
def address(demo: Staying) -> Iterator[str]:
    """Its page for a user whom it knows, as through `ssh -L`."""
    with forwarded(Path(demo.client.environment["CHOPPERD_PATHS__RUNTIME"]) / "api.sock") as url:
        yield url


def whole(value: float | None) -> str:
    """A number without decimals; halves go up, as the page's do."""
    return NONE if value is None else f"{math.floor(value + 0.5):,}"


def ms(value_ns: float) -> str:
    """At most three significant figures and two decimals."""
    value = value_ns / 1e6
    if value == 0:
        return "0"
    if value < 0.005:
        return "<0.01"
    return f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def per_second(ratio: float | None) -> str:
    """A share of time in ms/s, whole from 100 on, else with a decimal."""
    if ratio is None or ratio == 0:
        return NONE if ratio is None else "0"
    return "<0.1" if ratio < 0.00005 else f"{1000 * ratio:.{0 if ratio >= 0.1 else 1}f}"


#: Has the page keep every answer about the GPUs, by the time of its snapshot.
KEPT: Final = """() => {
  const real = window.fetch;
  window.answers = {};
  window.fetch = async (...asked) => {
    const answer = await real(...asked);
    if (String(asked[0]).endsWith("/gpus")) {
      const copy = await answer.clone().json();
      window.answers[copy.snapshot_unix_ns] = copy;
    }
    return answer;
  };
}"""
SHOWN: Final = """() => {
  const figures = (row) => [...row.querySelectorAll("[data-figure]")]
    .map((cell) => [cell.dataset.figure, cell.firstChild.data]);
  const rows = [...document.querySelectorAll("tbody tr")]
    .filter((row) => row.querySelector("[data-figure]"))
    .map((row) => [row.querySelector("th").innerText, Object.fromEntries(figures(row))]);
  const answer = window.answers[document.getElementById("main").dataset.snapshot] ?? null;
  return {answer, gpus: Object.fromEntries(rows)};
}"""


def test_the_figures_are_those_of_the_api(browser: Browser, address: str) -> None:
    with looking(browser, address) as seen:
        seen.page.wait_for_selector("text=GPU 5 is slow", timeout=SLOW_MS)
        seen.page.evaluate(KEPT)
        compared: set[int] = set()
        while len(compared) < 3:
            seen.page.wait_for_timeout(500)
            shown = seen.page.evaluate(SHOWN)
            if shown["answer"] is not None:
                check_gpus(shown["gpus"], shown["answer"])
                compared.add(shown["answer"]["snapshot_unix_ns"])
        check_steps(seen.page, json.loads(fetched(seen.page, "/api/v1/steps?limit=128"))["steps"])
        assert seen.complaints == []
        assert [each for each in seen.requests if not each.startswith(address)] == []


def check_gpus(shown: dict[str, dict[str, str]], answer: Any) -> None:  # noqa: ANN401
    assert shown.keys() == {str(index) for index in range(8)}
    for gpu in answer["gpus"]:
        figures, reading = shown[gpu["gpu"]], gpu["reading"]
        assert figures["clock"] == whole(reading["sm_clock_mhz"])
        assert figures["temperature"] == whole(reading["temperature_c"])
        assert figures["power"] == whole(reading["power_w"])
        assert figures["busy"] == f"{whole(100 * reading['activity_ratio'])} %"
        assert figures["memory"] == f"{reading['memory_used_bytes'] / 2**30:.1f}"
        assert figures["excess"] == per_second(gpu["excess_live_ratio"])


def fetched(page: Page, path: str) -> str:
    return str(page.evaluate("(path) => fetch(path).then((answer) => answer.text())", path))


def check_steps(page: Page, rows: list[Any]) -> None:
    """The newest step that the table shows is its critical row's."""
    cells = page.locator("section[aria-label=Steps] tbody tr").first.locator("td").all_inner_texts()
    step = int(re.findall(r"\d+", cells[0])[0])
    (row,) = [each for each in rows if each["step"] == step and each["is_critical"]]
    clock, dvfs = row["clock"]["compute"], row["dvfs"]
    assert cells[1] == row["gpu"]
    assert cells[3] == ms(row["window_ns"])
    low, high = (whole(clock[f"{end}_mhz"]) for end in ("low", "high"))
    assert cells[4] == f"{whole(clock['mean_mhz'])} [{low}, {high}]"
    assert cells[5] == ms(dvfs["lost_ns"])
    interval = f"[{ms(dvfs['excess_low_ns'])}, {ms(dvfs['excess_high_ns'])}]"
    assert cells[6] == f"{ms(dvfs['excess_ns'])} {interval}"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_it_fits_is_marked_and_accessible(
    browser: Browser,
    address: str,
    width: int,
    scheme: Any,  # noqa: ANN401
) -> None:
    with looking(browser, address, width=width, scheme=scheme) as seen:
        page = seen.page
        page.wait_for_selector("text=GPU 5 is slow", timeout=SLOW_MS)
        page.wait_for_selector("section[aria-label=Captures] .links")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "SIMULATED DATA" in page.inner_text("#strips")
        assert serious(page) == []
        page.click("section[aria-label=Captures] button.link >> nth=-1")  # the first capture
        page.wait_for_selector("dialog pre")
        assert "GPU 5 IS SLOW" in page.inner_text("dialog pre")
        assert serious(page) == []
        page.keyboard.press("Escape")
        page.wait_for_function(
            "() => document.activeElement.innerText === 'Text'"
        )  # focus came back
        link = page.get_attribute("section[aria-label=Captures] a >> nth=-1", "href")
        assert link is not None
        assert json.loads(fetched(page, link))["schema"].startswith("chopperd.report/")
        assert seen.complaints == []


def test_with_the_agents_token_the_port_shows_jobs_too(browser: Browser, demo: Staying) -> None:
    """The address that `demo` prints ends in its token."""
    with looking(browser, demo.url("page")) as seen:
        seen.page.wait_for_selector("section[aria-label=Captures] .links", timeout=SLOW_MS)
        assert "token" not in seen.page.url
        with seen.page.expect_download() as download:
            seen.page.click("section[aria-label=Captures] a >> nth=-1")
        text = download.value.path().read_text()
        assert "chopperd" in text
        name = download.value.suggested_filename
        assert name.endswith(".html" if text.startswith("<!") else ".json")
        assert seen.complaints == []


def heal(scenario: Scenario) -> None:
    for gpu in scenario.gpus:
        gpu.fails(SUCCESS)


def test_a_lost_and_a_hung_gpu_are_rows_and_an_agent_that_comes_again_is_live_again(
    browser: Browser, nvml_library: Callable[[], Path], tmp_path: Path
) -> None:
    library, scenario = nvml_library(), Scenario(tmp_path / "scenario.bin", gpu_count=4)
    for gpu, watts in zip(scenario.gpus, (303, 313, 305, 298), strict=True):
        gpu.plays(Segment(power_mw=watts * 1000))
    environment = nvml_environment(library, scenario.path)
    with agent_under(tmp_path, None, None, environment) as agent, forwarded(agent.socket) as url:
        try:
            with looking(browser, url) as seen:
                check_faults(seen.page, scenario, agent)
        finally:
            heal(scenario)


def check_faults(page: Page, scenario: Scenario, agent: RunningAgent) -> None:
    page.wait_for_function("() => document.querySelectorAll('[data-figure=power]').length === 4")
    scenario.gpus[2].fails(GPU_IS_LOST)
    page.wait_for_selector("tr.silent", timeout=SLOW_MS)
    assert page.inner_text("h1") == "GPU 2 does not answer"
    assert row(page, "2").startswith("Does not answer")
    scenario.gpus[1].fails(HANGS, "nvmlDeviceGetClockInfo")
    page.wait_for_selector("text=/Driver call .* hangs for 0:/", timeout=SLOW_MS)
    assert "unknown, not 0" in row(page, "1")
    power = page.locator("[data-figure=power]").all_inner_texts()
    assert sorted(each.split(" / ")[0] for each in power) == ["298", "303"]
    assert serious(page) == []
    heal(scenario)
    agent.stop()
    # It still answers while it ends.
    page.wait_for_function("() => document.title.startsWith('not live')", timeout=SLOW_MS)
    page.wait_for_selector(".strip.stale")
    assert "stale" in (page.get_attribute("main", "class") or "")
    agent.start()
    page.wait_for_selector(".strip.stale", state="detached", timeout=SLOW_MS)
    page.wait_for_function(
        "() => document.querySelectorAll('[data-figure=power]').length === 4", timeout=SLOW_MS
    )
    assert page.locator(".live.off").count() == 0


def row(page: Page, gpu: str) -> str:
    """The words of a GPU that has no figures."""
    return (
        page.locator("tbody tr", has=page.locator(f"th:text-is('{gpu}')"))
        .locator("td.silence")
        .inner_text()
    )
