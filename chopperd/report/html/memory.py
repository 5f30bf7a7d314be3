"""Draw the memory of one device over its steps: peaks, segment calls, retries, and the clock."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from chopperd.model.memory import RankMemory, StepMemory
from chopperd.model.report import ReportDocument
from chopperd.report.html import drawing
from chopperd.report.html.drawing import svg
from chopperd.report.html.markup import Content, Html, number, tag
from chopperd.report.html.tables import panel
from chopperd.report.text import answers
from chopperd.report.text import wording as fmt
from chopperd.report.text.wording import known

_PEAKS: Final = 110
_CALLS: Final = 40
_CLOCK: Final = 46
_MARGIN: Final = 8
_GIB: Final = 1 << 30
_BARS_TOP: Final = 16
#: Height of a line of words.
_APART: Final = 13
_MOST_NUMBERS: Final = 24
_RETRIED: Final = "\N{BLACK UP-POINTING TRIANGLE}"


def memory_of(document: ReportDocument) -> Html | None:
    """Return the table of memory, and where sizes are known a drawing of who reserves most."""
    table = answers.memory(document)
    if table is None:
        return None
    sized = [each for each in document.memory if each.peak_reserved_bytes and len(each.steps) > 1]
    if not sized:
        return panel("memory", table)
    return panel(
        "memory", table, _drawn(max(sized, key=lambda each: each.peak_reserved_bytes or 0))
    )


def _drawn(memory: RankMemory) -> Html:
    steps = memory.steps
    gpu = f"GPU {memory.gpu}" if memory.gpu is not None else f"device {memory.device}"
    rank = "" if memory.rank is None else f", rank {memory.rank}"
    words = f"{gpu}{rank}, by step, from {fmt.words(memory.source)}"
    lanes = [
        _peaks(steps),
        _calls(steps),
        _line(steps, "busy clock, MHz", _CLOCK, lambda step: step.busy_mean_mhz),
        _numbers(steps),
    ]
    return tag("div", tag("p", f"{words}.", class_="sub"), lanes)


def _lane(label: str, height: int, drawn: Html, marks: Content = None) -> Html:
    """Return a drawing with its name and scale at the left."""
    name = tag("text", label, x=0, y=11, class_="strong")
    return tag("div", svg(height, name, marks), drawn, class_="plot memory")


def _box(steps: Sequence[StepMemory], height: int, *content: Content) -> Html:
    """Return shapes whose x is in steps, from 0, and y in px."""
    view = f"0 0 {len(steps)} {height}"
    return tag(
        "svg", content, class_="box", viewBox=view, height=height, preserveAspectRatio="none"
    )


def _paths(
    values: Sequence[float | None], y: Callable[[float], float]
) -> Iterator[tuple[str, int]]:
    """Yield the path along each stretch of steps with known values, and its first step."""
    begin = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and (values[end] is None) == (values[begin] is None):
            continue
        stretch = [each for each in values[begin:end] if each is not None]
        if stretch:
            levels = "".join(f"V{number(round(y(each), 1))}h1" for each in stretch)
            yield f"M{begin} {number(round(y(stretch[0]), 1))}{levels}", begin
        begin = end


def _peaks(steps: Sequence[StepMemory]) -> Html:
    """Return reserved and allocated peaks in GiB."""
    reserved, allocated = (
        [None if value is None else value / _GIB for value in values]
        for values in (
            [each.peak_reserved_bytes for each in steps],
            [each.peak_allocated_bytes for each in steps],
        )
    )
    top = max(each for each in (*reserved, *allocated) if each is not None) * 1.05 or 1.0

    def y(value: float) -> float:
        return _PEAKS - (_PEAKS - _MARGIN) * value / top

    shapes: list[Html] = []
    for path, begin in _paths(reserved, y):
        shapes.append(tag("path", d=f"{path}V{_PEAKS}H{begin}z", class_="flat"))
        shapes.append(tag("path", d=path, class_="line"))
    shapes += [tag("path", d=path, class_="line dashed") for path, _ in _paths(allocated, y)]
    marks = drawing.ticks(0, top, 4)
    lines = [drawing.line(0, y(mark), 1, y(mark), "grid") for mark in marks]
    last = [(each[-1], name) for each, name in ((reserved, "reserved"), (allocated, "allocated"))]
    names, written = [], 0.0
    for value, name in sorted(last, key=lambda each: -(each[0] or 0.0)):
        if known(value):
            written = max(y(value), written) + _APART
            words = f"{name} {fmt.decimal(value, 1)}"
            names.append(drawing.text(0.995, written, words, anchor="end", classes="over"))
    said = "peaks of reserved and allocated memory, GiB: " + ", ".join(
        f"{name} at most {fmt.decimal(max(some), 1)}"
        for each, name in ((reserved, "reserved"), (allocated, "allocated"))
        if (some := [value for value in each if value is not None])
    )
    scale = [
        tag("text", f"{mark:g}", x="100%", dx=-8, y=y(mark) + 4, text_anchor="end")
        for mark in marks
        if y(mark) > 2 * _MARGIN
    ]
    drawn = svg(_PEAKS, lines, _box(steps, _PEAKS, shapes), names, label=said)
    return _lane("peaks, GiB", _PEAKS, drawn, scale)


def _calls(steps: Sequence[StepMemory]) -> Html | None:
    """Return segment calls as bars, with a mark where an allocation was retried; None without."""
    calls = [
        None if each.segment_allocs is None else each.segment_allocs + (each.segment_frees or 0)
        for each in steps
    ]
    if not any(known(each) for each in calls):
        return None
    most = max(each or 0 for each in calls)
    places = [(nth / len(steps), 1 / len(steps)) for nth in range(len(steps))]
    shapes = [
        _call(step, count, most, *place)
        for step, count, place in zip(steps, calls, places, strict=True)
    ]
    retries = fmt.plural(sum(each.retries or 0 for each in steps), "retry", "retries")
    label = f"segment calls by step, {fmt.count(most)} at most; {retries}"
    base = drawing.line(0, _CALLS - 0.5, 1, _CALLS - 0.5, "axis")
    scale = tag("text", fmt.count(most), x="100%", dx=-8, y=_BARS_TOP + 8, text_anchor="end")
    return _lane("segment calls", _CALLS, svg(_CALLS, base, shapes, label=label), scale)


def _call(step: StepMemory, count: int | None, most: int, left: float, width: float) -> list[Html]:
    """Return the bar of a step's segment calls, hatched where they are not known."""
    x, wide = left + width * 0.3, width * 0.4
    if count is None:
        return [drawing.rect(x, wide, _BARS_TOP, _CALLS - _BARS_TOP, classes="f-unknown")]
    height = (_CALLS - _BARS_TOP) * count / (most or 1)
    said = f"step {step.step}: {fmt.plural(count, 'segment call')}"
    upper = _CALLS - height
    bar = drawing.rect(x, wide, upper, height, classes="f-idle_allocator", title=said)
    middle = left + width / 2
    mark = drawing.text(middle, upper - 2, _RETRIED, anchor="middle", classes="alert")
    return [bar, *([mark] if step.retries else [])]


