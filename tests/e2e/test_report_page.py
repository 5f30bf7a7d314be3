"""The report's page in a real browser: its figures, its widths and colours, hostile names, speed.

The documents are of a simulated job of eight GPUs, of which one is hot, and others made by hand.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Dialog, Page

from chopperd.api.steps import PAGE_POLICY
from chopperd.model.answers import TracedDrop
from chopperd.model.report import ReportDocument
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.report.html import embedded
from chopperd.report.html.page import render_html
from chopperd.report.text import wording as fmt
from tests.browser import Seen, chromium, looking, serious
from tests.fakes.simulated_job import play
from tests.unit.report import documents
from tests.unit.report.html.test_page import HOSTILE, hostile

MS: Final = 1_000_000
Scheme: TypeAlias = Literal["light", "dark"]
PHONE, DESK = 390, 1440
#: What is said to be small, and quick: a report of eight GPUs, and one of 64.
MOST_BYTES, MOST_MS = 300_000, 2000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> ReportDocument:
    """Eight GPUs, twelve steps, the hot one with a drop that began in the middle of a step."""
    job = play("fsdp2-h100", tmp_path_factory.mktemp("job"), seconds=7, warm_s=8.0, seed=1)
    found = report_files(job.paths, samples=job.samples, options=ReportOptions())
    shown = found.timeline[3]
    assert shown.start_unix_ns is not None
    drop = TracedDrop(
        gpu=shown.gpu,
        rank=shown.rank,
        device=shown.device,
        start_unix_ns=shown.start_unix_ns + 200 * MS,
        end_unix_ns=shown.start_unix_ns + 400 * MS,
        duration_ns=200 * MS,
        reference_mhz=1460.0,
        mean_mhz=1275.0,
        lowest_mhz=1230.0,
        lost_ns=25 * MS,
        by_cause_ns={"power_brake": 25 * MS},
        power_w=480.0,
        temperature_c=88.0,
        steps=(shown.step, shown.step),
        classes=(),
        families=(),
    )
    return replace(found, drops=(drop,))


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ReportDocument], str]:
    folder = tmp_path_factory.mktemp("pages")

    def written(document: ReportDocument) -> str:
        path = folder / f"{len(list(folder.iterdir()))}.html"
        path.write_text(render_html(document), encoding="utf-8")
        return path.as_uri()

    return written


@pytest.fixture(scope="module")
def address(document: ReportDocument, page_of: Callable[[ReportDocument], str]) -> str:
    return page_of(document)


def inside(address: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(embedded.taken_out(Path(address.removeprefix("file://")).read_bytes()))


def check_quiet(seen: Seen, address: str) -> None:
    """Nothing was complained of, and nothing asked for but the page."""
    assert seen.complaints == []
    assert [each.split("#")[0] for each in seen.requests] == [address]


def check_fits(page: Page) -> None:
    """Nothing is wider than the window."""
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0


def check_accessible(page: Page) -> None:
    """Nothing on the page is hard to use with a screen reader or a keyboard."""
    assert serious(page) == []


def bars(page: Page) -> Mapping[str, list[str]]:
    """The figures of each rank beside its bar: excess, loss, window."""
    lines = page.evaluate(
        """[...document.querySelectorAll('.bars tbody tr')].map(line => [
             line.dataset.rank,
             ...[...line.querySelectorAll('td.num')].map(cell => cell.textContent)])"""
    )
    return {rank: [" ".join(text.split()) for text in figures] for rank, *figures in lines}


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_is_quiet_and_accessible(
    browser: Browser, address: str, width: int, scheme: Scheme
) -> None:
    with looking(browser, address, width=width, scheme=scheme) as seen:
        check_fits(seen.page)
        check_accessible(seen.page)
        check_quiet(seen, address)
        assert seen.page.locator(".sim").is_visible()


def test_the_figures_are_the_documents(browser: Browser, address: str) -> None:
    """Means of the complete steps by hand, the excess of the run, and those of a chosen step."""
    data = inside(address)
    complete = [row for row in data["steps"] if not (row["tail"] or row["partial"])]
    with looking(browser, address) as seen:
        shown = bars(seen.page)
        assert len(shown) == 8
        for line in data["summary"]["gpus"]:
            rows = [row for row in complete if row["rank"] == line["rank"]]
            lost, window = (
                sum(values) / len(rows)
                for values in (
                    [row["dvfs"]["lost_ns"] for row in rows],
                    [row["window_ns"] for row in rows],
                )
            )
            low, high = line["excess_low_ns_per_step"], line["excess_high_ns_per_step"]
            excess = fmt.milliseconds(line["excess_ns_per_step"])
            assert shown[str(line["rank"])] == [
                f"{excess} {fmt.ms_interval(low, high)}",
                fmt.milliseconds(lost),
                fmt.milliseconds(window),
            ]
        step = complete[10]["step"]
        seen.page.locator(f".picks [data-step='{step}']").click()
        seen.page.wait_for_function(
            "document.querySelector('#ranks .sub').textContent.startsWith('Step')"
        )
        chosen = bars(seen.page)
        for row in (row for row in data["steps"] if row["step"] == step):
            dvfs = row["dvfs"]
            interval = fmt.ms_interval(dvfs["excess_low_ns"], dvfs["excess_high_ns"])
            assert chosen[str(row["rank"])] == [
                f"{fmt.milliseconds(dvfs['excess_ns'])} {interval}",
                fmt.milliseconds(dvfs["lost_ns"]),
                fmt.milliseconds(row["window_ns"]),
            ]
        assert chosen != shown
        seen.page.keyboard.press("Escape")
        seen.page.wait_for_function(
            "!document.querySelector('#ranks .sub').textContent.startsWith('Step')"
        )
        assert bars(seen.page) == shown
        check_quiet(seen, address)


def test_lengths_of_bars_are_the_parts_of_the_step(browser: Browser, address: str) -> None:
    """The solid parts of the hot GPU's bar are its excess, all parts together its window."""
    data = inside(address)
    (line,) = [each for each in data["summary"]["gpus"] if each["stands_out"]]
    with looking(browser, address) as seen:
        widths = seen.page.evaluate(
            """rank => [...document.querySelector(`.bars tr[data-rank='${rank}'] svg`)
               .querySelectorAll('rect')].map(r => [r.className.baseVal, r.width.baseVal.value])""",
            str(line["rank"]),
        )
        causes = {cause for row in data["steps"] for cause in row["dvfs"]["by_cause_ns"]}
        whole = sum(width for _, width in widths)
        solid = sum(width for name, width in widths if name.removeprefix("f-") in causes)
    expected = line["excess_ns_per_step"] / data["summary"]["step_ns"]
    assert solid / whole == pytest.approx(expected, rel=0.01)


