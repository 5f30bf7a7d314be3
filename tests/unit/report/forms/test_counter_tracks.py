"""Counter tracks of a small job, worked out by hand.

The job: steps of 100 ms from T0 on, compute in the first 80 ms of each; samples every 10 ms.
"""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.model.kinds import Cause
from chopperd.model.samples import GpuSamples
from chopperd.report.build.clocked_device import ClockedDevice, JoinOptions, clocked_device
from chopperd.report.forms.counter_tracks import (
    CounterTrack,
    counter_events,
    counter_tracks,
    us_text,
)
from chopperd.traces.timeline.layout import lay_out
from tests.unit.report.traced import MS, T0_NS, TOP_MHZ, Job, sample_set, sampled

NAN = float("nan")
SPAN = (T0_NS, T0_NS + 300 * MS)


def clocked(samples: GpuSamples | None, job: Job | None = None) -> ClockedDevice:
    trace = (job or Job()).trace()
    timeline = lay_out(trace)
    of_node = None if samples is None else sample_set(samples)
    return clocked_device(timeline.devices[0], timeline, trace, of_node, JoinOptions())


def tracks(samples: GpuSamples) -> dict[str, CounterTrack]:
    found = counter_tracks(clocked(samples), SPAN)
    for track in found:
        assert (np.diff(track.t_ns) > 0).all()
        assert np.isfinite(track.values).all()
        assert track.values.shape == (len(track), len(track.series))
    return {track.name: track for track in found}


def ms(track: CounterTrack) -> list[float]:
    """Times in ms after T0."""
    return [(t_ns - T0_NS) / MS for t_ns in track.t_ns.tolist()]


def without(samples: GpuSamples, begin_ms: float, end_ms: float) -> GpuSamples:
    """Without the samples of a stretch of time."""
    at_ms = (samples.t_unix_ns - T0_NS) / MS
    kept = (at_ms < begin_ms) | (at_ms >= end_ms)
    columns = ("t_unix_ns", "sm_clock_mhz", "read_span_ns", "causes", "power_w", "temperature_c")
    absent = np.full(kept.sum(), NAN)
    return replace(
        samples,
        **{name: getattr(samples, name)[kept] for name in columns},
        mem_clock_mhz=absent,
        energy_j=absent,
        memory_used_bytes=absent,
        activity_ratio=absent,
    )


def test_the_clock_is_shown_at_its_samples_and_the_next_on_either_side() -> None:
    clock = tracks(sampled())["SM clock"]
    # The trace lasts to 300 ms and 1 us; the sample at 310 ms is the next after it.
    assert ms(clock) == [float(t) for t in range(0, 320, 10)][: len(clock)]
    assert ms(clock)[0] == 0
    assert ms(clock)[-1] in (300, 310)
    assert clock.series == ("MHz",)
    assert set(clock.values[:, 0].tolist()) == {1500.0}


def test_where_all_is_sampled_nothing_is_said_to_be_unknown() -> None:
    assert "unknown" not in tracks(sampled())


def test_power_and_temperature_are_shown_where_they_were_read() -> None:
    samples = sampled()
    power_w = np.full(len(samples), NAN)
    power_w[5::10] = np.arange(len(power_w[5::10])) + 100.0  # at 0, 100, 200 ms, ...
    temperature_c = np.where(np.isnan(power_w), NAN, 70.0)
    found = tracks(replace(samples, power_w=power_w, temperature_c=temperature_c))
    assert ms(found["power"])[:3] == [0, 100, 200]
    assert found["power"].values[:3, 0].tolist() == [100, 101, 102]
    assert found["power"].series == ("W",)
    assert found["temperature"].series == ("C",)
    assert set(found["temperature"].values[:, 0].tolist()) == {70.0}


def test_what_was_never_read_has_no_track() -> None:
    assert set(tracks(sampled())) == {"SM clock", "clock limited by", "clock loss", "clock loss by"}


def test_the_loss_is_the_share_of_compute_that_the_clock_cost() -> None:
    # 1500 of 2000 MHz: a quarter, wherever compute runs: not between 90 and 100 ms.
    found = tracks(sampled())
    loss = dict(zip(ms(found["clock loss"]), found["clock loss"].values[:, 0], strict=True))
    assert found["clock loss"].series == ("%",)
    assert loss[0] == pytest.approx(25)
    assert loss[70] == pytest.approx(25)
    assert loss[90] == 0
    assert loss[100] == pytest.approx(25)
    assert found["clock loss by"].series == ("unexplained %",)


def test_the_loss_is_split_by_cause_as_in_the_report() -> None:
    samples = sampled()
    early = samples.t_unix_ns < T0_NS + 105 * MS
    bits = np.where(early, Cause.POWER_CAP.bit, Cause.POWER_CAP.bit | Cause.THERMAL.bit)
    found = tracks(replace(samples, causes=bits.astype(np.int64)))
    by = found["clock loss by"]
    assert by.series == ("power_cap %", "thermal %")
    at = dict(zip(ms(by), by.values.tolist(), strict=True))
    assert at[50] == pytest.approx([25, 0])
    assert at[150] == pytest.approx([12.5, 12.5])
    limits = found["clock limited by"]
    assert limits.series == ("power_cap", "thermal")
    told = dict(zip(ms(limits), limits.values.tolist(), strict=True))
    assert told[100] == [1, 0]
    assert told[110] == [1, 1]


