"""chopperd says how many nanoseconds of which training step the GPU clock cost, and why.

The root stays empty of imports so that ``import chopperd.torch`` costs a job nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from chopperd.report.forms.frames import Report

__version__ = "0.2.0"


def read_report(path: "Path | str") -> "Report":
    """A finished report as pandas DataFrames: `steps`, `totals`, `families`, `causes`, ...

    Args:
        path: What `chopperd report --format json` (also as `.gz`) or `--format parquet` wrote.

    Raises:
        ConfigError: pandas or pyarrow is missing: `pip install 'chopperd[analysis]'`.
        StoreError: The file can't be read or is no report.
    """
    from pathlib import Path  # noqa: PLC0415 - the root stays empty of imports

    from chopperd.report.forms.frames import read_report as read  # noqa: PLC0415

    return read(Path(path))
