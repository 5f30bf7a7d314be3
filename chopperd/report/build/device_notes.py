"""Make notes on a traced device and its GPU: why figures are missing or in doubt."""

import math
from typing import Final

import numpy as np

from chopperd.correlate.causes import false_causes
from chopperd.correlate.join import JoinedDevice, RowClocks
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import CAUSES
from chopperd.model.report import Note, Reference
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.report.build.clocked_device import ClockedDevice
from chopperd.report.build.clocks import AVERAGES, compute_rows, dies_of
from chopperd.report.build.trace_notes import noted
from chopperd.report.text.wording import brief_ms, percent, plural, whole, words
from chopperd.units import NS_PER_S

#: From this share of the clock on, a blur of it gets a note.
_NOTED_BLUR_RATIO: Final = 0.005
#: Clocks differ from the maximum by up to a step of theirs.
_CLOCK_STEP_MHZ: Final = 15.0
#: Fewer samples of one clock may be chance.
_MIN_LOCKED_SAMPLES: Final = 30


def device_notes(
    clocked: ClockedDevice, samples: SampleSet | None, *, in_agent: bool
) -> list[Note]:
    """Return why a device's clocks, losses or energy are unknown; none without samples to join."""
    joined, mine, reference = clocked.joined, clocked.samples, clocked.summary.reference
    if samples is None:
        return []
    if mine is None:
        device, why_not = joined.timeline.device, clocked.mapped.why_not
        text = f"device {device} of the trace is not mapped to a sampled GPU"
        text += f": {why_not}" if why_not else ""
        return [Note(code="device_unmapped", text=f"{text}; {_remedy(device, samples, in_agent)}")]
    clocks, gpu, source = joined.clocks, mine.gpu, mine.gpu.power_source
    over = "1 s" if source == "average_1s" else "a time that is not known"
    has_energy = gpu.parent or np.isfinite(mine.energy_j).any()
    return noted(
        clock_above_reference=_above_reference(clocks, reference),
        no_overlap=clocks is None and _why_apart(joined, mine),
        no_reference=reference.sm_clock_mhz is None
        and f"no reference clock for GPU {gpu.gpu} (--reference-mhz)",
        no_energy=clocks
        and not has_energy
        and f"the samples of GPU {gpu.gpu} have no energy counter",
        **_on_sensor(clocks, gpu.gpu),
        power_averaged=source in AVERAGES
        and f"power readings of GPU {gpu.gpu} are averaged over {over}: not used for steps shorter "
        "than 1 s",
        card_power=source == "card"
        and f"power and energy of GPU {gpu.gpu} are those of its card, with the GPU next to it",
        shared_clock_domain=gpu.parent
        and f"GPU {gpu.gpu} is a part of GPU {gpu.parent}: clock, causes, power limit and "
        "temperature are those of the whole card; the part's energy is not known",
        cause_ignored=_false_causes(samples, gpu),
        looks_locked=clocks and _lock(clocks, mine, reference.sm_clock_mhz),
        several_dies=clocks and _dies(clocks, mine),
    )


def _false_causes(samples: SampleSet, gpu: GpuInfo) -> str:
    whose = gpu.parent or gpu.gpu
    false = [false_causes(each) for each in samples.gpus if each.gpu.gpu == whose]
    names = " and ".join(words(c.label) for c in CAUSES if any(c.bit & bits for bits in false))
    return names and (
        f"GPU {gpu.gpu} reports the limit {names} also while it is idle and cool: it says "
        "nothing there, and is left out of the causes"
    )


def _lock(clocks: RowClocks, mine: GpuSamples, top_mhz: float | None) -> str:
    """Return the hint that a clock is locked, for which no driver has a call; "" if it is not."""
    if top_mhz is None or mine.gpu.sm_clock_limit_mhz is not None:
        return ""
    rows = compute_rows(clocks)
    found_mhz = np.unique(clocks.samples.clock_mhz[rows])
    is_held = len(found_mhz) == 1 and len(rows) >= _MIN_LOCKED_SAMPLES
    if not is_held or found_mhz[0] >= top_mhz or mine.causes[clocks.sample_rows[rows]].any():
        return ""
    shown = "amd-smi metric --clock" if mine.gpu.vendor is Vendor.AMD else "nvidia-smi -q -d CLOCK"
    return (
        f"GPU {mine.gpu.gpu} computes at {whole(found_mhz[0])} MHz all the time, of "
        f"{whole(top_mhz)}, and no limit is reported: it seems locked ({shown}); if it is, set "
        f"reference.limit_mhz = {whole(found_mhz[0])}, and the loss is its user's limit"
    )


