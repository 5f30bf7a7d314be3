"""Kinds of parameters and media types: what is read, what is refused, what the document says."""

from datetime import UTC, datetime, timedelta, timezone

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.api.parameters import (
    INSTANT,
    Kind,
    accepts_gzip,
    best_media_type,
    duration,
    file_name,
    line,
    one_of,
    whole,
)
from chopperd.units import NS_PER_S

# date -u -d '2026-11-27T10:00:00Z' +%s
TEN_O_CLOCK_NS = 1_795_773_600 * NS_PER_S
OFFERS = ("application/json", "text/plain", "text/csv")


@pytest.mark.parametrize(
    ("text", "unix_ns"),
    [
        ("2026-11-27T10:00:00Z", TEN_O_CLOCK_NS),
        ("2026-11-27t10:00:00z", TEN_O_CLOCK_NS),
        ("2026-11-27 10:00:00Z", TEN_O_CLOCK_NS),
        ("2026-11-27T11:30:00+01:30", TEN_O_CLOCK_NS),
        ("2026-11-27T11:30:00 01:30", TEN_O_CLOCK_NS),
        ("2026-11-27T05:00:00-05:00", TEN_O_CLOCK_NS),
        ("2026-11-27T10:00:00.1Z", TEN_O_CLOCK_NS + 100_000_000),
        ("2026-11-27T10:00:00.123456789Z", TEN_O_CLOCK_NS + 123_456_789),
        ("1795773600000000001", TEN_O_CLOCK_NS + 1),
        ("0", 0),
    ],
)
def test_times_are_read_to_the_ns(text: str, unix_ns: int) -> None:
    assert INSTANT.read(text) == unix_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-27",
        "2026-11-27T10:00:00",
        "2026-13-27T10:00:00Z",
        "2026-11-27T25:00:00Z",
        "2026-11-27T10:00:00.1234567890Z",
        "1969-12-31T23:59:59Z",
        "1795773600",
        "1795773600000",
        "-1",
        "99999999999999999999",
        "9300000000000000000",
        "٢٠٢٦",
    ],
)
def test_what_is_no_time_in_ns_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|is "):
        INSTANT.read(text)


@settings(max_examples=100, deadline=None)
@given(
    moment=st.datetimes(datetime(1975, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001 -- they are given zones
    offset_min=st.integers(-14 * 60, 14 * 60),
)
def test_times_agree_with_the_standard_library(moment: datetime, offset_min: int) -> None:
    local = moment.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    since = local - datetime(1970, 1, 1, tzinfo=UTC)
    assert INSTANT.read(local.isoformat()) == since // timedelta(microseconds=1) * 1000


@pytest.mark.parametrize(
    ("text", "value_s"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86_400)],
)
def test_lengths_of_time_are_read(text: str, value_s: float) -> None:
    assert duration(86_400).read(text) == value_s


@pytest.mark.parametrize("text", ["", "0", "-1", "1w", "m", "2d", "inf", "nan", "1e3", "1 h"])
def test_other_lengths_of_time_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time"):
        duration(86_400).read(text)


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "11", "0x1", " 1", "²", "1" * 30])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole number from 0 to 10"):
        whole(0, 10).read(text)


@pytest.mark.parametrize(
    "text", ["", ".", "..", ".x", "a/b", "/a", "a\0", "a\n", "x" * 201, "é" * 101]
)
def test_names_that_are_no_plain_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        file_name().read(text)


@pytest.mark.parametrize("text", ["rank0.pt.trace.json.gz", "a b", "é", "x" * 200, "-rf"])
def test_plain_names_are_taken(text: str) -> None:
    assert file_name().read(text) == text


def test_text_has_no_control_characters() -> None:
    assert line(5).read("a/b c") == "a/b c"
    for text in ("", "abcdef", "a\x1b", "a\n"):
        with pytest.raises(ValueError, match="1 to 5 printable"):
            line(5).read(text)


def test_words_are_those_listed() -> None:
    assert one_of("family").read("family") == "family"
    with pytest.raises(ValueError, match="one of: family"):
        one_of("family").read("layer")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (line(5), "abc", "abcdef"),
        (file_name(), "a.json", "a/b"),
        (whole(1, 10), 3, 11),
        (one_of("a", "b"), "b", "c"),
        (duration(100), "10m", "10 m"),
    ],
)
def test_the_document_says_what_is_read(kind: Kind[object], good: object, bad: object) -> None:
    validator = jsonschema.Draft202012Validator(kind.schema)
    assert validator.is_valid(good)
    assert not validator.is_valid(bad)


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
