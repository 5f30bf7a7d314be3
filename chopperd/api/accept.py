"""Which of several forms a client likes best, by its `Accept` header (RFC 9110, 12.5.1)."""

import re
from collections.abc import Sequence
from typing import Final

_ANY: Final = "*"


def best_media_type(accept: str | None, offers: Sequence[str]) -> str | None:
    """The offer with the highest quality, the first of equals; None if none is acceptable.

    Parts of the header that can't be read are passed over; an absent or empty header accepts all.
    """
    if accept is None or not accept.strip():
        return offers[0]
    ranges = [each for part in accept.split(",") if (each := _media_range(part)) is not None]
    qualities = [_quality(offer, ranges) for offer in offers]
    highest = max(qualities)
    return offers[qualities.index(highest)] if highest > 0 else None


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Whether an `Accept-Encoding` header names gzip, with a quality above 0 (RFC 9110, 12.5.3)."""
    for part in (accept_encoding or "").lower().split(","):
        name, *parameters = ("".join(each.split()) for each in part.split(";"))
        if name == "gzip":
            return not any(re.fullmatch(r"q=0(\.0*)?", each) for each in parameters)
    return False


def _media_range(text: str) -> tuple[str, str, float] | None:
    """Type, subtype and quality of one part of the header; None if it is not to be read."""
    name, *parameters = (each.strip().lower() for each in text.split(";"))
    kind, slash, subtype = name.partition("/")
    if not (kind and slash and subtype) or (kind == _ANY and subtype != _ANY):
        return None
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return None
    return (kind, subtype, quality) if 0 <= quality <= 1 else None


def _quality(offer: str, ranges: Sequence[tuple[str, str, float]]) -> float:
    """The quality that the most specific matching range gives an offer."""
    kind, _, subtype = offer.partition("/")
    for wanted in ((kind, subtype), (kind, _ANY), (_ANY, _ANY)):
        matching = [quality for *names, quality in ranges if tuple(names) == wanted]
        if matching:
            return max(matching)
    return 0.0
