"""The public cases that lay clocks beside a trace; every number is their `expected.md`'s."""

import json
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from chopperd.errors import ConfigError, StoreError
from chopperd.model.report import ReportDocument
from chopperd.model.run import device_map_of
from chopperd.model.samples import SampleSet
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.forms.schema import formatted
from chopperd.report.text.report import render_text
from chopperd.store.samples.files import read_samples
from tests.document_checks import leaves
from tests.integration.cases import Cases, codes, of_marker, of_window

pytestmark = pytest.mark.corpus

BASE_NS = 1_750_000_000_000_000_000


@pytest.fixture
def cases(shared: Path) -> Cases:
    return Cases(shared)


def clocks_are_unknown(document: ReportDocument) -> bool:
    """Whether no row has a clock, a loss, or anything that takes one."""
    return all(
        row.clock is None
        and row.gpu is None
        and all(value is None for _, value in leaves(row.dvfs))
        for row in (*document.steps, *document.totals)
    )


def test_case_08_the_clock_under_the_kernel_is_that_of_its_sample(cases: Cases) -> None:
    samples = read_samples(cases.folder(8) / "samples.csv")
    document = cases.report(8, "rank0.json", samples=samples)
    (step,) = document.steps
    assert step.clock is not None
    clock = step.clock.compute
    assert clock is not None
    assert (clock.samples, clock.p05_mhz, clock.p95_mhz) == (1, 1700, 1700)
    # The integral, by hand: 1980 falls to 1700 MHz in 9.5 ms, then to 345 in 15 ms; the kernel
    # runs from 0.5 ms after the first sample to 1 ms after the second.
    at_start_mhz, at_end_mhz = 1980 - 280 * 0.5 / 9.5, 1700 - 1355 * 1 / 15
    expected_mhz = (9 * (at_start_mhz + 1700) / 2 + 1 * (1700 + at_end_mhz) / 2) / 10
    assert clock.mean_mhz == pytest.approx(expected_mhz)
    # The file has no reference clock: losses are unknown, and said to be.
    assert step.dvfs.lost_ns is None
    assert step.waterfall_ns is not None
    assert step.waterfall_ns.compute_unsampled == 10_000_000
    assert "no_reference" in codes(document)


def test_case_08_without_an_anchor_clocks_are_unknown_and_it_is_said(cases: Cases) -> None:
    samples = read_samples(cases.folder(8) / "samples.csv")
    document = cases.report(8, "no_anchor.json", samples=samples)
    (step,) = document.steps
    assert (step.step, step.busy_ns, step.marker_ns) == (5, 10_000_000, 20_000_000)
    assert of_marker(step) == 50.0
    assert (step.start, step.start_unix_ns, step.marker_start_unix_ns) == (None, None, None)
    assert clocks_are_unknown(document)
    (reason,) = (note.text for note in document.notes if note.code == "no_timebase")
    assert "no wall-clock anchor" in reason


def sampled_pair(path: Path, names: tuple[str, str]) -> SampleSet:
    """The two GPUs of case 24's `nvml.json`, each at its clock throughout, named at will."""
    gpus = [
        {"index": index, "uuid": uuid, "name": name, "vendor": "nvidia", "sm_clock_max_mhz": 1980}
        for index, uuid, name in zip((0, 1), ("GPU-small", "GPU-big"), names, strict=True)
    ]
    lines = [f"# chopperd-samples/1 {json.dumps({'gpus': gpus})}", "t_unix_ns,gpu,sm_clock_mhz"]
    for tick in range(11):
        lines += [f"{BASE_NS + tick * 100_000},0,1560", f"{BASE_NS + tick * 100_000},1,1980"]
    path.write_text("\n".join([*lines, ""]))
    return read_samples(path)


def test_case_24_a_device_is_the_gpu_of_its_name_not_of_its_number(
    cases: Cases, tmp_path: Path
) -> None:
    samples = sampled_pair(tmp_path / "s.csv", ("NVIDIA RTX A4000", "NVIDIA H100 80GB HBM3"))
    document = cases.report(24, samples=samples)
    (device,) = document.devices
    assert (device.device, device.gpu, device.uuid) == (0, "1", "GPU-big")
    assert device.mapping == "unique_name"
    (step,) = document.steps
    assert step.clock is not None
    assert step.clock.compute is not None
    assert step.clock.compute.mean_mhz == pytest.approx(1980)
    assert step.dvfs.lost_ns == 0


