"""Long names, cut by hand."""

from chopperd.traces.kernels.names import LONGEST_NAME, bounded


def test_a_name_that_is_not_long_stays() -> None:
    assert bounded("x" * LONGEST_NAME) == "x" * LONGEST_NAME


def test_a_long_name_keeps_its_ends_and_is_told_from_its_like() -> None:
    one, other = (f"Model/{'x' * 500}{middle}{'x' * 500}/Linear_0" for middle in "ab")
    assert bounded(one).startswith("Model/xxx")
    assert bounded(one).endswith("xxx/Linear_0")
    assert bounded(one) != bounded(other)
    assert len(bounded(one)) == LONGEST_NAME + 10
    assert len(bounded("\udc80" * 300)) == LONGEST_NAME + 10
