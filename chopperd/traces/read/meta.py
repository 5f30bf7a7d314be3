"""Read keys of the trace document other than its events: rank, job, devices, runtime, base time."""

import re
import zlib
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from msgspec import Raw, Struct
from msgspec.structs import replace

from chopperd.model.run import ProcessGroup
from chopperd.model.trace import DeviceNumbers, RecordKind, Trace, TraceDevice, TraceMeta
from chopperd.traces.read.document import BASE_TIME, CUDA_KEYS, ROCM_KEYS, Texts, document_texts
from chopperd.traces.read.json_text import NO_TEXT, Fault, Refusal, ValueT, first_value, repaired
from chopperd.traces.read.rows import ABSENT, integer

#: Kineto on roctracer records this call; on rocprofiler-sdk it leaves it out.
_ROCTRACER_CALL: Final = "hipGetDevicePropertiesR0600"
_BASE_KEY: Final = b'"baseTimeNanoseconds"'
_BASE: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\s*[,}\n]')
_FILE_RANK: Final = re.compile(r"(?<![a-z])rank[-_]?(\d+)(?!\d)", re.IGNORECASE)
_LATEST_BASE_NS: Final = 4_000_000_000_000_000_000
_LONG_BYTES: Final = 1 << 17
"""Longer values are skipped, as decoding them costs time: none that is read here is so long."""
_JOB: Final = "distributedInfo"
_MOST_GROUPS: Final = 256
"""A rank of the largest public jobs is in 71; more are not compared."""


class _Job(Struct):
    """The members of `distributedInfo` that are read; its groups may take megabytes."""

    rank: Raw = NO_TEXT
    world_size: Raw = NO_TEXT
    backend: Raw = NO_TEXT
    pg_config: Raw = NO_TEXT


_PLAIN: Final = msgspec.json.Decoder(float_hook=float)
"""Refuses no number that no float holds."""
_JOBS: Final = msgspec.json.Decoder(_Job)


class Keys(Struct, frozen=True, kw_only=True):
    """The keys of a trace document that are read, without its events."""

    values: Mapping[str, object]
    closed: bool  # whether the document ends with its bracket
    readable: bool  # whether all keys could be read


def read_keys(head: bytes, tail: bytes | None, texts: Texts | Refusal | None = None) -> Keys:
    """Read the keys around the event array, damaged or not.

    `head`: the document up to the array; empty if the document is the array. `tail`: what follows
    it; None if its end is missing. `texts`: the keys of the head, where they are known.
    """
    if not head:
        return Keys(values={}, closed=tail is not None, readable=True)
    front = document_texts(head + b"[]}") if texts is None else texts
    if isinstance(front, Refusal):
        # With the array inside another object the head is not whole without the tail.
        inside = front.fault is Fault.INCOMPLETE
        back = document_texts(head + b"[]" + (tail or b"")) if inside else front
        front, readable = {}, False
    else:
        back = document_texts(b'{"":[]' + (tail or b""))
        readable = True
    if not isinstance(back, Refusal):
        return Keys(values=_values({**front, **back}), closed=True, readable=True)
    closed = tail is not None and back.fault is not Fault.INCOMPLETE
    base = _base(tail or b"") or (None if readable else _base(head))
    found = {BASE_TIME: base} if base else {}
    return Keys(values=_values({**found, **front}), closed=closed, readable=readable and not closed)


def _base(text: bytes) -> bytes | None:
    first = text.find(_BASE_KEY)
    found = None if first < 0 else _BASE.search(text, first)
    return found and found[1]


def _values(texts: Texts) -> Mapping[str, object]:
    """Decode the values of keys; None for those that are too long or can't be read."""
    return {key: (_job if key == _JOB else _value)(text) for key, text in texts.items()}


def _value(text: bytes) -> object:
    """Decode a value, numbers with a point as floats; None if it is too long or can't be read."""
    return None if len(text) > _LONG_BYTES else _decoded(_PLAIN, text)


