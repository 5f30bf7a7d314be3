"""Drops of the busy clock, written out."""

from chopperd.model.captures import DropState, GpuDrop
from chopperd.units import NS_PER_S
from tests.fakes.samples import START_UNIX_NS


def gpu_drop(
    begin_s: float, length_s: float | None = 5.0, *, gpu: str = "0", seen_s: float = 5.0
) -> GpuDrop:
    """A drop that began so long after the start; without a length it is open.

    Args:
        begin_s: When it began.
        length_s: How long it lasted; None where it goes on.
        gpu: Label of the GPU.
        seen_s: How long an open one has lasted so far.
    """
    begin_unix_ns = START_UNIX_NS + round(begin_s * NS_PER_S)
    end_unix_ns = None if length_s is None else begin_unix_ns + round(length_s * NS_PER_S)
    return GpuDrop(
        gpu=gpu,
        uuid=f"GPU-{gpu}",
        state=DropState.OPEN if length_s is None else DropState.RECOVERED,
        begin_unix_ns=begin_unix_ns,
        end_unix_ns=end_unix_ns,
        length_s=seen_s if length_s is None else length_s,
        busy_s=5.0,
        reference_mhz=1500.0,
        lowest_mhz=1350.0,
        mean_mhz=1380.0,
        depth_ratio=0.1,
        mean_depth_ratio=0.08,
        lost_s=0.4,
        cause="power_cap",
        lost_by_cause_s={"power_cap": 0.3, "thermal": 0.1},
        onset_power_w=640.0,
        mean_power_w=700.0,
        onset_temperature_c=70.0,
        mean_temperature_c=None,
    )
