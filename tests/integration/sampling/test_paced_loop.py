"""The loop of one GPU that idles and works, on a clock of the test's.

The truth is a function of time, so every integral can be worked out beside the loop's own.
"""

import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from chopperd.live.gpu_track import GpuTrack
from chopperd.model.arrays import Float64s
from chopperd.model.devices import DeviceReading
from chopperd.model.kinds import Cause
from chopperd.model.live import LiveTotals
from chopperd.sampling.device_loop import DeviceLoop
from chopperd.sampling.memory.layout import Pace
from chopperd.sampling.settings import SamplerSettings
from tests.integration.sampling.test_device_loop import GPU, MS, SECOND, Bench

IDLE_MHZ, BUSY_MHZ, TOP_MHZ = 345.0, 1600.0, 2000.0
IDLE = DeviceReading(sm_clock_mhz=IDLE_MHZ, causes=frozenset({Cause.LOW_UTILIZATION}))
BUSY = DeviceReading(sm_clock_mhz=BUSY_MHZ, causes=frozenset({Cause.POWER_CAP}))


@dataclass(frozen=True, slots=True)
class Phases:
    """When a GPU is idle and when busy: it is busy from each odd edge to the next, from 0 s on."""

    edges_s: Sequence[float]

    def at(self, t_s: float) -> DeviceReading:
        return BUSY if bisect_right(self.edges_s, t_s) % 2 else IDLE

    def busy_s(self, from_s: float, to_s: float) -> float:
        inside_s = np.clip(self.edges_s, from_s, to_s)
        return float((inside_s[1::2] - inside_s[: len(inside_s[1::2]) * 2 : 2]).sum())


def phases(seed: int, *, idle_s: float, busy_s: float | None, total_s: float) -> Phases:
    """Idle and busy stretches of random length in turn; `busy_s` None: 0.3 s each."""
    draw = np.random.default_rng(seed)
    count = round(2 * total_s / idle_s) + 20
    lengths_s = np.empty(2 * count)
    lengths_s[::2] = 12.0 + draw.exponential(idle_s, count)
    lengths_s[1::2] = 0.3 if busy_s is None else draw.exponential(busy_s, count)
    return Phases(np.cumsum(lengths_s).tolist())


class PacedBench:
    """A loop over a GPU that does what the test says of each time.

    An agent follows it each second.

    Attributes:
        watches_pace: Whether to note what it says of its pace at each read.
        paces: What it said.
        track: What the agent knows of it.
    """

    def __init__(self, seconds: float, settings: SamplerSettings) -> None:
        self.bench = Bench(seconds, settings)
        self.settings = settings
        self.truth: Callable[[float], DeviceReading] = lambda _: BUSY
        self.watches_pace = False
        self.paces: list[Pace] = []
        self.track = GpuTrack(GPU, SECOND)
        self._followed_ns = 0

    def run(self) -> None:
        bench, stop = self.bench, self.bench.stop
        bench.driver.answer = self._answer
        sleep = bench.clock.sleep_until

        def followed_and_slept(deadline_mono_ns: int) -> None:
            sleep(deadline_mono_ns)
            if bench.clock.now_ns - self._followed_ns > SECOND:
                self._followed_ns = bench.clock.now_ns
                self.track.follow(bench.reader, 0)

        bench.clock.sleep_until = followed_and_slept  # type: ignore[method-assign]
        gpu = bench.ring.gpu(0)
        DeviceLoop(bench.driver, GPU, gpu, self.settings, bench.clock, stop).run()
        self.track.follow(bench.reader, 0)

    def _answer(self, _: int) -> DeviceReading:
        if self.watches_pace:
            self.paces.append(self.bench.reader.status(0).pace)
        return self.truth((self.bench.clock.now_ns - SECOND) / SECOND)

    @property
    def times_s(self) -> Float64s:
        """When each sample that the ring holds was taken."""
        times: Float64s = (self.bench.reader.drain(0).records["t_mono_ns"] - SECOND) / SECOND
        return times

    @property
    def totals(self) -> LiveTotals:
        now = self.bench.clock.triple()
        totals = self.track.live(now, has_driver=True, has_process=True).totals
        assert totals is not None
        return totals