def _job(text: bytes) -> object:
    found = _decoded(_JOBS, text)
    members = msgspec.structs.asdict(found) if found is not None else {}
    return {key: _value(bytes(member)) for key, member in members.items() if member}


def _decoded(decoder: "msgspec.json.Decoder[ValueT]", text: bytes) -> ValueT | None:
    found = first_value(decoder, memoryview(text))
    if isinstance(found, Refusal):
        found = first_value(decoder, memoryview(repaired(text)))
    return None if isinstance(found, Refusal) else found[0]


def trace_meta(
    values: Mapping[str, object],
    *,
    path: str,
    file_name: str,
    sha256: str,
    event_counts: Mapping[str, int],
    event_count: int,
) -> TraceMeta:
    """Make a trace's meta from its keys, without what is found from its rows (`with_runtime`)."""
    rank, rank_source = rank_of(values, file_name)
    job = _mapping(values.get(_JOB))
    return TraceMeta(
        path=path,
        sha256=sha256,
        base_time_unix_ns=base_time_unix_ns(values),
        rank=rank,
        rank_source=rank_source,
        world_size=_whole_number(job.get("world_size")),
        backend=text_of(job, "backend"),
        groups=groups_of(values),
        trace_id=text_of(values, "trace_id"),
        host_name=text_of(values, "host_name", "HOSTNAME"),
        run=text_of(values, "chopperd_run"),
        job=text_of(values, "chopperd_job"),
        devices=devices_of(values),
        simulated=values.get("chopperd_simulated") is True,
        event_count=event_count,
        event_counts=event_counts,
    )


def with_runtime(trace: Trace, values: Mapping[str, object], *, has_queues: bool) -> TraceMeta:
    """Return the trace's meta with its runtime and the kind of its device numbers filled in."""
    counts = np.bincount(trace.calls.name, minlength=len(trace.names))
    call_names = [trace.names[number] for number in np.flatnonzero(counts).tolist()]
    ran = trace.records.device[trace.records.kind == RecordKind.KERNEL]
    runtime = runtime_of(values, call_names)
    numbers = device_numbers(runtime, call_names, np.unique(ran).tolist(), has_queues=has_queues)
    return replace(trace.meta, runtime=runtime, device_numbers=numbers)


def base_time_unix_ns(values: Mapping[str, object]) -> int | None:
    """Return the Unix time, ns, that relative times count from; None if absent, 0 or too late."""
    base = _whole_number(values.get("baseTimeNanoseconds"))
    return base if base is not None and 0 < base < _LATEST_BASE_NS else None


def rank_of(values: Mapping[str, object], file_name: str) -> tuple[int | None, str | None]:
    """Return the process's rank and its source, or Nones; a file name with two ranks has none."""
    rank = _whole_number(_mapping(values.get(_JOB)).get("rank"))
    if rank is not None:
        return rank, _JOB
    named = set(map(int, _FILE_RANK.findall(file_name)))
    return (named.pop(), "file name") if len(named) == 1 else (None, None)


def groups_of(values: Mapping[str, object]) -> tuple[ProcessGroup, ...] | None:
    """Return the process groups that the rank is in, by name; None if absent, odd, or too many.

    Source: torch.distributed `_World.pg_config_info`: `pg_name` and `ranks` of the groups that
    the process is a member of.
    """
    entries = _mappings(_mapping(values.get(_JOB)), "pg_config")
    if not 0 < len(entries) <= _MOST_GROUPS:
        return None
    groups = [_group(text_of(each, "pg_name"), each.get("ranks")) for each in entries]
    known = [each for each in groups if each is not None]
    return tuple(sorted(known, key=lambda each: each.name)) if len(known) == len(groups) else None


def _group(name: str | None, ranks: object) -> ProcessGroup | None:
    if name is None or not isinstance(ranks, list) or not ranks:
        return None
    numbers = sorted(rank for rank in ranks if type(rank) is int)
    if len(numbers) < len(ranks):
        return None
    steps = {after - before for before, after in pairwise(numbers)} or {1}
    stride = steps.pop() if len(steps) == 1 else None
    return ProcessGroup(
        name=name,
        size=len(numbers),
        first=numbers[0],
        stride=stride or None,
        digest=zlib.crc32(repr(numbers).encode()),
    )


