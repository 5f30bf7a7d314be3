"""Encode the report document as JSON, and give its published JSON Schema (draft 2020-12)."""

import gzip
import sys
import zlib
from inspect import cleandoc
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from chopperd.errors import StoreError
from chopperd.model.report import SCHEMA, Breakdown, LostKind, ReportDocument
from chopperd.report.html.embedded import is_page, taken_out
from chopperd.safe_text import visible_json

SCHEMA_FILE: Final = "report.schema.json"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_Json: TypeAlias = "dict[str, _Json] | list[_Json] | str | int | float | bool | None"


def encode_json(document: ReportDocument) -> bytes:
    """Encode the document as indented UTF-8 JSON; unknown is `null`, as are NaN and infinity."""
    return visible_json(msgspec.json.format(msgspec.json.encode(document), indent=2)) + b"\n"


def read_document(path: Path) -> ReportDocument:
    """Read a report that was written as JSON, also compressed by gzip, or as HTML.

    Raises:
        StoreError: The file can't be read or is no such report.
    """
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
    except (EOFError, zlib.error) as error:
        raise StoreError(f"{path}: the gzip data is cut off or damaged") from error
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror or error}") from error
    try:
        return msgspec.json.decode(taken_out(text) if is_page(text) else text, type=ReportDocument)
    except (msgspec.DecodeError, ValueError) as error:
        message = f"{path}: not a report of chopperd (report --format json or html): {error}"
        raise StoreError(message) from error


def report_schema() -> dict[str, _Json]:
    """Return the JSON Schema of `ReportDocument`; keys it does not name are allowed."""
    schema = msgspec.json.schema(ReportDocument)
    schema["$defs"]["ReportDocument"]["properties"]["schema"] = {"const": SCHEMA}
    schema["$defs"]["TraceSummary"]["properties"]["lost"] = _lost()
    definitions = {name: _with_clean_description(body) for name, body in schema["$defs"].items()}
    return {
        "$schema": _DIALECT,
        "$id": SCHEMA,
        "title": SCHEMA,
        "$ref": schema["$ref"],
        "$defs": definitions,
    }


def encode_schema() -> bytes:
    """Encode the schema as the bytes of the published file."""
    return msgspec.json.format(msgspec.json.encode(report_schema()), indent=2) + b"\n"


def _lost() -> dict[str, _Json]:
    kinds: dict[str, _Json] = {
        kind.value: {"type": "integer", "minimum": 1, "description": kind.meaning}
        for kind in LostKind
    }
    return {
        "type": "object",
        "properties": kinds,
        "additionalProperties": {"type": "integer"},
        "default": {},
    }


def _with_clean_description(definition: dict[str, _Json]) -> dict[str, _Json]:
    """Dedent the description: it is a docstring, which Python versions indent differently."""
    description = definition.get("description")
    if not isinstance(description, str):
        return definition
    return {**definition, "description": cleandoc(description)}


if __name__ == "__main__":
    sys.stdout.buffer.write(encode_schema())


# The forms in which a report leaves the program, by name; each is imported when asked for.

Format: TypeAlias = Literal["text", "markdown", "json", "csv", "html"]


def formatted(
    document: ReportDocument,
    form: Format,
    *,
    by: Breakdown | None = None,
    styled: bool = False,
    width: int | None = None,
) -> str:
    """Render the report in one form; `width` of text, None for that of a file.

    `by`: grouping of the table of work that the text adds, or that the CSV is.
    """
    if form == "json":
        return encode_json(document).decode()
    if form == "csv":
        from chopperd.report.forms import columns  # noqa: PLC0415

        return columns.render_by_csv(document, by)
    if form == "markdown":
        from chopperd.report.text.report import render_markdown  # noqa: PLC0415

        return render_markdown(document, by=by)
    if form == "html":
        from chopperd.report.html.page import render_html  # noqa: PLC0415

        return render_html(document, by=by)
    from chopperd.report.text.page import WIDTH, page_text  # noqa: PLC0415
    from chopperd.report.text.report import render_rich  # noqa: PLC0415

    return page_text(render_rich(document, by=by), styled=styled, width=width or WIDTH)
