import json
import re

from msgspec.structs import replace
from rich.console import Group

from chopperd.model.captures import JobEntry, TraceState
from chopperd.report.text.lists import (
    critical_rows,
    encode_steps,
    render_drops,
    render_jobs,
    render_steps,
    render_traces,
)
from chopperd.report.text.page import page_text
from chopperd.units import NS_PER_S
from tests.fakes.drops import gpu_drop
from tests.unit.report.documents import row
from tests.unit.store.captures.examples import entry

ROWS = [row(device, step, critical=device == 5) for step in (2, 1) for device in (4, 5)]


def test_each_run_has_a_table_of_its_own() -> None:
    other = replace(row(0, 9), job=None, run=None, rank=None, start=None)
    text = page_text(render_steps([*ROWS, other], simulated=False))
    titles = [line for line in text.splitlines() if line.startswith("STEPS")]
    assert titles == ["STEPS  job llama, run r1, 2023-11-14", "STEPS  job unknown, run unknown"]
    assert text.startswith("STEPS  job llama")
    assert "SIMULATED" not in text


def test_a_row_says_when_it_began_and_whose_it_is() -> None:
    begun = replace(ROWS[0], start="2027-01-15T08:00:00.123456789Z")
    text = page_text(render_steps([begun], simulated=False))
    assert text.splitlines()[0].endswith("2027-01-15")
    (line,) = [line for line in text.splitlines() if line.startswith("08:00:00")]
    # DESIGN's example step: 1412 ms with 131 ms lost.
    assert line.split()[1:5] == ["2", "4", "4", "1412"]
    _nothing_is_cut(text)


def test_no_heading_is_cut_at_any_width() -> None:
    """At 80 columns columns go, `lost` first; what stays is whole, the interval too."""
    long = replace(ROWS[0], window_ns=987_654 * 10**6, compute_ns=987_000 * 10**6, tail=True)
    for width in (80, 100, 140):
        text = page_text(render_steps([long], simulated=False), width=width)
        head, line = text.splitlines()[1:3]
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        assert {"started", "step", "gpu", "window", "idle", "[95", "excess"} <= set(head.split())
        assert line.endswith("tail")


def test_steps_of_several_days_have_their_day() -> None:
    starts = ("2027-01-15T23:59:59.5Z", "2027-01-16T00:00:01.5Z")
    text = page_text(
        render_steps([replace(ROWS[0], start=start) for start in starts], simulated=False)
    )
    assert [line[:11] for line in text.splitlines()[2:4]] == ["01-15 23:59", "01-16 00:00"]
    _nothing_is_cut(text)


def _nothing_is_cut(text: str) -> None:
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text


def test_simulated_steps_are_marked() -> None:
    assert page_text(render_steps(ROWS, simulated=True)).startswith(" SIMULATED DATA: ")


def test_no_step_is_said() -> None:
    assert page_text(render_steps([], simulated=True)) == "no such steps\n"


def test_of_each_step_the_critical_device_is_chosen_where_it_is_known() -> None:
    assert [(each.step, each.device) for each in critical_rows(ROWS)] == [(2, 5), (1, 5)]
    unknown = [replace(each, is_critical=None) for each in ROWS]
    assert critical_rows(unknown) == unknown


def test_in_json_rows_keep_their_published_names_and_unknown_is_null() -> None:
    said = json.loads(encode_steps([replace(ROWS[0], mem_clock_mhz=None)], simulated=None))
    assert said["simulated"] is None
    (only,) = said["steps"]
    assert (only["step"], only["device"], only["mem_clock_mhz"]) == (2, 4, None)


def lines_of(page: Group) -> list[str]:
    return page_text(page).splitlines()


def test_traces_are_listed_with_the_reason_of_each_rejection() -> None:
    taken = replace(entry("rank0.json", state=TraceState.ANALYSED), rank=0)
    bad = replace(entry("x.pftrace", job=None, state=TraceState.REJECTED), reason="is no JSON")
    lines = lines_of(render_traces([taken, bad], simulated=None))
    assert lines[0] == "TRACES"
    cells = [[cell.strip() for cell in re.split(r" {2,}", line)[1:]] for line in lines[2:4]]
    assert cells == [
        ["analysed", "llama", "0", "1000 B", taken.id, taken.name],
        ["rejected", "-", "-", "1000 B", bad.id, bad.name],
    ]
    assert lines[4:] == ["", "WHY", f"{bad.id}  is no JSON"]
    assert lines_of(render_traces([], simulated=True)) == ["no traces"]


def test_jobs_are_listed_with_what_there_is_of_each() -> None:
    """1,800,000,000 s after 1970 are 2027-01-15 08:00:00 UTC."""
    one = JobEntry(
        job="llama",
        runs=(None, "b"),
        traces=1200,
        captures=3,
        first_unix_ns=1_800_000_000 * NS_PER_S,
        last_unix_ns=1_800_000_060 * NS_PER_S,
    )
    lines = lines_of(render_jobs([one], simulated=True))
    assert "SIMULATED" in lines[0]
    assert lines[-1].split() == [
        *("llama", "2", "3", "1,200"),
        *("2027-01-15", "08:00:00", "UTC", "2027-01-15", "08:01:00", "UTC"),
    ]
    assert lines_of(render_jobs([], simulated=False)) == ["no jobs"]


def test_drops_are_listed_with_depth_loss_and_cause() -> None:
    """1350 of 1500 MHz are 10 % below."""
    lines = lines_of(render_drops([gpu_drop(0.0)], simulated=False))
    assert lines[0] == "DROPS"
    assert lines[2].split()[2:] == [
        *("0", "recovered", "5", "s", "1500,", "1350", "10.0", "0.4"),
        *("640,", "700", "70,", "-", "power", "cap"),
    ]
    assert lines_of(render_drops([], simulated=False)) == ["no drops of busy clocks"]
