"""Device work by operation, layer or phase over the whole files, summed over devices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rich.console import Group

from chopperd.model.report import ReportDocument, Row
from chopperd.model.row_work import UNKNOWN_PART, Part
from chopperd.report.families import cut, summed_loss
from chopperd.report.sections import table
from chopperd.report.wording import count, known, milliseconds, percent, shorten, spread

_By: TypeAlias = Literal["operation", "layer", "phase"]

_SHOWN: Final = 20
_TITLES: Final[Mapping[_By, str]] = {
    "operation": "OPERATIONS",
    "layer": "LAYERS",
    "phase": "PHASES",
}
_COLUMNS: Final = ("count", "ms", "%", "MHz", "samples", "lost ms")
_NONE_TOLD: Final[Mapping[_By, str]] = {
    "operation": "the trace tells no operator of any record",
    "layer": "the trace tells no module of any record (with_stack=True does)",
    "phase": "the trace tells no phase of any record: it holds no backward pass",
}
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


def parts(document: ReportDocument, by: _By, width: int) -> Group | None:
    """The operations, layers or phases with the most time; what is of none has a line too."""
    lines = _lines(part for row in document.totals for part in _parts_of(row, by))
    if not lines:
        return None
    all_ns = sum(line.time_ns for line in lines)
    shown = lines[:_SHOWN]
    merged = any(part.merged for line in lines for part in line.members)
    title = f"{_TITLES[by]}  whole file{cut(len(shown), len(lines), merged=merged)}"
    rows = [_cells(line, all_ns, width) for line in shown]
    none_told = all(line.name == UNKNOWN_PART for line in lines)
    caption = _NONE_TOLD[by] if none_told else _SHARED
    return table(title, (f"<{by}", *_COLUMNS), rows, caption=caption)


def _parts_of(row: Row, by: _By) -> Sequence[Part]:
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
        shorten(line.name, max(width - 60, 16)),
        count(sum(part.count for part in line.members)),
        milliseconds(line.time_ns),
        percent(line.time_ns / all_ns if all_ns else None),
        spread([part.mean_mhz for part in line.members if known(part.mean_mhz)]),
        count(sum(part.samples for part in line.members)),
        summed_loss([part.lost_ns for part in line.members]),
    )
