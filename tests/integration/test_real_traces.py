"""Reports on the real traces, against the README's table and plain Python over the files.

Clocks are synthetic and laid over the traces' own time, so that what a report must say of them can
be worked out from the plain rows.
"""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import UNKNOWN_PART
from chopperd.model.run import device_map_of
from chopperd.model.samples import SampleSet
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.store.samples.files import write_samples
from tests.document_checks import check_document, leaves
from tests.integration import reference_reader as plain
from tests.integration.clocked_traces import (
    assert_clocks,
    brute_force,
    compute_intervals,
    in_compute,
    sample_times,
)
from tests.integration.test_timeline_corpus import SHARES, STEPS
from tests.unit.correlate.builders import gpu_samples

pytestmark = pytest.mark.corpus

Reported = Callable[[str], ReportDocument]
PlainRows = Callable[[str], list[plain.Row]]

HOST_ONLY = (
    "cpu_ddp_rank0.pt.trace",
    "cpu_ddp_rank1.pt.trace",
    "cpu_fsdp1_rank0.pt.trace",
    "cpu_fsdp1_rank1.pt.trace",
    "cpu_fsdp2_rank0.pt.trace",
    "cpu_fsdp2_rank1.pt.trace",
    "cpu_ondemand_5_iterations",
    "hta_mtia_inference",
)
GPU_FILES = (*SHARES, "hta_a100_cuda_sync_multistream")

#: A file of CUDA, and one of ROCm, whose device number 2 is an HSA node id.
V100, MI300X = "hta_v100_ns_absolute_ts", "tracelens_mi300x_resnet_act_checkpoint"


@pytest.fixture(scope="module")
def reported(shared: Path) -> Reported:
    """Reports on the traces by name, without samples, each made once."""

    @cache
    def report(name: str) -> ReportDocument:
        path = shared / "traces" / f"{name}.json.gz"
        return report_files([path], samples=None, options=ReportOptions())

    return report


def test_every_real_trace_is_looked_at(shared: Path) -> None:
    names = {path.name.removesuffix(".json.gz") for path in (shared / "traces").glob("*.json.gz")}
    assert names == {*GPU_FILES, *HOST_ONLY}


@pytest.mark.parametrize("name", [*GPU_FILES, *HOST_ONLY])
def test_every_real_trace_gives_a_document_that_holds_together(
    reported: Reported, name: str
) -> None:
    document = reported(name)
    check_document(document)
    assert document.trace.complete
    assert not document.generated.simulated


@pytest.mark.parametrize(("name", "shares"), SHARES.items())
def test_totals_have_the_shares_of_the_table(
    reported: Reported, name: str, shares: tuple[float, float, float]
) -> None:
    (total,) = reported(name).totals
    assert total.window_ns is not None
    assert total.busy_ns is not None
    assert total.compute_ns is not None
    parts_ns = (total.window_ns - total.busy_ns, total.compute_ns, total.busy_ns - total.compute_ns)
    assert [100 * part_ns / total.window_ns for part_ns in parts_ns] == pytest.approx(
        shares, abs=0.02
    )


@pytest.mark.parametrize("name", GPU_FILES)
def test_every_window_holds_what_a_sweep_over_the_file_finds_there(
    reported: Reported, plain_rows: PlainRows, name: str
) -> None:
    document, rows = reported(name), plain_rows(name)
    for row in (*document.steps, *document.totals):
        if row.host_only:
            continue
        assert row.start_unix_ns is not None
        assert row.window_ns is not None
        window = (row.start_unix_ns, row.start_unix_ns + row.window_ns)
        inside = [r for r in rows if r.start_ns < window[1] and window[0] < r.end_ns]
        found = {
            "busy": plain.swept_ns(inside, *window),
            "compute": plain.swept_ns(filter(plain.is_compute, inside), *window),
            "comm": plain.swept_ns(filter(plain.is_comm, inside), *window),
            "copy": plain.swept_ns(filter(plain.is_copy, inside), *window),
        }
        assert found == {
            "busy": row.busy_ns,
            "compute": row.compute_ns,
            "comm": row.comm_ns,
            "copy": row.copy_ns,
        }
        # |A and B| = |A| + |B| - |A or B|
        kernels_ns = plain.swept_ns((r for r in inside if not plain.is_copy(r)), *window)
        assert row.overlap_ns == found["compute"] + found["comm"] - kernels_ns


def main_stream(rows: Sequence[plain.Row]) -> str:
    """The stream with most compute time."""
    time_ns: defaultdict[str, int] = defaultdict(int)
    for row in filter(plain.is_compute, rows):
        time_ns[row.stream] += row.end_ns - row.start_ns
    return max(time_ns, key=lambda stream: time_ns[stream])


