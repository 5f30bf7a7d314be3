"""The page says what the text says, shows hostile names as they are, and asks for nothing."""

import gzip
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256

import msgspec
import pytest
from msgspec.structs import replace

from chopperd.correlate.compared_reports import compare as compare_reports
from chopperd.model.answers import Finding
from chopperd.model.report import Note, ReportDocument
from chopperd.model.report_rows import Dvfs
from chopperd.report.html import embedded
from chopperd.report.html.page import encoded, render_html
from chopperd.report.text.headline import headline
from chopperd.report.text.page import SIMULATED
from chopperd.report.text.report import laid_out
from chopperd.report.text.wording import UNKNOWN
from tests.unit.report.documents import (
    eight_gpus,
    host_only,
    host_timed,
    single_gpu,
    totals_only,
    without_clocks,
)
from tests.unit.report.html.pages import flat, seen
from tests.unit.report.traced import with_names

EVERY = [eight_gpus, single_gpu, without_clocks, totals_only, host_only, host_timed]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b[31m"
FINDING = Finding(
    code="launch.bound",
    title=HOSTILE,
    evidence=(HOSTILE,),
    bound_ns=1_500_000,
    basis="row",
    gpu="5",
    rank=5,
    action="do it",
    command="chopperd report x",
)


@pytest.mark.parametrize("document", EVERY)
def test_the_page_says_what_the_text_says(document: Callable[[], ReportDocument]) -> None:
    """Every clause of the first lines, and every cell of every table, in their own words."""
    words = flat(seen(render_html(document())).words)
    for row in headline(document()):
        assert flat(row.label) in words
        for clause in row.clauses:
            assert flat(clause) in words
    for finding in document().findings:
        for text in (finding.code, finding.title, *finding.evidence, finding.action):
            assert flat(text) in words
        assert flat(finding.command) in words
    for section in (each for part in laid_out(document(), by=None) for each in part):
        if section.title == "NEXT":  # the findings, which are cards here
            continue
        names, rows = section.known_cells()
        for text in [*(name for _, name in names), *(each for row in rows for each in row)]:
            assert flat(text if text != UNKNOWN else "–") in words  # noqa: RUF001
        assert flat(section.caption) in words


def test_what_is_broken_down_is_on_the_page() -> None:
    words = seen(render_html(eight_gpus(), by="family")).words
    assert "sm90_xmma_gemm_bf16bf16" in words
    assert "sm90_xmma_gemm_bf16bf16" not in seen(render_html(eight_gpus())).words


def hostile() -> ReportDocument:
    document = replace(eight_gpus(), findings=(FINDING,))
    document = replace(document, notes=(Note(code="x", text=HOSTILE),))
    trace = replace(document.trace, job=HOSTILE, path=HOSTILE)
    devices = tuple(replace(each, name=HOSTILE) for each in document.devices)
    totals = tuple(
        replace(
            row,
            families=tuple(msgspec.structs.replace(each, name=HOSTILE) for each in row.families),
        )
        for row in document.totals
    )
    return replace(document, trace=trace, traces=(trace,), devices=devices, totals=totals)


def test_hostile_names_are_words() -> None:
    page = render_html(hostile(), by="family")
    found = seen(page)
    assert [each.get("id") for each in found.all("script")] == [
        "rank-keys",
        "chopperd-report",
        None,
    ]
    assert not found.all("img")
    assert not [key for _, each in found.elements for key in each if key.startswith("on")]
    assert "\x1b" not in page
    assert r"<img src=x onerror=alert(2)>\"'&\u001b[31m".replace('\\"', '"') in found.words


def test_names_are_as_the_site_wants_them() -> None:
    """Kernels, operators and layers; hashed ones begin with their class, and are all alike."""
    kernels = [each.name for each in eight_gpus().totals[0].families]
    for by in ("family", "operation", "layer"):
        for names in ("hashed", "classes"):
            page = render_html(with_names(eight_gpus(), names), by=by)
            inside = embedded.taken_out(page.encode()).decode()
            for text in (page, inside):
                assert not [each for each in (*kernels, "layers.0") if each in text]
            assert ("gemm-" in page) == (names == "hashed" and by == "family")


@pytest.mark.parametrize("document", EVERY)
def test_nothing_but_the_page_itself_is_used(document: Callable[[], ReportDocument]) -> None:
    found = seen(render_html(document()))
    (policy,) = [each for each in found.all("meta") if each.get("http-equiv")]
    said = policy["content"]
    assert said is not None
    assert said.startswith("default-src 'none'; ")
    for kind in ("style", "script"):
        text = found.unseen[kind][-1]
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in said
    assert set(re.findall(r"url\(([^)]*)\)", found.unseen["style"][0])) <= {
        *(f"#t-{key}" for key in ("user_limit", "low_utilization", "unexplained")),
        "#hatch",
    }
    for name, attributes in found.elements:
        assert "style" not in attributes
        assert not {"src", "href", "xlink:href"} & attributes.keys(), name


def test_simulated_data_are_marked_before_all_else() -> None:
    document = eight_gpus()
    simulated = replace(document, generated=replace(document.generated, simulated=True))
    assert seen(render_html(simulated)).words.strip().startswith(SIMULATED)
    real = replace(document, generated=replace(document.generated, simulated=False))
    assert SIMULATED not in render_html(real)


def test_the_document_is_inside() -> None:
    for document in (make() for make in EVERY):
        page = render_html(document).encode()
        assert embedded.is_page(page)
        inside = embedded.taken_out(page)
        assert msgspec.json.decode(inside, type=ReportDocument) == msgspec.json.decode(
            msgspec.json.encode(document), type=ReportDocument
        )


def test_a_large_document_is_inside_without_the_lists_of_its_steps() -> None:
    """24 times the rows of eight GPUs, each with names that do not pack."""
    document = eight_gpus()
    many = replace(
        document,
        steps=tuple(
            replace(
                row,
                step=step,
                families=tuple(
                    msgspec.structs.replace(
                        each, name=sha256(f"{step}{row.device}{each.name}".encode()).hexdigest()
                    )
                    for each in document.totals[0].families
                ),
            )
            for step in range(24)
            for row in document.steps
        ),
    )
    inside = msgspec.json.decode(encoded(many), type=ReportDocument)
    assert len(encoded(many)) < len(msgspec.json.encode(many))
    assert inside.steps[0].families != many.steps[0].families
    assert [len(row.families) for row in inside.totals] == [len(r.families) for r in many.totals]
    assert inside.totals[0].window_ns == many.totals[0].window_ns
    of_class = {each.name: each.time_ns for each in inside.steps[0].families}
    sums: dict[str, int] = {}
    for family in many.steps[0].families:
        sums[family.class_] = sums.get(family.class_, 0) + family.time_ns
    assert of_class == sums
    one, other = (compare_reports([[each], [each]], version="0") for each in (inside, many))
    assert one.comparisons == other.comparisons


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda page: page.replace(b'id="chopperd-report"', b'id="other"'), "holds no report"),
        (lambda page: page[: len(page) // 2], "holds no report"),
        (lambda page: page.replace(b"H4sI", b"H4s!"), "damaged"),
        (lambda page: page.replace(b"H4sI", b"AAAA"), "damaged"),
        (lambda page: re.sub(rb"[\w+/=]{400}</script>", b"</script>", page, count=1), "cut off"),
    ],
)
def test_a_damaged_page_is_refused(spoil: Callable[[bytes], bytes], why: str) -> None:
    page = render_html(single_gpu()).encode()
    with pytest.raises(ValueError, match=why):
        embedded.taken_out(spoil(page))


