"""Mean power of a row and what it is from: a square wave of 700 W and 100 W, 200 ms each.

The numbers are those of a public case: read each 100 ms, the energy counter is exact, the mean of
the last second goes 460, 400, 340, 400 W round and round.
"""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.join import join_device
from chopperd.model.samples import GpuSamples
from chopperd.report.build.clocks import power_of
from tests.unit.correlate.builders import MS, Rec, device, gpu_samples
from tests.unit.report.traced import document, node

STEP_A, STEP_B = (1200 * MS, 1400 * MS), (1400 * MS, 1600 * MS)
END_MS = 5200
TIMES_MS = range(1000, END_MS + 100, 100)
ENERGY_J = np.cumsum([460.0] + [(10.0, 10.0, 70.0, 70.0)[n % 4] for n in range(len(TIMES_MS) - 1)])
AVERAGE_W = np.array([(460.0, 400.0, 340.0, 400.0)[n % 4] for n in range(len(TIMES_MS))])
INSTANT_W = np.array([(100.0, 100.0, 700.0, 700.0)[n % 4] for n in range(len(TIMES_MS))])
TOTAL = 2


def wave(power_w: np.ndarray, power_source: str | None, *, has_counter: bool) -> GpuSamples:
    samples = gpu_samples(
        [t * MS for t in TIMES_MS],
        [1400.0] * len(TIMES_MS),
        energy_j=ENERGY_J.tolist() if has_counter else None,
    )
    return replace(samples, power_w=power_w, gpu=replace(samples.gpu, power_source=power_source))


def powers(samples: GpuSamples) -> list[tuple[float | None, str | None]]:
    """Of step A, step B, and the whole file of 1.2 to 5.2 s."""
    records = [Rec(start, end, step=n) for n, (start, end) in enumerate((STEP_A, STEP_B))]
    timeline = device([*records, Rec(1600 * MS, END_MS * MS, step=1)], [STEP_A, STEP_B])
    clocks = join_device(timeline, (), samples, 1980.0).clocks
    assert clocks is not None
    return [power_of(samples, clocks, row) for row in (0, 1, TOTAL)]


def test_the_energy_counter_gives_each_step_its_own_power() -> None:
    """140 J and 20 J in 200 ms, 400 W in all, whatever the readings are averaged over."""
    found = powers(wave(AVERAGE_W, "average_1s", has_counter=True))
    assert [source for _, source in found] == ["energy_counter"] * 3
    assert [power for power, _ in found] == pytest.approx([700.0, 100.0, 400.0])


def test_power_that_is_only_the_mean_of_a_second_is_unknown_for_shorter_steps() -> None:
    """It would be about 400 W for both; the run, 4 s long, has its mean."""
    a, b, total = powers(wave(AVERAGE_W, "average_1s", has_counter=False))
    assert a == b == (None, None)
    assert total[0] == pytest.approx(400.0, abs=5)
    assert total[1] == "average_1s"


@pytest.mark.parametrize("source", ["average_1s", "average", "card"])
def test_a_mean_over_a_time_that_is_not_known_is_no_power_of_a_short_step_either(
    source: str,
) -> None:
    """Steps of 600 ms with six readings each: enough of an instant, none of a mean."""
    steps = [(1200 * MS, 1800 * MS), (1800 * MS, 2400 * MS)]
    timeline = device([Rec(start, end, step=n) for n, (start, end) in enumerate(steps)], steps)
    found = {}
    for name in (source, "instant"):
        samples = wave(AVERAGE_W, name, has_counter=False)
        clocks = join_device(timeline, (), samples, 1980.0).clocks
        assert clocks is not None
        found[name] = power_of(samples, clocks, 0)
    assert found[source] == (None, None)
    assert found["instant"][0] is not None
    _, _, (total_w, whose) = powers(wave(AVERAGE_W, source, has_counter=False))
    assert whose == source
    assert total_w == pytest.approx(400.0, abs=5)


def test_a_report_says_that_power_and_energy_are_those_of_both_gpus_of_a_card() -> None:
    jobs, samples = node([1400.0, 1500.0])
    first, second = samples.gpus
    of_both = replace(first, gpu=replace(first.gpu, power_source="card"))
    told = document(jobs, replace(samples, gpus=(of_both, second)))
    by_code = {note.code: note.text for note in told.notes}
    assert "power and energy of GPU 0 are those of its card" in by_code["card_power"]
    assert "power_averaged" in by_code
    assert "card_power" not in {note.code for note in document(jobs, samples).notes}


def test_power_of_an_instant_takes_a_few_readings() -> None:
    """Two readings a step are no mean; 40 of the whole run are."""
    a, b, total = powers(wave(INSTANT_W, "instant", has_counter=False))
    assert a == b == (None, None)
    assert total[0] == pytest.approx(400.0, abs=10)
    assert total[1] == "instant"


def test_readings_of_unknown_kind_are_no_power_of_a_row() -> None:
    assert powers(wave(AVERAGE_W, None, has_counter=False)) == [(None, None)] * 3


def test_a_report_says_that_power_is_averaged_and_how_often_the_clock_sensor_looks() -> None:
    """Two GPUs: a sensor of 100 ms and one of 20 ms; the slower is the report's."""
    jobs, samples = node([1400.0, 1500.0])
    first, second = samples.gpus
    slow = replace(
        first.gpu, sm_clock_period_ns=100 * MS, power_source="average_1s", sensor_lag_ns=None
    )
    quick = replace(second.gpu, sm_clock_period_ns=20 * MS, power_source="average_1s")
    known = replace(samples, gpus=(replace(first, gpu=slow), replace(second, gpu=quick)))
    told = document(jobs, known)
    assert told.sampling.sensor_period_ms == 100.0
    assert told.sampling.power_source == "average_1s"
    assert told.sampling.kept_hz == pytest.approx(100.0)
    assert "power_averaged" in {note.code for note in told.notes}
    untold = document(jobs, samples)
    assert untold.sampling.sensor_period_ms is None
    assert "power_averaged" not in {note.code for note in untold.notes}
