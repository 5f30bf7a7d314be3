"""One trace with its samples: mapping, references, alignment, and what must be said of it."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.belonging import Belonging
from chopperd.correlate.clock.lag import LagEstimate
from chopperd.model.devices import Vendor
from chopperd.model.kinds import Cause
from chopperd.model.report_rows import ClassTotal, Family, Part
from chopperd.model.run import device_map_of
from chopperd.model.samples import GpuSamples, ProcessRow
from chopperd.model.trace import Damage
from chopperd.report.build.clocked_device import JoinOptions, clocked_device, doubt_notes
from chopperd.report.build.privacy import trace_with_names
from chopperd.report.build.trace_report import TraceReport, report_trace
from chopperd.traces.timeline.layout import lay_out
from chopperd.units import TimeTriple
from tests.trace_building import TraceBuilder
from tests.unit.report.traced import H100, MS, STEP_MS, T0_NS, Job, reported, sample_set, sampled


def codes(report: TraceReport) -> list[str]:
    return [note.code for note in report.notes]


def text(report: TraceReport, code: str) -> str:
    (found,) = [note.text for note in report.notes if note.code == code]
    return found


@pytest.mark.parametrize(
    ("damage", "code", "says", "complete"),
    [
        (Damage(truncated=True), "incomplete", "the file is cut short", False),
        (Damage(truncated=True, unclosed=True), "incomplete", "the file is cut short", False),
        (Damage(still_written=True, truncated=True), "incomplete", "cut short", False),
        (Damage(unclosed=True), "not_closed", "lacks its closing brackets", True),
        (Damage(damaged_events=1), "damaged_events", "1 event that can't be read", False),
        (Damage(undecodable_events=2), "undecodable_events", "2 events with impossible", False),
        (Damage(invalid_records=2), "invalid_records", "2 device records with impossible", False),
        (
            Damage(invalid_records=6, zeroed_records=1, outlying_records=2),
            "invalid_records",
            "6 device records with impossible times (3 with a negative duration or none, "
            "1 with neither start nor length, 2 far beyond all other rows)",
            False,
        ),
        (Damage(duplicate_records=1), "duplicate_records", "1 device record there twice", True),
        (Damage(duplicate_rows=2), "duplicate_rows", "2 rows of the host there twice", True),
        (
            Damage(frames_left_out=2, shortest_frame_ns=4000),
            "frames_left_out",
            "2 Python frames shorter than 4 us left out",
            True,
        ),
        (Damage(cut_records=1), "cut_records", "1 device record lasted far past later", True),
        (Damage(overrun_records=3), "overrun_records", "families' times count it twice", True),
        (Damage(unreadable_keys=True), "unreadable_keys", "rank or time base may be miss", False),
    ],
)
def test_damage_is_noted_and_decides_completeness(
    damage: Damage, code: str, says: str, complete: bool
) -> None:
    report = reported(Job(damage=damage))
    assert codes(report).count(code) == 1
    assert says in text(report, code)
    assert report.trace.complete == complete


def test_a_clean_trace_without_samples_has_one_note() -> None:
    report = reported(Job())
    assert codes(report) == ["no_samples"]
    assert report.trace.complete


def test_a_trace_without_work_says_that_first() -> None:
    assert codes(reported(Job(steps=(), host_only_steps=(1,))))[0] == "no_device_records"


@pytest.mark.parametrize(
    "damage", [Damage(damaged_events=1), Damage(invalid_records=1), Damage(truncated=True)]
)
def test_a_launch_whose_record_may_stand_in_damaged_text_was_not_dropped_by_the_profiler(
    damage: Damage,
) -> None:
    lossy = reported(Job(lost_launch_in=2, damage=damage))
    assert "left no record; the time" in text(lossy, "launches_without_record")
    clean = reported(Job(lost_launch_in=2))
    assert "left no record: dropped by the profiler" in text(clean, "launches_without_record")


def test_lost_launches_and_steps_that_are_not_marked_are_noted() -> None:
    lossy = reported(Job(lost_launch_in=2))
    assert text(lossy, "launches_without_record").startswith("1 of 7 launches left no record")
    assert lossy.trace.lost == {"launches_without_record": 1}


def test_what_was_lost_is_counted_by_kind_and_only_where_there_is_any() -> None:
    damage = Damage(
        damaged_events=1,
        undecodable_events=2,
        invalid_records=9,
        zeroed_records=3,
        outlying_records=2,
        duplicate_records=5,
        duplicate_rows=6,
        overrun_records=7,
    )
    assert reported(Job(damage=damage)).trace.lost == {
        "damaged_events": 1,
        "undecodable_events": 2,
        "negative_records": 4,
        "zeroed_records": 3,
        "outlying_records": 2,
        "duplicate_records": 5,
        "duplicate_rows": 6,
    }
    assert reported(Job()).trace.lost == {}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (Damage(truncated=True), "the file is cut short before its wall-clock anchor"),
        (Damage(still_written=True), "the file is cut short before its wall-clock anchor"),
        (Damage(unclosed=True), "the file is cut short before its wall-clock anchor"),
        (Damage(unreadable_keys=True), "the trace's wall-clock anchor (baseTimeNanoseconds) is"),
    ],
)
def test_an_anchor_that_the_file_lost_is_not_one_that_it_never_had(
    damage: Damage, reason: str
) -> None:
    said = text(reported(Job(anchored=False, damage=damage)), "no_timebase")
    assert said.startswith(reason)
    assert said.endswith("clocks can't be joined")


def test_without_an_anchor_samples_are_not_used_and_it_is_said() -> None:
    report = reported(Job(anchored=False), sample_set(sampled()))
    assert text(report, "no_timebase").startswith("no wall-clock anchor in the trace")
    assert "device_unmapped" not in codes(report)
    assert report.alignments == ()
    assert report.realtime_step is None


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "says"),
    [
        (-9000, -2000, "the samples of GPU 0 end 2.01 s before the trace begins"),
        (1300, 2000, "the samples of GPU 0 begin 1 s after the trace ends"),
        (1_000_300, 1_001_000, "the samples of GPU 0 begin 1,000 s after the trace ends"),
        (290, 295, "too few samples of GPU 0 fall into the trace's time"),
    ],
)
def test_samples_of_another_time_are_told_from_none(
    start_ms: float, end_ms: float, says: str
) -> None:
    report = reported(Job(), sample_set(sampled(start_ms=start_ms, end_ms=end_ms)))
    assert text(report, "no_overlap") == says
    assert all(draft.row.clock is None for draft in (*report.steps, *report.totals))
    assert all(draft.row.dvfs.lost_ns is None for draft in (*report.steps, *report.totals))


def test_samples_without_any_clock_are_said_to_be_so() -> None:
    report = reported(Job(), sample_set(sampled(clock_mhz=float("nan"))))
    assert text(report, "no_overlap") == "no sample of GPU 0 has a clock"


def test_samples_of_other_gpus_leave_the_device_unmapped() -> None:
    report = reported(Job(uuid="GPU-5"), sample_set(sampled(0)))
    assert "device_unmapped" in codes(report)
    (device,) = report.devices
    assert (device.gpu, device.mapping) == (None, None)
    # What the trace itself says of its device stays known.
    assert (device.uuid, device.name) == ("GPU-5", H100)


def test_a_device_number_of_its_own_keeps_its_name() -> None:
    # As in traces of roctracer: one entry, of another number.
    (device,) = reported(Job(devices=(2,))).devices
    assert (device.device, device.name) == (2, H100)


def test_names_come_from_the_trace_where_samples_have_none() -> None:
    (device,) = reported(Job(), sample_set(sampled(name=""))).devices
    assert (device.gpu, device.name) == ("0", H100)


@pytest.mark.parametrize(
    ("options", "clock_mhz", "source"),
    [
        (JoinOptions(), 2000.0, "device_max"),
        (JoinOptions(reference_mhz=1755.0), 1755.0, "configured"),
        (JoinOptions(model_references_mhz={H100: 1980.0}), 1980.0, "configured"),
        (JoinOptions(model_references_mhz={"A100": 1410.0}), 2000.0, "device_max"),
        (JoinOptions(default_reference_mhz=1700.0), 1700.0, "configured"),
        (
            JoinOptions(default_reference_mhz=1700.0, model_references_mhz={H100: 1980.0}),
            1980.0,
            "configured",
        ),
        (
            JoinOptions(reference_mhz=1755.0, model_references_mhz={H100: 1980.0}),
            1755.0,
            "configured",
        ),
    ],
)
def test_the_reference_clock_has_its_source(
    options: JoinOptions, clock_mhz: float, source: str
) -> None:
    report = reported(Job(), sample_set(sampled(clock_mhz=1000.0)), options)
    (device,) = report.devices
    assert (device.reference.sm_clock_mhz, device.reference.source) == (clock_mhz, source)
    gap = report.steps[1].row.dvfs.gap_ratio
    assert gap == pytest.approx(1 - 1000 / clock_mhz)


def test_without_a_reference_it_is_said() -> None:
    report = reported(Job(), sample_set(sampled(top_mhz=None)))
    assert "--reference-mhz" in text(report, "no_reference")


def test_a_standing_limit_makes_the_loss_above_it_the_users() -> None:
    # 1500 of 2000 MHz with a limit of 1600: 400 of the 500 MHz are the limit's.
    options = JoinOptions(limit_mhz=1600.0)
    row = reported(Job(), sample_set(sampled(clock_mhz=1500.0)), options).steps[1].row
    assert row.dvfs.by_cause_ns == {"user_limit": 16 * MS, "unexplained": 4 * MS}


def test_missing_energy_is_noted_once_clocks_are_known() -> None:
    assert "no energy counter" in text(reported(Job(), sample_set(sampled())), "no_energy")
    far = sample_set(sampled(start_ms=-9000, end_ms=-2000))
    assert "no_energy" not in codes(reported(Job(), far))


def test_reads_at_regular_intervals_are_noted_and_drawn_ones_are_not() -> None:
    """30 reads each 10 ms in three steps of 100 ms, 8 in compute of each at the same points.

    Eight points fill 8 of 24 cells, of which random ones would fill 1 - 1/e: 8 / 0.632 = 13.
    """
    regular = sampled()
    said = text(reported(Job(), sample_set(regular)), "regular_reads")
    assert "GPU 0 was read at regular intervals" in said
    assert "counts 13 different points of the step" in said
    drawn_ns = np.random.default_rng(1).integers(0, 10 * MS, len(regular.t_unix_ns))
    drawn = replace(regular, t_unix_ns=regular.t_unix_ns + drawn_ns)
    assert "regular_reads" not in codes(reported(Job(), sample_set(drawn)))


@pytest.mark.parametrize("average_ns", [None, 0])
def test_a_clock_that_follows_what_runs_late_is_noted_unless_the_sensor_shows_instants(
    average_ns: int | None,
) -> None:
    """60 steps; the sensor shows the mean of the 50 ms before, of 1400 and 1900 MHz by turns."""
    samples = sampled(start_ms=-900, end_ms=6900)
    rng = np.random.default_rng(2)
    t_ns = samples.t_unix_ns + rng.integers(0, 10 * MS, len(samples.t_unix_ns))
    shown = np.array([_mean_of_50_ms((t - T0_NS) // MS) for t in t_ns.tolist()])
    gpu = replace(samples.gpu, sm_clock_average_ns=average_ns, sensor_lag_ns=None)
    samples = replace(samples, t_unix_ns=t_ns, sm_clock_mhz=shown, gpu=gpu)
    found = reported(Job(steps=range(60)), sample_set(samples))
    if average_ns == 0:
        assert "clock_blurred" not in codes(found)
        return
    assert "the clock of GPU 0 follows what runs only over" in text(found, "clock_blurred")


def _mean_of_50_ms(end_ms: int) -> float:
    return float(np.mean([1400 if ms % 100 < 80 else 1900 for ms in range(end_ms - 50, end_ms)]))


def part_of(card: GpuSamples, number: int) -> GpuSamples:
    """A part of a card; of samples it has none but of memory."""
    absent = np.full(len(card.t_unix_ns), np.nan)
    gpu = replace(
        card.gpu,
        gpu=f"{card.gpu.gpu}.{number}",
        uuid=f"MIG-{number}",
        name=f"{H100} MIG 1g.10gb",
        parent=card.gpu.gpu,
        sm_clock_max_mhz=None,
    )
    return replace(card, gpu=gpu, sm_clock_mhz=absent, memory_used_bytes=np.full_like(absent, 1e9))


def test_a_trace_of_a_part_has_the_clock_of_its_card_and_no_energy() -> None:
    """1500 of the card's 2000 MHz: a quarter of the compute time."""
    energy_j = np.linspace(0, 100, 50)
    card = replace(sampled(0), energy_j=energy_j)
    samples = sample_set(card, part_of(card, 1), part_of(card, 2))
    report = reported(Job(uuid="MIG-2", name=None), samples)
    (device,) = report.devices
    assert (device.gpu, device.uuid, device.mapping) == ("0.2", "MIG-2", "chopperd_devices")
    assert (device.reference.sm_clock_mhz, device.reference.source) == (2000.0, "device_max")
    row = report.steps[1].row
    assert row.dvfs.gap_ratio == pytest.approx(0.25)
    assert row.energy_j is None
    assert text(report, "shared_clock_domain").startswith("GPU 0.2 is a part of GPU 0: ")
    assert "no_energy" not in codes(report)
    # Parts of one card have one clock: they are no peers.
    assert report.steps[1].model is None
    whole = reported(Job(), sample_set(card))
    assert "shared_clock_domain" not in codes(whole)
    assert whole.steps[1].row.energy_j is not None or whole.steps[1].model == H100


