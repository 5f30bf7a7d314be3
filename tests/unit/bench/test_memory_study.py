"""The study of device memory with few seeds; `python -m bench.memory` runs it with 200."""

import pytest

from bench.memory import KINDS, Kind, trial, wrong


@pytest.mark.parametrize("with_snapshot", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_what_the_allocator_did(kind: Kind, with_snapshot: bool) -> None:
    for seed in range(2):
        truth, found = trial(kind, seed, with_snapshot=with_snapshot)
        assert wrong(truth, found) == []
        if kind == "near_limit":  # the clock of memory alone would not show it
            assert (found.cv_reserved, found.verdict) == (0, "churns")