def test_case_24_where_names_repeat_clocks_are_unknown(cases: Cases, tmp_path: Path) -> None:
    name = "NVIDIA H100 80GB HBM3"
    document = cases.report(24, samples=sampled_pair(tmp_path / "s.csv", (name, name)))
    assert clocks_are_unknown(document)
    assert document.devices[0].mapping is None
    assert "device_unmapped" in codes(document)


@pytest.mark.parametrize("lag_ms", [0, 100, 300])
def test_case_55_a_lagging_monitor_is_moved_back_to_where_it_fits(
    cases: Cases, lag_ms: int
) -> None:
    """170 ms of each step: by its interval, or (a sensor lags by at most 250 ms) with a note."""
    samples = read_samples(cases.folder(55) / f"lag{lag_ms:03}.csv")
    summary = (document := cases.report(55, samples=samples)).summary
    assert summary is not None
    assert summary.lost_ns == pytest.approx(170e6, rel=0.01)
    assert ("time_axes_differ" in codes(document)) is (lag_ms == 300)
    if lag_ms == 300:
        assert (summary.gap_low, summary.gap_high) == (None, None)
        return
    assert summary.gap_low is not None
    assert summary.gap_high is not None
    assert summary.gap_low <= 0.170 <= summary.gap_high


@pytest.mark.parametrize("lag_ms", [300, 600])
def test_case_55_irregular_steps_are_moved_back_with_a_note(cases: Cases, lag_ms: int) -> None:
    samples = read_samples(cases.folder(55) / f"irregular/lag{lag_ms}.csv")
    document = cases.report(55, "irregular/trace.json", samples=samples)
    assert document.summary is not None
    assert document.summary.lost_ns == pytest.approx(354e6, rel=0.01)
    assert document.summary.gap_low is None
    assert document.alignment.lag_ns == pytest.approx(lag_ms * 1e6, abs=5e6)
    assert "time_axes_differ" in codes(document)


def read_text(path: Path, text: str) -> SampleSet:
    path.write_text(text)
    return read_samples(path, tz=UTC)


