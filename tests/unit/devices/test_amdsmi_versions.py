"""Which library a binding was made for."""

import pytest

from chopperd.devices.amd.smi.binding import fits, rocm_of
from chopperd.devices.amd.smi.library import METRICS_CALL, NOT_FOUND, error_class
from chopperd.errors import DeviceLostError, TransientDeviceError, UnsupportedFieldError


@pytest.mark.parametrize(
    ("binding", "library", "expected"),
    [
        ("7.0.2", (26, 0, 2), True),
        ("7.0.2", (25, 5, 1), False),
        ("6.4.4", (25, 5, 1), True),
        ("6.4.0", (25, 3, 0), True),
        ("6.2.4", (24, 6, 3), True),
        ("24.6.3+9578815", (24, 6, 3), True),  # as ROCm's own says it
        ("26.0.2+39589fda", (26, 0, 0), True),
        ("26.0.2+39589fda", (26, 1, 0), False),
        ("7.9.1", (26, 4, 0), None),
        ("unknown", (26, 0, 2), None),
        (None, (26, 0, 2), None),
    ],
)
def test_a_binding_fits_the_library_of_its_release(
    binding: str | None, library: tuple[int, ...], expected: bool | None
) -> None:
    assert fits(binding, library) is expected


def test_the_release_of_a_library_is_named_where_it_is_known() -> None:
    assert [rocm_of(version) for version in ((25, 5, 1), (24, 7, 1), (99, 0, 0))] == [
        "6.4",
        "6.3",
        None,
    ]


def test_a_gpu_that_is_not_found_is_lost_and_a_sensor_that_is_not_is_missing() -> None:
    assert error_class(NOT_FOUND, METRICS_CALL) is DeviceLostError
    assert error_class(NOT_FOUND, "amdsmi_get_temp_metric") is UnsupportedFieldError
    assert error_class(123_456, METRICS_CALL) is TransientDeviceError
