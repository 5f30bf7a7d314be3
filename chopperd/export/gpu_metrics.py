"""Metrics of GPUs, from live sampling and from captures."""

from collections.abc import Iterable, Mapping
from typing import Final

from chopperd.export.metric import (
    GPU,
    Label,
    Point,
    Source,
    View,
    full,
    gpu_by,
    gpu_value,
    minimal,
    standard,
    traced_by,
    traced_sum,
    traced_value,
)
from chopperd.model.devices import MEMORY_SOURCES, GpuInfo
from chopperd.model.kinds import CAUSES, KERNEL_CLASSES, MEASURED_VERDICTS, Cause
from chopperd.model.live import GpuLive, TracedTotals
from chopperd.units import hertz_from_megahertz, seconds_from_ns

CAUSE: Final = Label("cause", tuple(cause.label for cause in CAUSES))
#: Causes that a driver can count time of; AMD's also counts too little work, and no known cause.
LIMIT: Final = Label("cause", tuple(cause.label for cause in CAUSES if cause is not Cause.UNKNOWN))
#: Upper edges of the clock buckets as ratios of the highest SM clock.
BUCKET: Final = Label("bucket", (*(f"{tenth / 10:.1f}" for tenth in range(1, 11)), "+Inf"))
SENSOR: Final = Label("sensor", ("gpu", "memory"))
#: A source of memory figures that only a back end of another package knows.
_OTHER: Final = "other"
_INFO_LABELS: Final = (
    GPU,
    *map(Label, ("uuid", "pci_bus_id", "name", "vendor", "backend")),
    Label("memory_source", (*MEMORY_SOURCES, _OTHER, "")),
    Label("parent"),
)


def _up(view: View) -> Iterable[Point]:
    """Return whether each GPU is up: the only series that remains when a GPU is lost."""
    return [((gpu.info.gpu,), float(gpu.up)) for gpu in view.snapshot.gpus]


def _info(view: View) -> Iterable[Point]:
    backend = view.snapshot.backend or ""
    for gpu in view.snapshot.gpus:
        if gpu.up:
            info = gpu.info
            identity = (info.gpu, info.uuid, info.pci_bus_id or "", info.name, info.vendor.value)
            yield (*identity, backend, _memory_source(info), info.parent or ""), 1.0


def _memory_source(info: GpuInfo) -> str:
    """Return the source of memory figures as one of the label's values; empty if unknown."""
    source = info.memory_source or ""
    return source if source in ("", *MEMORY_SOURCES) else _OTHER


def _by_cause(seconds: Mapping[Cause, float]) -> dict[str, float]:
    return {cause.label: value for cause, value in seconds.items()}


def _residency(gpu: GpuLive) -> dict[str, float]:
    """Return sampled time in s by clock bucket; bucket edges are the same ratios on all GPUs."""
    buckets = sorted(gpu.residency_s.items())
    labels = BUCKET.values or ()
    return {label: seconds for label, (_, seconds) in zip(labels, buckets, strict=bool(buckets))}


def _temperatures(gpu: GpuLive) -> dict[str, float]:
    reading = gpu.reading
    by_sensor = {"gpu": reading.temperature_c, "memory": reading.temperature_memory_c}
    return {name: value for name, value in by_sensor.items() if value is not None}


