"""Say who held the GPU: the means of holders over a report's steps, and the table of them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, TypeAlias

from msgspec import Struct

from chopperd.model.answers import Held
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import OTHER_PARTS, Row
from chopperd.report.build.summary import is_complete
from chopperd.report.text import wording as fmt
from chopperd.report.text.page import Section, table
from chopperd.report.text.wording import UNKNOWN

_Key: TypeAlias = Callable[[Held], str | None]
_whole: Final[_Key] = attrgetter("whole")
_own_name: Final[_Key] = attrgetter("name")
_region: Final[_Key] = attrgetter("region")
#: Entries of kind "none": after the launch call has returned, no host thread holds the device.
LATENCY: Final = "(launch latency)"
DEVICE_WAITS: Final = "(device waits)"
THE_COLLECTIVE: Final = "(the collective)"
_NO_SPANS: Final = "(no host spans)"
#: A row of the waterfall, or a holder, with a smaller share of the step is not worth a line.
_LEAST_RATIO: Final = 0.01
_NAMED: Final = 3
_MOST_LINES: Final = 15
_MOST_HOLDERS: Final = 30
#: Rows of the waterfall that have holders, in a word or two.
ROW_WORDS: Final = {
    "exposed_comm": "communication",
    "idle_launch_call": "launch",
    "idle_allocator": "memory calls",
    "idle_data": "data",
    "idle_sync": "synchronise",
    "idle_launch_prep": "host prepares",
    "idle_other": "no launch known",
    "unknown": "record lost",
}


def used_rows(document: ReportDocument) -> list[Row]:
    """Return the rows that the summary is the mean of: critical devices' steps, or whole files."""
    summary = document.summary
    rows = document.totals if summary is None or summary.basis == "totals" else document.steps
    if summary is not None and summary.basis != "totals":
        rows = tuple(row for row in rows if is_complete(row))
    critical = [row for row in rows if row.is_critical] or list(rows)
    clocked = [row for row in critical if row.dvfs.lost_ns is not None]
    return clocked or critical


class Holders(Struct, frozen=True, kw_only=True):
    """The holders of the rows that a summary is the mean of, with times per step in ns.

    `count` is the number of those rows, `step_ns` their mean window.
    """

    held: tuple[Held, ...]
    count: int
    step_ns: float

    def of(self, row: str) -> list[Held]:
        """Return the holders of a row of the waterfall."""
        return [each for each in self.held if each.row == row]

    def mean_ns(self, those: Iterable[Held], field: str = "time_ns") -> float:
        """Return the mean over the steps of a time of these holders."""
        times_ns: list[int] = [getattr(each, field) for each in those]
        return sum(times_ns) / self.count

    def sums(self, those: Iterable[Held], key: _Key) -> list[tuple[str, float]]:
        """Return the mean time by key, largest first, without holders whose key is None."""
        found: Counter[str] = Counter()
        for each in those:
            if (name := key(each)) is not None:
                found[name] += each.time_ns
        return [(name, time_ns / self.count) for name, time_ns in found.most_common()]


def holders(document: ReportDocument) -> Holders | None:
    """Return the holders behind the summary, else those of its rows if all are shown; else None."""
    summary, rows = document.summary, used_rows(document)
    if summary is None:
        return None
    count, held = summary.steps or len(rows), summary.held
    if not held and count == len(rows):
        held = tuple(each for row in rows for each in row.held)
    return Holders(held=held, count=count, step_ns=summary.step_ns or 0.0) if held else None


def who(found: Holders, those: Sequence[Held]) -> str:
    """Return who held most of these; empty where nobody is known.

    First what holds at least half, by the outermost thing that launches nothing, else the name,
    else the region; then the largest names.
    """
    all_ns = found.mean_ns(those)
    named = [each for each in those if each.name != _NO_SPANS]
    if not named:
        return "the file has no host spans" if those else ""
    half = next(
        (
            (name, time_ns)
            for key in (_whole, _own_name, _region)
            for name, time_ns in found.sums(named, key)[:1]
            if time_ns >= all_ns / 2 and name != OTHER_PARTS
        ),
        None,
    )
    least = at_least(those)
    names = [
        f"{fmt.holder_name(name)} ({least}{fmt.short_ms(time_ns)})"
        for name, time_ns in found.sums(named, _own_name)[: _NAMED + 2]
        if time_ns >= _LEAST_RATIO * found.step_ns and name not in {half and half[0], OTHER_PARTS}
    ][:_NAMED]
    if half is None:
        return f"spread: {', '.join(names)}" if names else ""
    name = fmt.holder_name(half[0])
    where = name if half[0].startswith(fmt.NOTHING_OPEN) else f"in {name}"
    share = f"{least}{fmt.percent(half[1] / all_ns, 0)} % of it {where}"
    return f"{share}; longest: {', '.join(names)}" if names else share