def as_smi(text: str) -> str:
    """Case 73's rows as `nvidia-smi` writes them, in UTC."""
    lines = ["timestamp, index, clocks.current.sm [MHz], clocks.max.sm [MHz]"]
    for row in text.splitlines()[2:]:
        t_ns, gpu, mhz = row.split(",")
        at = datetime.fromtimestamp(int(t_ns) // 10**9, UTC)
        ms = int(t_ns) // 10**6 % 1000
        lines.append(f"{at:%Y/%m/%d %H:%M:%S}.{ms:03d}, {gpu}, {mhz} MHz, 1980 MHz")
    return "\n".join([*lines, ""])


def test_case_73_impossible_values_are_absent_and_counted(cases: Cases) -> None:
    samples = read_samples(cases.folder(73) / "samples.csv")
    document = cases.report(73, samples=samples)
    (total,) = document.totals
    assert np.nanmax(samples.gpus[0].temperature_c) == 63
    # The last sample, of 63 C, lies after the trace's last kernel.
    assert total.temperature_c is not None
    assert total.temperature_c.max == 62
    assert total.clock is not None
    assert total.clock.compute is not None
    # The mean over time of a line through 2090, 2088, 2091, (absent) and 2089 MHz.
    assert total.clock.compute.mean_mhz == pytest.approx(2089.5, abs=0.5)
    (text,) = (note.text for note in document.notes if note.code == "invalid_readings")
    assert text == "2 impossible values left out: 1 of sm_clock_mhz, 1 of temperature_c"


@pytest.mark.parametrize("name", ["zeros.csv", "negative.csv"])
@pytest.mark.parametrize("is_smi", [False, True])
def test_case_73_clocks_that_no_gpu_can_have_are_gaps(
    cases: Cases, tmp_path: Path, name: str, *, is_smi: bool
) -> None:
    text = (cases.folder(73) / name).read_text()
    samples = read_text(tmp_path / "s.csv", as_smi(text) if is_smi else text)
    document = cases.report(73, samples=samples)
    for row in (*document.steps, *document.totals):
        assert row.dvfs.gap_ratio == pytest.approx(0.25)
    assert [row.dvfs.lost_ns for row in document.steps] == [150_000_000] * len(document.steps)
    assert "invalid_readings" in codes(document)


def test_case_73_a_die_that_is_off_gives_no_clock_to_the_gpu_of_amd_smi(
    cases: Cases, tmp_path: Path
) -> None:
    """The first die is off throughout, the second runs at 1485 MHz."""
    header = "timestamp,gpu,gfx_0_clk,gfx_0_max_clk,gfx_1_clk\n"
    first_s = BASE_NS // 10**9 - 1
    rows = "".join(f"{first_s + second},0,0,1980,1485\n" for second in range(8))
    document = cases.report(73, samples=read_text(tmp_path / "s.csv", header + rows))
    assert document.totals[0].dvfs.gap_ratio == pytest.approx(0.25)
    assert "invalid_readings" not in codes(document)


def test_clocks_in_hz_are_no_clocks_and_it_is_said(cases: Cases, tmp_path: Path) -> None:
    text = (cases.folder(73) / "zeros.csv").read_text().replace(",1485", ",1485000000")
    document = cases.report(73, samples=read_text(tmp_path / "s.csv", text))
    assert document.totals[0].clock is None
    assert {"invalid_readings", "no_overlap"} <= codes(document)


RANKS = tuple(f"rank{rank}.json" for rank in range(4))


def mapped(text: str) -> JoinOptions:
    return JoinOptions(device_map=device_map_of(text, "--device-map"))


def test_case_68_one_gpu_for_four_ranks_of_one_time_is_refused(cases: Cases) -> None:
    samples = read_samples(cases.folder(68) / "samples.csv")
    with pytest.raises(ConfigError) as raised:
        cases.report(68, *RANKS, samples=samples, join=mapped("0=GPU-0"))
    assert str(raised.value) == (
        "--device-map: ranks 0, 1, 2, 3 ran at one time, and all on GPU 0; name a GPU for each, as "
        "in --device-map 0:0=0,1:0=..."
    )


def test_case_68_a_gpu_for_each_rank_gives_the_slow_one_its_excess(cases: Cases) -> None:
    """By hand: rank 3's GPU runs at 1485 of 1980 MHz: 150 of 600 ms, all of it excess."""
    samples = read_samples(cases.folder(68) / "samples.csv")
    text = ",".join(f"{rank}:0=GPU-{rank}" for rank in range(4))
    document = cases.report(68, *RANKS, samples=samples, join=mapped(text))
    assert [(d.rank, d.gpu, d.mapping) for d in document.devices] == [
        (rank, str(rank), "device_map") for rank in range(4)
    ]
    (row,) = [row for row in document.totals if row.rank == 3]
    steps = [step for step in document.steps if step.rank == 3]
    assert [step.dvfs.lost_ns for step in steps] == [150_000_000] * 3
    assert [step.dvfs.excess_ns for step in steps] == [150_000_000] * 3
    assert row.dvfs.gap_ratio == pytest.approx(0.25)


def test_case_68_without_a_map_nothing_is_known_of_equal_gpus(cases: Cases) -> None:
    samples = read_samples(cases.folder(68) / "samples.csv")
    document = cases.report(68, *RANKS, samples=samples)
    assert clocks_are_unknown(document)
    (text,) = {note.text for note in document.notes if note.code == "device_unmapped"}
    assert text == (
        "device 0 of the trace is not mapped to a sampled GPU: no GPU's samples follow it clearly "
        "better than those of other GPUs; say which it is with --device-map [RANK:]0=GPU "
        "(sampled: 0, 1, 2, 3)"
    )
    assert " CLOCK   GPU unknown: device 0" in formatted(document, "text")


def test_case_40_samples_and_work_go_to_the_step_that_launched_it(cases: Cases) -> None:
    samples = read_samples(cases.folder(40) / "samples.csv")
    document = cases.report(40, samples=samples)
    assert [row.launched_ns for row in document.steps] == [200_000, 80_000, 70_000]
    assert [row.start_unix_ns for row in document.steps] == [
        BASE_NS + start_us * 1000 for start_us in (50, 250, 330)
    ]
    assert [row.window_ns for row in document.steps] == [200_000, 80_000, 70_000]
    assert [of_window(row) for row in document.steps] == [100, 100, 100]
    assert document.totals[0].busy_ns == 350_000
    medians = [
        row.clock.compute.p05_mhz for row in document.steps if row.clock and row.clock.compute
    ]
    assert medians == [1900, 1500, 1980]
    assert document.totals[0].clock is not None
    # 120 us to 350 us lie between samples, of 50 us to 400 us: nothing is extrapolated.
    assert document.totals[0].clock.coverage_ratio == pytest.approx(230 / 350)


def test_case_56_a_power_cap_far_below_the_limit_is_printed_with_both(cases: Cases) -> None:
    samples = read_samples(cases.folder(56) / "samples.csv")
    document = cases.report(56, samples=samples)
    summary = document.summary
    assert summary is not None
    assert summary.lost_ns == pytest.approx(0.9e9 * (1 - 1410 / 1980), rel=0.005)
    (cause,) = summary.causes
    assert (cause.cause, cause.share, cause.power_limit_w) == ("power_cap", 1.0, 400)
    assert cause.power_w == pytest.approx(240, abs=1)
    text = " ".join(render_text(document).split())
    assert "power cap 100 % (at 240 of 400 W: not by this limit)" in text
    assert "raise" not in text


def test_case_58_a_brake_outranks_the_cap_that_is_set_with_it(cases: Cases) -> None:
    """By hand: 1 - 1005 / 2062 of 0.9 s, all of it the brake's; the others by their cap."""
    document = braked(cases)
    lost = {row.gpu: row.dvfs for row in document.steps if row.step == 3}
    for gpu, cause, lost_ns in (
        ("0", "power_cap", 0.5e9 * (1 - 1815 / 2062)),
        ("2", "power_brake", 0.9e9 * (1 - 1005 / 2062)),
        ("3", "power_brake", 0.9e9 * (1 - 1005 / 2062)),
    ):
        assert lost[gpu].by_cause_ns == {cause: lost[gpu].lost_ns}
        assert lost[gpu].lost_ns == pytest.approx(lost_ns, rel=1e-3)


def test_case_58_two_of_four_gpus_are_held_against_the_upper_group(cases: Cases) -> None:
    """By hand: 1 - 1005 / 1815 of 0.9 s is 402 ms; against the plain median it would be 28.7 %."""
    document = braked(cases)
    assert "peers_disagree" in codes(document)
    summary = document.summary
    assert summary is not None
    assert summary.excess_ns == pytest.approx(0.9e9 * (1 - 1005 / 1815), rel=1e-3)
    assert [line.gpu for line in summary.gpus if line.stands_out] == ["2", "3"]
    text = " ".join(render_text(document).split())
    assert text.startswith("GPU 2 IS SLOW 402 of each")
    assert "it runs 810 MHz below its" in text
    assert "THEN GPU 3 is slow 402 ms" in text


def braked(cases: Cases) -> ReportDocument:
    samples = read_samples(cases.folder(58) / "samples.csv")
    names = [f"rank{rank}.json" for rank in range(4)]
    mapped = JoinOptions(device_map=device_map_of("0=0,1=1,2=2,3=3", "map"))
    return cases.report(58, *names, samples=samples, join=mapped)


@pytest.mark.parametrize(
    ("options", "lost_ms", "causes"),
    [
        (JoinOptions(), 270.6, {"unexplained"}),
        (JoinOptions(limit_mhz=2100.0), 270.6, {"user_limit"}),
        (JoinOptions(reference_mhz=2100.0), 0, set()),
    ],
)
def test_case_64_a_locked_clock_has_no_reason_and_looks_locked(
    cases: Cases, options: JoinOptions, lost_ms: float, causes: set[str]
) -> None:
    samples = read_samples(cases.folder(64) / "samples.csv")
    document = cases.report(64, samples=samples, join=options)
    summary = document.summary
    assert summary is not None
    assert summary.lost_ns == pytest.approx(lost_ms * 1e6, abs=0.1e6)
    assert {each.cause for each in summary.causes} == causes
    assert ("looks_locked" in codes(document)) == (causes == {"unexplained"})


#: Case 57: the loss of each step is 225 ms; what it is put down to, by the file's name.
DIALECTS = {
    "a_new": "power_cap",
    "b_old": "power_cap",
    "c_instant_power": "power_cap",
    "d_not_available": "unknown",
    "e_reason_columns": "power_cap",
    "f_header_again": "power_cap",
    "h_deprecated": "unknown",
    "i_nounits": "power_cap",
}


@pytest.mark.parametrize("name", DIALECTS)
def test_case_57_every_dialect_of_nvidia_smi_gives_the_same_loss(name: str, cases: Cases) -> None:
    samples = read_samples(cases.folder(57) / f"{name}.csv", tz=UTC)
    document = cases.report(57, samples=samples)
    for step in document.steps:
        assert step.dvfs.lost_ns == pytest.approx(225_000_000, abs=1000)
        assert step.dvfs.by_cause_ns == {DIALECTS[name]: step.dvfs.lost_ns}
    if name == "c_instant_power":
        assert set(samples.gpus[0].power_w.tolist()) == {640.20}


def test_case_57_a_second_without_samples_is_not_covered(cases: Cases) -> None:
    samples = read_samples(cases.folder(57) / "g_lost_for_a_second.csv", tz=UTC)
    document = cases.report(57, samples=samples)
    unsampled = {
        row.step: row.waterfall_ns.compute_unsampled for row in document.steps if row.waterfall_ns
    }
    missing = {step for step, time_ns in unsampled.items() if time_ns > 10_000_000}
    assert missing <= {4, 5, 6}
    # 0.9 s of computing in the second, and up to the samples around it.
    assert 900_000_000 <= sum(unsampled.values()) <= 1_100_000_000
    for row in document.steps:
        if row.step not in missing:
            assert row.dvfs.lost_ns == pytest.approx(225_000_000, abs=1000)


def test_case_57_a_file_without_the_sm_clock_names_the_column(cases: Cases) -> None:
    with pytest.raises(StoreError, match=r"clocks.current.sm .*current.graphics is not the SM"):
        read_samples(cases.folder(57) / "j_graphics_clock.csv")


@pytest.mark.parametrize("name", ["monitor.csv", "prometheus_range.json"])
def test_case_65_other_monitors_files_with_times_are_read(name: str, cases: Cases) -> None:
    samples = read_samples(cases.folder(65) / name)
    document = cases.report(65, samples=samples, join=JoinOptions(reference_mhz=1980.0))
    (total,) = document.totals
    assert total.dvfs.gap_ratio == pytest.approx(0.25, abs=1e-6)
    lost = [row.dvfs.lost_ns for row in document.steps if not row.tail]
    assert lost == [pytest.approx(225_000_000, abs=1000)] * len(lost)
    assert lost


def test_case_65_dcgmi_without_times_says_how_to_add_them(cases: Cases, tmp_path: Path) -> None:
    path = cases.folder(65) / "dcgmi_dmon.txt"
    with pytest.raises(StoreError, match=r"writes no times: .* dcgmi dmon -e 100,155 .*\| ts"):
        read_samples(path)
    # What that line would have written: a sample each 100 ms from 1 s before the trace.
    (tmp_path / "dmon.txt").write_text(
        "".join(
            f"{1_764_299_999 + n / 10:.3f} {line}\n"
            for n, line in enumerate(path.read_text().splitlines())
        )
    )
    samples = read_samples(tmp_path / "dmon.txt")
    document = cases.report(65, samples=samples, join=JoinOptions(reference_mhz=1980.0))
    assert document.totals[0].dvfs.gap_ratio == pytest.approx(0.25, abs=1e-6)


def test_case_71_the_passes_of_the_repeated_hour_are_told_apart(cases: Cases) -> None:
    samples = read_samples(cases.folder(71) / "samples.csv", tz=ZoneInfo("America/New_York"))
    document = cases.report(71, samples=samples)
    for step in document.steps:
        assert step.dvfs.gap_ratio == pytest.approx(0.25)
        assert step.dvfs.lost_ns == pytest.approx(150_000_000, abs=1000)
    assert "local_times_twice" not in codes(document)
