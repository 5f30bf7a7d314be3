"""chopperd says how many nanoseconds of which training step the GPU clock cost, and why.

The root stays empty of imports so that ``import chopperd.torch`` costs a job nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from chopperd.report.forms.frames import Report

__version__ = "0.2.0"


def read_report(
    path: "Path | str", *traces: "Path | str", samples: "Path | str | None" = None
) -> "Report":
    """A report as pandas DataFrames: `steps`, `totals`, `families`, `causes`, `summary`, ...

    Args:
        path: What `chopperd report --format json` (also as `.gz`) or `--format parquet` wrote, or a
            Kineto trace, which is reported on with the default settings.
        traces: Further traces of the same job.
        samples: Clock samples of the time of the traces.

    Raises:
        ConfigError: pandas or pyarrow is missing: `pip install 'chopperd[analysis]'`; or samples or
            further traces are given with a finished report.
        StoreError: The file can't be read or is neither a report nor a trace.
        TraceFormatError: None of the traces can be read.
        UnrelatedTracesError: The traces are not of one job.
    """
    from pathlib import Path  # noqa: PLC0415 - the root stays empty of imports

    from chopperd.pipeline.reports import report_traces  # noqa: PLC0415
    from chopperd.report.forms.frames import read_report as read  # noqa: PLC0415
    from chopperd.report.forms.frames import report_of  # noqa: PLC0415

    paths = [Path(each) for each in (path, *traces)]
    document = report_traces(paths, None if samples is None else Path(samples))
    return read(paths[0]) if document is None else report_of(document)
