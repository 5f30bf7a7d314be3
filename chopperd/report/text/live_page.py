"""The GPUs of a node as they are now: the table of `chopperd top`."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group

from chopperd.model.devices import DeviceReading
from chopperd.model.live import DiesLive, GpuLive, NodeSnapshot
from chopperd.report.text.live_rates import lost_ratios, window
from chopperd.report.text.report import simulated_mark
from chopperd.report.text.sections import table
from chopperd.report.text.wording import UNKNOWN, decimal, percent, whole, words

_COLUMNS: Final = (
    *("<gpu", "MHz", "% max", "W", "limit W", "C", "busy %", "Hz"),
    *("lost ms/s", "excess ms/s", "<held by"),
)
#: The pace of a GPU that is read at the rate asked for.
_AS_ASKED: Final = "asked"
_CAPTION: Final = (
    "lost: live ceiling against the top clock, over the last 10 s; excess: against peers, at most, "
    "in the last whole 10 s; q ends"
)


def live_page(history: Sequence[NodeSnapshot]) -> Group:
    """A line a GPU; unknown is a dash.

    Args:
        history: At least one snapshot, oldest first; losses are those of the last 10 s of it.
    """
    now = history[-1]
    ratios = lost_ratios(window(history))
    rows = [_cells(gpu, ratios[gpu.info.gpu]) for gpu in now.gpus]
    body = table(_title(now), _COLUMNS, rows, caption=_CAPTION)
    return Group(simulated_mark(), body) if now.simulated else body


def gpu_values(gpu: GpuLive) -> tuple[str, ...]:
    """Clock, share of the top clock, power and its limit, temperature, busy share."""
    reading, info = gpu.reading, gpu.info
    ratio = None
    if reading.sm_clock_mhz is not None and info.sm_clock_max_mhz:
        ratio = reading.sm_clock_mhz / info.sm_clock_max_mhz
    return (
        whole(reading.sm_clock_mhz),
        percent(ratio, 0),
        whole(reading.power_w),
        whole(reading.power_limit_w),
        whole(reading.temperature_c),
        percent(reading.activity_ratio, 0),
    )


def gpu_rate(gpu: GpuLive) -> str:
    """Samples a second that are kept, and why where those are not the ones asked for."""
    if not gpu.up or gpu.kept_hz is None:
        return UNKNOWN
    why = "" if gpu.pace == _AS_ASKED else f" {gpu.pace}"
    return decimal(gpu.kept_hz, 1) + why


def gpu_condition(gpu: GpuLive) -> str:
    """Why the GPU does not answer, else the limits that hold its clock now."""
    if gpu.hung is not None:
        return f"{gpu.hung.scope} call hangs for {gpu.hung.age_s:.0f} s"
    if not gpu.up:
        is_awaited = gpu.last_sample_unix_ns is None and gpu.trouble is None
        return "no sample yet" if is_awaited else "does not answer"
    if gpu.info.parent is not None:
        return f"part of GPU {gpu.info.parent}"
    return _limits(gpu.reading) + _dies_off(gpu.dies)


def _dies_off(dies: DiesLive | None) -> str:
    """A mark where a GPU runs with some of its dies only."""
    if dies is None or not dies.gated:
        return ""
    return f" ({dies.running}/{dies.running + dies.gated} dies)"


def _limits(reading: DeviceReading) -> str:
    if reading.causes is None:
        return UNKNOWN
    return " + ".join(words(cause.label) for cause in sorted(reading.causes)) or "nothing"


def _cells(gpu: GpuLive, lost_ratio: float | None) -> tuple[str, ...]:
    return (
        gpu.info.gpu,
        *gpu_values(gpu),
        gpu_rate(gpu),
        _per_second_ms(lost_ratio),
        _per_second_ms(gpu.excess_ratio),
        gpu_condition(gpu),
    )


def _per_second_ms(ratio: float | None) -> str:
    """A share of time as milliseconds of each second."""
    return UNKNOWN if ratio is None else decimal(1000 * ratio, 0 if ratio >= 0.1 else 1)


def _title(now: NodeSnapshot) -> str:
    backend = now.backend or "no back end"
    driver = f", driver {now.driver}" if now.driver else ""
    return f"GPUS  {now.node}, {backend}{driver}, {now.sampler.condition.value}"