def test_a_device_names_the_process_that_launched_its_work() -> None:
    (device,) = reported(Job()).devices
    trace = Job().trace()
    assert device.pid == trace.threads[int(trace.calls.thread[0])][0]


def triples(step_ns: int) -> tuple[TimeTriple, ...]:
    """Every 100 ms from before the trace to behind it; the wall clock steps once inside."""
    return tuple(
        TimeTriple(
            unix_ns=T0_NS + k * 100 * MS + (step_ns if k > 0 else 0),
            mono_ns=k * 100 * MS + 10**12,
            boot_ns=k * 100 * MS + 10**12,
        )
        for k in range(-3, 8)
    )


@pytest.mark.parametrize(("step_ns", "stepped"), [(50_000, False), (2 * MS, True)])
def test_a_stepped_wall_clock_flags_the_report(step_ns: int, stepped: bool) -> None:
    samples = replace(sample_set(sampled()), triples=triples(step_ns))
    report = reported(Job(), samples)
    assert report.realtime_step is stepped
    assert ("time_axes_differ" in codes(report)) is stepped
    assert all((step.row.dvfs.gap_low is None) is stepped for step in report.steps)
    assert all(step.row.dvfs.lost_ns is not None for step in report.steps)


@pytest.mark.parametrize(
    ("host", "in_agent", "maps"),
    [
        ("n1", False, True),
        ("N1.cluster.example", False, True),
        (None, False, True),
        ("n2", False, False),
        ("n2", True, True),
        ("pod-of-n1", False, True),
    ],
)
def test_samples_of_another_host_are_no_guess(host: str | None, in_agent: bool, maps: bool) -> None:
    trace = Job().trace()
    trace = replace(trace, meta=replace(trace.meta, host_name=host))
    samples = replace(
        sample_set(sampled()), processes=(ProcessRow(pid=1, hosts=("pod-of-n1", "x")),)
    )
    options = JoinOptions(in_agent=in_agent)
    report = report_trace(trace, lay_out(trace), samples, options)
    assert (report.devices[0].gpu == "0") is maps
    if not maps:
        assert text(report, "device_unmapped").startswith("device 0")
        assert "the trace is of host n2, the samples of n1" in text(report, "device_unmapped")
        named = JoinOptions(device_map=device_map_of("0=GPU-0", ""))
        assert report_trace(trace, lay_out(trace), samples, named).devices[0].gpu == "0"


