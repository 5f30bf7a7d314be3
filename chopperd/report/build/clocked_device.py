"""Join a traced device with the samples of its GPU, and find that GPU and its reference clock."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from chopperd.correlate.causes import false_causes
from chopperd.correlate.clock.governing import governed
from chopperd.correlate.identity.by_process import TracedProcess
from chopperd.correlate.identity.by_signal import Agreement, TracedDevice, agreement
from chopperd.correlate.identity.mapping import UNMAPPED, Mapped, Traced, description_of, map_device
from chopperd.correlate.intervals import union
from chopperd.correlate.join import JoinedDevice, RowClocks, join_device
from chopperd.correlate.waterfall import is_class
from chopperd.model.devices import GpuSpec, Vendor, spec_of
from chopperd.model.kinds import COMPUTE_CLASSES, Cause
from chopperd.model.report import DeviceSummary, Note, Reference
from chopperd.model.run import DeviceMap
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.timeline import DeviceTimeline, Timeline
from chopperd.model.trace import DeviceNumbers, Trace, TraceDevice
from chopperd.report.build.clocks import compute_rows
from chopperd.report.build.trace_notes import noted
from chopperd.units import NS_PER_MS

#: Mapping rules that hold only where trace and samples are of one machine.
_RULES_OF_ONE_HOST: Final = frozenset({"kfd_node", "unique_name", "only_one"})
#: The rule that finds a GPU by its samples.
BY_SIGNAL: Final = "signal"


#: A reference clock this many times the highest sample is hardly the GPU's. AMD states boost clocks
#: far above those of matrix products (MI300X in FP16: 1115 of 2100 MHz); a GPU that a limit holds
#: may be at the lowest that hardware brakes go to (345 of 1980 MHz).
_FAR_ABOVE: Final = 1.5
_FAR_ABOVE_ON_AMD: Final = 2.5
_FAR_ABOVE_WHERE_HELD: Final = 6.0
_NO_LIMIT_BITS: Final = sum(
    cause.bit for cause in (Cause.LOW_UTILIZATION, Cause.UNEXPLAINED, Cause.UNKNOWN)
)


class JoinOptions(Struct, frozen=True, kw_only=True):
    """Options of the join of traces and samples."""

    device_map: DeviceMap = field(default_factory=DeviceMap)
    guess: bool = True  # whether rules may choose a GPU that are wrong where two ranks get one
    in_agent: bool = False  # decides which remedies notes name
    # Reference clocks: of all GPUs, else by product name, else of the rest, else the device's
    # maximum.
    reference_mhz: float | None = None
    model_references_mhz: Mapping[str, float] = field(default_factory=dict)
    default_reference_mhz: float | None = None
    limit_mhz: float | None = None  # a standing limit (locked clock); None takes the driver's
    # For devices that no other rule maps: the GPU that fits by its samples, or None and why.
    by_signal: Mapping[int, tuple[str | None, str]] = field(default_factory=dict)
    drawn_step: int | None = None  # the step whose timeline is wanted first of all


class ClockedDevice(Struct, frozen=True, kw_only=True):
    """A traced device, the samples of its GPU, and both joined."""

    mapped: Mapped
    samples: GpuSamples | None  # with the clock of the governing die; None without a GPU
    summary: DeviceSummary
    spec: GpuSpec | None  # what its vendor states; None if unknown, for `no_spec`
    no_spec: str
    joined: JoinedDevice
    doubts: tuple[Note, ...] = ()  # why figures may be wrong by more than any interval covers

    @property
    def model(self) -> str | None:
        """Return the product name, by which GPUs are peers; None if unknown or a part of a card."""
        is_part = self.samples is not None and self.samples.gpu.parent
        return None if is_part else self.summary.name


def clocked_device(
    device: DeviceTimeline,
    timeline: Timeline,
    trace: Trace,
    samples: SampleSet | None,
    options: JoinOptions,
) -> ClockedDevice:
    """Join one device of a trace with the node's samples, if any, on the trace's time axis."""
    mapped = _mapped(device, timeline, trace, samples, options)
    mine = _samples_of(mapped, samples, options.limit_mhz)
    traced = _traced_device(device.device, timeline, trace)
    summary = _device_summary(traced, trace, mapped, _reference(mine, options))
    is_part = mapped.gpu is not None and mapped.gpu.parent is not None
    spec, no_spec = spec_of(summary.name, units=traced.units, is_part=is_part)
    joined = join_device(
        device,
        timeline.host_activity,
        mine,
        summary.reference.sm_clock_mhz,
        timeline.collectives,
        spec,
        timeline.stacks,
    )
    sampled = () if samples is None or mine is None else samples.gpus
    same_model = [each for each in sampled if mine and each.gpu.name == mine.gpu.name]
    return ClockedDevice(
        mapped=mapped,
        samples=mine,
        summary=summary,
        spec=spec,
        no_spec=no_spec,
        joined=joined,
        doubts=tuple(doubt_notes(joined, mine, summary.reference, same_model)),
    )


def _mapped(
    device: DeviceTimeline,
    timeline: Timeline,
    trace: Trace,
    samples: SampleSet | None,
    options: JoinOptions,
) -> Mapped:
    if samples is None:
        return UNMAPPED
    gpus = [each.gpu for each in samples.gpus]
    mapped = map_device(
        device.device,
        _traced(trace, [each.device for each in timeline.devices]),
        gpus,
        options.device_map,
        processes=samples.processes,
        guess=options.guess,
    )
    # Names of pods are not those of their nodes: the agent's own samples are of its own node.
    elsewhere = None if options.in_agent else _elsewhere(trace.meta.host_name, samples)
    if elsewhere is not None and mapped.rule in _RULES_OF_ONE_HOST:
        return Mapped(gpu=None, rule=None, why_not=elsewhere)
    if mapped.gpu is not None or device.device not in options.by_signal:
        return mapped
    label, why_not = options.by_signal[device.device]
    if gpu := next((each for each in gpus if each.gpu == label), None):
        return Mapped(gpu=gpu, rule=BY_SIGNAL)
    return replace(mapped, why_not="; ".join(filter(None, (mapped.why_not, why_not))))


def _elsewhere(host: str | None, samples: SampleSet) -> str | None:
    if not host or not samples.node:
        return None
    known = {samples.node, *(name for row in samples.processes for name in row.hosts)}
    if _short(host) in map(_short, known):
        return None
    return f"the trace is of host {host}, the samples of {samples.node}"


def _short(host: str) -> str:
    return host.split(".", maxsplit=1)[0].casefold()


def fits_by_signal(
    timeline: Timeline, trace: Trace, samples: SampleSet | None, options: JoinOptions
) -> dict[int, Agreement]:
    """Return how well each device, by number, that no rule maps fits each GPU, by samples."""
    if samples is None or not trace.meta.anchored:
        return {}
    if not options.in_agent and _elsewhere(trace.meta.host_name, samples) is not None:
        return {}
    unmapped = [
        device
        for device in timeline.devices
        if _mapped(device, timeline, trace, samples, options).gpu is None
        and options.device_map.named(trace.meta.rank, device.device, any_rank=True) is None
    ]
    # GPUs that share their clock and power with others can't be distinguished by them.
    shared = {each.gpu.parent for each in samples.gpus} - {None}
    apart = [each for each in samples.gpus if not each.gpu.parent and each.gpu.gpu not in shared]
    return {
        device.device: agreement(_signal(device), [e for e in apart if name in (None, e.gpu.name)])
        for device in unmapped
        for name in (_traced_device(device.device, timeline, trace).name,)
    }


def _signal(device: DeviceTimeline) -> TracedDevice:
    compute = is_class(device.kernel_class, COMPUTE_CLASSES)
    return TracedDevice(
        busy=union(device.start_ns, device.end_ns),
        compute=union(device.start_ns[compute], device.end_ns[compute]),
        step_start_ns=np.array([each.start_ns for each in device.windows], np.int64),
    )


def _traced(trace: Trace, used: Sequence[int]) -> Traced:
    meta = trace.meta
    return Traced(
        devices=meta.devices,
        used=used,
        numbers=meta.device_numbers,
        rank=meta.rank,
        process=TracedProcess(
            pid=_pid(trace),
            host=meta.host_name,
            span_ns=trace.span_ns if meta.anchored else None,
            used_count=len(used),
            counts_visible=meta.device_numbers is DeviceNumbers.PROPERTIES,
        ),
    )


def _reference(mine: GpuSamples | None, options: JoinOptions) -> Reference:
    gpu = None if mine is None else mine.gpu
    found = (
        (options.reference_mhz, "configured"),
        (options.model_references_mhz.get(gpu.name) if gpu else None, "configured"),
        (options.default_reference_mhz, "configured"),
        (gpu.sm_clock_max_mhz if gpu else None, "device_max"),
    )
    clock_mhz, source = next((each for each in found if each[0] is not None), (None, None))
    return Reference(sm_clock_mhz=clock_mhz, source=source)


def _samples_of(
    mapped: Mapped, samples: SampleSet | None, limit_mhz: float | None
) -> GpuSamples | None:
    """Return the samples of the GPU, with the clock of its governing die; None without a GPU."""
    if samples is None or mapped.gpu is None:
        return None
    own = next(each for each in samples.gpus if each.gpu is mapped.gpu)
    mine = governed(_with_card(own, samples))
    if false := false_causes(mine):  # limits that are set whether the GPU is limited or not
        counted = {cause: each for cause, each in mine.limited_ns.items() if not cause.bit & false}
        mine = replace(mine, causes=mine.causes & ~false, limited_ns=counted)
    if limit_mhz is not None:
        mine = replace(mine, gpu=replace(mine.gpu, sm_clock_limit_mhz=limit_mhz))
    return mine


def _with_card(mine: GpuSamples, samples: SampleSet) -> GpuSamples:
    """Return the card's samples for a partition: one clock, but its energy is not known apart."""
    card = next((each for each in samples.gpus if each.gpu.gpu == mine.gpu.parent), None)
    if card is None:
        return mine
    info = replace(card.gpu, gpu=mine.gpu.gpu, uuid=mine.gpu.uuid, parent=mine.gpu.parent)
    return replace(card, gpu=info, energy_j=np.full_like(card.energy_j, np.nan))


