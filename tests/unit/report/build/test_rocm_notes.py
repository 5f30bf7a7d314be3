"""What is said of the times of a ROCm trace: worked out by hand."""

from msgspec.structs import replace

from chopperd.model.timeline import ClockDrift, DeviceTimeline
from chopperd.report.build.trace_notes import rocm_notes
from tests.unit.correlate.builders import Rec, device

DRIFT = ClockDrift(
    ratio=20e-6, low_ratio=15e-6, high_ratio=25e-6, span_ns=60_000_000_000, launch_count=500
)


def kernels(gap_ns: int, count: int = 20, *, stream: int = 0) -> DeviceTimeline:
    return device([Rec(n * 1_000, (n + 1) * 1_000 - gap_ns, stream=stream) for n in range(count)])


def codes(timeline: DeviceTimeline, runtime: str | None = "rocm") -> list[str]:
    return [note.code for note in rocm_notes(timeline, runtime)]


def test_a_drift_is_told_with_its_interval_and_what_it_makes_uncertain() -> None:
    drifting = replace(kernels(100), drift=DRIFT, early_count=3)
    (note,) = rocm_notes(drifting, "rocm")
    assert note.code == "rocm_clock_drift"
    assert "by +20 ppm [+15, +25], 1.2 ms over the file; 3 records before the launch" in note.text


def test_a_drift_that_may_be_none_or_does_no_harm_is_not_told() -> None:
    assert codes(replace(kernels(100), drift=replace(DRIFT, low_ratio=-1e-6))) == []
    assert codes(replace(kernels(100), drift=replace(DRIFT, span_ns=2_000_000_000))) == []


def test_kernels_that_end_as_the_next_begins_are_told_with_their_share() -> None:
    assert codes(kernels(100)) == []
    assert codes(kernels(1)) == ["rocm_touching_kernels"]
    (note,) = rocm_notes(kernels(0), "rocm")
    assert note.text.startswith("100.0 % of 19 records on device 0 end as the next begins")
    assert codes(kernels(1, count=10)) == []  # nine neighbours


def test_neighbours_are_those_of_a_stream() -> None:
    apart = [Rec(n * 1_000, (n + 1) * 1_000, stream=n % 2) for n in range(40)]
    assert codes(device(apart)) == []


def test_on_other_traces_nothing_is_told() -> None:
    assert codes(replace(kernels(1), drift=DRIFT), "cuda") == []
    assert codes(replace(kernels(1), drift=DRIFT), None) == []
