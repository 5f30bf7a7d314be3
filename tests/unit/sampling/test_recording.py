from math import nan

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import Cause
from chopperd.sampling.memory.layout import RECORD
from chopperd.sampling.memory.slow_state import SlowState
from chopperd.sampling.recording import gpu_samples, recorded_gpu
from chopperd.units import TimeTriple

GPU = GpuInfo(gpu="0", index=0, uuid="u", name="n", vendor=Vendor.NVIDIA)
SECOND = 1_000_000_000
UNIX_NS = 1_795_000_000_000_000_001


def triple(mono_ns: int, offset_ns: int) -> TimeTriple:
    return TimeTriple(unix_ns=mono_ns + offset_ns, mono_ns=mono_ns, boot_ns=mono_ns)


def test_records_become_samples_in_unix_time() -> None:
    made = np.zeros(2, RECORD)
    made["t_mono_ns"] = [SECOND, 3 * SECOND]
    made["span_ns"] = [40_000, 50_000]
    made["causes"] = [0, Cause.UNKNOWN.bit]
    made["sm_clock_mhz"] = [1500, nan]
    made["power_w"] = nan
    made["limited_ns"] = nan
    made["limited_ns"][1, Cause.THERMAL] = 7
    samples = gpu_samples(GPU, made, [triple(0, UNIX_NS), triple(4 * SECOND, UNIX_NS + 4)])
    # By hand: the offset grows by 1 ns a second.
    assert samples.t_unix_ns.tolist() == [UNIX_NS + SECOND + 1, UNIX_NS + 3 * SECOND + 3]
    assert samples.read_span_ns.tolist() == [40_000, 50_000]
    assert samples.causes.tolist() == [0, Cause.UNKNOWN.bit]
    np.testing.assert_array_equal(samples.sm_clock_mhz, [1500, nan])
    assert np.isnan(samples.power_w).all()
    assert list(samples.limited_ns) == [Cause.THERMAL]
    np.testing.assert_array_equal(samples.limited_ns[Cause.THERMAL], [nan, 7])


def test_where_the_wall_clock_was_set_back_times_still_rise() -> None:
    made = np.zeros(6, RECORD)
    made["t_mono_ns"] = np.arange(6) * SECOND
    steps = [triple(n * SECOND, UNIX_NS - (2 * SECOND if n > 2 else 0)) for n in range(6)]
    samples = gpu_samples(GPU, made, steps)
    # By hand: unix seconds 0 1 2 1 2 3; the second pass over 1 and 2 is left out.
    assert ((samples.t_unix_ns - UNIX_NS) // SECOND).tolist() == [0, 1, 2, 3]


def test_a_gpu_without_records_has_no_samples() -> None:
    samples = gpu_samples(GPU, np.zeros(0, RECORD), [])
    assert len(samples) == 0
    assert samples.t_unix_ns.dtype == np.int64
    assert samples.limited_ns == {}


@pytest.mark.parametrize(
    ("start_w", "last_w", "named_w"),
    [
        (700.0, 700.0, 700.0),
        (700.0, None, 700.0),  # not told again
        (None, 700.0, 700.0),
        (700.0, 500.0, None),  # changed meanwhile
    ],
)
def test_a_power_limit_that_changed_meanwhile_is_not_that_of_the_recording(
    start_w: float | None, last_w: float | None, named_w: float | None
) -> None:
    state = {} if last_w is None else {"power_limit_w": last_w}
    found = recorded_gpu(replace(GPU, power_limit_w=start_w), SlowState(state=state))
    assert found.power_limit_w == named_w