def test_the_script_writes_figures_as_the_text_does(browser: Browser, address: str) -> None:
    values = [0, 1, 400, 501, 999_499, 999_500, 12_345_678, 123_456_789, -5_000_000, 98_765_432_100]
    with looking(browser, address) as seen:
        assert seen.page.evaluate("ns => ns.map(each => ms(each))", values) == [
            fmt.milliseconds(each) for each in values
        ]
        low, high = 1_234_567, 987_654_321
        written = seen.page.evaluate("([low, high]) => interval(low, high)", [low, high])
        assert written == f" {fmt.ms_interval(low, high)}"


def test_steps_are_chosen_by_keys(browser: Browser, address: str) -> None:
    with looking(browser, address) as seen:
        page = seen.page
        page.locator(".picks button").first.focus()
        page.keyboard.press("ArrowRight")
        pressed = page.locator(".picks [aria-pressed='true']")
        assert pressed.count() == 1
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("Shift+ArrowRight")
        assert pressed.count() == 3
        page.wait_for_function(
            "document.querySelector('#ranks .sub').textContent.startsWith('Mean')"
        )
        assert {figures[0] for figures in bars(page).values()} == {"\N{EN DASH}"}
        page.keyboard.press("Escape")
        assert pressed.count() == 0


def test_a_step_is_drawn_when_it_is_chosen_with_and_without_scripts(
    browser: Browser, address: str, document: ReportDocument
) -> None:
    other = document.timeline[3]
    for scripts in (True, False):
        with looking(browser, address, scripts=scripts) as seen:
            visible = seen.page.locator("#clock figure:visible")
            assert visible.count() == 1
            seen.page.get_by_text(f"step {other.step}", exact=True).click()
            assert visible.count() == 1
            assert f"step {other.step}:" in (visible.locator("figcaption").text_content() or "")
            assert "drop to 1275 MHz, power brake 100 %" in (visible.text_content() or "")