def _traced_device(device: int, timeline: Timeline, trace: Trace) -> TraceDevice:
    used = [each.device for each in timeline.devices]
    numbers = trace.meta.device_numbers
    said = description_of(device, trace.meta.devices, used, numbers) or TraceDevice(device=device)
    return replace(said, device=device)


def _device_summary(
    traced: TraceDevice, trace: Trace, mapped: Mapped, reference: Reference
) -> DeviceSummary:
    gpu = mapped.gpu
    return DeviceSummary(
        device=traced.device,
        rank=trace.meta.rank,
        gpu=None if gpu is None else gpu.gpu,
        uuid=(gpu and gpu.uuid) or traced.uuid or None,
        name=(gpu and gpu.name) or traced.name or None,
        vendor=None if gpu is None else gpu.vendor.value,
        mapping=mapped.rule,
        pid=_pid(trace),
        reference=reference,
        power_limit_default_w=None if gpu is None else gpu.power_limit_default_w,
    )


def _pid(trace: Trace) -> int | None:
    """Return the pid of the only process with launches in the trace; None if unknown or several."""
    pids = {trace.threads[thread][0] for thread in np.unique(trace.calls.thread).tolist()}
    pid = pids.pop() if len(pids) == 1 else None
    return pid if isinstance(pid, int) else None


