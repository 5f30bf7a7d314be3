"""Reports on the public cases, and what their `expected.md` counts in."""

from pathlib import Path

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.model.samples import SampleSet
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.report.build.clocked_device import JoinOptions
from tests.document_checks import check_document


class Cases:
    """The cases under one folder."""

    def __init__(self, shared: Path) -> None:
        self._folder = shared / "cases"

    def folder(self, number: int) -> Path:
        """Where a case's files lie."""
        (found,) = self._folder.glob(f"{number:02d}-*")
        return found

    def report(
        self,
        number: int,
        *names: str,
        samples: SampleSet | None = None,
        join: JoinOptions | None = None,
    ) -> ReportDocument:
        """The report on a case's traces, checked for what holds for all reports."""
        paths = [self.folder(number) / name for name in names or ("trace.json",)]
        options = ReportOptions(join=join or JoinOptions())
        document = report_files(paths, samples=samples, options=options)
        check_document(document)
        return document


def codes(document: ReportDocument) -> set[str]:
    return {note.code for note in document.notes}


def of_marker(row: Row) -> float:
    """Busy time in percent of the CPU marker."""
    assert row.busy_ns is not None
    assert row.marker_ns is not None
    return 100 * row.busy_ns / row.marker_ns


def of_window(row: Row) -> float:
    """Busy time in percent of the device window."""
    assert row.busy_ns is not None
    assert row.window_ns is not None
    return 100 * row.busy_ns / row.window_ns