@pytest.fixture
def make() -> Iterator[Callable[..., PacedBench]]:
    made: list[PacedBench] = []

    def paced(seconds: float, **options: float | None) -> PacedBench:
        given = {"hz": 10.0, "idle_hz": 1.0, "history_s": 60.0, **options}
        made.append(PacedBench(seconds, SamplerSettings(**given)))  # type: ignore[arg-type]
        return made[-1]

    yield paced
    for each in made:
        each.bench.close()


def count_between(times_s: Float64s, from_s: float, to_s: float) -> int:
    return int(((times_s >= from_s) & (times_s < to_s)).sum())


def test_an_idle_gpu_is_read_once_a_second_and_no_sampled_time_is_lost(
    make: Callable[..., PacedBench],
) -> None:
    """Idle from 5 to 65 s: at 10 Hz until 15 s, then at 1 Hz, then at 10 Hz again."""
    paced = make(100)
    paced.truth = Phases([0.0, 5.0, 65.0]).at
    paced.run()
    times_s = paced.times_s
    assert count_between(times_s, 5, 15) == pytest.approx(100, abs=2)
    assert count_between(times_s, 16, 65) == pytest.approx(49, abs=2)
    assert count_between(times_s, 67, 100) == pytest.approx(330, abs=3)
    assert paced.totals.sampled_s == pytest.approx(times_s[-1] - times_s[0], rel=1e-9)
    scopes = paced.bench.reader.drain(0).records["scope"]
    assert scopes[(times_s > 16) & (times_s < 65)].all()  # each of them reads everything
    assert paced.bench.reader.status(0).missed_count == 0


def test_the_first_busy_look_has_the_next_follow_within_a_period(
    make: Callable[..., PacedBench],
) -> None:
    paced = make(60)
    paced.watches_pace = True
    paced.truth = Phases([40.0]).at
    paced.run()
    first, second = np.flatnonzero(paced.times_s >= 40.0)[:2]
    assert paced.times_s[first] < 42.0
    assert paced.times_s[second] - paced.times_s[first] < 0.1
    assert paced.paces[first : first + 2] == [Pace.IDLE, Pace.ASKED]


def test_a_gap_in_what_was_sampled_fast_is_left_out_all_the_same(
    make: Callable[..., PacedBench],
) -> None:
    """A call that lasts 2.5 s leaves 1.25 s on either side of its middle: no interval of 10 Hz."""
    paced = make(30, budget_ratio=1.0)

    def truth(t_s: float) -> DeviceReading:
        if 20 < t_s < 20.2:
            paced.bench.clock.now_ns += 2500 * MS
        return BUSY

    paced.truth = truth
    paced.run()
    gaps_s = np.diff(paced.times_s)
    assert (gaps_s > 1.0).sum() == 2
    left_s = float(gaps_s[gaps_s < 1.0].sum())
    assert paced.totals.sampled_s == pytest.approx(left_s, rel=1e-9)


def test_what_the_budget_slows_is_said_once(
    make: Callable[..., PacedBench], caplog: pytest.LogCaptureFixture
) -> None:
    """2 ms at 10 Hz are 2 %, ten times the budget; it idles and works in turn, and says it once."""
    paced = make(200, budget_ratio=0.002)
    paced.bench.driver.call_ns = 2 * MS
    paced.truth = Phases(range(0, 200, 20)).at
    with caplog.at_level(logging.WARNING):
        paced.run()
    (said,) = (record.getMessage() for record in caplog.records)
    # Reads are at random points, so that a judgement may see one less or more of them.
    share = r"sampled at 1, not 10 Hz: .* would take (1\.9\d|2|2\.0\d) % of the time, 0\.2 % are"
    assert re.search(share, said)
    assert paced.bench.reader.status(0).pace is Pace.BUDGET


SEEDS = range(20)
TOTAL_S = 600.0


@dataclass(frozen=True, slots=True)
class Errors:
    """What the loop says less what is true, of one run."""

    busy_s: float
    busy_mhz: float
    mean_mhz: float
    lost_s: float


