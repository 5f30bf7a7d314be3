"""Histories: slices agree with one look at all, and unknown stays unknown."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.api.history import history
from chopperd.model.kinds import Cause
from chopperd.model.samples import GpuSamples, SampleSet
from tests.fakes.samples import START_UNIX_NS, column, gpu_info, recording, track

HOUR_NS = 3600 * 10**9


class Held:
    """Samples of one GPU; gives those in the time that is asked for, as a recorder does."""

    def __init__(self, samples: GpuSamples, *, simulated: bool = False) -> None:
        self._samples = samples
        self._simulated = simulated
        self.longest_ns = 0

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> SampleSet | None:
        assert gpus == ["0"]
        self.longest_ns = max(self.longest_ns, to_unix_ns - from_unix_ns)
        t_ns = self._samples.t_unix_ns
        keep = (t_ns >= from_unix_ns) & (t_ns < to_unix_ns)
        if not keep.any():
            return None
        columns = {
            name: getattr(self._samples, name)[keep]
            for name in GpuSamples.__struct_fields__
            if name not in ("gpu", "limited_ns", "die_clocks_mhz")
        }
        return SampleSet(
            gpus=(GpuSamples(gpu=self._samples.gpu, **columns),), simulated=self._simulated
        )


def one_a_second(hours: float) -> GpuSamples:
    count = round(hours * 3600)
    nothing = np.full(count, np.nan)
    clock = 1500 + 400 * np.sin(np.arange(count) / 700)
    return GpuSamples(
        gpu=gpu_info(),
        t_unix_ns=START_UNIX_NS + np.arange(count, dtype=np.int64) * 10**9,
        sm_clock_mhz=clock,
        read_span_ns=np.zeros(count, np.int64),
        causes=np.where(np.arange(count) % 2 == 0, Cause.POWER_CAP.bit, 0).astype(np.int64),
        mem_clock_mhz=nothing,
        power_w=np.where(np.arange(count) % 10 == 0, 500.0, np.nan),
        energy_j=500.0 * np.arange(count, dtype=np.float64),
        temperature_c=nothing,
        memory_used_bytes=nothing,
        activity_ratio=nothing,
    )


def test_long_times_are_read_in_slices_that_leave_no_seam() -> None:
    source = Held(one_a_second(5))
    found = history(source, "0", START_UNIX_NS, START_UNIX_NS + 5 * HOUR_NS, 7)
    assert source.longest_ns < HOUR_NS
    assert found.samples == 18_000
    # Brute force: the line's mean is that of its pieces' midpoints, each 1 s long.
    clock = 1500 + 400 * np.sin(np.arange(18_000) / 700)
    middle = (clock[:-1] + clock[1:]) / 2
    for index in range(7):
        first, last = index * 18_000 / 7, (index + 1) * 18_000 / 7
        whole = middle[int(np.ceil(first)) : int(last)]
        assert found.values["sm_clock_mhz"].mean[index] == pytest.approx(whole.mean(), abs=0.5)
        # The line rises by at most 400 / 700 in the part of a second before the bin's edge.
        assert found.values["sm_clock_mhz"].max[index] == pytest.approx(
            clock[int(np.ceil(first)) : int(last)].max(), abs=0.58
        )
    assert found.values["power_w"].mean == pytest.approx([500.0] * 7)
    assert found.causes == {"power_cap": pytest.approx([0.5] * 7, abs=0.001)}
    # The counter after the last sample before each edge: floor(edge) s at 500 W, the edge excluded.
    assert found.energy_j == [
        500.0 * (int(np.ceil((index + 1) * 18_000 / 7)) - 1) for index in range(7)
    ]


def test_bins_without_samples_are_unknown() -> None:
    source = Held(one_a_second(1))
    begin = START_UNIX_NS - HOUR_NS
    found = history(source, "0", begin, begin + 3 * HOUR_NS, 3)
    assert found.samples == 3600
    assert found.values["sm_clock_mhz"].mean[0] is None
    assert found.values["sm_clock_mhz"].mean[1] is not None
    assert found.values["sm_clock_mhz"].max[2] is None
    assert found.energy_j[0] is None
    assert found.causes["power_cap"] == [None, 0.5, None]


def test_values_never_reported_are_missing() -> None:
    found = history(Held(one_a_second(0.1)), "0", START_UNIX_NS, START_UNIX_NS + HOUR_NS, 10)
    assert set(found.values) == {"sm_clock_mhz", "power_w"}
    assert found.bin_ns is None or found.bin_ns == HOUR_NS / 10


def test_shares_of_causes_leave_out_samples_that_could_not_be_read() -> None:
    # Causes of the five: none, power cap, unreadable, power cap beside an unknown bit, two limits.
    found = history(Held(track()), "0", START_UNIX_NS, START_UNIX_NS + 10**9, 1)
    assert found.samples == 5
    assert found.causes["unknown"] == [2 / 5]
    assert found.causes["thermal"] == [1 / 3]


def test_simulated_samples_say_so() -> None:
    for points in (1, 100):
        source = Held(track(), simulated=True)
        assert history(source, "0", START_UNIX_NS, START_UNIX_NS + 10**9, points).simulated


def test_samples_around_the_time_are_not_in_it() -> None:
    begin = START_UNIX_NS + 100_000_000
    found = history(Held(track()), "0", begin, begin + 200_000_000, 100)
    assert found.t_unix_ns == [begin, begin + 100_000_000]
    assert found.values["sm_clock_mhz"].mean == [1905.0, None]
    assert found.causes == {"power_cap": [1.0, None], "unknown": [0.0, 1.0]}


def test_a_time_between_two_samples_has_none() -> None:
    class Around(Held):
        """Gives the samples on either side as well, as a recorder's chunks hold them."""

        def between(
            self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
        ) -> SampleSet | None:
            second = 10**9
            return super().between(from_unix_ns - second, to_unix_ns + second, gpus)

    begin = START_UNIX_NS + 110_000_000
    found = history(Around(track()), "0", begin, begin + 50_000_000, 100)
    assert (found.samples, found.t_unix_ns, found.values, found.causes) == (0, [], {}, {})


def test_other_gpus_of_a_set_are_left_out() -> None:
    class Both:
        def between(self, *_asked: object) -> SampleSet | None:
            changed = replace(track(0), sm_clock_mhz=column(1, 1, 1, 1, 1))
            return replace(recording(2), gpus=(changed, track(1)))

    found = history(Both(), "1", START_UNIX_NS, START_UNIX_NS + 10**9, 100)
    assert found.values["sm_clock_mhz"].max[0] == 1980


def test_a_short_time_without_samples_is_an_empty_history() -> None:
    begin = START_UNIX_NS + 10 * HOUR_NS
    found = history(Held(track()), "0", begin, begin + 10**9, 100)
    assert (found.samples, found.bin_ns, found.t_unix_ns) == (0, None, [])