GPU_METRICS: Final = (
    minimal(
        "gpu_up", "Whether the GPU answers, 1 or 0; at 0 its other series end", Source(_up, (GPU,))
    ),
    minimal(
        "gpu_info",
        "Identity of the GPU; parent: the card of a part (MIG), which has its clock; always 1",
        Source(_info, _INFO_LABELS),
    ),
    minimal(
        "gpu_sm_clock_hertz",
        "Newest SM clock (AMD: GFX clock of the governing die); for means divide sm_cycles by "
        "sampled_seconds",
        gpu_value("reading.sm_clock_mhz", hertz_from_megahertz),
    ),
    minimal(
        "gpu_sm_clock_reference_hertz",
        "Highest SM clock by the driver, the reference of live losses",
        gpu_value("info.sm_clock_max_mhz", hertz_from_megahertz),
    ),
    minimal(
        "gpu_sm_cycles_total",
        "SM cycles over sampled time: the integral of the clock",
        gpu_value("totals.sm_cycles"),
    ),
    minimal(
        "gpu_sampled_seconds_total",
        "Time between samples that are close enough for the clock to be known",
        gpu_value("totals.sampled_s"),
    ),
    minimal(
        "gpu_busy_seconds_total",
        "Time that the GPU reported itself busy, including communication and waiting",
        gpu_value("totals.busy_s"),
    ),
    minimal(
        "gpu_busy_sm_cycles_total",
        "SM cycles over busy time with known clock",
        gpu_value("totals.busy_sm_cycles"),
    ),
    minimal(
        "gpu_busy_sampled_seconds_total",
        "Busy time with known clock",
        gpu_value("totals.busy_sampled_s"),
    ),
    standard(
        "gpu_dvfs_lost_live_seconds_total",
        "Busy time lost against the reference clock, by cause: a ceiling, mostly physics",
        gpu_by(CAUSE, lambda gpu: _by_cause(gpu.totals.lost_s if gpu.totals else {})),
    ),
    minimal(
        "gpu_excess_live_seconds_total",
        "Busy time lost against the median busy clock of at least four GPUs of the same model, "
        "over 10 s windows: an upper bound, as waiting peers have high clocks (times the "
        "share of compute where a recent capture knows it); absent while fewer are busy",
        gpu_value("excess_s"),
    ),
    standard(
        "gpu_clock_limited_seconds_total",
        "Time under each limit (AMD: also for too little work and for no reported reason) by the "
        "driver's own counters; may overlap",
        gpu_by(LIMIT, lambda gpu: _by_cause(gpu.totals.limited_s if gpu.totals else {})),
    ),
    full(
        "gpu_clock_residency_seconds_total",
        "Sampled time by SM clock; bucket: upper edge as a ratio of the reference clock, the "
        "lower edge is the bucket before",
        gpu_by(BUCKET, _residency),
    ),
    standard(
        "gpu_clock_drops_total",
        "Drops of the busy clock below its median of the minute before, counted at their onset",
        gpu_value("drops.count"),
    ),
    full(
        "gpu_clock_drop_seconds_total",
        "Time in drops of the busy clock, counted when each has ended",
        gpu_value("drops.length_s"),
    ),
    full(
        "gpu_clock_drop_lost_seconds_total",
        "Busy time lost in drops against the clock before them, counted when each has ended",
        gpu_value("drops.lost_s"),
    ),
    full(
        "gpu_xcd_clock_spread_hertz",
        "Of a GPU that runs several compute dies (AMD: XCDs), the highest less the lowest of their "
        "mean clocks over the last 2 s; sm_clock is that of the lowest",
        gpu_value("dies.spread_mhz", hertz_from_megahertz),
    ),
    full(
        "gpu_mem_clock_hertz",
        "Newest memory clock",
        gpu_value("reading.mem_clock_mhz", hertz_from_megahertz),
    ),
    minimal("gpu_power_watts", "Newest board power", gpu_value("reading.power_w")),
    minimal(
        "gpu_power_limit_watts",
        "Enforced power limit; the value at the start if the driver reports it only once",
        gpu_value("reading.power_limit_w"),
    ),
    standard(
        "gpu_power_limit_default_watts",
        "Default power limit",
        gpu_value("info.power_limit_default_w"),
    ),
    minimal(
        "gpu_energy_joules_total",
        "Energy by the driver's counter since the agent started",
        gpu_value("totals.energy_j"),
    ),
    minimal("gpu_temperature_celsius", "Newest temperature", gpu_by(SENSOR, _temperatures)),
    full(
        "gpu_temperature_slowdown_celsius",
        "Temperature of the GPU at which its hardware slows down",
        gpu_value("info.temperature_slowdown_c"),
    ),
    standard(
        "gpu_memory_used_bytes",
        "Device memory in use; gpu_info has its source",
        gpu_value("reading.memory_used_bytes"),
    ),
    full(
        "gpu_memory_reserved_bytes",
        "Device memory reserved by the driver; absent if it is included in the memory in use",
        gpu_value("reading.memory_reserved_bytes"),
    ),
    standard("gpu_memory_size_bytes", "Device memory", gpu_value("info.memory_size_bytes")),
    standard(
        "gpu_activity_ratio",
        "Share of time that the GPU reported itself busy, newest reading",
        gpu_value("reading.activity_ratio"),
    ),
    standard(
        "gpu_last_sample_timestamp_seconds",
        "When the newest sample was taken, Unix time",
        gpu_value("last_sample_unix_ns", seconds_from_ns),
    ),
)


