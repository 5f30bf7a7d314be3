import pytest

from chopperd.report.text.inventory import differs


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "expected"),
    [
        ("temperature_c", 60.0, 63.0, False),
        ("temperature_c", 60.0, 64.0, True),
        ("sm_clock_mhz", 1980.0, 1800.0, False),
        ("sm_clock_mhz", 1980.0, 1400.0, True),
        # nvidia-smi prints whole MiB.
        ("memory_size_bytes", 85_520_809_984.0, 85_520_809_984.0 + 500_000, False),
        # Twice a limit is no rounding.
        ("power_limit_w", 700.0, 350.0, True),
        ("power_limit_w", 700.0, 700.4, False),
        ("activity_ratio", 0.9, 0.7, False),
    ],
)
def test_what_two_moments_or_rounding_explain_is_no_difference(
    name: str, ours: float, theirs: float, expected: bool
) -> None:
    assert differs(name, ours, theirs) is expected
