"""Case 26 through the models: from the driver's numbers to what is shown live and reported.

Every expected number is of the case's `expected.md`: of two dies that are there, the governing one
2098 and the mean 2099 MHz, not 49676.
"""

import json
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.live.readings import DieClocks
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.model.live import DiesLive
from chopperd.model.report_rows import ClockDies
from chopperd.model.samples import GpuSamples
from chopperd.sampling.memory.layout import Records, RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.recording import gpu_samples
from chopperd.store.recorder.chunk import SampleChunk, decoded_chunk, encoded_chunk
from chopperd.store.samples.files import read_samples, write_samples
from chopperd.units import NS_PER_MS
from tests.fakes.amd.smi.fixtures import FakeAmdSmi
from tests.fakes.recorded import origin, triples_every_second
from tests.integration.devices.amdsmi import open_amdsmi
from tests.unit.report.traced import T0_NS, Job, reported, sample_set, sampled

pytestmark = pytest.mark.corpus

_LIST = "current_gfxclks"


@pytest.fixture
def recorded(shared: Path, fake_amdsmi: FakeAmdSmi, tmp_path: Path) -> Records:
    """Half a second of records of a GPU whose driver gives the case's numbers."""
    path = shared / "cases" / "26-amd-sentinels" / "metrics.json"
    told = json.loads(path.read_bytes())
    gpu = fake_amdsmi.node.gpus[0]
    for name, value in told.items():
        if name == _LIST or isinstance(value, int):
            gpu.shows(**{name: tuple(value) if name == _LIST else value})
        else:  # "N/A" in the dict of the binding
            gpu.lacks(name)
    with closing(open_amdsmi(tmp_path)) as backend:
        (device,) = backend.devices()
        return in_a_ring(device, backend.read(device, ReadScope.FULL))


def in_a_ring(device: GpuInfo, reading: DeviceReading) -> Records:
    """The same reading, a hundred times a second, as it goes through the sampler's memory."""
    fd = os.memfd_create("ring")
    try:
        description = RingDescription(gpus=(device,), backend="amdsmi")
        with closing(RingWriter(fd, description, 100)) as ring, closing(RingReader(fd)) as reader:
            for t_ms in range(0, 500, 10):
                ring.gpu(0).write(
                    reading,
                    t_mono_ns=t_ms * NS_PER_MS,
                    span_ns=50_000,
                    late_ns=0,
                    scope=ReadScope.FULL,
                )
            return reader.drain(0, 0).records
    finally:
        os.close(fd)


def of_the_trace(recorded: Records) -> GpuSamples:
    """The records as samples of the time of `traced.Job`."""
    chunk = SampleChunk(
        origin=origin(gpu_count=1),
        records={0: recorded},
        triples=tuple(triples_every_second(0, 10**9, T0_NS - 50_000_000)),
    )
    back = decoded_chunk(encoded_chunk(chunk))
    return gpu_samples(sampled().gpu, back.records[0], back.triples)


def test_what_is_all_ones_in_its_own_width_is_absent_and_what_is_not_is_there(
    recorded: Records,
) -> None:
    (sample,) = np.unique(recorded[["sm_clock_mhz", "power_w", "temperature_c", "activity_ratio"]])
    assert sample.tolist() == (2098.0, 702.0, 61.0, 0.97)
    assert (recorded["mem_clock_mhz"] == 900.0).all()
    assert np.isnan(recorded["energy_j"]).all()


def test_live_they_are_two_dies_around_2099_mhz(recorded: Records) -> None:
    clocks = DieClocks()
    clocks.add(recorded)
    assert clocks.live(0) == DiesLive(
        clocks_mhz=(2100.0, 2098.0, *[None] * 6),
        running=2,
        gated=0,
        mean_mhz=2099.0,
        spread_mhz=2.0,
        governing=1,
    )


def test_kept_and_reported_the_clock_is_2098_mhz_and_the_mean_2099(
    recorded: Records, tmp_path: Path
) -> None:
    samples = of_the_trace(recorded)
    assert samples.die_clocks_mhz is not None
    assert np.unique(samples.die_clocks_mhz, axis=0).tolist() == [[2100.0, 2098.0]]
    write_samples(tmp_path / "s.csv", sample_set(samples))
    assert ",2100+2098," in (tmp_path / "s.csv").read_text()
    for kept in (sample_set(samples), read_samples(tmp_path / "s.csv")):
        (total,) = reported(Job(), kept).totals
        assert total.row.clock is not None
        assert total.row.clock.compute is not None
        assert total.row.clock.compute.mean_mhz == pytest.approx(2098.0)
        assert total.row.clock.dies is not None
        assert total.row.clock.dies.mean_mhz == pytest.approx(2099.0)
        others = replace(total.row.clock.dies, mean_mhz=0.0)
        assert others == ClockDies(running=2, gated=0, mean_mhz=0.0, spread_mhz=2.0, governing=1)