def at_least(those: Sequence[Held]) -> str:
    """Return the mark of times of names that may also be in the entry of the smallest ones."""
    return "≥ " if any(each.name == OTHER_PARTS for each in those) else ""


def who_held_it(document: ReportDocument) -> Section | None:
    """Render the largest holders of each row that takes at least 1 % of the step; None without."""
    found = holders(document)
    if found is None or not found.step_ns:
        return None
    rows: list[tuple[str, ...]] = []
    for row, words in ROW_WORDS.items():
        those = found.of(row)
        least = at_least(those)
        for name, time_ns in found.sums(those, _own_name)[:_NAMED]:
            if time_ns >= _LEAST_RATIO * found.step_ns and name != OTHER_PARTS:
                cells = _line(found, words, name, [e for e in those if e.name == name])
                rows.append((*cells[:2], least + cells[2], *cells[3:]))
    if not rows:
        return None
    columns = ("<while", "~<held by", "ms", "%", "-?~<whole", "-??~<region", "-?late host ms")
    basis = None if document.summary is None else document.summary.basis
    of = "whole file" if basis == "totals" else "a step"
    title = f"WHO HELD IT  critical device, {of}, at least 1 % of it"
    return table(title, columns, rows[:_MOST_LINES])


def _line(found: Holders, words: str, name: str, those: Sequence[Held]) -> tuple[str, ...]:
    time_ns = found.mean_ns(those)
    late_ns = found.mean_ns(those, "late_host_ns")
    return (
        words,
        fmt.brief_name(name),
        fmt.milliseconds(time_ns),
        fmt.percent(time_ns / found.step_ns),
        _most(found, those, _whole),
        _most(found, those, _region),
        fmt.milliseconds(late_ns) if late_ns else UNKNOWN,
    )


def _most(found: Holders, those: Sequence[Held], key: _Key) -> str:
    """Return what holds at least half of these by another key; nothing where that is the name."""
    half_ns = found.mean_ns(those) / 2
    largest = [name for name, time_ns in found.sums(those, key)[:1] if time_ns >= half_ns]
    return fmt.brief_name(largest[0]) if largest and largest[0] != those[0].name else UNKNOWN


def by_holder(document: ReportDocument) -> Section | None:
    """Render who held the devices longest over the whole files; None without any."""
    window_ns = sum(row.window_ns or 0 for row in document.totals)
    groups: defaultdict[tuple[str, str], list[Held]] = defaultdict(list)
    for each in (each for row in document.totals for each in row.held):
        groups[each.row, each.name].append(each)
    if not window_ns or not groups:
        return None
    found = Holders(held=(), count=1, step_ns=float(window_ns))
    order = sorted(groups, key=lambda key: (-found.mean_ns(groups[key]), key))
    rows = [_holder_line(found, key, groups[key]) for key in order[:_MOST_HOLDERS]]
    title = "IDLE  whole file, by who held it"
    if len(order) > _MOST_HOLDERS:
        title += f", the {_MOST_HOLDERS} longest of {fmt.count(len(order))} (--format json)"
    columns = (
        *("<while", "~<held by", "ms", "%", "??count", "-?in call ms"),
        *("-?~<whole", "-??~<region", "-?late host ms"),
    )
    return table(title, columns, rows, caption="%: of the window")


def _holder_line(found: Holders, key: tuple[str, str], those: Sequence[Held]) -> tuple[str, ...]:
    row, name = key
    in_call_ns = sum(each.in_call_ns for each in those)
    line = _line(found, ROW_WORDS.get(row, row), name, those)
    # One that began in another row has no stretch of its own here.
    stretches = max(sum(each.count for each in those), 1)
    in_call = fmt.milliseconds(in_call_ns) if in_call_ns else UNKNOWN
    return (*line[:4], fmt.count(stretches), in_call, *line[4:])
