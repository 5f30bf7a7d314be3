"""Read the sides of a comparison: reports in JSON, or traces with their samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chopperd.errors import ConfigError, UnrelatedTracesError
from chopperd.model.report import ReportDocument
from chopperd.pipeline.reports import CHOOSE, Progress, ReportOptions, Samples, report_files
from chopperd.report.forms.schema import read_document
from chopperd.store.samples.files import read_samples
from chopperd.traces.read.sniff import is_kineto, is_report

_EACH: Final = "Traces of one side are one run: write a report on each run, and compare the reports"


def read_side(
    paths: Sequence[Path],
    *,
    samples: Samples,
    options: ReportOptions,
    progress: Progress | None = None,
) -> tuple[ReportDocument, ...]:
    """Return the reports of one side: those in files, and one on all its traces.

    Args:
        paths: Reports in JSON (each is a run), traces (all of one run), and at most one file of
            samples for these.
        samples: Those of traces without a file of samples.
        options: Of reports on traces.
        progress: As of `report_files`.

    Raises:
        ConfigError: There are samples and no trace, or several files of them.
        StoreError, TraceFormatError, UnrelatedTracesError: A file can't be used.
    """
    traces = [path for path in paths if is_kineto(path)]
    reports = [path for path in paths if path not in traces and is_report(path)]
    others = [path for path in paths if path not in traces and path not in reports]
    if len(others) > 1 or (others and not traces):
        listed = ", ".join(map(str, others))
        for path in others:
            read_samples(path)  # says what is wrong with a file that is none
        why = "one file of samples a side" if traces else "samples have no steps: add the traces"
        raise ConfigError([f"{listed}: {why}"])
    found = [read_document(path) for path in reports]
    if traces:
        clocks = read_samples(others[0]) if others else samples
        try:
            of_traces = report_files(traces, samples=clocks, options=options, progress=progress)
        except UnrelatedTracesError as error:
            why = str(error).removesuffix(CHOOSE)
            raise UnrelatedTracesError(f"{why}{_EACH}") from error
        found.append(of_traces)
    return tuple(found)
