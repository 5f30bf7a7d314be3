"""Build HTML and SVG so that text from elsewhere is escaped wherever it is put in."""

from collections.abc import Iterable
from html import escape
from re import Match
from re import compile as pattern
from typing import Final, TypeAlias

from chopperd.report.text.wording import UNKNOWN
from chopperd.safe_text import visible

#: What the pages show for a figure that is not known.
NONE: Final = "\N{EN DASH}"
_INTERVAL: Final = pattern(r"\[-?&?[\d<l][^\[\]]{0,40}\]")
_VOID: Final = frozenset({"meta", "br", "hr", "input", "col"})
_SHAPES: Final = frozenset({"rect", "line", "path", "circle"})


class Html(str):
    """Text that is markup already; every other text is escaped where it is put in."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[Content] | None"
Attribute: TypeAlias = str | float | bool | None


def tag(element: str, /, *content: Content, **attributes: Attribute) -> Html:
    """Return an element; `class_` is `class`, other underscores are hyphens, None is left out."""
    shown = "".join(
        f" {key.removesuffix('_').replace('_', '-')}" + ("" if value is True else _value(value))
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _VOID:
        return Html(f"<{element}{shown}>")
    if element in _SHAPES and not content:
        return Html(f"<{element}{shown}/>")
    return Html(f"<{element}{shown}>{joined(content)}</{element}>")


def joined(content: Content) -> Html:
    """Return the pieces in order, escaped unless they are markup."""
    if content is None:
        return Html()
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        return Html(escape(visible(content), quote=False))
    return Html("".join(map(joined, content)))


def _value(value: str | float) -> str:
    text = value if isinstance(value, str) else number(value)
    return f'="{escape(visible(text))}"'


def number(value: float) -> str:
    """Format a number of a drawing: at most two decimals, no needless zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in {"-0", ""} else text


def share(ratio: float) -> str:
    """Format a ratio of a drawing's width as percent."""
    return f"{number(100 * ratio)}%"


def sentence(text: str) -> Html:
    """Return words of a sentence or cell: intervals in grey."""
    return Html(_INTERVAL.sub(_grey, joined(text)))


def _grey(found: Match[str]) -> str:
    return f'<span class="ci">{found[0]}</span>'


def figure(text: str) -> Html:
    """Return a figure as text has it; what is unknown is a dash."""
    if text == UNKNOWN:
        return tag("span", NONE, class_="dash", title="unknown")
    return sentence(text)


def cell(text: str, *, is_left: bool, classes: str = "") -> Html:
    """Return a cell of a table."""
    names = " ".join(filter(None, ("" if is_left else "num", classes)))
    return tag("td", figure(text), class_=names or None)


def copied(command: str) -> Html:
    """Return a command with the place of its copy button."""
    return tag("div", tag("code", command), class_="cmd", data_copy=command)
