"""Reports on real MI300X and MI250 traces with the samples of an AMD node, by the command line.

The node's GPUs are sampled under labels that run against the order of their HSA nodes, with clocks
of eight dies on an MI300X; an MI250 is two GPUs, and the first has the card's power. What must be
reported is worked out by plain Python over the plain rows: which die governs (of those that run,
the one with the lowest mean over the second before and after), what it clocked while compute ran.
"""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.model.devices import Vendor
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.sampling.memory.layout import RECORD
from chopperd.store.recorder.chunk import Origin, SampleChunk, decoded_chunk, encoded_chunk
from chopperd.store.samples.files import read_samples, write_samples
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.document_checks import check_document
from tests.integration import reference_reader as plain
from tests.integration.clocked_traces import (
    assert_clocks,
    brute_force,
    compute_intervals,
    in_compute,
    sample_times,
)
from tests.unit.correlate.builders import gpu_samples

pytestmark = pytest.mark.corpus

RESNET = "tracelens_mi300x_resnet_act_checkpoint"
QWEN = "tracelens_mi300x_qwen15_05b"
COMPILED = "tracelens_mi300x_compile_triton"
MI250 = "hta_mi250_rocm62_minitoy"
#: How many GPUs the processes of the traces saw, by `deviceProperties`.
SEEN = {RESNET: 8, QWEN: 1, COMPILED: 1, MI250: 4}
NAMES = {
    RESNET: "AMD Instinct MI300X",
    QWEN: "AMD Instinct MI300X VF",
    COMPILED: "AMD Instinct MI300X",
    MI250: "AMD Radeon Graphics",
}
TOP_MHZ = {RESNET: 2100.0, QWEN: 2100.0, COMPILED: 2100.0, MI250: 1700.0}
TRACED_NODE = 2  # of every one of them

PlainRows = Callable[[str], list[plain.Row]]
Report = Callable[..., ReportDocument]


@pytest.fixture(scope="module")
def plain_rows(shared: Path) -> PlainRows:
    """The plain rows of the traces by name, each read once."""

    @cache
    def rows(name: str) -> list[plain.Row]:
        return plain.device_rows(shared / "traces" / f"{name}.json.gz")

    return rows


@pytest.fixture
def report(shared: Path, tmp_path: Path) -> Report:
    """What the command line reports on a trace with some samples."""

    def run(name: str, samples: SampleSet, *options: str) -> ReportDocument:
        write_samples(tmp_path / "samples.csv", samples)
        trace = shared / "traces" / f"{name}.json.gz"
        command = [sys.executable, "-m", "chopperd", "report", str(trace), "--samples"]
        command += [str(tmp_path / "samples.csv"), "--format", "json", *options]
        document = msgspec.json.decode(subprocess.check_output(command), type=ReportDocument)
        check_document(document)
        return document

    return run


def times_of(rows: Sequence[plain.Row], step_ns: int = 500_000) -> list[int]:
    """Every 0.5 ms (or another step) of the trace, every 20 ms for two seconds on either side."""
    own = sample_times(compute_intervals(rows), step_ns)
    before = [own[0] - step * 20 * NS_PER_MS for step in range(100, 0, -1)]
    after = [own[-1] + step * 20 * NS_PER_MS for step in range(1, 101)]
    return [*before, *own, *after]