def errors(paced: PacedBench, truth: Phases) -> Errors:
    paced.truth = truth.at
    paced.run()
    totals = paced.totals
    assert totals.sampled_s is not None
    assert totals.busy_s is not None
    assert totals.sm_cycles is not None
    assert totals.busy_sm_cycles is not None
    end_s = float(paced.times_s[-1])
    begin_s = end_s - totals.sampled_s
    busy_s = truth.busy_s(begin_s, end_s)
    cycles_mhz_s = busy_s * BUSY_MHZ + (totals.sampled_s - busy_s) * IDLE_MHZ
    return Errors(
        busy_s=totals.busy_s - busy_s,
        busy_mhz=totals.busy_sm_cycles / totals.busy_s / 1e6 - BUSY_MHZ,
        mean_mhz=(totals.sm_cycles / 1e6 - cycles_mhz_s) / totals.sampled_s,
        lost_s=sum(totals.lost_s.values()) - busy_s * (1 - BUSY_MHZ / TOP_MHZ),
    )


@pytest.mark.parametrize("idle_hz", [None, 1.0], ids=["always 10 Hz", "1 Hz when idle"])
def test_over_random_idle_and_busy_times_no_integral_is_biased(
    make: Callable[..., PacedBench], idle_hz: float | None
) -> None:
    """20 runs of 10 minutes: idle for 12 s + exp(15 s), busy for exp(20 s), so about 43 % busy.

    A wake lies anywhere in the second before the look that sees it, half of which counts as busy:
    0.3 s of error, of either sign, for each of some 13 wakes a run. The means over 20 runs must be
    within 3.5 standard errors of 0, and below 0.5 % of what they are errors of.
    """
    found = [
        errors(
            make(TOTAL_S, idle_hz=idle_hz, seed=seed),
            phases(seed, idle_s=15.0, busy_s=20.0, total_s=TOTAL_S),
        )
        for seed in SEEDS
    ]
    for name, whole in (("busy_s", 0.4 * TOTAL_S), ("lost_s", 0.08 * TOTAL_S), ("mean_mhz", 860)):
        values = np.array([getattr(each, name) for each in found])
        error = values.std(ddof=1) / len(values) ** 0.5
        assert abs(values.mean()) < 3.5 * error, name
        assert abs(values.mean()) < 0.005 * whole, name
    assert max(abs(each.busy_mhz) for each in found) < 1e-6


def test_busy_moments_far_apart_count_for_too_little_on_a_gpu_read_slowly(
    make: Callable[..., PacedBench],
) -> None:
    """The known limit: 0.3 s of work, then at least 12 s of none, again and again.

    A read at 1 Hz meets it with probability 0.3; then half of the second before the read and the
    0.15 s that are left of it count: 0.3 * (0.5 + 0.15) = 0.195 of 0.3 s.
    """
    said_s = true_s = 0.0
    for seed in SEEDS:
        paced = make(TOTAL_S, seed=seed)
        truth = phases(seed, idle_s=10.0, busy_s=None, total_s=TOTAL_S)
        true_s += truth.busy_s(0, TOTAL_S)
        paced.truth = truth.at
        paced.run()
        said_s += paced.totals.busy_s or 0.0
    assert 0.5 < said_s / true_s < 0.8
    assert true_s - said_s < 0.0125 * TOTAL_S * len(SEEDS)


def test_each_schedule_draws_points_of_its_own(make: Callable[..., PacedBench]) -> None:
    """A job that wakes the GPU in the same way each time must not meet the same points."""
    paced = make(70, history_s=70.0)
    paced.truth = Phases([15.0, 30.0, 55.0]).at
    paced.run()
    times_s = paced.times_s
    draws = []
    for at_s in (16.0, 56.0):  # a second after each wake
        woken = np.flatnonzero((times_s > at_s) & (times_s < at_s + 2))[:16]
        draws.append(np.diff(times_s[woken])[5:15])
    assert not np.allclose(draws[0], draws[1], atol=1e-4)
