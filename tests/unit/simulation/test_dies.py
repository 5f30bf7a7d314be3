"""The simulated dies: whose clock is the truth, how far the others are from it."""

import numpy as np
import pytest

from chopperd.simulation.presets import DieModel, Dies

MS = 1_000_000
TIMES_NS = 1_790_000_000_000_000_000 + np.arange(0, 20_000 * MS, 7 * MS, dtype=np.int64)
CLOCKS_MHZ = 1800.0 + 100.0 * np.sin(np.arange(len(TIMES_NS)))


def dies(model: DieModel, seed: int = 0) -> Dies:
    return Dies(model, np.random.default_rng(seed))


@pytest.mark.parametrize("turn_ns", [0, 3_000 * MS])
def test_the_governing_die_has_the_true_clock_and_the_others_are_higher_in_the_mean(
    turn_ns: int,
) -> None:
    some = dies(DieModel(count=8, gated=(2,), absent=(5,), turn_ns=turn_ns))
    clocks, governing = some.clocks_mhz(CLOCKS_MHZ, TIMES_NS), some.governing(TIMES_NS)
    assert np.allclose(clocks[np.arange(len(TIMES_NS)), governing], CLOCKS_MHZ, rtol=1e-12)
    assert (len(np.unique(governing)) > 1) == bool(turn_ns)
    for die in np.unique(governing):
        held = governing == die
        means = clocks[held][:, [0, 1, 3, 4, 6, 7]].mean(axis=0)
        assert means.min() >= CLOCKS_MHZ[held].mean() * (1 - 2e-4)
        assert means.max() <= CLOCKS_MHZ[held].mean() * 1.0125


def test_dies_that_are_off_are_zero_and_absent_ones_unknown() -> None:
    clocks = dies(DieModel(count=4, gated=(1,), absent=(0, 3))).clocks_mhz(CLOCKS_MHZ, TIMES_NS)
    assert (clocks[:, 1] == 0).all()
    assert np.isnan(clocks[:, [0, 3]]).all()
    assert clocks[:, 2].tolist() == CLOCKS_MHZ.tolist()


def test_the_tremble_is_as_large_as_asked_and_without_mean() -> None:
    clocks = dies(DieModel(count=8, tremble_ratio=0.004)).clocks_mhz(CLOCKS_MHZ, TIMES_NS)
    about = clocks / CLOCKS_MHZ[:, None]
    trembling = about.std(axis=0)
    assert np.sort(trembling)[0] < 1e-12
    assert np.sort(trembling)[1:] == pytest.approx(0.004, rel=0.1)


def test_a_sleeping_gpu_s_dies_sleep() -> None:
    clocks = dies(DieModel(count=8)).clocks_mhz(np.full(len(TIMES_NS), 132.0), TIMES_NS)
    assert clocks.max() < 140