@pytest.mark.parametrize("name", STEPS)
def test_windows_are_cut_at_the_first_own_kernel_of_the_main_stream(
    reported: Reported, plain_rows: PlainRows, name: str
) -> None:
    rows = plain_rows(name)
    main = main_stream(rows)
    got = [row for row in reported(name).steps if not row.host_only]
    cuts_ns = [
        min(
            row.start_ns
            for row in rows
            if row.step == each.step and row.stream == main and plain.is_compute(row)
        )
        for each in got
    ]
    last_ns = max(row.end_ns for row in rows if row.step == got[-1].step)
    assert [row.start_unix_ns for row in got] == cuts_ns
    lengths_ns = [end - start for start, end in pairwise([*cuts_ns, last_ns])]
    assert [row.window_ns for row in got] == lengths_ns
    assert [row.tail for row in got] == [False] * (len(got) - 1) + [True]


@pytest.mark.parametrize("name", STEPS)
def test_own_and_foreign_work_are_those_of_the_plain_rows(
    reported: Reported, plain_rows: PlainRows, name: str
) -> None:
    rows = plain_rows(name)
    for each in reported(name).steps:
        if each.host_only:
            continue
        assert each.start_unix_ns is not None
        assert each.window_ns is not None
        window = (each.start_unix_ns, each.start_unix_ns + each.window_ns)
        assert each.launched_ns == plain.swept_ns(r for r in rows if r.step == each.step)
        assert each.foreign_ns == plain.swept_ns((r for r in rows if r.step != each.step), *window)


@pytest.mark.parametrize("name", GPU_FILES)
def test_families_count_every_record_once(
    reported: Reported, plain_rows: PlainRows, name: str
) -> None:
    rows = plain_rows(name)
    (total,) = reported(name).totals
    assert sum(family.count for family in total.families) == len(rows)
    summed_ns = sum(row.end_ns - row.start_ns for row in rows)
    assert sum(family.time_ns for family in total.families) == summed_ns


@pytest.mark.parametrize("name", GPU_FILES)
def test_phases_are_busy_no_longer_than_the_device_and_add_up_over_steps(
    reported: Reported, name: str
) -> None:
    """Steps' windows lie apart within the file; a phase that a file tells of is told in its total.

    A phase's time summed over its records is no less than its union.
    """
    document = reported(name)
    (total,) = document.totals
    told = {part.name: part.time_ns for part in total.by_phase if part.name != UNKNOWN_PART}
    assert (total.phases is None) == (not told)
    for row in (total, *document.steps):
        for phase in ("forward", "backward", "optimizer"):
            busy_ns = None if row.phases is None else getattr(row.phases, phase)
            assert busy_ns is None or busy_ns <= (row.busy_ns or 0)
    if total.phases is not None:
        for phase, summed_ns in told.items():
            whole_ns = getattr(total.phases, phase)
            in_steps = [getattr(row.phases, phase) for row in document.steps if row.phases]
            assert sum(each for each in in_steps if each is not None) <= whole_ns <= summed_ns


@pytest.mark.parametrize("name", HOST_ONLY)
def test_traces_without_a_gpu_say_so_and_measure_nothing(reported: Reported, name: str) -> None:
    document = reported(name)
    assert document.totals == ()
    assert document.devices == ()
    assert document.summary is None
    assert all(row.host_only for row in document.steps)
    assert "no_device_records" in {note.code for note in document.notes}
    measured = ("window_ns", "busy_ns", "compute_ns", "comm_ns", "copy_ns", "overlap_ns", "dvfs")
    for row in document.steps:
        assert all(
            value is None for field in measured for _, value in leaves(getattr(row, field), field)
        )
        assert row.marker_ns is not None
        assert row.marker_ns > 0


@pytest.mark.parametrize("name", GPU_FILES)
def test_without_samples_nothing_of_the_clock_is_known(reported: Reported, name: str) -> None:
    document = reported(name)
    for row in (*document.steps, *document.totals):
        assert (row.clock, row.peers, row.energy_j, row.temperature_c) == (None,) * 4
        assert all(value is None for _, value in leaves(row.dvfs))
        if row.waterfall_ns is not None:
            assert row.waterfall_ns.compute_at_ref is None
            assert row.waterfall_ns.compute_unsampled == row.compute_ns
        for family in row.families:
            assert (family.mean_mhz, family.lost_ns, family.beta) == (None, None, None)


# --- clocks laid over real traces


def laid(t_ns: Sequence[int], clock_mhz: Sequence[float]) -> SampleSet:
    return SampleSet(gpus=(gpu_samples(t_ns, clock_mhz),), asked_hz=100.0)


