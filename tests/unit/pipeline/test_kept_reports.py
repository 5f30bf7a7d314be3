"""Reports of traces as they are kept until others of their job are there."""

import math

import pytest
from msgspec.structs import replace

from chopperd.pipeline.reports import FileReport, composed
from chopperd.pipeline.worker import FrameError, packed, unpacked
from tests.fakes.clock import ScriptedClock
from tests.unit.report.documents import host_timed
from tests.unit.report.traced import Job, reported, sample_set, sampled

JOBS = (Job(rank=0, steps=(1, 2)), Job(rank=1, steps=(1, 2)))


def test_a_kept_report_makes_the_document_that_it_would_have_made() -> None:
    """Also where numbers are NaN, which JSON can't hold."""
    files = [FileReport(report=reported(job, sample_set(sampled()))) for job in JOBS]
    kept = [unpacked(packed(file)) for file in files]
    assert math.isnan(kept[0].report.totals[0].random_ns) == math.isnan(
        files[0].report.totals[0].random_ns
    )
    assert repr(kept) == repr(files)
    assert composed(kept, ScriptedClock()) == composed(files, ScriptedClock())


def test_the_hosts_time_of_a_trace_without_device_work_is_kept() -> None:
    file = FileReport(report=replace(reported(JOBS[0]), host=host_timed().host[0]))
    assert unpacked(packed(file)).report.host == host_timed().host[0]
    assert composed([file], ScriptedClock()).host == host_timed().host


def test_nan_stays_nan() -> None:
    file = FileReport(report=reported(JOBS[0]))
    assert math.isnan(file.report.totals[0].random_ns)
    assert math.isnan(unpacked(packed(file)).report.totals[0].random_ns)


def test_a_gpu_guessed_for_two_at_a_time_is_taken_from_both() -> None:
    samples = sample_set(sampled())
    sure = [reported(job) for job in JOBS]
    files = [
        FileReport(report=reported(job, samples), certain=certain)
        for job, certain in zip(JOBS, sure, strict=True)
    ]
    assert [file.report.devices[0].gpu for file in files] == ["0", "0"]
    alone = composed(files[:1], ScriptedClock())
    assert [device.gpu for device in alone.devices] == ["0"]
    both = composed(files, ScriptedClock())
    assert [device.gpu for device in both.devices] == [None, None]


def test_what_was_not_kept_by_this_version_is_an_error() -> None:
    with pytest.raises(FrameError, match="can't be read"):
        unpacked(b"\x81\xa6report\xc0")