def test_a_page_that_unpacks_to_more_than_any_report_is_refused() -> None:
    data = json.dumps({"a": "0" * 5000}).encode()
    page = b"<!doctype html>" + embedded.element(data).encode()
    assert embedded.taken_out(page, most_bytes=6000) == data
    with pytest.raises(ValueError, match="larger than any report"):
        embedded.taken_out(page, most_bytes=4000)


def test_the_packed_document_is_plain_gzip() -> None:
    (_, packed, _) = seen(render_html(single_gpu())).unseen["script"]
    assert json.loads(gzip.decompress(b64decode(packed)))["schema"] == "chopperd.report/1"


def test_of_very_many_steps_the_last_are_drawn() -> None:
    document = eight_gpus()
    row = replace(document.steps[0], is_critical=True)
    many = replace(document, steps=tuple(replace(row, step=step) for step in range(300)))
    page = seen(render_html(many))
    drawn = [each["data-step"] for each in page.all("g") if "data-step" in each]
    assert drawn == [str(step) for step in range(140, 300)]
    assert "The last 160 of 300 steps." in page.words


def test_steps_whose_numbers_come_twice_are_a_table_only() -> None:
    """Of two runs in one report: a number alone does not say which step it is."""
    document = eight_gpus()
    row = replace(document.steps[0], is_critical=True)
    twice = replace(document, steps=tuple(replace(row, run=run) for run in ("a", "b")))
    page = seen(render_html(twice))
    assert not [each for each in page.all("g") if "data-step" in each]
    assert next(each["id"] for each in page.all("section")) == "steps"


def test_a_step_without_samples_is_hatched_among_others_that_have_some() -> None:
    """Next to a step with a small rest; without any clock, compute is not drawn as a loss."""
    document = eight_gpus()
    row = replace(document.steps[0], is_critical=True)
    lines = row.waterfall_ns
    assert lines is not None
    bare = replace(
        row,
        step=99,
        dvfs=Dvfs(),
        waterfall_ns=replace(
            lines,
            compute_at_ref=None,
            dvfs_loss=None,
            compute_unsampled=(lines.compute_at_ref or 0) + (lines.dvfs_loss or 0),
        ),
    )
    hatched = '<rect[^>]*class="f-compute_unsampled"'
    for steps, count in (((row, bare), 2), ((bare,), 0)):
        page = render_html(replace(document, steps=steps))
        (strip,) = re.findall(r'class="strip".*?class="picks"', page, re.DOTALL)
        assert len(re.findall(hatched, strip)) == count