def text_of(values: Mapping[str, object], *keys: str) -> str | None:
    """Return the first value of `keys` that is a text or an integer, as text; None if none is."""
    for key in keys:
        value = values.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def devices_of(values: Mapping[str, object]) -> tuple[TraceDevice, ...]:
    """Return the devices as the file describes them, sorted by number.

    Source: Kineto's `deviceProperties` (id, name, numSms; the name may be ""; a UUID or PCI bus id
    where a build writes them) and our own `chopperd_devices` (device, uuid, pci_bus_id, name).
    """
    kineto = {_whole_number(one.get("id")): one for one in _mappings(values, "deviceProperties")}
    ours = {_whole_number(one.get("device")): one for one in _mappings(values, "chopperd_devices")}
    numbers = sorted(number for number in kineto.keys() | ours.keys() if number is not None)
    return tuple(
        _device(number, ours.get(number, {}), kineto.get(number, {})) for number in numbers
    )


def _device(number: int, ours: Mapping[str, object], kineto: Mapping[str, object]) -> TraceDevice:
    identity = text_of(ours, "uuid"), text_of(ours, "pci_bus_id")
    bus = text_of(kineto, "pciBusId", "pci_bus_id") or ""
    written = text_of(kineto, "uuid"), bus if ":" in bus else None  # a bare number is no address
    is_written = any(written) and not any(identity)
    uuid, pci_bus_id = written if is_written else identity
    return TraceDevice(
        device=number,
        name=text_of(ours, "name") or text_of(kineto, "name"),
        uuid=uuid,
        pci_bus_id=pci_bus_id,
        units=_whole_number(kineto.get("numSms")),
        identity_source="deviceProperties" if is_written else "chopperd_devices",
    )


def runtime_of(values: Mapping[str, object], call_names: Sequence[str]) -> str | None:
    """Return "rocm" or "cuda" by the calls' sorted names and the header's keys; None if unknown."""
    if _has_prefix(call_names, "hip") or ROCM_KEYS & values.keys():
        return "rocm"
    if _has_prefix(call_names, "cu") or CUDA_KEYS & values.keys():
        return "cuda"
    return None


def _has_prefix(names: Sequence[str], prefix: str) -> bool:
    at = bisect_left(names, prefix)
    return at < len(names) and names[at].startswith(prefix)


def _whole_number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    number = integer(value)
    return None if number == ABSENT else number


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _mappings(values: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    value = values.get(key)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def device_numbers(
    runtime: str | None,
    call_names: Collection[str],
    kernel_devices: Collection[int],
    *,
    has_queues: bool,
) -> DeviceNumbers:
    """Return what a trace's device numbers count; `kernel_devices` are those that ran kernels.

    Of ROCm's two profilers roctracer reports the runtime's driver node id, in which CPUs come
    first: no GPU is 0. rocprofiler-sdk counts GPUs from 0, but numbers a copy to the host by a CPU.
    `roctracer_version` in the header is no evidence: builds on rocprofiler-sdk may write it too.

    Source: device_id of CLR's activity records (driverNodeId_); RocprofLogger.cpp of Kineto
    (logical_node_type_id, the calls that it omits) and its "hsa_queue", of June 2026. roctracer's
    part is seen in real traces, that of rocprofiler-sdk read in source only.
    """
    if runtime != "rocm":
        return DeviceNumbers.PROPERTIES
    counts_gpus = has_queues or 0 in kernel_devices
    counts_nodes = _ROCTRACER_CALL in call_names
    if counts_gpus == counts_nodes:
        return DeviceNumbers.UNKNOWN
    return DeviceNumbers.GPU_ORDINALS if counts_gpus else DeviceNumbers.HSA_NODES
