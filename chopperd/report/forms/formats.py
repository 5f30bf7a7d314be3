"""The forms in which a report leaves the program, by name; each is imported when asked for."""

from typing import Literal, TypeAlias

from chopperd.model.report import ReportDocument
from chopperd.model.row_parts import FIELDS, By

Format: TypeAlias = Literal["text", "json", "csv"]
BinaryFormat: TypeAlias = Literal["parquet"]


def formatted(
    document: ReportDocument, form: Format, *, by: By | None = None, styled: bool = False
) -> str:
    """The report in one form.

    Args:
        document: The report.
        form: "text", "json" or "csv".
        by: What the text has a table of kernels by, and the CSV is one of, if anything.
        styled: Whether the text has a terminal's escape codes.
    """
    if form == "json":
        from chopperd.report.forms.schema import encode_json  # noqa: PLC0415

        return encode_json(document).decode()
    if form == "csv":
        from chopperd.report.forms.csv_table import render_csv, render_list_csv  # noqa: PLC0415

        return render_list_csv(document, FIELDS[by]) if by else render_csv(document)
    from chopperd.report.text.report import page_text, render_rich  # noqa: PLC0415

    return page_text(render_rich(document, by=by), styled=styled)