def _line(
    steps: Sequence[StepMemory], name: str, height: int, value: Callable[[StepMemory], float | None]
) -> Html | None:
    values = [each if known(each) else None for each in map(value, steps)]
    some = [each for each in values if each is not None]
    if not some:
        return None
    low, high = min(some), max(some)
    spread = (high - low) or 1.0

    def y(each: float) -> float:
        return height - _MARGIN - (height - 3 * _MARGIN) * (each - low) / spread

    paths = [tag("path", d=path, class_="line") for path, _ in _paths(values, y)]
    under_name = max(y(high) + 4, 2 * _APART)
    ends = [(high, under_name), (low, max(y(low) + 4, under_name + _APART))][: 1 + (high > low)]
    scale = [
        tag("text", fmt.whole(each), x="100%", dx=-8, y=at, text_anchor="end") for each, at in ends
    ]
    said = f"{name}: {fmt.spread([low, high])}"
    return _lane(name, height, svg(height, _box(steps, height, paths), label=said), scale)


def _numbers(steps: Sequence[StepMemory]) -> Html:
    every = -(-len(steps) // _MOST_NUMBERS)
    count = len(steps)
    words = [
        drawing.text((nth + 0.5) / count, 12, str(step.step), anchor="middle")
        for nth, step in enumerate(steps)
        if nth % every == 0
    ]
    return tag("div", tag("span"), svg(16, words), class_="plot memory")
