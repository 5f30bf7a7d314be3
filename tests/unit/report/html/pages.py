"""What is on a page, as a browser without script would show it."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "input", "col"}
_UNSEEN = {"script", "style", "title"}


@dataclass
class Seen:
    """Elements of a page with their attributes, its words, and the content of what is not shown."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    words: str = ""
    unseen: dict[str, list[str]] = field(default_factory=dict)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for each, attributes in self.elements if each == name]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes what is not open"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in _UNSEEN:
            self.seen.unseen.setdefault(self.open[-1], []).append(data)
        else:
            self.seen.words += data


def seen(page: str) -> Seen:
    """Parse a page; every element must be closed in order."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader.seen


def flat(text: str) -> str:
    """Text without white space, which a page may break anywhere."""
    return "".join(text.split())
