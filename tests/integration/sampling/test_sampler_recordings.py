"""Recordings by real sampler processes over scripted GPUs."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chopperd.model.kinds import Cause
from chopperd.model.samples import SampleSet
from chopperd.sampling.memory.layout import GpuState
from chopperd.sampling.recording import Recorder
from chopperd.sampling.supervisor import SamplerSupervisor
from chopperd.units import NS_PER_S
from tests.integration.sampling.supervised import CLOCK, wait_for_hang, written
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def missed_count(samples: SampleSet, n: int) -> int:
    """Reads of a GPU that a busy machine did not come to, by the recording's own notes."""
    notes = (re.match(rf"GPU {n}: (\d+) of \d+ reads missed", note.text) for note in samples.notes)
    return sum(int(note[1]) for note in notes if note)


def test_a_recording_at_100_hz_keeps_the_rate_and_ends_cleanly(
    make: Callable[..., SamplerSupervisor],
) -> None:
    supervisor = make(4)
    recorder = Recorder(supervisor, CLOCK)
    before_ns = CLOCK.unix_ns()
    recorder.start()
    assert [gpu.gpu for gpu in recorder.gpus] == ["0", "1", "2", "3"]
    reader = supervisor.reader
    wait_for(lambda: min(reader.status(slot).written for slot in range(4)) >= 100)
    samples = recorder.finish()
    after_ns = CLOCK.unix_ns()
    assert (samples.backend, samples.simulated, samples.asked_hz) == ("scripted", True, 100.0)
    assert samples.started_unix_ns is not None
    assert before_ns <= samples.started_unix_ns < after_ns
    for n, gpu in enumerate(samples.gpus):
        assert (np.diff(gpu.t_unix_ns) > 0).all()
        lasted_s = (gpu.t_unix_ns[-1] - gpu.t_unix_ns[0]) / NS_PER_S
        assert (len(gpu) + missed_count(samples, n)) / lasted_s > 95
        assert len(gpu) / lasted_s < 110
        assert before_ns < gpu.t_unix_ns[0]
        assert gpu.t_unix_ns[-1] < after_ns
        assert set(gpu.sm_clock_mhz) == {1500.0 + n}
        assert set(gpu.causes.tolist()) == {Cause.POWER_CAP.bit}
        assert 1 <= (~np.isnan(gpu.power_w)).sum() <= 3 + lasted_s  # full: the first, one a second
        assert set(gpu.limited_ns) == {
            Cause.POWER_CAP,
            Cause.SYNC_BOOST,
            Cause.THERMAL,
            Cause.HW_THERMAL,
            Cause.POWER_BRAKE,
        }
    assert len(samples.triples) >= 2


def test_a_recording_may_be_closed_after_its_finish_and_says_nothing_twice(
    make: Callable[..., SamplerSupervisor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = make(1)
    recorder = Recorder(supervisor, CLOCK)
    recorder.start()
    wait_for(lambda: written(supervisor, 0) > 0)
    (tmp_path / "hang-0").touch()
    wait_for_hang(supervisor, 0)
    samples = recorder.finish(0.3)
    recorder.close()
    assert [note.code for note in samples.notes if note.code == "sampler_left"] == ["sampler_left"]
    assert sum("still in a driver call" in record.getMessage() for record in caplog.records) == 1


def test_a_lost_gpu_comes_back_and_the_recording_says_so(
    make: Callable[..., SamplerSupervisor], tmp_path: Path
) -> None:
    supervisor = make(2)
    recorder = Recorder(supervisor, CLOCK)
    recorder.start()
    (tmp_path / "lost-1").touch()
    wait_for(lambda: supervisor.reader.status(1).state is GpuState.LOST)
    count = written(supervisor, 1)
    (tmp_path / "lost-1").unlink()
    wait_for(lambda: written(supervisor, 1) > count)
    samples = recorder.finish()
    assert "gpu_lost" in [note.code for note in samples.notes]
    assert [gpu.gpu.gpu for gpu in samples.gpus] == ["0", "1"]