def has_intervals(report: TraceReport) -> bool:
    rows = [each.row for each in (*report.steps, *report.totals)]
    known = {(row.dvfs.gap_low is not None, row.dvfs.gap_high is not None) for row in rows}
    assert all(row.dvfs.lost_ns is not None for row in rows)
    assert known in ({(True, True)}, {(False, False)})
    return known == {(True, True)}


def test_an_idle_gpus_samples_contradict_a_busy_trace() -> None:
    """Steps of 100 ms without a gap for 3 s, and an activity of 0 or 95 % throughout."""
    job = Job(steps=range(30))
    samples = sampled(end_ms=3050)
    for activity, holds in ((0.0, False), (0.95, True)):
        said = replace(samples, activity_ratio=np.full(len(samples), activity))
        report = reported(job, sample_set(said))
        assert ("samples_contradict_trace" in codes(report)) is not holds
        assert has_intervals(report) is holds
        (total,) = [each.row for each in report.totals]
        parts: list[Family | ClassTotal | Part] = [*total.families, *total.classes]
        parts += [*total.by_operation, *total.by_layer, *total.by_phase]
        lost = [each for each in parts if each.lost_ns is not None]
        assert {type(each) for each in lost} == {Family, ClassTotal, Part}
        assert {each.lost_low_ns is not None for each in lost} == {holds}
        assert {each.lost_high_ns is not None for each in lost} == {holds}
        assert total.clock is not None
        assert total.clock.compute is not None
        assert (total.clock.compute.low_mhz is not None) is holds
    report = reported(job, sample_set(replace(samples, activity_ratio=np.zeros(len(samples)))))
    assert text(report, "samples_contradict_trace").startswith(
        "the samples of GPU 0 say idle for most of the time in which the trace is busy"
    )


