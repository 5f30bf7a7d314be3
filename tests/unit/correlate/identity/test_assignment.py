"""GPUs told by samples alone: against nodes of known truth, and a brute force over permutations."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.assignment import nodes, outcome
from chopperd.correlate.identity.by_signal import Agreement, agreement, assigned, best_assignment
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import Intervals
from tests.fakes.lockstep_node import Node, drawn

EMPTY = np.empty(0, np.int64)
CLEAR = Node(seed=1, ranks=3, seconds=12.0, step_s=0.6, power_window_s=0.0)


def fits(*rows: list[float], kinds: int = 3) -> list[Agreement]:
    """Agreements of these sums, each from six equal stretches of time."""
    gpus = tuple(str(gpu) for gpu in range(len(rows[0])))
    return [
        Agreement(gpus=gpus, gain=tuple((each / 6,) * 6 for each in row), kinds=kinds)
        for row in rows
    ]


def constant(samples: GpuSamples) -> GpuSamples:
    """Samples in which nothing ever changes."""
    values = {
        name: np.full(len(samples), float(np.nanmedian(getattr(samples, name))))
        for name in ("power_w", "activity_ratio", "sm_clock_mhz")
    }
    return replace(samples, **values)


@given(st.integers(1, 4), st.integers(0, 2), st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_best_assignment_is_that_of_all_permutations(rows: int, more: int, seed: int) -> None:
    score = np.random.default_rng(seed).normal(0, 10, (rows, rows + more))
    chosen = best_assignment(score)
    assert len(set(chosen.tolist())) == rows
    best = max(
        sum(score[row, column] for row, column in enumerate(each))
        for each in permutations(range(rows + more), rows)
    )
    assert score[np.arange(rows), chosen].sum() == pytest.approx(best)


def test_ranks_that_pause_on_their_own_find_their_gpus() -> None:
    """Truth: the generator's. Three nodes of eight GPUs; the benchmark has hundreds."""
    found = outcome(nodes("independent pauses", 3, first=3))
    assert found.wrong == 0
    assert found.mapped / found.ranks >= 0.8


def test_ranks_in_lock_step_are_told_nothing() -> None:
    found = outcome(nodes("lock-step, one straggler", 3))
    assert (found.mapped, found.wrong) == (0, 0)


def test_a_rank_alone_is_told_from_the_gpus_that_are_not_traced() -> None:
    traced, samples, order = drawn(CLEAR)
    for rank, gpu in enumerate(order):
        assert assigned([agreement(traced[rank], samples)]) in ([str(gpu)], [None])
    told = assigned([agreement(each, samples) for each in traced])
    assert told == [str(gpu) for gpu in order]


def test_without_steps_pauses_still_tell() -> None:
    traced, samples, order = drawn(CLEAR)
    stepless = [replace(each, step_start_ns=EMPTY) for each in traced]
    told = assigned([agreement(each, samples) for each in stepless])
    assert all(gpu in (None, str(true)) for gpu, true in zip(told, order, strict=True))


def test_samples_that_never_change_or_are_too_few_tell_nothing() -> None:
    traced, samples, _ = drawn(CLEAR)
    steady = agreement(traced[0], [constant(each) for each in samples])
    assert {sum(each) for each in steady.gain} == {0.0}
    assert steady.best is None
    assert steady.why_not.startswith("no GPU's samples follow it")
    few = [drawn(replace(CLEAR, hz=1.0))[1][gpu] for gpu in range(3)]
    scarce = agreement(traced[0], few)
    assert (scarce.kinds, scarce.best) == (0, None)
    assert scarce.why_not.startswith("too few samples")


def test_a_trace_that_ran_nothing_or_a_single_gpu_tells_nothing() -> None:
    traced, samples, _ = drawn(CLEAR)
    nothing = Intervals(start_ns=EMPTY, end_ns=EMPTY)
    idle = replace(traced[0], busy=nothing, compute=nothing)
    assert agreement(idle, samples).kinds == 0
    assert agreement(traced[0], samples[:1]).best is None
    assert agreement(traced[0], []).best is None


def test_what_runs_all_the_time_tells_nothing() -> None:
    traced, samples, _ = drawn(CLEAR)
    whole = Intervals(
        start_ns=traced[0].busy.start_ns[:1].copy(), end_ns=traced[0].busy.end_ns[-1:].copy()
    )
    always = replace(traced[0], busy=whole, compute=whole)
    assert agreement(always, samples).best is None


def test_a_margin_is_taken_over_every_other_assignment() -> None:
    clear = [[90.0, 1, 0, 2], [1, 80.0, 2, 0], [0, 2, 70.0, 1], [2, 0, 1, 60.0]]
    assert assigned(fits(*clear)) == ["0", "1", "2", "3"]
    close = [[90.0, 1, 0, 2], [1, 80.0, 75.0, 0], [0, 78.0, 70.0, 1], [2, 0, 1, 60.0]]
    assert assigned(fits(*close))[1:3] == [None, None]
    assert assigned(fits([90.0, 1, 0, 2])) == ["0"]
    assert assigned(fits([90.0, 60.0, 0, 2])) == [None], "few fits: their size is the margin"
    assert assigned(fits([90.0])) == ["0"]


def test_own_samples_must_speak_for_it_in_several_stretches_of_time() -> None:
    rows = [[90.0, 0.0, 0.0], [0.0, 80.0, 0.0], [0.0, 0.0, 2.0]]
    assert assigned(fits(*rows)) == ["0", "1", None], "the last is not told by elimination"
    once = Agreement(gpus=("0", "1"), gain=((0.0, 90.0, 0.0, 0.0), (0.0,) * 4))
    assert assigned([once]) == [None]


def test_what_others_had_is_not_given_away_and_more_ranks_than_gpus_get_none() -> None:
    rows = fits([90.0, 1.0, 0.0], [80.0, 1.0, 0.0])
    assert assigned(rows[:1], {"0"}) == [None]
    assert assigned(rows, {"1", "2"}) == [None, None]
    assert assigned([]) == []
    other = Agreement(gpus=("7",), gain=((90.0,),))
    assert assigned([rows[0], other]) == [None, None], "not over the same GPUs"