def _remedy(device: int, samples: SampleSet, in_agent: bool) -> str:
    gpus = f"sampled: {', '.join(each.gpu.gpu for each in samples.gpus) or 'none'}"
    if not in_agent:
        return f"say which it is with --device-map [RANK:]{device}=GPU ({gpus})"
    return (
        f"say which it is with traces.device_map or POST /api/v1/traces?device_map={device}=GPU "
        f"({gpus}), or give the agent the host's pid namespace (hostPID)"
    )


def _dies(clocks: RowClocks, mine: GpuSamples) -> str:
    whole_file = len(clocks.windows) - 1
    dies, own_mhz = dies_of(mine, clocks, whole_file), clocks.compute.mean_mhz[whole_file]
    if dies is None:
        return ""
    die = "XCD" if mine.gpu.vendor is Vendor.AMD else "die"
    text = f"the clock of GPU {mine.gpu.gpu} is its governing die's, mostly {die} {dies.governing}"
    if dies.running > 1:
        ratio = dies.mean_mhz / own_mhz - 1
        away = f"{percent(abs(ratio))} % {'lower' if ratio < 0 else 'higher'}"
        text += f"; the mean of {dies.running} running dies is {away}"
    return text + (f"; {plural(dies.gated, 'die')} left out while off" if dies.gated else "")


def _why_apart(joined: JoinedDevice, mine: GpuSamples) -> str:
    whose = f"of GPU {mine.gpu.gpu}"
    clocked_ns = mine.t_unix_ns[np.isfinite(mine.sm_clock_mhz)]
    if not len(clocked_ns):
        return f"no sample {whose} has a clock"
    windows = joined.times.windows
    ahead_ns = int(windows.start_ns[-1] - clocked_ns[-1])
    behind_ns = int(clocked_ns[0] - windows.end_ns[-1])
    if ahead_ns > 0:
        return f"the samples {whose} end {_seconds(ahead_ns)} before the trace begins"
    if behind_ns >= 0:
        return f"the samples {whose} begin {_seconds(behind_ns)} after the trace ends"
    return f"too few samples {whose} fall into the trace's time"


def _seconds(time_ns: int) -> str:
    """Format ns as seconds with three digits, or as all whole seconds where there are more."""
    time_s = time_ns / NS_PER_S
    return f"{time_s:.3g} s" if time_s < 999.5 else f"{time_s:,.0f} s"


def _on_sensor(clocks: RowClocks | None, gpu: str) -> dict[str, str]:
    if clocks is None:
        return {}
    timing, found = clocks.timing, {}
    blur_ratio = float(clocks.compute.blur_mhz[-1]) / float(clocks.compute.mean_mhz[-1])
    if blur_ratio >= _NOTED_BLUR_RATIO:
        found["clock_blurred"] = (
            f"the clock of GPU {gpu} follows what runs only over "
            f"{brief_ms(timing.settling_ns)} ms or more: its sensor averages or the "
            "clock settles so slowly, which cannot be distinguished; the intervals hold both, "
            f"{percent(blur_ratio)} % of the clock to either side are for that"
        )
    if clocks.regular_reads:
        points = f" {timing.distinct_reads:.0f}" if math.isfinite(timing.distinct_reads) else ""
        found["regular_reads"] = (
            f"the clock of GPU {gpu} was read at regular intervals, as by nvidia-smi -lms: what "
            f"repeats with them is hidden, and the run's interval counts{points} different points "
            "of the step, not reads; chopperd record reads at random"
        )
    return found


def _above_reference(clocks: RowClocks | None, reference: Reference) -> str:
    if clocks is None or reference.sm_clock_mhz is None:
        return ""
    of_compute = clocks.samples.clock_mhz[compute_rows(clocks)]
    above = of_compute[of_compute > reference.sm_clock_mhz + _CLOCK_STEP_MHZ]
    if not len(above):
        return ""
    return (
        f"{len(above)} of {plural(len(of_compute), 'sample')} in compute are above the reference "
        f"clock of {reference.sm_clock_mhz:.0f} MHz, up to {above.max():.0f}: no loss there"
    )