@pytest.mark.parametrize(
    ("found", "lag_ms", "says"),
    [
        (Belonging(apart_ns=700 * MS), 700, "lie 700 ms behind the trace"),
        (Belonging(apart_ns=700 * MS), 700, "moved by that, no interval"),
        (Belonging(apart_ns=-2900 * MS), None, "lie 2900 ms before the trace"),
        (Belonging(apart_ns=-2900 * MS), None, "another run; no interval"),
        (Belonging(says="busy"), None, "say busy for most of the time in which the trace is idle"),
    ],
)
def test_what_is_wrong_with_samples_is_said(
    found: Belonging, lag_ms: int | None, says: str
) -> None:
    trace = Job().trace()
    timeline, samples = lay_out(trace), sample_set(sampled())
    clocked = clocked_device(timeline.devices[0], timeline, trace, samples, JoinOptions())
    assert clocked.joined.clocks is not None
    lag = LagEstimate(lag_ns=None if lag_ms is None else lag_ms * MS)
    clocks = replace(clocked.joined.clocks, belonging=found, lag=lag)
    reference = clocked.summary.reference
    (note,) = doubt_notes(replace(clocked.joined, clocks=clocks), clocked.samples, reference)
    assert note.code == ("samples_contradict_trace" if found.says else "time_axes_differ")
    assert says in note.text
    assert doubt_notes(clocked.joined, None, reference) == []


