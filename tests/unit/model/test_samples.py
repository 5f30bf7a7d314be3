from tests.unit.correlate.builders import MS, gpu_samples


def test_samples_are_counted_by_their_times() -> None:
    assert len(gpu_samples([0, 10 * MS, 20 * MS], [1400.0, 1410.0, 1420.0])) == 3
