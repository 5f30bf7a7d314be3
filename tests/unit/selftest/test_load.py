"""The decisions of the load script that need no device."""

import pytest

from chopperd.selftest.load import _index_of, _size

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free_bytes", "rows"),
    [
        (80 * GIB, 8192),  # the largest
        (8 * GIB, 8192),  # sqrt(8 GiB / 8 / 6) = 13377
        (2 * GIB, 6656),  # sqrt(2 GiB / 8 / 6) = 6688.7, in multiples of 512
        (0, 512),
    ],
)
def test_the_matrices_leave_most_of_the_memory_free(free_bytes: int, rows: int) -> None:
    assert _size(free_bytes) == rows


def test_torch_s_device_is_found_by_the_driver_s_uuid() -> None:
    assert _index_of("GPU-0A-1", ["0b-2", "0a-1"]) == 1
    assert _index_of("GPU-0a-1", [None]) == 0
    with pytest.raises(LookupError, match="CUDA_VISIBLE_DEVICES"):
        _index_of("GPU-0c-3", ["0b-2", "0a-1"])