@pytest.mark.parametrize(
    ("clock_mhz", "reference_mhz", "says"),
    [
        (1500.0, 19_800.0, "is 19800 MHz, though no sample is above 1500 MHz"),
        (1500.0, 1000.0, "is 1000 MHz, below the median sample of 1500 MHz"),
        (1500.0, 2200.0, None),
        (1500.0, 1500.0, None),
    ],
)
def test_a_reference_that_the_samples_speak_against_is_doubtful(
    clock_mhz: float, reference_mhz: float, says: str | None
) -> None:
    options = JoinOptions(reference_mhz=reference_mhz)
    report = reported(Job(), sample_set(sampled(clock_mhz=clock_mhz)), options)
    assert has_intervals(report) is (says is None)
    if says is None:
        assert "reference_doubtful" not in codes(report)
    else:
        assert says in text(report, "reference_doubtful")


def test_a_gpu_held_low_next_to_others_of_its_model_makes_no_reference_doubtful() -> None:
    """A power brake at 990 of 2000 MHz; alone nothing tells it from a wrong reference."""
    braked = sampled(0, 990.0)
    options = JoinOptions(device_map=device_map_of("0=GPU-0", ""))
    for others, doubtful in (
        ((), True),
        ((sampled(1, 1755.0),), False),
        ((sampled(1, 1755.0, name="NVIDIA A100"),), True),
    ):
        report = reported(Job(), sample_set(braked, *others), options)
        assert ("reference_doubtful" in codes(report)) is doubtful


