"""Public cases about what traces hold, from the file to the document: figures of `expected.md`."""

from pathlib import Path

import pytest

from chopperd.errors import TraceFormatError
from chopperd.model.report import ReportDocument
from chopperd.traces.reader import read_trace
from tests.integration.cases import Cases, codes

pytestmark = pytest.mark.corpus

US = 1000


@pytest.fixture
def cases(shared: Path) -> Cases:
    return Cases(shared)


def windows_us(document: ReportDocument) -> list[tuple[int | None, float, float, bool]]:
    """Number, window, busy time and whether it is a tail, of the steps with a device row."""
    return [
        (row.step, row.window_ns / US, row.busy_ns / US, row.tail)
        for row in document.steps
        if row.window_ns is not None and row.busy_ns is not None
    ]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("rank0.pftrace", "is a Perfetto trace (protobuf)"),
        ("rank0.pftrace.gz", "is a Perfetto trace (protobuf)"),
        ("report1.nsys-rep", "is an Nsight Systems report"),
        ("report1.sqlite", "is an SQLite database"),
    ],
)
def test_case_61_other_formats_are_named_and_what_to_write_instead(
    shared: Path, name: str, what: str
) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(shared / "cases/61-perfetto-native-file" / name)
    assert what in str(caught.value)
    assert "export_chrome_trace('trace.json')" in str(caught.value)


def test_case_69_kernels_a_us_before_their_launch_are_launched_by_it(cases: Cases) -> None:
    document = cases.report(69)
    assert windows_us(document) == [(n, 1000, 400, False) for n in (1, 2, 3)] + [
        (4, 491, 400, True)  # from 4009 to the end of the last kernel at 4500
    ]
    assert not any(row.partial for row in document.steps)
    assert document.trace.unlinked_kernels == 0
    assert codes(document).isdisjoint({"unlinked_records", "launches_without_record"})