def test_the_page_reads_without_scripts(browser: Browser, address: str) -> None:
    with looking(browser, address, scripts=False, width=PHONE) as seen:
        words = seen.page.locator("body").inner_text()
        for each in (
            "SIMULATED DATA",
            "GPU 5 IS SLOW",
            "THEN",
            "DO",
            "CLOCK",
            "TRUST",
            "What to do",
        ):
            assert each in words
        assert seen.page.locator("button").count() == 0
        check_quiet(seen, address)


def test_the_document_is_saved_and_commands_are_copied(browser: Browser, address: str) -> None:
    with looking(browser, address) as seen:
        with seen.page.expect_download() as saved:
            seen.page.get_by_role("button", name="Save JSON").click()
        assert json.loads(Path(saved.value.path()).read_text()) == inside(address)
        button = seen.page.locator(".answers [data-copy] button")
        button.click()
        seen.page.wait_for_function(
            "document.querySelector('.answers button').textContent == 'Copied'"
        )
        assert seen.complaints == []


def test_the_agents_policy_leaves_the_page_its_style_and_script(
    browser: Browser, document: ReportDocument
) -> None:
    """As `GET /api/v1/report/latest` answers, with the policy of its header."""
    headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": PAGE_POLICY}
    context = browser.new_context(color_scheme="light")
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda line: complaints.append(line.text))
    page.route("**/*", lambda route: route.fulfill(body=render_html(document), headers=headers))
    page.goto("http://127.0.0.1:9/api/v1/report/latest")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(245, 245, 242)"
    assert page.get_by_role("button", name="Save JSON").is_visible()
    assert complaints == []
    context.close()


def test_on_paper_there_are_no_controls(browser: Browser, address: str) -> None:
    with looking(browser, address, scheme="dark") as seen:
        seen.page.emulate_media(media="print")
        assert seen.page.locator(".sim").is_visible()
        assert seen.page.locator("button:visible").count() == 0
        assert seen.page.locator("#clock figure:visible").count() == 1
        background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)"
        pages = len(re.findall(rb"/Type\s*/Page\b", seen.page.pdf(format="A4")))
        assert 2 <= pages <= 6


def test_hostile_names_are_not_run(
    browser: Browser, page_of: Callable[[ReportDocument], str]
) -> None:
    address = page_of(hostile())
    with looking(browser, address) as seen:
        said: list[str] = []

        def dismissed(dialog: Dialog) -> None:
            said.append(dialog.message)
            dialog.dismiss()

        seen.page.on("dialog", dismissed)
        seen.page.reload()
        assert "<img src=x onerror=alert(2)>" in seen.page.locator("body").inner_text()
        assert said == []
        assert seen.complaints == []
        assert {each.split("#")[0] for each in seen.requests} == {address}
    assert HOSTILE.startswith("</script>")


@pytest.mark.parametrize(
    "made",
    [
        documents.eight_gpus,
        documents.single_gpu,
        documents.without_clocks,
        documents.totals_only,
        documents.host_only,
        documents.host_timed,
    ],
)
def test_documents_with_less_in_them_have_pages_too(
    browser: Browser, page_of: Callable[[ReportDocument], str], made: Callable[[], ReportDocument]
) -> None:
    address = page_of(made())
    with looking(browser, address, width=PHONE) as seen:
        check_fits(seen.page)
        check_accessible(seen.page)
        check_quiet(seen, address)


def test_the_page_of_eight_gpus_is_small(address: str) -> None:
    assert Path(address.removeprefix("file://")).stat().st_size < MOST_BYTES


def test_the_page_of_64_ranks_opens_at_once(
    browser: Browser, document: ReportDocument, page_of: Callable[[ReportDocument], str]
) -> None:
    """The eight ranks eight times over, each with its own number."""
    changes: dict[str, Any] = {
        name: tuple(
            replace(each, rank=8 * times + (each.rank or 0))
            for times in range(8)
            for each in getattr(document, name)
        )
        for name in ("steps", "totals", "devices", "traces")
    }
    many = replace(document, **changes)
    address = page_of(many)
    with looking(browser, address) as seen:
        took_ms = seen.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        assert 0 < took_ms < MOST_MS
        assert seen.page.locator(".bars tbody tr").count() == 64
        check_quiet(seen, address)