@pytest.mark.parametrize(
    ("vendor", "causes", "clock_mhz", "doubtful"),
    [
        (Vendor.NVIDIA, 0, 1115.0, True),
        (Vendor.AMD, 0, 1115.0, False),  # FP16 of a healthy MI300X, as AMD measured it
        (Vendor.AMD, 0, 800.0, True),
        (Vendor.NVIDIA, Cause.POWER_CAP.bit, 360.0, False),
        (Vendor.NVIDIA, Cause.POWER_BRAKE.bit, 340.0, True),
        (Vendor.NVIDIA, Cause.LOW_UTILIZATION.bit, 1115.0, True),
        (Vendor.NVIDIA, Cause.UNKNOWN.bit, 1115.0, True),
    ],
)
def test_how_far_below_its_reference_a_clock_may_be_is_its_vendors_and_its_limits_matter(
    vendor: Vendor, causes: int, clock_mhz: float, doubtful: bool
) -> None:
    """Of 2100 MHz: 1.9, 2.6, 5.8 and 6.2 times the clock; the limit in all of compute."""
    alone = sampled(clock_mhz=clock_mhz)
    alone = replace(
        alone, gpu=replace(alone.gpu, vendor=vendor), causes=np.full(len(alone), causes, np.int64)
    )
    report = reported(Job(), sample_set(alone), JoinOptions(reference_mhz=2100.0))
    assert ("reference_doubtful" in codes(report)) is doubtful


def test_samples_above_the_reference_clock_are_counted() -> None:
    """Compute ends 80 ms after each of three starts: 8 samples each, of which 1 in 8 is high."""
    samples = sampled()
    high = np.isin(samples.t_unix_ns - T0_NS, [n * STEP_MS * MS + 40 * MS for n in range(3)])
    clocked = replace(samples, sm_clock_mhz=np.where(high, 2100.0, 1500.0))
    report = reported(Job(), sample_set(clocked))
    assert text(report, "clock_above_reference") == (
        "3 of 24 samples in compute are above the reference clock of 2000 MHz, up to 2100: "
        "no loss there"
    )
    assert has_intervals(report)
    assert "clock_above_reference" not in codes(reported(Job(), sample_set(sampled())))


def test_whether_the_wall_clock_stepped_is_unknown_without_triples() -> None:
    assert reported(Job(), sample_set(sampled())).realtime_step is None


def test_several_devices_of_one_process_are_rows_of_their_own() -> None:
    gpus = sample_set(sampled(0, 1500.0), sampled(1, 1800.0))
    options = JoinOptions(device_map=device_map_of("0=GPU-1,1=GPU-0", ""))
    report = reported(Job(devices=(0, 1)), gpus, options)
    means = {
        draft.row.device: draft.row.clock.compute.mean_mhz
        for draft in report.totals
        if draft.row.clock and draft.row.clock.compute
    }
    assert means == {0: pytest.approx(1800.0), 1: pytest.approx(1500.0)}
    assert [(d.device, d.gpu, d.mapping) for d in report.devices] == [
        (0, "1", "device_map"),
        (1, "0", "device_map"),
    ]


def held(clock_mhz: float = 1500.0, causes: int = 0, **gpu: object) -> GpuSamples:
    samples = sampled(clock_mhz=clock_mhz)
    return replace(
        samples, gpu=replace(samples.gpu, **gpu), causes=np.full(len(samples), causes, np.int64)
    )


