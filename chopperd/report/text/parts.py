"""Device work by operation, layer or phase over the whole files, summed over devices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group

from chopperd.model.report import ReportDocument, Row
from chopperd.model.row_parts import PartsBy
from chopperd.model.row_work import UNKNOWN_PART, Part
from chopperd.report.text.families import cut, summed_loss
from chopperd.report.text.part_titles import NOTHING_TOLD, SHOWN, TITLES
from chopperd.report.text.sections import table
from chopperd.report.text.wording import count, known, milliseconds, percent, shorten, spread

_COLUMNS: Final = ("count", "ms", "%", "MHz", "samples", "lost ms")
_SHARED: Final = "ms: sums of durations, and streams overlap"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Parts of one name, of all devices."""

    name: str
    members: tuple[Part, ...]

    @property
    def time_ns(self) -> int:
        """Summed time, not a union."""
        return sum(part.time_ns for part in self.members)


def parts(document: ReportDocument, by: PartsBy, width: int) -> Group | None:
    """The operations, layers or phases with the most time; what is of none has a line too."""
    lines = _lines(part for row in document.totals for part in _parts_of(row, by))
    if not lines:
        return None
    all_ns = sum(line.time_ns for line in lines)
    shown = lines[:SHOWN]
    merged = any(part.merged for line in lines for part in line.members)
    title = f"{TITLES[by]}  whole file{cut(len(shown), len(lines), merged=merged)}"
    rows = [_cells(line, all_ns, width) for line in shown]
    none_told = all(line.name == UNKNOWN_PART for line in lines)
    caption = NOTHING_TOLD[by].format("record") if none_told else _SHARED
    return table(title, (f"<{by}", *_COLUMNS), rows, caption=caption)


def _parts_of(row: Row, by: PartsBy) -> Sequence[Part]:
    if by == "operation":
        return row.by_operation
    return row.by_layer if by == "layer" else row.by_phase


def _lines(found: Iterable[Part]) -> list[_Line]:
    """Parts put together by name, most time first."""
    members: dict[str, list[Part]] = {}
    for part in found:
        members.setdefault(part.name, []).append(part)
    lines = [_Line(name=name, members=tuple(alike)) for name, alike in members.items()]
    return sorted(lines, key=lambda line: (-line.time_ns, line.name))


def _cells(line: _Line, all_ns: int, width: int) -> tuple[str, ...]:
    return (
        shorten(line.name, max(width - 66, 16)),
        count(sum(part.count for part in line.members)),
        milliseconds(line.time_ns),
        percent(line.time_ns / all_ns if all_ns else None),
        spread([part.mean_mhz for part in line.members if known(part.mean_mhz)]),
        count(sum(part.samples for part in line.members)),
        summed_loss(line.members),
    )
