"""Lay out the whole page of a report: its head, sections in order, and the document inside."""

import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

import msgspec
from msgspec.structs import replace

from chopperd import palette
from chopperd.model.report import SCHEMA, Breakdown, ReportDocument, without_parts
from chopperd.model.samples import SamplesReport
from chopperd.report.build.privacy import summed
from chopperd.report.html import clocks, embedded, gpus, memory, ranks, steps
from chopperd.report.html.markup import Content, Html, copied, joined, sentence, tag
from chopperd.report.html.tables import panel, room, verdict
from chopperd.report.text import answers, sections
from chopperd.report.text import wording as fmt
from chopperd.report.text.headline import headline
from chopperd.report.text.page import SIMULATED, Section
from chopperd.report.text.report import broken_down, collectives, contention, copies, efficiency
from chopperd.report.text.samples_page import first_rows, samples_tables
from chopperd.report.text.wording import known
from chopperd.safe_text import visible_json

#: The schema is told at the beginning, where readers of files look for it.
_FRAME: Final = (
    '<!doctype html>\n<html lang="en" data-schema="{schema}"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)
#: Nothing may be asked for, and only this page's own style and script count.
_POLICY: Final = (
    "default-src 'none'; style-src '{style}'; script-src '{script}'; "
    "base-uri 'none'; form-action 'none'"
)
_DEVICES_NAMED: Final = 2
_READ: Final = 'chopperd.read_report("a.html")'


def render_html(document: ReportDocument, *, by: Breakdown | None = None) -> str:
    """Render the report as one page; `by` adds tables of work, as in text."""
    rows = headline(document)
    body = [verdict(rows, gpus.gauge(document)), *filter(None, _rooms(document, by))]
    first = rows[0]
    title = f"{first.label}: {first.clauses[0]}" if first.clauses else first.label
    data = encoded(document)
    simulated, facts = document.generated.simulated, _facts(document)
    return _page(title, body, data, schema=SCHEMA, simulated=simulated, facts=facts)


def render_samples_html(report: SamplesReport) -> str:
    """Render a report on samples alone as one page."""
    rows = first_rows(report)
    body = [verdict(rows)]
    body += [panel(f"part-{nth}", each) for nth, each in enumerate(samples_tables(report))]
    made, data = report.generated, visible_json(msgspec.json.encode(report))
    facts = filter(None, (made.node, _moment(made.time)))
    return _page(
        rows[0].label, body, data, schema=report.schema, simulated=made.simulated, facts=facts
    )


def _rooms(document: ReportDocument, by: Breakdown | None) -> Iterator[Html | None]:
    yield steps.strip(document) or _panel("steps", sections.steps(document))
    yield ranks.by_rank(document)
    yield clocks.clock_under_kernels(document)
    yield _panel("job", answers.ranks(document))
    yield gpus.compared(document)
    yield gpus.classes_of(document)
    yield gpus.holders_of(document)
    for nth, each in enumerate(broken_down(document, by)):
        yield _panel(f"by-{nth}", each)
    yield _panel("drops", answers.drops(document))
    yield memory.memory_of(document)
    yield _findings(document)
    yield _further(document, by)
    yield _panel("notes", sections.notes(document))
    yield _panel("from", sections.sources(document))


def _panel(identity: str, section: Section | None) -> Html | None:
    return None if section is None else panel(identity, section)


def _further(document: ReportDocument, by: Breakdown | None) -> Html | None:
    tables = (
        contention(document) if by == "family" else None,
        copies(document),
        collectives(document),
        efficiency(document),
    )
    found = [panel(f"more-{nth}", each) for nth, each in enumerate(tables) if each is not None]
    return joined(found) if found else None


def _findings(document: ReportDocument) -> Html | None:
    """Return a card for each finding: its bound, what it rests on, what to do, and the check."""
    if not document.findings:
        return None
    cards = []
    for each in document.findings:
        bound = f"at most {fmt.brief_ms(each.bound_ns)} ms" if known(each.bound_ns) else None
        cards.append(
            tag(
                "article",
                tag("p", each.code, class_="code"),
                tag("h3", each.title),
                tag("p", bound, class_="amount") if bound else None,
                tag("ul", [tag("li", sentence(text)) for text in each.evidence]),
                tag("p", tag("b", "Do: "), each.action),
                copied(each.command),
                class_="card",
            )
        )
    sub = "By size. Each time is an upper bound for a step; the command verifies it."
    return room("findings", "What to do", sub, tag("div", cards, class_="cards"))


def _facts(document: ReportDocument) -> Iterator[str]:
    trace, made = document.trace, document.generated
    if trace.job:
        yield f"job {trace.job}"
    names = list(dict.fromkeys(each.name for each in document.devices if each.name))
    if names:
        yield f"{len(document.devices)} x {', '.join(names[:_DEVICES_NAMED])}"
    if document.framework.name not in {"none", ""}:
        yield document.framework.name
    numbers = [row.step for row in document.steps if row.step is not None]
    if numbers:
        yield (
            f"steps {min(numbers)} to {max(numbers)}"
            if len(set(numbers)) > 1
            else f"step {numbers[0]}"
        )
    yield from filter(None, (made.node, _moment(made.time)))


def _moment(time: str) -> str:
    """Return an RFC 3339 time to the second."""
    return time if not time.endswith("Z") else f"{time[:10]} {time[11:19]} UTC"


@cache
def _asset(name: str) -> str:
    """Return a file of this room without its comments' lines and indents."""
    text = files("chopperd.report.html").joinpath(name).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


@cache
def _assets() -> tuple[Html, str, str]:
    """Return the meta element of the policy, the style and the script."""
    style = palette.stylesheet() + _asset("base.css") + "\n" + _asset("report.css")
    script = _asset("report.js")
    hashes = {
        name: f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
        for name, text in (("style", style), ("script", script))
    }
    policy = tag("meta", http_equiv="Content-Security-Policy", content=_POLICY.format(**hashes))
    return policy, style, script


def _page(
    title: str, body: Content, data: bytes, *, schema: str, simulated: bool, facts: Iterable[str]
) -> str:
    policy, style, script = _assets()
    mark = tag("div", tag("p", SIMULATED), class_="sim", role="note") if simulated else None
    head = tag(
        "header",
        tag("span", "chopperd report", class_="brand"),
        [tag("span", each) for each in facts],
        tag("span", class_="controls"),
    )
    inside = [tag("code", each) for each in ("chopperd compare a.html b.html", _READ)]
    footer = [tag("span", "The document is inside:"), inside] if schema == SCHEMA else None
    return "".join(
        (
            _FRAME.format(schema=schema),
            policy,
            tag("title", f"{title} · chopperd report"),
            tag("style", Html(style)),
            "</head>\n",
            tag(
                "body",
                Html(palette.patterns()),
                mark,
                head,
                tag("main", body),
                tag("footer", footer),
                Html(embedded.element(data)),
                tag("script", Html(script)),
            ),
            "</html>\n",
        )
    )


# The document inside.

#: A document larger than this, packed, is embedded with less in it.
_MOST_PACKED: Final = 60_000
_DIGITS: Final = 6


def encoded(document: ReportDocument) -> bytes:
    """Return the JSON of the document as it is embedded.

    A large one has one family a class in its steps, which is what `compare` reads of them, and no
    other lists; those of whole files stay. Its fractions have six digits.
    """
    data = msgspec.json.encode(document)
    if len(zlib.compress(data, 1)) > _MOST_PACKED:
        steps = tuple(
            replace(without_parts(row), families=summed(row.families), copies=(), collectives=())
            for row in document.steps
        )
        brief = msgspec.json.encode(replace(document, steps=steps))
        data = msgspec.json.encode(_rounded(msgspec.json.decode(brief)))
    return visible_json(data)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
