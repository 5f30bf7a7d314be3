"""Negotiation: expected values follow from RFC 9110, 12.5.1, read by hand."""

import pytest

from chopperd.api.accept import accepts_gzip, best_media_type

OFFERS = ("application/json", "text/plain", "text/csv")


@pytest.mark.parametrize(
    ("accept", "best"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/csv", "text/csv"),
        ("TEXT/CSV", "text/csv"),
        ("text/*", "text/plain"),
        ("text/plain;q=0.4, text/csv;q=0.5", "text/csv"),
        ("text/plain; charset=utf-8; q=0.4, text/csv ; q=0.3", "text/plain"),
        # The more specific range decides about a form, whatever its place.
        ("text/*;q=0.9, text/plain;q=0.1, application/json;q=0.5", "text/csv"),
        ("*/*, application/json;q=0", "text/plain"),
        ("text/csv;q=0, text/*;q=0.1", "text/plain"),
        ("application/json;q=0.000", None),
        ("image/png", None),
        # What can't be read is passed over.
        ("nonsense, text/csv", "text/csv"),
        ("text/csv;q=high, text/plain;q=0.1", "text/plain"),
        ("text/csv;q=2, text/plain;q=0.1", "text/plain"),
        ("*/csv, text/plain", "text/plain"),
        (",,;,", None),
    ],
)
def test_the_best_form_is_chosen(accept: str | None, best: str | None) -> None:
    assert best_media_type(accept, OFFERS) == best


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, False),
        ("", False),
        ("identity", False),
        ("gzip", True),
        ("deflate, GZip;q=0.5", True),
        ("gzip; q=0", False),
        ("gzip;q=0.000, br", False),
        ("*", False),
        ("x-gzip", False),
    ],
)
def test_gzip_is_given_to_who_names_it(header: str | None, wanted: bool) -> None:
    assert accepts_gzip(header) is wanted
