"""kill -9 of a process that keeps samples: what it said was kept is there, and nothing else."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chopperd.clock import SystemClock
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.recorded import clock_mhz_at
from tests.tools import ROOT

WRITER = (sys.executable, "-m", "tests.integration.store.recorder_writer")
CLOCK = SystemClock()
UNIX_LESS_MONO_NS = 10**9 * NS_PER_S
ALL_TIME = (0, 2**62)


def kept_before_kill(folder: Path, begin_s: int, seed: int) -> int:
    """Let a writer run for a random while and kill it; how many samples a GPU it said it kept."""
    command = [*WRITER, str(folder), str(begin_s), "3"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # Chunks are written at seconds 4 and 8; the first may hold what a killed writer left, and
        # then goes into that one's file.
        said = [process.stdout.readline() for _ in range(8)]
        wait_ns = random.Random(seed).randrange(400 * NS_PER_MS)
        CLOCK.sleep_until(CLOCK.mono_ns() + wait_ns)
        process.kill()
        said += process.stdout.readlines()
    return int([line for line in said if line.endswith("\n")][-1])


@pytest.mark.parametrize("seed", range(5))
def test_all_that_was_kept_before_a_kill_is_read_in_order(tmp_path: Path, seed: int) -> None:
    count = kept_before_kill(tmp_path, 1, seed)
    samples = RecordedSamples(tmp_path).between(*ALL_TIME)
    assert samples is not None
    assert samples.notes == ()
    for slot, gpu in enumerate(samples.gpus):
        # What was being appended when the kill came may be there or not, whole seconds only.
        assert count <= len(gpu) <= count + 10
        t_mono_ns = gpu.t_unix_ns - UNIX_LESS_MONO_NS
        expected = NS_PER_S + 1_000 * slot + np.arange(len(gpu)) * (NS_PER_S // 10)
        np.testing.assert_array_equal(t_mono_ns, expected)
        np.testing.assert_array_equal(gpu.sm_clock_mhz, clock_mhz_at(t_mono_ns))


def test_successors_go_on_where_killed_writers_stopped(tmp_path: Path) -> None:
    counts = [kept_before_kill(tmp_path, 10_000 * nth + 1, nth) for nth in range(3)]
    samples = RecordedSamples(tmp_path).between(*ALL_TIME)
    assert samples is not None
    t_mono_s = (samples.gpus[0].t_unix_ns - UNIX_LESS_MONO_NS) / NS_PER_S
    for nth, count in enumerate(counts):
        kept = int(((t_mono_s >= 10_000 * nth) & (t_mono_s < 10_000 * (nth + 1))).sum())
        assert count <= kept <= count + 10
    assert [path.name for path in sorted(tmp_path.glob("samples-*"))] == [
        "samples-00000001.rec",
        "samples-00000002.rec",
        "samples-00000003.rec",
    ]


def test_a_reader_beside_a_writer_sees_all_that_was_kept_and_no_damage(tmp_path: Path) -> None:
    # Chunks are written and the journal is replaced dozens of times while this reads.
    command = [*WRITER, str(tmp_path), "1", "3"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for _ in range(25):
                said_count = int([process.stdout.readline() for _ in range(4)][-1])
                samples = RecordedSamples(tmp_path).between(*ALL_TIME)
                assert samples is not None
                assert samples.notes == ()
                for slot, gpu in enumerate(samples.gpus):
                    assert len(gpu) >= said_count
                    t_mono_ns = gpu.t_unix_ns - UNIX_LESS_MONO_NS
                    expected = NS_PER_S + 1_000 * slot + np.arange(len(gpu)) * (NS_PER_S // 10)
                    np.testing.assert_array_equal(t_mono_ns, expected)
        finally:
            process.kill()
