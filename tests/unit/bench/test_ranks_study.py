"""The study of late ranks with few seeds; `python -m bench.ranks` runs it with a hundred."""

import numpy as np
import pytest

from bench.ranks import CAUSES, Fault, Style, trial

SEEDS = range(20)


@pytest.mark.parametrize("style", ["sync", "overlap"])
@pytest.mark.parametrize("fault", ["heat", "data", "launch"])
def test_the_late_rank_and_its_cause_are_found(style: Style, fault: Fault) -> None:
    for seed in SEEDS:
        truth, found = trial(style, fault, seed, with_seq=bool(seed % 2))
        assert found.stragglers == {truth.rank: CAUSES[fault]}
        # Sums of sixteen rounded times.
        assert np.abs(found.wait_ns - truth.wait_ns).max() <= 16


@pytest.mark.parametrize("style", ["sync", "overlap"])
def test_nobody_is_accused_in_a_clean_job(style: Style) -> None:
    accused = [trial(style, "none", seed, with_seq=True)[1].stragglers for seed in SEEDS]
    assert accused == [{}] * len(SEEDS)
