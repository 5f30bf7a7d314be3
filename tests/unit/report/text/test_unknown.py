"""No page prints 0 for what is not known.

Every number that may be unknown is made so; no page then has a 0 that it did not have before.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, get_args, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType

from chopperd.model.captures import DropState, GpuDrop
from chopperd.model.devices import DeviceReading
from chopperd.model.live import LiveTotals
from chopperd.model.report import PARTS_BY
from chopperd.report.text.lists import render_drops, render_steps
from chopperd.report.text.live_pages import live_page, status_page
from chopperd.report.text.page import page_text
from chopperd.report.text.report import render_rich
from tests.fakes.snapshots import full_snapshot
from tests.unit.report.documents import eight_gpus, host_timed, single_gpu

T = TypeVar("T")
ZERO = re.compile(r"(?<![\w.,+-])0(?:\.0+)?(?![\w.,])")


def drop() -> GpuDrop:
    numbers = {
        name: 7.0 for name in GpuDrop.__struct_fields__ if name.endswith(("_s", "_mhz", "_ratio"))
    }
    numbers |= {name: 70.0 for name in ("onset_power_w", "mean_power_w")}
    numbers |= {name: 70.0 for name in ("onset_temperature_c", "mean_temperature_c")}
    texts: dict[str, Any] = {"gpu": "1", "uuid": "u", "cause": "thermal", "lost_by_cause_s": {}}
    times: dict[str, Any] = {"begin_unix_ns": 10**18, "end_unix_ns": 10**18 + 1}
    return GpuDrop(**{**numbers, **texts, **times, "state": DropState.RECOVERED})


#: Kinds of pages by name: each makes what it shows of a record.
PAGES: Mapping[str, tuple[Callable[[], Any], Callable[[Any], RenderableType]]] = {
    "report": (eight_gpus, render_rich),
    "one GPU": (single_gpu, render_rich),
    "host": (host_timed, partial(render_rich, by="layer")),
    **{f"by {by}": (eight_gpus, partial(render_rich, by=by)) for by in ("family", *PARTS_BY)},
    "steps": (eight_gpus, lambda document: render_steps(document.steps, simulated=None)),
    "drops": (drop, lambda one: render_drops([one], simulated=None)),
    "top": (full_snapshot, lambda snapshot: live_page([snapshot])),
    "status": (full_snapshot, lambda snapshot: status_page(snapshot, ())),
}
#: What identifies rows: without it they are other rows.
KEYS = frozenset({"step", "device", "rank", "gpu", "job", "run"})


def blanked(record: T, *, nested: bool) -> T:
    """A record with its numbers unknown that may be; `nested`: whole records that may be, too."""
    assert isinstance(record, Struct)
    hints = get_type_hints(type(record))
    changes: dict[str, Any] = {}
    for name in record.__struct_fields__:
        value, kinds = getattr(record, name), get_args(hints[name])
        may_be_unknown = type(None) in kinds and name not in KEYS
        is_number = not {int, float}.isdisjoint(kinds)
        if may_be_unknown and (is_number or (nested and isinstance(value, Struct))):
            changes[name] = None
        elif isinstance(value, Struct):
            changes[name] = blanked(value, nested=nested)
        elif isinstance(value, tuple):
            changes[name] = tuple(
                blanked(each, nested=nested) if isinstance(each, Struct) else each for each in value
            )
    return replace(record, **changes)


def zeros(page: RenderableType) -> int:
    """How many zeros a page has, those in names of GPUs, which begin lines, not counted."""
    lines = page_text(Group(page), width=160).splitlines()
    return sum(len(ZERO.findall(line.removeprefix("0 "))) for line in lines)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", PAGES)
def test_what_is_not_known_is_never_a_zero(name: str, nested: bool) -> None:
    make, page = PAGES[name]
    known = make()
    unknown = blanked(known, nested=nested)
    if nested and getattr(known, "summary", None) is not None:
        unknown = replace(unknown, summary=blanked(known.summary, nested=True))
    assert unknown != known
    assert zeros(page(unknown)) <= zeros(page(known))


def test_the_search_finds_a_zero() -> None:
    assert [len(ZERO.findall(text)) for text in ("a 0 b", "0.0 %", "10", "0.5", "-", "x0")] == [
        *(1, 1, 0, 0, 0, 0)
    ]


def test_live_totals_and_readings_without_a_value_are_dashes() -> None:
    """A GPU that answers nothing: no figure of it is known."""
    snapshot = full_snapshot()
    gpus = tuple(
        replace(each, reading=DeviceReading(), totals=LiveTotals(), excess_ratio=None)
        for each in snapshot.gpus
    )
    line = next(
        line
        for line in page_text(live_page([replace(snapshot, gpus=gpus)]), width=200).splitlines()
        if line.startswith("1 ")
    )
    assert "0" not in line.split()
