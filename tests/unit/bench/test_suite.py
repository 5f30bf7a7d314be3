"""What the suite on one GPU writes, without running it."""

from dataclasses import replace

import msgspec

from bench.gpu.suite import Ended, folder_name, summary

ENDED = Ended(
    name="calls", title="Calls", text="| a |", data=msgspec.Raw(b"1"), took_s=3.2, failure=None
)


def test_a_dry_run_can_t_be_mistaken_for_a_measurement() -> None:
    assert folder_name("NVIDIA H100", "2026-11-28", is_dry=False) == "nvidia-h100-2026-11-28"
    assert folder_name("NVIDIA H100", "2026-11-28", is_dry=True).startswith("DRY-")
    assert "no figure here is a measurement" in summary({}, [ENDED], is_dry=True)
    assert "DRY" not in summary({}, [ENDED], is_dry=False)


def test_a_failed_part_is_said_where_its_figures_would_stand() -> None:
    failed = replace(ENDED, failure="FAILED: exit status 1", text="why")
    page = summary({"GPU": "x"}, [failed], is_dry=False)
    assert "## Calls\n\n**FAILED: exit status 1**\n\nwhy" in page
