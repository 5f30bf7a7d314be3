"""Tables of operations, layers and phases: sums over devices, what is unknown, what is cut."""

import pytest
from msgspec.structs import replace

from chopperd.model.report import (
    PARTS_BY,
    By,
    HostPart,
    HostTime,
    ReportDocument,
    has_parts,
    without_parts,
)
from chopperd.model.report_rows import UNKNOWN_PART, Part
from chopperd.report.text.report import render_text
from tests.unit.report.documents import MS, eight_gpus, host_only, part, single_gpu


def documented(by: By, *devices: tuple[Part, ...]) -> ReportDocument:
    """A document whose devices have these parts."""
    document = eight_gpus() if len(devices) > 1 else single_gpu()
    return replace(
        document,
        totals=tuple(
            replace(
                row,
                by_operation=parts if by == "operation" else (),
                by_layer=parts if by == "layer" else (),
                by_phase=parts if by == "phase" else (),
            )
            for row, parts in zip(document.totals, devices, strict=False)
        ),
    )


def block(document: ReportDocument, by: By, title: str) -> list[str]:
    """The lines of the table; nothing where the page has none."""
    blocks = render_text(document, by=by).split("\n\n")
    return next((each.splitlines() for each in blocks if each.startswith(title)), [])


def test_layers_are_summed_over_devices_most_time_first() -> None:
    """1500 of 2000 ms are layer 1's: 75 %; 100 ms of it lost at 1720 and 1800 MHz."""
    first = (part("layers.1", 1000, 60), part(UNKNOWN_PART, 500, None))
    second = (replace(part("layers.1", 500, 40), mean_mhz=1800.0),)
    assert block(documented("layer", first, second), "layer", "LAYERS") == [
        "LAYERS  whole file",
        "layer      count    ms     %        MHz  samples  lost ms",
        "layers.1      80  1500  75.0  1720-1800       60      100",
        "(unknown)     40   500  25.0          -        0        -",
        "ms: sums of durations, and streams overlap",
    ]


def test_a_partly_unknown_loss_is_a_lower_bound() -> None:
    document = documented("phase", (part("backward", 300, 40),), (part("backward", 300, None),))
    assert block(document, "phase", "PHASES")[2].endswith(" ≥ 40.0")


def test_the_20_operations_with_the_most_time_are_shown_with_long_names_shortened() -> None:
    parts = tuple(part(f"aten::{'very_long_' * 8}{n}", 100 - n) for n in range(30))
    lines = block(documented("operation", parts), "operation", "OPERATIONS")
    assert lines[0] == "OPERATIONS  whole file, 20 with the most time of 30 (--format json)"
    assert len(lines) == 1 + 1 + 20 + 1
    assert max(map(len, lines)) <= 100
    assert "…" in lines[2]


@pytest.mark.parametrize(
    ("by", "title", "why"),
    [
        ("operation", "OPERATIONS", "no operator of any record"),
        ("layer", "LAYERS", "no module of any record"),
        ("phase", "PHASES", "no phase of any record"),
    ],
)
def test_where_nothing_is_told_the_table_says_why(by: By, title: str, why: str) -> None:
    lines = block(documented(by, (part(UNKNOWN_PART),)), by, title)
    assert lines[2].split()[:4] == ["(unknown)", "40", "500", "100.0"]
    assert why in lines[-1]


def test_one_table_is_shown_and_only_on_request() -> None:
    document = documented("layer", (part("layers.0"),))
    assert "LAYERS" not in render_text(document)
    assert "LAYERS" not in render_text(document, by="family")
    assert "FAMILIES" not in render_text(document, by="layer")
    assert "PHASES" not in render_text(document)


def host_time(**lists: tuple[HostPart, ...]) -> HostTime:
    return HostTime(job=None, run=None, rank=0, **lists)


def test_a_trace_without_device_work_says_so() -> None:
    """In place of the table that was asked for."""
    for by in PARTS_BY:
        assert "no device work in the trace" in render_text(host_only(), by=by).splitlines()
    two = replace(host_only(), traces=host_only().traces * 2)
    assert "no device work in the traces" in render_text(two, by="family").splitlines()


def test_a_report_that_does_not_show_its_names_says_so() -> None:
    (_, why) = block(documented("layer", ()), "layer", "LAYERS")
    assert why.startswith("not in this report: names are not shown (privacy.names)")


def test_without_device_work_the_hosts_time_is_shown_and_called_so() -> None:
    """3 and 1 ms of layer 0 in two traces, 1 ms of no known layer: 80 % and 20 %."""
    first = host_time(by_layer=(HostPart(name="layers.0", count=5, host_ns=3 * MS),))
    second = host_time(
        by_layer=(
            HostPart(name="layers.0", count=2, host_ns=MS),
            HostPart(name=UNKNOWN_PART, count=7, host_ns=MS),
        )
    )
    document = replace(host_only(), host=(first, second))
    assert block(document, "layer", "LAYERS") == [
        "LAYERS  host, whole file",
        "layer      count  host ms     %",
        "layers.0       7     4.00  80.0",
        "(unknown)      7     1.00  20.0",
        "of traces without device work; host ms: while an operator ran and no operator in it",
    ]
    assert "no device work in the trace" in render_text(document, by="family")


def test_where_the_trace_tells_no_module_the_hosts_table_says_why() -> None:
    untold = host_time(by_layer=(HostPart(name=UNKNOWN_PART, count=7, host_ns=MS),))
    lines = block(replace(host_only(), host=(untold,)), "layer", "LAYERS")
    assert lines[-1] == "the trace names no module of any operator (with_stack=True does)"


def test_a_row_without_parts_has_none_of_the_lists() -> None:
    row = replace(single_gpu().totals[0], by_layer=(part("a"),), by_phase=(part("forward"),))
    bare = without_parts(row)
    assert (bare.families, bare.by_operation, bare.by_layer, bare.by_phase) == ((), (), (), ())
    assert bare.window_ns == 1412 * MS
    assert without_parts(bare) == bare


def test_where_a_line_holds_several_the_title_says_more_than_there_are_lines() -> None:
    parts = [part(f"aten::op{n}", 100 - n) for n in range(20)]
    other = replace(part("(other)", 1000), merged=40)
    lines = block(documented("operation", (other, *parts)), "operation", "OPERATIONS")
    assert (
        lines[0] == "OPERATIONS  whole file, 20 with the most time of more than 21 (--format json)"
    )
    assert lines[2].split()[:2] == ["(other)", "40"]


def test_a_report_has_work_by_what_its_totals_or_its_hosts_have() -> None:
    of_device = documented("layer", (part("layers.1", 1000, 60),))
    assert has_parts(of_device, "layer")
    assert not has_parts(of_device, "drop")
    assert not has_parts(of_device, "phase")
    of_host = replace(
        of_device,
        totals=(),
        steps=(),
        host=(
            HostTime(
                job=None,
                run=None,
                rank=0,
                by_phase=(HostPart(name="forward", count=1, host_ns=MS),),
            ),
        ),
    )
    assert has_parts(of_host, "phase")
    assert not has_parts(of_host, "layer")
    assert not has_parts(of_host, "family")