def test_a_clock_of_one_value_below_the_reference_without_a_reason_looks_locked() -> None:
    """Of 2000 MHz; 24 samples are in compute, so that it takes two more steps."""
    job = Job(steps=(1, 2, 3, 4), uuid="GPU-0")
    report = reported(job, sample_set(held()))
    assert text(report, "looks_locked") == (
        "GPU 0 computes at 1500 MHz all the time, of 2000, and no limit is reported: it seems "
        "locked (nvidia-smi -q -d CLOCK); if it is, set reference.limit_mhz = 1500, and the loss "
        "is its user's limit"
    )
    amd = reported(job, sample_set(held(vendor=Vendor.AMD)))
    assert "(amd-smi metric --clock)" in text(amd, "looks_locked")


@pytest.mark.parametrize(
    ("steps", "samples"),
    [
        ((1, 2), held()),  # 16 samples
        ((1, 2, 3, 4), held(2000.0)),
        ((1, 2, 3, 4), held(causes=Cause.POWER_CAP.bit)),
        ((1, 2, 3, 4), held(sm_clock_limit_mhz=1500.0)),
        ((1, 2, 3, 4), held(sm_clock_max_mhz=None)),
        ((1, 2, 3, 4), replace(held(), sm_clock_mhz=np.linspace(1500.0, 1501.0, 50))),
    ],
)
def test_other_clocks_do_not_look_locked(steps: tuple[int, ...], samples: GpuSamples) -> None:
    report = reported(Job(steps=steps, uuid="GPU-0"), sample_set(samples))
    assert "looks_locked" not in codes(report)


def test_a_limit_that_means_nothing_is_left_out_and_said() -> None:
    """Thermal all the time, idle and cool at the first five samples; the power cap is true."""
    thermal, power = Cause.THERMAL.bit, Cause.POWER_CAP.bit
    samples = held(causes=thermal | power)
    idle = np.arange(len(samples)) < 5
    samples = replace(
        samples,
        causes=np.where(idle, thermal, samples.causes),
        activity_ratio=np.where(idle, 0.0, 1.0),
        temperature_c=np.where(idle, 37.0, 72.0),
        limited_ns={Cause.THERMAL: np.linspace(0.0, 490.0 * MS, len(samples))},
    )
    report = reported(Job(uuid="GPU-0"), sample_set(samples))
    assert text(report, "cause_ignored") == (
        "GPU 0 reports the limit thermal also while it is idle and cool: it says nothing there, "
        "and is left out of the causes"
    )
    assert set(report.totals[0].row.dvfs.by_cause_ns or ()) == {"power_cap"}


@pytest.mark.parametrize(
    ("name", "rank", "said"),
    [
        ("17.67-TP-1-DP-0-PP-0-EP-0.trace.json.gz", None, True),
        ("each_sees_one_gpu-dp_3.json", None, True),
        ("http2-0.json", None, False),
        ("17.67-TP-1-DP-0.json", 1, False),
    ],
)
def test_a_place_in_the_job_is_no_rank_and_that_is_said(
    name: str, rank: int | None, said: bool
) -> None:
    assert ("rank_unknown" in codes(reported(Job(path=f"/runs/tp4/{name}", rank=rank)))) is said


def annotated() -> TraceReport:
    """A trace without steps in which an annotation comes three times."""
    built = TraceBuilder()
    for number in range(3):
        built.span(f"secret[{number}]", 100 * number, 80)
        built.kernel("k", 100 * number, 100 * number + 10, 50)
    trace = built.build()
    return report_trace(trace, lay_out(trace), None, JoinOptions())


def test_an_annotation_that_repeats_is_named_where_nothing_marks_steps() -> None:
    assert text(annotated(), "repeating_annotations") == (
        "the annotation secret[#] comes 3 times, perhaps once a step: "
        r"--step-marker '^secret\[(\d+)\]$' (traces.step_marker) makes steps of it"
    )
    shown = trace_with_names(annotated(), "hashed")
    assert "repeating_annotations" not in codes(shown)


def test_launches_of_several_records_are_noted_where_layers_are_unknown() -> None:
    built = TraceBuilder()
    built.call("cudaGraphLaunch", 20, correlation=900)
    for start_ns in (40, 50):
        built.record("node", start_ns, 5, correlation=900)
    trace = built.build()
    report = report_trace(trace, lay_out(trace), None, JoinOptions())
    assert text(report, "graph_launches").startswith("2 device records of graph launches")
