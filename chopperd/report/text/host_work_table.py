"""The table of host time by operation, layer or phase, of traces without device work."""

from typing import Final

from rich.console import Group

from chopperd.model.report import ReportDocument
from chopperd.model.row_parts import PartsBy
from chopperd.model.row_work import UNKNOWN_PART, HostPart
from chopperd.report.text.families import cut
from chopperd.report.text.part_titles import NOTHING_TOLD, SHOWN, TITLES
from chopperd.report.text.sections import table
from chopperd.report.text.wording import count, milliseconds, percent, shorten

_COLUMNS: Final = ("count", "host ms", "%")
_CAPTION: Final = (
    "of traces without device work; host ms: while an operator ran and no operator in it"
)


def host_parts(document: ReportDocument, by: PartsBy, width: int) -> Group | None:
    """The operations, layers or phases with the most host time; None where none is told."""
    members: dict[str, list[HostPart]] = {}
    for trace in document.host:
        for part in getattr(trace, f"by_{by}"):
            members.setdefault(part.name, []).append(part)
    if not members:
        return None
    time_ns = {name: sum(part.host_ns for part in alike) for name, alike in members.items()}
    all_ns = sum(time_ns.values())
    names = sorted(members, key=lambda name: (-time_ns[name], name))
    merged = any(part.merged for alike in members.values() for part in alike)
    rows = [
        (
            shorten(name, max(width - 40, 16)),
            count(sum(part.count for part in members[name])),
            milliseconds(time_ns[name]),
            percent(time_ns[name] / all_ns if all_ns else None),
        )
        for name in names[:SHOWN]
    ]
    title = f"{TITLES[by]}  host, whole file{cut(len(rows), len(names), merged=merged)}"
    caption = NOTHING_TOLD[by].format("operator") if set(names) == {UNKNOWN_PART} else _CAPTION
    return table(title, (f"<{by}", *_COLUMNS), rows, caption=caption)
