"""`report` without --samples: the local recorder's, where there is one, as a file with the same."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd import cli
from chopperd.cli.recording import samples_to_join
from chopperd.config.load import load_config
from chopperd.errors import StoreError
from chopperd.model.samples import SampleSet
from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.chunk import Origin
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.store.samples.files import write_samples
from chopperd.units import NS_PER_S, NS_PER_US
from tests.fakes.clock import ScriptedClock
from tests.fakes.recorded import cut, records_of, triples_every_second
from tests.fakes.simulated_job import SimulatedJob, play

ROOMY = DiskLimits(max_bytes=2**26, max_days=7, min_free_ratio=0)
#: Unix time less MONOTONIC.
OFFSET_NS = 1_789_999_000 * NS_PER_S


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> SimulatedJob:
    return play("fsdp2-h100", tmp_path_factory.mktemp("job"), seconds=2, warm_s=1, hz=20)


@pytest.fixture(scope="module")
def amd_job(tmp_path_factory: pytest.TempPathFactory) -> SimulatedJob:
    """A job on GPUs of eight dies each."""
    return play("fsdp2-mi300x", tmp_path_factory.mktemp("amd"), seconds=2, warm_s=1, hz=20)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of the configuration."""
    folder = tmp_path / "state"
    monkeypatch.setenv("CHOPPERD_PATHS__STATE", str(folder))
    return folder


def record(samples: SampleSet, state: Path) -> None:
    """Keep the samples as an agent would have, second by second."""
    records = {slot: records_of(gpu, OFFSET_NS) for slot, gpu in enumerate(samples.gpus)}
    begin_ns = min(int(rows["t_mono_ns"][0]) for rows in records.values())
    end_ns = max(int(rows["t_mono_ns"][-1]) for rows in records.values()) + 1
    clock = ScriptedClock(mono_ns=begin_ns, unix_ns=begin_ns + OFFSET_NS)
    recorder = FlightRecorder(state / "recorder", ROOMY, clock)
    origin = Origin(
        gpus=tuple(gpu.gpu for gpu in samples.gpus),
        backend="simulated",
        simulated=True,
        node="node-7",
        asked_hz=samples.asked_hz or 0,
        boot_id="boot",
    )
    for from_ns in range(begin_ns, end_ns, NS_PER_S):
        to_ns = min(from_ns + NS_PER_S, end_ns)
        clock.advance(to_ns - from_ns)
        part = {slot: cut(rows, from_ns, to_ns) for slot, rows in records.items()}
        recorder.append(origin, part, triples_every_second(from_ns, to_ns, OFFSET_NS))
    recorder.close()


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.run(["report", *arguments, "--format", "json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def codes(document: dict[str, Any]) -> list[str]:
    return [note["code"] for note in document["notes"]]


def test_the_report_is_that_of_a_file_with_the_same_samples(
    job: SimulatedJob, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(job.samples, state)
    begin_ns = int(job.samples.gpus[0].t_unix_ns[0]) - OFFSET_NS
    triples = triples_every_second(begin_ns, begin_ns + 5 * NS_PER_S, OFFSET_NS)
    as_if_alike = replace(job.samples, triples=tuple(triples))
    write_samples(tmp_path / "samples.csv", as_if_alike)
    traces = list(map(str, job.paths[:1]))
    by_file = reported(capsys, *traces, "--samples", str(tmp_path / "samples.csv"))
    by_recorder = reported(capsys, *traces)
    assert "local_samples" in codes(by_recorder)
    assert "no_samples" not in codes(by_recorder)
    note = next(note for note in by_recorder["notes"] if note["code"] == "local_samples")
    assert str(state / "recorder") in note["text"]
    assert "node-7" in note["text"]
    for mine, other in zip(by_recorder["steps"], by_file["steps"], strict=True):
        assert mine["window_ns"] == other["window_ns"]
        assert mine["clock"]["compute"]["samples"] == other["clock"]["compute"]["samples"]
        # A sample's time moves by 0.5 us at most; the clock between two moves by up to 800 MHz
        # over 50 ms, so a mean moves by a hundredth of a MHz at most.
        assert mine["clock"]["compute"]["mean_mhz"] == pytest.approx(
            other["clock"]["compute"]["mean_mhz"], abs=0.01
        )
        assert mine["dvfs"]["lost_ns"] == pytest.approx(other["dvfs"]["lost_ns"], abs=20_000)
    for mine, other in zip(by_recorder["totals"], by_file["totals"], strict=True):
        assert (mine["energy_j"] or 0) == pytest.approx(other["energy_j"] or 0, rel=1e-4)
        assert (mine["energy_j"] is None) is (other["energy_j"] is None)


def test_the_samples_of_a_trace_are_the_same_but_for_a_microsecond(
    job: SimulatedJob, state: Path
) -> None:
    record(job.samples, state)
    source = samples_to_join(load_config(None), None)
    assert source is not None
    assert not isinstance(source, SampleSet)
    samples = source.between(0, 2**62)
    assert samples is not None
    for mine, given in zip(samples.gpus, job.samples.gpus, strict=True):
        assert int(np.abs(mine.t_unix_ns - given.t_unix_ns).max()) <= NS_PER_US // 2
        np.testing.assert_array_equal(mine.sm_clock_mhz, given.sm_clock_mhz)
        np.testing.assert_array_equal(mine.energy_j, given.energy_j)
        np.testing.assert_array_equal(mine.causes, given.causes)
        assert mine.limited_ns.keys() == given.limited_ns.keys()


def test_the_dies_of_a_gpu_are_kept_and_reported_the_same_by_file_and_recorder(
    amd_job: SimulatedJob, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(amd_job.samples, state)
    write_samples(tmp_path / "samples.csv", amd_job.samples)
    trace = str(amd_job.paths[0])
    by_file = reported(capsys, trace, "--samples", str(tmp_path / "samples.csv"))
    by_recorder = reported(capsys, trace)
    assert {"several_dies"} <= set(codes(by_file)) & set(codes(by_recorder))
    for mine, other in zip(by_recorder["totals"], by_file["totals"], strict=True):
        assert mine["clock"]["dies"]["running"] == 8
        assert mine["clock"]["dies"] == pytest.approx(other["clock"]["dies"], abs=0.01)


def test_without_samples_of_its_time_a_trace_is_reported_without_clocks(
    job: SimulatedJob, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "recorder").mkdir(parents=True)
    document = reported(capsys, str(job.paths[0]))
    assert "no_samples" in codes(document)
    assert "local_samples" not in codes(document)
    assert all(step["dvfs"]["lost_ns"] is None for step in document["steps"])


def test_without_a_recorder_nothing_is_asked(state: Path) -> None:
    assert samples_to_join(load_config(None), None) is None
    state.mkdir()
    assert samples_to_join(load_config(None), None) is None


def test_a_recorder_in_trouble_costs_the_clocks_only(
    job: SimulatedJob,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (state / "recorder").mkdir(parents=True)

    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    document = reported(capsys, str(job.paths[0]))
    assert "no_samples" in codes(document)


def test_a_file_that_is_named_is_taken_and_must_be_readable(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        samples_to_join(load_config(None), tmp_path / "none.csv")
