"""Names that others chose, worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.ingest.incoming import is_being_written, safe_name, sent_name, shown_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("rank0.pt.trace.json", "rank0.pt.trace.json"),
        ("größe", "größe"),
        ("a\nb\tc", "a�b�c"),
        ("\udcff", "�"),
        ("\x1b[31mred", "�[31mred"),
        ("\u202egpj", "�gpj"),
    ],
)
def test_a_shown_name_is_one_printable_line(name: str, shown: str) -> None:
    assert shown_name(name) == shown


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("../../etc/passwd", "passwd"),
        ("/abs/rank1.json", "rank1.json"),
        ("..", ".."),
        ("", "trace"),
        ("/", "trace"),
        ("a\0b", "a�b"),
        ("\ud800.json", "?.json"),
    ],
)
def test_a_sent_name_is_the_last_part(name: str, sent: str) -> None:
    assert sent_name(name) == sent


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("rank0.pt.trace.json", "rank0.pt.trace.json"),
        ("a b/c\nd", "a_b_c_d"),
        ("..", "trace"),
        ("-rf", "rf"),
        ("x" * 200 + ".json", "x" * 95 + ".json"),
        ("größe", "gr_e"),
    ],
)
def test_a_safe_name_is_a_plain_file_name(name: str, safe: str) -> None:
    assert safe_name(name) == safe


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_gives_names_that_can_be_shown_and_used(text: str) -> None:
    sent = sent_name(text)
    assert sent.isprintable()
    assert "/" not in sent
    sent.encode()
    safe = safe_name(sent)
    assert safe.isascii()
    assert 0 < len(safe) <= 100
    assert not safe.startswith(".")


def test_a_name_may_say_that_the_file_is_not_done() -> None:
    names = [".a", "a.part", "a.tmp", "a.json", "part", "a.part.json"]
    assert [name for name in names if is_being_written(name)] == [".a", "a.part", "a.tmp"]