# Metrics from captures are sums over the agent's lifetime, exported while one is recent.

ROW: Final = Label(
    "row",
    (
        "compute_at_ref",
        "dvfs_loss",
        "compute_unsampled",
        "exposed_comm",
        "exposed_copy",
        "unknown",
        "idle_launch_call",
        "idle_allocator",
        "idle_data",
        "idle_sync",
        "idle_launch_prep",
        "idle_other",
    ),
)
CLASS: Final = Label("class", tuple(kind.label for kind in KERNEL_CLASSES))
VERDICT: Final = Label("verdict", MEASURED_VERDICTS)


def _verdict(traced: TracedTotals) -> dict[str, float]:
    memory = traced.last_memory
    return {memory.verdict: 1.0} if memory and memory.verdict in MEASURED_VERDICTS else {}


TRACED_METRICS: Final = (
    standard(
        "traced_window_seconds_total",
        "Traced time by row of the breakdown; the rows sum to the traced time",
        traced_by(ROW, lambda traced: traced.window_s),
    ),
    standard(
        "traced_lost_seconds_total",
        "Traced compute time lost against the reference clock, by cause: a ceiling",
        traced_by(CAUSE, lambda traced: _by_cause(traced.lost_s)),
    ),
    full(
        "traced_kernel_seconds_total",
        "Traced kernel time by class; concurrent kernels all count",
        traced_by(CLASS, lambda traced: traced.kernel_s),
    ),
    full(
        "traced_kernel_lost_seconds_total",
        "Traced kernel time lost against the reference clock, by class, where the clock is known",
        traced_by(CLASS, lambda traced: traced.kernel_lost_s),
    ),
    full(
        "traced_memory_allocated_peak_bytes",
        "Newest capture's largest device memory in the job's hands, after warm-up, by the process",
        traced_value("last_memory.peak_allocated_bytes", float),
    ),
    full(
        "traced_memory_reserved_peak_bytes",
        "Newest capture's largest device memory held by the job's allocator, after warm-up, by the "
        "process",
        traced_value("last_memory.peak_reserved_bytes", float),
    ),
    full(
        "traced_memory_reserved_variation_ratio",
        "Newest capture's standard deviation of the steps' reserved peaks over their mean; near "
        "the limit it may be 0 although the allocator churns",
        traced_value("last_memory.cv_reserved", float),
    ),
    full(
        "traced_determinism_verdict",
        "How steady the allocator was from step to step of the newest capture: always 1, of the "
        "one verdict that holds; absent if not measured",
        traced_by(VERDICT, _verdict),
    ),
    full(
        "traced_memory_steps_total",
        "Traced steps after warm-up whose calls for segments and retries are known; divide by it",
        traced_sum("memory", "steps"),
    ),
    full(
        "traced_memory_segment_calls_total",
        "Calls of those steps that took or gave back device memory, failed ones too",
        traced_sum("memory", "segment_calls"),
    ),
    full(
        "traced_memory_segment_seconds_total",
        "Host time of those steps in such calls; what idled the GPU is the row idle_allocator",
        traced_sum("memory", "segment_s"),
    ),
    full(
        "traced_memory_retries_total",
        "Allocations of those steps that worked only after cached memory was given back",
        traced_sum("memory", "retries"),
    ),
    standard(
        "traced_last_capture_timestamp_seconds",
        "When the newest capture ended, Unix time; traced series end 15 min later",
        traced_value("last_capture_unix_ns", seconds_from_ns),
    ),
)
