"""Put a report's JSON into its page, compressed, and take it out again within bounds."""

import gzip
import zlib
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from re import compile as pattern
from typing import Final

import msgspec
from msgspec.structs import replace

from chopperd.model.report import ReportDocument, without_parts
from chopperd.report.build.privacy import summed
from chopperd.report.html.markup import Html, tag
from chopperd.safe_text import visible_json

ELEMENT: Final = "chopperd-report"
#: A document of 64 ranks takes some 20 MB.
MOST_BYTES: Final = 1 << 27
_BEGIN: Final = pattern(rb'<script[^>]{0,200}\bid="' + ELEMENT.encode() + rb'"[^>]{0,200}>')
_END: Final = b"</script>"


def element(data: bytes) -> Html:
    """Return the element that holds this JSON: gzip in base64, which no browser runs."""
    packed = b64encode(gzip.compress(data, 9, mtime=0)).decode()
    return tag(
        "script", Html(packed), type="application/json", id=ELEMENT, data_encoding="gzip+base64"
    )


def is_page(data: bytes) -> bool:
    """Whether this is HTML, and so no JSON."""
    return data[:64].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def taken_out(page: bytes, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the JSON in a page, of at most so many bytes.

    Raises:
        ValueError: There is none, it is damaged, or larger than any report; says which.
    """
    begin = _BEGIN.search(page)
    end = page.find(_END, begin.end()) if begin else -1
    if begin is None or end < 0:
        raise ValueError("the page holds no report of chopperd")
    try:
        reader = zlib.decompressobj(wbits=31)
        data = reader.decompress(b64decode(page[begin.end() : end], validate=True), most_bytes)
    except (NoBase64, zlib.error) as error:
        raise ValueError("the report in the page is damaged") from error
    if reader.unconsumed_tail or not reader.eof:
        why = "larger than any report" if reader.unconsumed_tail else "cut off"
        raise ValueError(f"the report in the page is {why}")
    return data


#: A document larger than this, packed, is embedded with less in it.
_MOST_PACKED: Final = 60_000
_DIGITS: Final = 6


def encoded(document: ReportDocument) -> bytes:
    """Return the JSON of the document as it is embedded.

    A large one has one family a class in its steps, which is what `compare` reads of them, and no
    other lists; those of whole files stay. Its fractions have six digits.
    """
    data = msgspec.json.encode(document)
    if len(zlib.compress(data, 1)) > _MOST_PACKED:
        steps = tuple(
            replace(without_parts(row), families=summed(row.families), copies=(), collectives=())
            for row in document.steps
        )
        brief = msgspec.json.encode(replace(document, steps=steps))
        data = msgspec.json.encode(_rounded(msgspec.json.decode(brief)))
    return visible_json(data)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
