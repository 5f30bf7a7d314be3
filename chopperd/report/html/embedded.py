"""Put a report's JSON into its page, compressed, and take it out again within bounds."""

import gzip
import zlib
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from re import compile as pattern
from typing import Final

ELEMENT: Final = "chopperd-report"
#: A document of 64 ranks takes some 20 MB.
MOST_BYTES: Final = 1 << 27
_BEGIN: Final = pattern(rb'<script[^>]{0,200}\bid="' + ELEMENT.encode() + rb'"[^>]{0,200}>')
_END: Final = b"</script>"


def element(data: bytes) -> str:
    """Return the element that holds this JSON: gzip in base64, which no browser runs."""
    packed = b64encode(gzip.compress(data, 9, mtime=0)).decode()
    kind = f'type="application/json" id="{ELEMENT}" data-encoding="gzip+base64"'
    return f"<script {kind}>{packed}</script>"


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