def doubt_notes(
    joined: JoinedDevice,
    mine: GpuSamples | None,
    reference: Reference,
    same_model: Sequence[GpuSamples] = (),
) -> list[Note]:
    """Return why a device's figures may be wrong by more than intervals cover; none if they aren't.

    `same_model`: samples of the GPUs of its model. A GPU that is held low does not contradict the
    reference while others of its model run higher.
    """
    clocks = joined.clocks
    if clocks is None or mine is None:
        return []
    found, gpu = clocks.belonging, mine.gpu.gpu
    apart_ns = found.apart_ns or 0
    is_moved = apart_ns and apart_ns == clocks.lag.lag_ns
    opposite = "idle" if found.says == "busy" else "busy"
    doubt = _reference_doubt(clocks, mine, (mine, *same_model), reference.sm_clock_mhz)
    return noted(
        time_axes_differ=found.apart_ns is not None
        and f"the samples of GPU {gpu} lie {abs(apart_ns) / NS_PER_MS:.0f} ms "
        f"{'before' if apart_ns < 0 else 'behind'} the trace, more than any sensor lags: their "
        "times are of another clock or another run; "
        f"{'moved by that, ' if is_moved else ''}no interval",
        samples_contradict_trace=found.says
        and f"the samples of GPU {gpu} say {found.says} for most of the time in which the trace is "
        f"{opposite}: they are of another GPU or time (--device-map); no interval",
        reference_doubtful=doubt
        and f"the reference clock of GPU {gpu} {doubt} (--reference-mhz); no interval",
    )


def _reference_doubt(
    clocks: RowClocks,
    mine: GpuSamples,
    same_model: Sequence[GpuSamples],
    reference_mhz: float | None,
) -> str:
    if reference_mhz is None:
        return ""
    highest_mhz = max(float(np.fmax.reduce(each.sm_clock_mhz, initial=0)) for each in same_model)
    rows = compute_rows(clocks)
    median_mhz = float(np.median(clocks.samples.clock_mhz[rows])) if len(rows) else 0.0
    limits = mine.causes[clocks.sample_rows[rows]] & ~_NO_LIMIT_BITS
    far_above = _FAR_ABOVE_ON_AMD if mine.gpu.vendor is Vendor.AMD else _FAR_ABOVE
    if 2 * np.count_nonzero(limits) > len(rows):
        far_above = _FAR_ABOVE_WHERE_HELD
    if reference_mhz > far_above * highest_mhz:
        return f"is {reference_mhz:.0f} MHz, though no sample is above {highest_mhz:.0f} MHz"
    if reference_mhz < median_mhz:
        return f"is {reference_mhz:.0f} MHz, below the median sample of {median_mhz:.0f} MHz"
    return ""