def dies_at(k: int, *, busy: bool) -> list[float]:
    """Clocks of eight dies at the k-th sample: levels, a tremble, a gated die, an absent one."""
    level = (1800.0 if k // 28 % 2 else 1400.0) if busy else 300.0
    clocks = [level + 15 * ((die * 3) % 7) + (k * 7 + die * 5) % 41 for die in range(7)]
    clocks[6] = 0.0 if k // 14 % 2 else level
    return [*clocks, math.nan]


def governing_clocks(t_ns: Sequence[int], dies_mhz: Sequence[Sequence[float]]) -> list[float]:
    """The governing die's clock at each sample, one sample after the other."""
    found = []
    for t, dies in zip(t_ns, dies_mhz, strict=True):
        near = [those for at, those in zip(t_ns, dies_mhz, strict=True) if abs(at - t) <= NS_PER_S]
        means = {
            die: float(np.mean([those[die] for those in near if those[die] > 140]))
            for die, clock in enumerate(dies)
            if clock > 140
        }
        found.append(dies[min(means, key=lambda die: (means[die], die))])
    return found


def node_of(name: str, count: int, traced: GpuSamples) -> SampleSet:
    """An AMD node of `count` GPUs from HSA node 2 on, the traced one's as given.

    Labels run backwards, and every other GPU clocks 500 MHz: no other may be taken for it.
    """
    gpus = []
    for place in range(count):
        own = (
            traced if place == 0 else gpu_samples(traced.t_unix_ns.tolist(), [500.0] * len(traced))
        )
        label = count - 1 - place
        info = replace(
            own.gpu,
            gpu=str(label),
            index=label,
            uuid=f"GPU-{place:016x}",
            name=NAMES[name],
            vendor=Vendor.AMD,
            sm_clock_max_mhz=TOP_MHZ[name],
            kfd_node=TRACED_NODE + place,
        )
        gpus.append(replace(own, gpu=info))
    by_label = sorted(gpus, key=lambda samples: samples.gpu.index)
    return SampleSet(gpus=tuple(by_label), asked_hz=100.0, backend="amdsmi")


def with_dies(rows: Sequence[plain.Row]) -> tuple[GpuSamples, list[float]]:
    """Samples of an MI300X over a trace, and the governing die's clocks by brute force."""
    t_ns, compute = times_of(rows), compute_intervals(rows)
    dies_mhz = [dies_at(k, busy=in_compute(compute, t)) for k, t in enumerate(t_ns)]
    at_once = [min(clock for clock in dies if clock > 140) for dies in dies_mhz]
    samples = replace(gpu_samples(t_ns, at_once), die_clocks_mhz=np.array(dies_mhz))
    return samples, governing_clocks(t_ns, dies_mhz)


def check_rows(
    document: ReportDocument, rows: Sequence[plain.Row], t_ns: Sequence[int], f: Sequence[float]
) -> None:
    """Busy time and its parts, clocks and losses of every row are those of plain Python."""
    compute, top_mhz = compute_intervals(rows), TOP_MHZ[name_of(document)]
    taken = [(t, mhz) for t, mhz in zip(t_ns, f, strict=True) if in_compute(compute, t)]
    for row in (*document.steps, *document.totals):
        if row.host_only:
            continue
        window = window_of(row)
        assert row.busy_ns == plain.swept_ns(rows, *window)
        assert row.compute_ns == plain.swept_ns(filter(plain.is_compute, rows), *window)
        assert row.comm_ns == plain.swept_ns(filter(plain.is_comm, rows), *window)
        assert row.copy_ns == plain.swept_ns(filter(plain.is_copy, rows), *window)
        own_t_ns, own_mhz = [t for t, _ in taken], [mhz for _, mhz in taken]
        expected = brute_force(compute, own_t_ns, own_mhz, window, top_mhz)
        # The correction at the class's borders may move the line by a few MHz.
        assert_clocks(row, expected, gap_error=0.003, top_mhz=top_mhz)


def name_of(document: ReportDocument) -> str:
    return Path(document.trace.path).name.removesuffix(".json.gz")


def window_of(row: Row) -> tuple[int, int]:
    assert row.start_unix_ns is not None
    return row.start_unix_ns, row.start_unix_ns + (row.window_ns or 0)


@pytest.mark.parametrize("name", [RESNET, QWEN, COMPILED])
def test_an_mi300x_is_found_by_its_node_and_reported_by_its_governing_die(
    plain_rows: PlainRows, report: Report, name: str
) -> None:
    rows = plain_rows(name)
    samples, governing_mhz = with_dies(rows)
    document = report(name, node_of(name, SEEN[name], samples))
    (device,) = document.devices
    assert (device.device, device.gpu) == (TRACED_NODE, str(SEEN[name] - 1))
    assert (device.uuid, device.mapping) == (f"GPU-{0:016x}", "kfd_node")
    check_rows(document, rows, samples.t_unix_ns.tolist(), governing_mhz)
    (total,) = document.totals
    assert total.clock is not None
    assert total.clock.dies is not None
    assert (total.clock.dies.running, total.clock.dies.gated) == (7, 1)


@pytest.mark.parametrize("name", [QWEN, COMPILED])
def test_one_gpu_seen_of_eight_is_not_told_by_its_number_but_by_the_user(
    plain_rows: PlainRows, report: Report, name: str
) -> None:
    samples, _ = with_dies(plain_rows(name))
    node = node_of(name, 8, samples)
    document = report(name, node)
    assert [(each.gpu, each.mapping) for each in document.devices] == [(None, None)]
    (text,) = [note.text for note in document.notes if note.code == "device_unmapped"]
    assert "its process saw 1 GPUs where 8 are sampled" in text
    assert [row.dvfs.lost_ns for row in document.totals] == [None]
    told = report(name, node, "--device-map", "2=7")
    assert [(each.gpu, each.mapping) for each in told.devices] == [("7", "device_map")]


def powered(samples: GpuSamples, watts: float | None) -> GpuSamples:
    """The samples with power and energy of a card, or without."""
    if watts is None:
        return samples
    t_s = (samples.t_unix_ns - samples.t_unix_ns[0]) / NS_PER_S
    power_w = np.full(len(samples), watts)
    return replace(samples, power_w=power_w, energy_j=1000.0 + watts * t_s)


def test_a_die_of_an_mi250_is_a_gpu_of_its_own_and_the_first_has_the_card_s_power(
    plain_rows: PlainRows, report: Report
) -> None:
    rows = plain_rows(MI250)
    # Its kernels last a few us, 0.1 ms in all.
    t_ns, compute = times_of(rows, 4_000), compute_intervals(rows)
    f = [1500.0 if in_compute(compute, t) else 800.0 for t in t_ns]
    own = powered(gpu_samples(t_ns, f), 400.0)
    node = node_of(MI250, 4, replace(own, gpu=replace(own.gpu, power_source="card")))
    document = report(MI250, node)
    assert [(each.gpu, each.mapping) for each in document.devices] == [("3", "kfd_node")]
    check_rows(document, rows, t_ns, f)
    (total,) = document.totals
    assert total.clock is not None
    assert total.clock.dies is None
    assert total.energy_j == pytest.approx(400.0 * (total.window_ns or 0) / NS_PER_S, rel=0.01)
    # Of the second die, which has no power, nothing is made up.
    second = report(MI250, node, "--device-map", f"2=GPU-{1:016x}")
    assert [(each.gpu, each.mapping) for each in second.devices] == [("2", "device_map")]
    assert [row.energy_j for row in second.totals] == [None]


def test_the_text_names_the_rule(plain_rows: PlainRows, shared: Path, tmp_path: Path) -> None:
    samples, _ = with_dies(plain_rows(COMPILED))
    write_samples(tmp_path / "s.csv", node_of(COMPILED, 1, samples))
    trace = shared / "traces" / f"{COMPILED}.json.gz"
    command = [sys.executable, "-m", "chopperd", "report", str(trace), "--samples"]
    text = subprocess.check_output([*command, str(tmp_path / "s.csv")], text=True)
    assert "by kfd node" in text
    assert "no_reference" not in text


def test_nodes_survive_the_recorder_and_the_sample_file(tmp_path: Path) -> None:
    node = node_of(RESNET, 8, gpu_samples([NS_PER_S, 2 * NS_PER_S], [1500.0, 1500.0]))
    infos = tuple(each.gpu for each in node.gpus)
    origin = Origin(gpus=infos, backend="amdsmi", node="n", asked_hz=10.0, boot_id="b")
    chunk = SampleChunk(origin=origin, records={0: np.zeros(0, RECORD)})
    assert decoded_chunk(encoded_chunk(chunk)).origin.gpus == infos
    write_samples(tmp_path / "s.csv", node)
    nodes = {each.gpu.uuid: each.gpu.kfd_node for each in read_samples(tmp_path / "s.csv").gpus}
    assert nodes == {f"GPU-{place:016x}": TRACED_NODE + place for place in range(8)}
    first = (tmp_path / "s.csv").read_text().splitlines()[0]
    assert json.loads(first.partition("1 ")[2])["gpus"][0]["kfd_node"] == 9