def with_clocks(shared: Path, name: str, samples: SampleSet, device: int) -> ReportDocument:
    path = shared / "traces" / f"{name}.json.gz"
    options = ReportOptions(join=JoinOptions(device_map=device_map_of(f"{device}=GPU-0", "")))
    document = report_files([path], samples=samples, options=options)
    check_document(document)
    return document


@pytest.mark.parametrize(("name", "device"), [(V100, 0), (MI300X, 2)])
def test_a_constant_clock_costs_its_share_of_covered_compute(
    shared: Path, plain_rows: PlainRows, name: str, device: int
) -> None:
    compute = compute_intervals(plain_rows(name))
    t_ns = sample_times(compute)
    document = with_clocks(shared, name, laid(t_ns, [1485.0] * len(t_ns)), device)
    assert [(d.device, d.gpu, d.mapping) for d in document.devices] == [(device, "0", "device_map")]
    for row in (*document.steps, *document.totals):
        assert row.start_unix_ns is not None
        window = (row.start_unix_ns, row.start_unix_ns + (row.window_ns or 0))
        covered_ns = sum(
            max(0, min(end, window[1], t_ns[-1]) - max(start, window[0], t_ns[0]))
            for start, end in compute
        )
        # 1485 of 1980 MHz: a quarter is lost.
        assert_clocks(row, (covered_ns, 1485.0, covered_ns / 4))
        assert row.dvfs.gap_ratio == pytest.approx(0.25, abs=1e-6)
        assert row.dvfs.by_cause_ns == {"unexplained": row.dvfs.lost_ns}
    in_compute_count = sum(in_compute(compute, t) for t in t_ns)
    assert document.sampling.samples_in_compute == in_compute_count
    assert document.sampling.kept_hz == pytest.approx(2000.0)


@pytest.mark.parametrize(("name", "device"), [(V100, 0), (MI300X, 2)])
def test_a_clock_of_two_levels_is_integrated_as_by_hand(
    shared: Path, plain_rows: PlainRows, name: str, device: int
) -> None:
    compute = compute_intervals(plain_rows(name))
    t_ns = sample_times(compute)
    # The clock changes every 14 ms; what runs beside compute is sampled far lower.
    levels = [1800.0 if k // 28 % 2 else 1400.0 for k in range(len(t_ns))]
    seen = [f if in_compute(compute, t) else 300.0 for t, f in zip(t_ns, levels, strict=True)]
    taken = [(t, f) for t, f in zip(t_ns, levels, strict=True) if in_compute(compute, t)]
    own_t_ns, own_mhz = [t for t, _ in taken], [f for _, f in taken]
    document = with_clocks(shared, name, laid(t_ns, seen), device)
    for row in (*document.steps, *document.totals):
        assert row.start_unix_ns is not None
        window = (row.start_unix_ns, row.start_unix_ns + (row.window_ns or 0))
        expected = brute_force(compute, own_t_ns, own_mhz, window)
        # The correction at the class's borders may move the line by a few MHz.
        assert_clocks(row, expected, gap_error=0.003)
        assert row.clock is not None
        assert row.clock.basis == "in_class"
        assert row.clock.compute is not None
        inside = [f for t, f in taken if window[0] <= t < window[1]]
        assert row.clock.compute.samples == len(inside)
        assert row.clock.compute.p05_mhz == pytest.approx(np.quantile(inside, 0.05))
    # No one GPU's total is more than its steps' and what lies before the first.
    assert sum(row.dvfs.lost_ns or 0 for row in document.steps) <= (
        document.totals[0].dvfs.lost_ns or 0
    ) + len(document.steps)


def test_the_command_line_maps_the_device_of_a_rocm_trace(
    shared: Path, plain_rows: PlainRows, tmp_path: Path
) -> None:
    t_ns = sample_times(compute_intervals(plain_rows(MI300X)))
    samples = tmp_path / "samples.csv"
    write_samples(samples, laid(t_ns, [1485.0] * len(t_ns)))
    trace = shared / "traces" / f"{MI300X}.json.gz"
    command = [
        *(sys.executable, "-m", "chopperd", "report", str(trace)),
        *("--samples", str(samples), "--format", "json"),
    ]
    mapped = json.loads(subprocess.check_output([*command, "--device-map", "2=GPU-0"]))
    assert [row["dvfs"]["gap_ratio"] for row in mapped["totals"]] == [pytest.approx(0.25)]
    unmapped = json.loads(subprocess.check_output(command))
    assert [row["dvfs"]["gap_ratio"] for row in unmapped["totals"]] == [None]
    assert "device_unmapped" in {note["code"] for note in unmapped["notes"]}
