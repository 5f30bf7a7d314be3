"""A traced device with the samples of its GPU: which that is, and its reference clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from chopperd.correlate.causes import false_causes
from chopperd.correlate.clock.governing import governed
from chopperd.correlate.identity.by_process import TracedProcess
from chopperd.correlate.identity.by_signal import Agreement, TracedDevice, agreement
from chopperd.correlate.identity.mapping import UNMAPPED, Mapped, Traced, map_device, said_of
from chopperd.correlate.intervals import union
from chopperd.correlate.join import JoinedDevice, join_device
from chopperd.correlate.waterfall import is_class
from chopperd.model.kinds import COMPUTE_CLASSES
from chopperd.model.report import DeviceSummary, Note, Reference
from chopperd.model.run import DeviceMap
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.spec import GpuSpec, spec_of
from chopperd.model.timeline import DeviceTimeline, Timeline
from chopperd.model.trace import DeviceNumbers, Trace, TraceDevice
from chopperd.report.build.notes import doubt_notes

#: Rules of mapping that mean nothing where trace and samples are of two machines.
_RULES_OF_ONE_HOST: Final = frozenset({"kfd_node", "unique_name", "only_one"})
#: The rule that tells a GPU by its samples.
BY_SIGNAL: Final = "signal"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """What the user says about the join.

    Attributes:
        device_map: Which GPU each trace device is.
        guess: Whether rules may tell a GPU that are wrong where two ranks are given one.
        in_agent: Whether the agent makes the report, so that what a note says to do is its.
        reference_mhz: The reference clock of all GPUs; None takes the next.
        model_references_mhz: Reference clocks by product name; others take the next.
        default_reference_mhz: That of models without one; None takes the device's maximum.
        limit_mhz: A standing limit (locked clock) on all GPUs; None takes the driver's.
        by_signal: Of devices that no other rule maps the GPU that their samples tell, None if they
            do not, and then why.
    """

    device_map: DeviceMap = field(default_factory=DeviceMap)
    guess: bool = True
    in_agent: bool = False
    reference_mhz: float | None = None
    model_references_mhz: Mapping[str, float] = field(default_factory=dict)
    default_reference_mhz: float | None = None
    limit_mhz: float | None = None
    by_signal: Mapping[int, tuple[str | None, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedDevice:
    """A traced device, the GPU that it is, and both joined.

    Attributes:
        mapped: The GPU and the rule that found it.
        samples: The GPU's, with the clock of its governing die; None without a GPU.
        reference: The reference clock.
        summary: What samples and trace say of it.
        spec: What its vendor states; None if unknown, for `no_spec`.
        joined: The device's figures.
        doubts: Why the figures may be wrong by more than any interval says.
    """

    mapped: Mapped
    samples: GpuSamples | None
    reference: Reference
    summary: DeviceSummary
    spec: GpuSpec | None
    no_spec: str
    joined: JoinedDevice
    doubts: tuple[Note, ...] = ()


def clocked_device(
    device: DeviceTimeline,
    timeline: Timeline,
    trace: Trace,
    samples: SampleSet | None,
    options: JoinOptions,
) -> ClockedDevice:
    """One device of a trace joined with the samples of its GPU.

    Args:
        device: One of the timeline's.
        timeline: As laid out.
        trace: As read.
        samples: Of the node, on the trace's time axis; None if there are none.
        options: What the user says.
    """
    mapped = _mapped(device, timeline, trace, samples, options)
    mine = _samples_of(mapped, samples, options.limit_mhz)
    reference = _reference(mine, options)
    said = _said(device.device, timeline, trace)
    summary = _device_summary(said, trace, mapped, reference)
    is_part = mapped.gpu is not None and mapped.gpu.parent is not None
    spec, no_spec = spec_of(summary.name, units=said.units, is_part=is_part)
    joined = join_device(
        device,
        timeline.host_activity,
        mine,
        reference.sm_clock_mhz,
        timeline.collectives,
        spec,
    )
    sampled = () if samples is None or mine is None else samples.gpus
    same_model = [each for each in sampled if mine and each.gpu.name == mine.gpu.name]
    doubts = doubt_notes(joined, mine, reference, same_model)
    return ClockedDevice(
        mapped=mapped,
        samples=mine,
        reference=reference,
        summary=summary,
        spec=spec,
        no_spec=no_spec,
        joined=joined,
        doubts=tuple(doubts),
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
    mapped = map_device(
        device.device,
        _traced(trace, [each.device for each in timeline.devices]),
        [each.gpu for each in samples.gpus],
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
    gpu = next((each.gpu for each in samples.gpus if each.gpu.gpu == label), None)
    if gpu is not None:
        return Mapped(gpu=gpu, rule=BY_SIGNAL)
    return replace(mapped, why_not="; ".join(filter(None, (mapped.why_not, why_not))))


def _elsewhere(host: str | None, samples: SampleSet) -> str | None:
    """Why samples can't be of a trace's machine, by what both call it; None where they can."""
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
    """How well each device that no rule maps fits each GPU that it may be, by its samples.

    Arguments are as of `clocked_device`.
    """
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
    return {
        device.device: agreement(
            _ran(device), _may_be(_said(device.device, timeline, trace).name, samples)
        )
        for device in unmapped
    }


def _may_be(name: str | None, samples: SampleSet) -> list[GpuSamples]:
    """GPUs of a model, without those that share their clock and power with others."""
    shared = {each.gpu.parent for each in samples.gpus} - {None}
    return [
        each
        for each in samples.gpus
        if each.gpu.parent is None and each.gpu.gpu not in shared and name in (None, each.gpu.name)
    ]


def _ran(device: DeviceTimeline) -> TracedDevice:
    compute = is_class(device.kernel_class, COMPUTE_CLASSES)
    return TracedDevice(
        busy=union(device.start_ns, device.end_ns),
        compute=union(device.start_ns[compute], device.end_ns[compute]),
        step_start_ns=np.array([each.start_ns for each in device.windows], np.int64),
    )


def _traced(trace: Trace, used: Sequence[int]) -> Traced:
    """What a trace says that tells which GPUs its devices are."""
    meta = trace.meta
    process = TracedProcess(
        pid=_pid(trace),
        host=meta.host_name,
        span_ns=trace.span_ns if meta.anchored else None,
        used_count=len(used),
        counts_visible=meta.device_numbers is DeviceNumbers.PROPERTIES,
    )
    return Traced(
        devices=meta.devices,
        used=used,
        numbers=meta.device_numbers,
        rank=meta.rank,
        process=process,
    )


def _reference(mine: GpuSamples | None, options: JoinOptions) -> Reference:
    configured_mhz = options.reference_mhz
    if configured_mhz is None and mine is not None:
        configured_mhz = options.model_references_mhz.get(mine.gpu.name)
    if configured_mhz is None:
        configured_mhz = options.default_reference_mhz
    if configured_mhz is not None:
        return Reference(sm_clock_mhz=configured_mhz, source="configured")
    if mine is not None and mine.gpu.sm_clock_max_mhz is not None:
        return Reference(sm_clock_mhz=mine.gpu.sm_clock_max_mhz, source="device_max")
    return Reference(sm_clock_mhz=None, source=None)


def _samples_of(
    mapped: Mapped, samples: SampleSet | None, limit_mhz: float | None
) -> GpuSamples | None:
    """The samples of the GPU, with the clock of its governing die; None without a GPU."""
    if samples is None or mapped.gpu is None:
        return None
    own = next(each for each in samples.gpus if each.gpu is mapped.gpu)
    mine = _with_true_causes(governed(_with_card(own, samples)))
    if limit_mhz is None:
        return mine
    return replace(mine, gpu=replace(mine.gpu, sm_clock_limit_mhz=limit_mhz))


def _with_true_causes(mine: GpuSamples) -> GpuSamples:
    """The samples without limits that are set whatever the GPU does."""
    false = false_causes(mine)
    counted = {cause: each for cause, each in mine.limited_ns.items() if not cause.bit & false}
    return replace(mine, causes=mine.causes & ~false, limited_ns=counted) if false else mine


def _with_card(mine: GpuSamples, samples: SampleSet) -> GpuSamples:
    """A partition's samples as those of the card whose clock it shares; others as they are.

    Without the energy: how much of the card's is the partition's is not known.
    """
    card = next((each for each in samples.gpus if each.gpu.gpu == mine.gpu.parent), None)
    if card is None:
        return mine
    info = replace(card.gpu, gpu=mine.gpu.gpu, uuid=mine.gpu.uuid, parent=mine.gpu.parent)
    return replace(card, gpu=info, energy_j=np.full_like(card.energy_j, np.nan))


def _said(device: int, timeline: Timeline, trace: Trace) -> TraceDevice:
    """What the trace says of a device."""
    used = [each.device for each in timeline.devices]
    numbers = trace.meta.device_numbers
    said = said_of(device, trace.meta.devices, used, numbers) or TraceDevice(device=device)
    return replace(said, device=device)


def _device_summary(
    said: TraceDevice, trace: Trace, mapped: Mapped, reference: Reference
) -> DeviceSummary:
    """What samples and, where they don't say, the trace tell of a device."""
    gpu = mapped.gpu
    return DeviceSummary(
        device=said.device,
        rank=trace.meta.rank,
        gpu=None if gpu is None else gpu.gpu,
        uuid=(gpu and gpu.uuid) or said.uuid or None,
        name=(gpu and gpu.name) or said.name or None,
        vendor=None if gpu is None else gpu.vendor.value,
        mapping=mapped.rule,
        pid=_pid(trace),
        reference=reference,
    )


def _pid(trace: Trace) -> int | None:
    """The process that launched all that the trace holds; None if it can't be told."""
    used = np.unique(trace.calls.thread)
    pids = {trace.threads[thread][0] for thread in used.tolist()}
    pid = next(iter(pids)) if len(pids) == 1 else None
    return pid if isinstance(pid, int) else None
