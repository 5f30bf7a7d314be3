"""Documents and rows as the store keeps them: JSON, compressed."""

import logging
import zlib
from dataclasses import replace
from typing import Final

import msgspec

from chopperd.model.report import ReportDocument, Row
from chopperd.model.row_parts import without_parts

logger = logging.getLogger(__name__)

_LEVEL: Final = 6
_ENCODER: Final = msgspec.json.Encoder()
_ROWS: Final = msgspec.json.Decoder(Row)
_DOCUMENTS: Final = msgspec.json.Decoder(ReportDocument)
_FAULTS: Final = (zlib.error, msgspec.DecodeError)


def packed(value: Row | ReportDocument) -> bytes:
    """A row or document as it is kept."""
    return zlib.compress(_ENCODER.encode(value), _LEVEL)


def packed_step(row: Row, job: str | None, run: str | None) -> bytes:
    """A step's row as it is kept: without its parts, under the job that it is found by."""
    return packed(replace(without_parts(row), job=job, run=run))


def packed_report(report: bytes) -> bytes:
    """A trace's report as it is kept."""
    return zlib.compress(report, _LEVEL)


def report_of(body: bytes) -> bytes:
    """A trace's report as it was filed."""
    return zlib.decompress(body)


def row_of(body: bytes) -> Row | None:
    """A row as it was kept; None, said in the log, if this version can't read it."""
    try:
        return _ROWS.decode(zlib.decompress(body))
    except _FAULTS as error:
        logger.warning("a stored row can't be read: %s", error)
        return None


def document_of(body: bytes) -> ReportDocument | None:
    """A document as it was kept; None, said in the log, if this version can't read it."""
    try:
        return _DOCUMENTS.decode(zlib.decompress(body))
    except _FAULTS as error:
        logger.warning("a stored document can't be read: %s", error)
        return None
