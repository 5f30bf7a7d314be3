"""Lists of ranks as traces have them, shortened by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopperd.report.build.work import ranks_in_short


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("[0, 1, 2, 3, 4, 5, 6, 7]", "0-7"),
        ("[0, 1]", "0, 1"),
        ("[5]", "5"),
        ("[0, 8, 16, 24, 3]", "0-24 by 8, 3"),
        ("[0, 1, 4, 5, 8, 9]", "0, 1, 4, 5, 8, 9"),
        ("[3, 2, 1]", "3, 2, 1"),
        ("[0, 1, 2, 3, ...]", "0-3, ..."),
        (str([0, 1, 5] * 20), "0, 1, 5, 0, 1, 5, 0, 1, ..."),
        ("[]", None),
        ("", None),
        ("all", None),
        ("9" * 5000, None),
    ],
)
def test_evenly_rising_ranks_are_one_stretch(text: str, short: str | None) -> None:
    assert ranks_in_short(text) == short


@given(st.lists(st.integers(0, 10**9 - 1), max_size=300))
def test_the_text_is_short_whatever_the_ranks(ranks: list[int]) -> None:
    assert len(ranks_in_short(str(ranks)) or "") <= 8 * 35
