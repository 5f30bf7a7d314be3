"""One device joined with its samples: rows, labels, periods, coverage, by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.clock.lag import UNMEASURED_LAG_NS
from chopperd.correlate.join import (
    AXIS_UNCERTAINTY_NS,
    SAMPLE_MARGIN_NS,
    JoinedDevice,
    RowClocks,
    join_device,
)
from chopperd.model.kinds import Cause, CopyDirection, KernelClass
from chopperd.model.timeline import ClockDrift, Phase
from tests.unit.correlate.builders import COMM, COMPUTE, COPY, IDLE, MS, Rec, device, gpu_samples


def clocks_of(joined: JoinedDevice) -> RowClocks:
    assert joined.clocks is not None
    return joined.clocks


def every(period_ms: int, start_ms: int, end_ms: int) -> list[int]:
    return [t * MS for t in range(start_ms, end_ms, period_ms)]


def test_the_period_is_that_of_the_samples_in_the_traced_time() -> None:
    """A burst at 100 Hz for the 0.3 s of the trace, 10 Hz for two seconds on either side."""
    times = [*every(100, -1900, 0), *every(10, 0, 300), *every(100, 300, 2200)]
    timeline = device([Rec(0, 300 * MS)], windows=[(0, 300 * MS)])
    joined = join_device(timeline, (), gpu_samples(times, [1400.0] * len(times)), 1980.0)
    assert clocks_of(joined).period_ns == 10 * MS


def test_a_gpu_that_was_read_once_a_second_before_the_trace_is_covered_from_the_busy_look_on() -> (
    None
):
    """Idle at 1 Hz; the trace begins at 0; the look at 400 ms sees it busy and 10 Hz follow.

    Three periods as achieved are 0.3 s, so nothing is said of the 0.4 s before that look: of the
    first step 60 % are covered, of the others all.
    """
    times = [*every(1000, -5600, 500), *every(100, 500, 3200)]
    windows = [(0, 1000 * MS), (1000 * MS, 2000 * MS), (2000 * MS, 3000 * MS)]
    timeline = device([Rec(0, 3000 * MS)], windows=windows)
    clock = [345.0 if t < 0 else 1400.0 for t in times]
    clocks = clocks_of(join_device(timeline, (), gpu_samples(times, clock), 1980.0))
    assert clocks.period_ns == 100 * MS
    covered_ns = clocks.compute.covered_ns.tolist()
    assert covered_ns == [600 * MS, 1000 * MS, 1000 * MS, 2600 * MS]
    assert clocks.compute.mean_mhz == pytest.approx([1400.0] * 4)


def test_a_single_sample_in_the_traced_time_takes_the_period_of_those_around() -> None:
    times = every(100, -1000, 1000)
    timeline = device([Rec(10 * MS, 130 * MS)])
    joined = join_device(timeline, (), gpu_samples(times, [1400.0] * len(times)), 1980.0)
    assert clocks_of(joined).period_ns == 100 * MS


def test_samples_outside_the_traced_time_do_not_widen_the_interval() -> None:
    """What ran there is not known, so it says nothing of the clock beside compute.

    60 ms of compute at 1400 MHz and 40 ms of communication at 1420 MHz by turns, 100 Hz: an entry
    into compute each 100 ms and 1 ms of timing uncertainty move at most 1/60 of its time, so 1/3
    MHz. Half of 15 MHz, the largest step of a sensor, comes on top as resolution. (After the last
    sample in compute, 10 ms of 1200, the line is of all samples: 10 MHz there, 1/12 of the mean.)
    """
    records = [
        Rec(start * MS, end * MS, kind)
        for at in range(0, 2000, 100)
        for start, end, kind in (
            (at, at + 60, KernelClass.GEMM),
            (at + 60, at + 100, KernelClass.COMM),
        )
    ]
    times = every(10, -2000, 4000)

    def clock_at(t_ns: int) -> float:
        if not 0 <= t_ns < 2000 * MS:
            return 345.0
        return 1400.0 if t_ns % (100 * MS) < 60 * MS else 1420.0

    samples = gpu_samples(times, [clock_at(t) for t in times], read_span_ns=2 * MS)
    clocks = clocks_of(join_device(device(records), (), samples, 1980.0))
    assert clocks.compute.mean_mhz[-1] == pytest.approx(1400 + 1 / 12, abs=0.01)
    assert clocks.compute.half_width_mhz[-1] == pytest.approx(1 / 3 + 7.5, rel=0.001)


def test_rows_are_the_windows_and_then_the_whole_file() -> None:
    """Two steps of one kernel each, with a gap, a copy and a collective; by hand, in ns."""
    timeline = device(
        [
            Rec(0, 60, step=0),
            Rec(40, 90, KernelClass.COMM, step=0, stream=20),
            Rec(95, 98, KernelClass.MEMCPY, CopyDirection.H2D, step=1, stream=11),
            Rec(100, 150, step=1),
            Rec(150, 155, KernelClass.MEMSET, step=1),
        ],
        windows=[(0, 100), (100, 155)],
    )
    times = join_device(timeline, (), None, 1980.0).times
    assert times.windows.start_ns.tolist() == [0, 100, 0]
    assert times.windows.end_ns.tolist() == [100, 155, 155]
    assert times.busy_ns.tolist() == [93, 55, 148]
    assert times.compute_ns.tolist() == [60, 50, 110]
    assert times.comm_ns.tolist() == [50, 0, 50]
    assert times.overlap_ns.tolist() == [20, 0, 20]
    assert times.exposed_comm_ns.tolist() == [30, 0, 30]
    assert times.copy_ns.tolist() == [3, 5, 8]
    assert times.exposed_copy_ns[CopyDirection.H2D].tolist() == [3, 0, 3]
    assert times.exposed_copy_ns[CopyDirection.MEMSET].tolist() == [0, 5, 5]
    assert times.idle_ns["idle_other"].tolist() == [7, 0, 7]
    assert times.launched_ns.tolist() == [90, 58, 0]
    assert times.foreign_ns.tolist() == [3, 0, 0]


def test_records_are_grouped_by_what_launched_them_with_their_clock() -> None:
    """1485 of 1980 MHz: a quarter of 200 ms of each layer is lost, forward and backward."""
    records = [
        Rec(0, 100 * MS, layer=0, operation=5, phase=Phase.FORWARD),
        Rec(100 * MS, 300 * MS, layer=1, operation=5, phase=Phase.BACKWARD),
        Rec(300 * MS, 400 * MS, layer=0, phase=Phase.BACKWARD, step=1),
    ]
    timeline = device(records, [(0, 300 * MS), (300 * MS, 400 * MS)])
    samples = gpu_samples(every(2, -100, 500), [1485.0] * 300)
    joined = join_device(timeline, (), samples, 1980.0)
    assert joined.layers.group.tolist() == [0, 1]
    assert joined.layers.lost_ns.tolist() == pytest.approx([50 * MS, 50 * MS])
    assert joined.operations.group.tolist() == [5, -1]
    assert joined.operations.mean_mhz.tolist() == pytest.approx([1485.0, 1485.0])
    assert joined.phases.group.tolist() == [Phase.BACKWARD, Phase.FORWARD]
    assert {phase: each.tolist() for phase, each in joined.times.phase_ns.items()} == {
        Phase.FORWARD: [100 * MS, 0, 100 * MS],
        Phase.BACKWARD: [200 * MS, 100 * MS, 300 * MS],
    }


def test_without_samples_or_records_there_are_no_clocks() -> None:
    timeline = device([Rec(0, 100 * MS)])
    outside = gpu_samples(every(10, 200, 400), [1400.0] * 20)
    unread = gpu_samples(every(10, 0, 100), [np.nan] * 10)
    lone = gpu_samples([50 * MS], [1400.0])
    for samples in (None, outside, unread, lone):
        joined = join_device(timeline, (), samples, 1980.0)
        assert joined.clocks is None
        assert np.isnan(joined.families.lost_ns).all()
    empty = join_device(device([]), (), gpu_samples(every(10, 0, 100), [1400.0] * 10), 1980.0)
    assert empty.clocks is None
    assert empty.times.busy_ns.tolist() == [0]


def test_samples_far_from_the_trace_are_left_out_and_those_without_a_clock_too() -> None:
    times = every(100, -5000, 6000)
    clock_mhz = [np.nan if t == 300 * MS else 1400.0 for t in times]
    joined = join_device(
        device([Rec(0, 1000 * MS)]), (), gpu_samples(times, clock_mhz, causes=times), 1980.0
    )
    clocks = clocks_of(joined)
    kept_ms = [times[i] // MS for i in clocks.sample_rows.tolist()]
    margin_ms = SAMPLE_MARGIN_NS // MS
    assert kept_ms == [t for t in range(-margin_ms, 1000 + margin_ms, 100) if t != 300]


def test_samples_are_labelled_by_the_waterfalls_precedence() -> None:
    """Compute [0, 100), communication [50, 200), a copy [150, 300), idle [300, 400) ms."""
    timeline = device(
        [
            Rec(0, 100 * MS),
            Rec(50 * MS, 200 * MS, KernelClass.COMM, stream=20),
            Rec(150 * MS, 300 * MS, KernelClass.MEMCPY, stream=11),
            Rec(400 * MS, 500 * MS),
        ]
    )
    times = every(50, 25, 500)
    clocks = clocks_of(join_device(timeline, (), gpu_samples(times, [1400.0] * 10), 1980.0))
    expected = [COMPUTE] * 2 + [COMM] * 2 + [COPY] * 2 + [IDLE] * 2 + [COMPUTE] * 2
    assert clocks.samples.label.tolist() == expected


def test_a_known_sensor_lag_is_subtracted_and_adds_no_uncertainty() -> None:
    times = every(10, 0, 1000)
    samples = gpu_samples(times, [1400.0] * 100, sensor_lag_ns=7 * MS, read_span_ns=600)
    clocks = clocks_of(join_device(device([Rec(0, 900 * MS)]), (), samples, 1980.0))
    assert clocks.subtracted_ns == 7 * MS
    assert clocks.samples.t_ns.tolist() == [t - 7 * MS for t in times]
    assert clocks.timing.total_ns == 300 + AXIS_UNCERTAINTY_NS


def test_a_drift_between_launches_and_kernels_makes_the_join_uncertain_and_moves_nothing() -> None:
    still = device([Rec(0, 900 * MS)])
    sure = ClockDrift(
        ratio=1e-3, low_ratio=8e-4, high_ratio=12e-4, span_ns=900 * MS, launch_count=200
    )
    samples = gpu_samples(every(10, 0, 1000), [1400.0] * 100, read_span_ns=600)
    for drift, apart_ns in ((sure, 900_000), (replace(sure, low_ratio=-1e-4), 0)):
        clocks = clocks_of(join_device(replace(still, drift=drift), (), samples, 1980.0))
        assert clocks.timing.total_ns == 300 + AXIS_UNCERTAINTY_NS + apart_ns
        assert clocks.samples.t_ns.tolist() == samples.t_unix_ns.tolist()


def test_a_sensor_of_known_period_is_labelled_by_what_ran_when_it_looked() -> None:
    """A 100 ms sensor that looks at 30, 130, ... ms and is read each 10 ms.

    Compute at 1400 MHz [0, 60), communication at 1900 MHz [60, 100), each 100 ms: every look falls
    into compute. Read by read, 4 of 10 samples would be of communication, at 1400 MHz. A look is
    as of the first read that shows it, here at its own instant.
    """
    records = [
        Rec(start * MS, end * MS, kind)
        for at in range(0, 1000, 100)
        for start, end, kind in (
            (at, at + 60, KernelClass.GEMM),
            (at + 60, at + 100, KernelClass.COMM),
        )
    ]
    times = every(10, -500, 1500)
    clock_mhz = [1400.0 + (t // MS - 30) // 100 for t in times]
    samples = gpu_samples(times, clock_mhz, sensor_period_ns=100 * MS)
    clocks = clocks_of(join_device(device(records), (), samples, 1980.0))
    inside = (clocks.samples.t_ns >= 0) & (clocks.samples.t_ns < 1000 * MS)
    assert (clocks.samples.t_ns[inside] // MS).tolist() == [30 + 100 * n for n in range(10)]
    assert (clocks.samples.label[inside] == COMPUTE).all()
    assert clocks.sensor_period_ns == clocks.samples.period_ns == 100 * MS
    assert clocks.period_ns == 10 * MS


def test_repeats_of_one_look_are_no_evidence_of_their_own() -> None:
    """Looks each 100 ms, +-50 MHz by turns, read each 10 ms over 20 s of compute: n = 200.

    Residuals of +-100 MHz: V1 = 100^2; at double spacing 0, so k = 2/3 and the standard error is
    100 x sqrt(2/3 / 200) = 5.77 MHz.
    """
    times = every(10, -1000, 21_000)
    clock_mhz = [1450.0 if t // (100 * MS) % 2 else 1350.0 for t in times]
    samples = gpu_samples(times, clock_mhz, sensor_period_ns=100 * MS)
    clocks = clocks_of(join_device(device([Rec(0, 20_000 * MS)]), (), samples, 1980.0))
    half_mhz = clocks.compute.half_width_mhz[-1]
    assert half_mhz == pytest.approx(1.96 * 100 * (2 / 3 / 200) ** 0.5, rel=0.01)
    assert clocks.compute.bias_mhz[-1] == 7.5  # half a step of NVIDIA's, however many steps


def test_the_known_lag_of_a_read_holds_the_age_of_the_look() -> None:
    """60 ms in all, 50 of them as a look of a 100 ms sensor is 50 ms old on average."""
    times = every(10, 0, 1000)
    samples = gpu_samples(times, [1400.0] * 100, sensor_lag_ns=60 * MS, sensor_period_ns=100 * MS)
    clocks = clocks_of(join_device(device([Rec(0, 900 * MS)]), (), samples, 1980.0))
    assert clocks.subtracted_ns == 10 * MS


def test_a_lag_that_can_not_be_measured_is_not_subtracted_but_widens_the_interval() -> None:
    times = every(10, 0, 1000)
    samples = gpu_samples(times, [1400.0 + t // MS for t in times], sensor_lag_ns=None)
    clocks = clocks_of(join_device(device([Rec(0, 900 * MS)]), (), samples, 1980.0))
    assert clocks.subtracted_ns == 0
    assert clocks.timing.lag_ns == UNMEASURED_LAG_NS
    assert clocks.compute.half_width_mhz[-1] >= UNMEASURED_LAG_NS / MS


def test_a_device_lock_takes_the_loss_above_it_and_the_samples_causes_that_below() -> None:
    """The case of the page: 1400 MHz, locked to 1500, of 1980, power capped."""
    times = every(100, -200, 1300)
    samples = gpu_samples(times, [1400.0] * 15, causes=[Cause.POWER_CAP.bit] * 15, limit_mhz=1500.0)
    clocks = clocks_of(join_device(device([Rec(0, 1000 * MS)]), (), samples, 1980.0))
    assert clocks.loss is not None
    by_cause = clocks.loss.by_cause_ns[-1]
    assert by_cause[Cause.USER_LIMIT] == 242_424_242
    assert by_cause[Cause.POWER_CAP] == 50_505_051
    assert clocks.loss.lost_ns[-1] == 292_929_293


def test_without_a_reference_there_are_clocks_but_no_loss() -> None:
    samples = gpu_samples(every(10, 0, 1000), [1400.0] * 100)
    joined = join_device(device([Rec(0, 900 * MS)]), (), samples, None)
    assert clocks_of(joined).loss is None
    assert clocks_of(joined).compute.mean_mhz[-1] == pytest.approx(1400.0)
    assert joined.families.mean_mhz[0] == pytest.approx(1400.0)


def test_the_busy_clock_weighs_each_classs_own_clock_by_its_time() -> None:
    """Compute 600 ms at 1400, communication 200 ms at 1950, a copy 100 ms at 1700, then idle.

    (600 x 1400 + 200 x 1950 + 100 x 1700) / 900. Each class has samples on both its edges.
    """
    timeline = device(
        [
            Rec(0, 600 * MS),
            Rec(600 * MS, 800 * MS, KernelClass.COMM, stream=20),
            Rec(800 * MS, 900 * MS, KernelClass.MEMCPY, stream=11),
            Rec(1000 * MS, 1000 * MS),
        ]
    )
    level = {0: 1400.0, 1: 1400.0, 2: 1400.0, 3: 1950.0, 4: 1700.0}
    inside = [t for t in range(0, 900 * MS, MS)]
    samples = gpu_samples(inside, [level.get(t // (200 * MS), 1700.0) for t in inside])
    clocks = clocks_of(join_device(timeline, (), samples, 1980.0))
    expected = (600 * 1400 + 200 * 1950 + 100 * 1700) / 900
    assert clocks.busy_mhz[-1] == pytest.approx(expected, abs=1.0)
    # Half of 15 MHz, the coarsest resolution assumed, of each class; errors add in quadrature.
    resolution = 7.5 * np.sqrt(600**2 + 200**2 + 100**2) / 900
    assert clocks.busy_half_mhz[-1] == pytest.approx(resolution, abs=1.0)


def test_energy_of_single_steps_needs_its_error_below_15_percent_and_that_of_the_file_not() -> None:
    """A counter of 50 J each 100 ms; steps of 150 ms cut between its changes."""
    times = every(10, -500, 1000)
    timeline = device(
        [Rec(0, 150 * MS), Rec(150 * MS, 300 * MS)], [(0, 150 * MS), (150 * MS, 300 * MS)]
    )
    energy_j = [50.0 * (t // (100 * MS)) for t in times]
    clocks = clocks_of(
        join_device(timeline, (), gpu_samples(times, [1400.0] * 150, energy_j=energy_j), 1980.0)
    )
    assert np.isnan(clocks.energy.energy_j).tolist() == [True, True, False]
    assert clocks.energy.energy_j[-1] == pytest.approx(150.0)
