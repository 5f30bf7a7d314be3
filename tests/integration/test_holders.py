"""Who held the GPU idle, in the public traces and in cases 75 to 80, from the file to the row."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chopperd.correlate.holding import HELD_ROWS
from chopperd.correlate.join import join_device
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.traces.read.reader import read_trace
from chopperd.traces.timeline.layout import lay_out
from tests.integration.reference_holders import ANSWERS, NAMES, Answer, in_short, read_anew

pytestmark = pytest.mark.corpus

QUICK = ("hta_a100_nccl_ddp", "hta_mi250_rocm62_minitoy", "tracelens_h100_qwen15_05b")


def report_of(path: Path) -> ReportDocument:
    return report_files([path], samples=None, options=ReportOptions())


def stored(name: str) -> dict[str, Any]:
    answers: dict[str, dict[str, Any]] = json.loads(ANSWERS.read_text())
    return answers[name]


@pytest.mark.parametrize("name", NAMES)
def test_holders_of_the_public_traces_are_those_of_a_walk_over_plain_json(
    shared: Path, name: str
) -> None:
    timeline = lay_out(read_trace(shared / "traces" / f"{name}.json.gz"))
    found = {}
    for device in timeline.devices:
        joined = join_device(
            device, timeline.host_activity, None, None, timeline.collectives, stacks=timeline.stacks
        )
        held = joined.held
        assert held is not None
        answers: Counter[Answer] = Counter()
        columns = (held.window, held.row, held.holder, held.time_ns)
        for window, row, holder, ns in zip(*(each.tolist() for each in columns), strict=True):
            if window == len(device.windows):
                called, _, inner, whole, region = held.holders[holder]
                answers[HELD_ROWS[row], called, inner, whole, region] += ns
        found[str(device.device)] = in_short(answers)
    assert found == stored(name)


@pytest.mark.parametrize("name", QUICK)
def test_the_walk_over_plain_json_gives_what_is_stored(shared: Path, name: str) -> None:
    """`make fuzz` works out all of them again."""
    assert read_anew(shared / "traces", name) == stored(name)


@pytest.mark.parametrize("name", NAMES)
def test_holders_sum_to_the_rows_of_the_waterfall(shared: Path, name: str) -> None:
    document = report_of(shared / "traces" / f"{name}.json.gz")
    rows = [row for row in (*document.steps, *document.totals) if row.device is not None]
    assert rows
    for row in rows:
        assert_sums(row)


def assert_sums(row: Row) -> None:
    waterfall = row.waterfall_ns
    assert waterfall is not None
    for part in HELD_ROWS:
        held = [each for each in row.held if each.row == part]
        assert sum(each.time_ns for each in held) == getattr(waterfall, part), (row.step, part)
        assert all(each.time_ns >= each.in_call_ns for each in held)
        assert all(each.time_ns >= each.late_host_ns + each.host_waits_ns for each in held)


CASES = (
    *("75-idle-autograd-thread", "76-idle-cpu-optimizer", "77-idle-custom-loader"),
    *("78-idle-graph-launch", "79-idle-item-gc-checkpoint", "80-idle-nested-annotations"),
)
NOTHING = "(nothing open)"
FIELDS = {"what_ns": "name", "inner_ns": "inner", "whole_ns": "whole", "region_ns": "region"}


@pytest.mark.parametrize("case", CASES)
def test_cases_are_held_by_whom_a_hand_would_name(shared: Path, case: str) -> None:
    """`expected.json` is worked out by hand; what it calls nothing open is null in the document."""
    folder = shared / "cases" / case
    expected = json.loads((folder / "expected.json").read_text())
    (total,) = report_of(folder / "trace.json").totals
    assert total.window_ns == expected["span_ns"]
    assert_sums(total)
    for key, field in FIELDS.items():
        if key in expected:
            assert sums(total, field) == expected[key], key
    counts: Counter[str] = Counter()
    for each in total.held:
        counts[each.name] += each.count
    assert {name: counts[name] for name in expected.get("count", ())} == expected.get("count", {})
    for part, ns in expected["rows_ns"].items():
        assert row_ns(total, *part.split(".")) == ns, part


def row_ns(row: Row, part: str, call: str | None = None) -> int:
    """The ns of a row, or of what lies in or after its call."""
    held = [each for each in row.held if each.row == part]
    in_call = sum(each.in_call_ns for each in held)
    whole = sum(each.time_ns for each in held)
    return {None: whole, "in_call": in_call, "after_call": whole - in_call}[call]


def sums(row: Row, field: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in row.held:
        after = each.name if each.name in ("(launch latency)", "(device waits)") else NOTHING
        found[getattr(each, field) or after] += each.time_ns
    return dict(found)