@given(clock_mhz=st.lists(st.floats(800, 2100), min_size=50, max_size=50))
@settings(max_examples=25, deadline=None)
def test_loss_times_covered_compute_sums_to_the_reports_loss(clock_mhz: list[float]) -> None:
    device = clocked(replace(sampled(), sm_clock_mhz=np.array(clock_mhz)))
    found = {track.name: track for track in counter_tracks(device, SPAN)}
    loss = found["clock loss"]
    clocks = device.joined.clocks
    assert clocks is not None
    assert clocks.loss is not None
    # Compute of each piece by hand: the first 80 ms of every 100, from 1 us on.
    compute = [
        (T0_NS + k * 100 * MS + 1000, T0_NS + k * 100 * MS + 1000 + 80 * MS) for k in range(3)
    ]
    total = 0.0
    for begin, end, percent in zip(loss.t_ns, loss.t_ns[1:], loss.values[:, 0], strict=False):
        covered = sum(max(0, min(end, b) - max(begin, a)) for a, b in compute)
        total += percent / 100 * covered
    assert total == pytest.approx(clocks.loss.lost_ns[-1], abs=len(loss))
    by = found.get("clock loss by")
    if by is not None:
        assert by.values.sum(axis=1) == pytest.approx(loss.values[:, 0])


def test_nothing_stands_at_its_last_value_where_samples_are_missing() -> None:
    samples = sampled()
    capped = replace(samples, causes=np.full(len(samples), Cause.POWER_CAP.bit))
    found = tracks(without(capped, 120, 200))
    just_after = 110 + 1e-6
    for name in ("SM clock", "clock limited by"):
        at = dict(zip(ms(found[name]), found[name].values.tolist(), strict=True))
        assert at[just_after] == [0]
        assert 150 not in at
    unknown = found["unknown"]
    assert unknown.series == ("SM clock",)
    assert list(zip(ms(unknown), unknown.values[:, 0], strict=True)) == [
        (0, 0), (just_after, 1), (200, 0)
    ]  # fmt: skip
    loss = dict(zip(ms(found["clock loss"]), found["clock loss"].values[:, 0], strict=True))
    assert loss[110] == 0


def test_after_the_last_sample_all_is_unknown() -> None:
    found = tracks(sampled(end_ms=155))
    assert ms(found["SM clock"])[-2:] == [150, 150 + 1e-6]
    assert found["SM clock"].values[-1].tolist() == [0]
    assert list(zip(ms(found["unknown"]), found["unknown"].values[:, 0], strict=True)) == [
        (0, 0), (150 + 1e-6, 1)
    ]  # fmt: skip


def test_before_the_first_sample_there_is_no_value() -> None:
    found = tracks(sampled(start_ms=150))
    assert ms(found["SM clock"])[0] == 150
    assert "unknown" not in found


def test_limits_that_were_never_readable_have_no_track() -> None:
    samples = sampled()
    found = tracks(replace(samples, causes=np.full(len(samples), Cause.UNKNOWN.bit)))
    assert "clock limited by" not in found
    assert found["clock loss by"].series == ("unknown %",)


def test_a_clock_that_nothing_limits_says_so() -> None:
    limits = tracks(sampled())["clock limited by"]
    assert limits.series == ("none",)
    assert set(limits.values[:, 0].tolist()) == {1.0}


def test_without_a_reference_there_is_no_loss() -> None:
    assert set(tracks(sampled(top_mhz=None))) == {"SM clock", "clock limited by"}


def test_at_the_reference_the_loss_is_zero_and_no_cause_is_named() -> None:
    found = tracks(sampled(clock_mhz=TOP_MHZ))
    assert set(found["clock loss"].values[:, 0].tolist()) == {0.0}
    assert "clock loss by" not in found


@pytest.mark.parametrize("samples", [None, sampled(start_ms=5_000, end_ms=6_000)])
def test_a_device_without_samples_has_no_tracks(samples: GpuSamples | None) -> None:
    assert counter_tracks(clocked(samples), SPAN) == ()


def test_an_event_is_a_counter_on_the_devices_process() -> None:
    track = CounterTrack(
        name="clock loss by",
        series=("power_cap %", 'a "quoted" one'),
        t_ns=np.array([1_790_857_026_000_000_001, 1_790_857_026_001_234_567], np.int64),
        values=np.array([[25.5, 0.0], [1e-7, 3.0]]),
    )
    events = counter_events(track, pid="GPU 0", base_ns=1_790_857_026_000_000_000, simulated=True)
    first, second = map(json.loads, events)
    assert first == {
        "ph": "C", "cat": "chopperd", "name": "clock loss by (simulated)", "pid": "GPU 0",
        "ts": 0.001, "args": {"power_cap %": 25.5, 'a "quoted" one': 0},
    }  # fmt: skip
    assert second["ts"] == 1234.567
    assert second["args"] == {"power_cap %": 1e-7, 'a "quoted" one': 3}


@given(ns=st.integers(-(2**62), 2**62))
def test_microseconds_keep_every_ns(ns: int) -> None:
    us, _, decimals = us_text(ns).partition(".")
    assert len(decimals) == 3
    assert int(us + decimals) == ns
