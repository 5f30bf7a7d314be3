"""A Kineto trace as columns: what the reader produces, before anything is linked or classed.

All times are int64 ns on the trace's own axis: Unix time when `TraceMeta.anchored`, else relative
to an unknown origin. Names are interned: a `name` column holds indices into `Trace.names`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

from chopperd.model.arrays import Int8s, Int32s, Int64s
from chopperd.model.run import ProcessGroup

MOST_DETAILS: Final = 1 << 16
"""Collectives, and shapes, that are told apart in one file: many times what large jobs have.

For each an object is made: ten times the work of an event without, and a kB of memory.
"""


MODULE_PREFIX: Final = "nn.Module: "
"""How torch's profiler names the Python functions that are calls of modules."""


class RecordKind(IntEnum):
    """What a device record is by its category; the value is its code in an int8 column."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2


class SpanKind(IntEnum):
    """What a host span is by its category; the value is its code in an int8 column."""

    OP = 0
    ANNOTATION = 1
    MODULE = 2


class DeviceNumbers(StrEnum):
    """What the device numbers of a trace count.

    `PROPERTIES`: what `deviceProperties` number (CUDA). `HSA_NODES`: nodes of AMD's compute driver
    that the process may open, CPUs first. `GPU_ORDINALS`: the GPUs among those nodes. Neither heeds
    what ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES choose, as `deviceProperties` do. `UNKNOWN`:
    either of the two.
    """

    PROPERTIES = "properties"
    HSA_NODES = "hsa_nodes"
    GPU_ORDINALS = "gpu_ordinals"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What the profiler says of a collective: of this rank, in elements; None where it does not.

    Source: `args` of `record_param_comms` operators and of communication kernels.

    Attributes:
        name: As torch spells it ("allreduce", "_allgather_base").
        dtype: c10's name of the element type ("BFloat16").
        in_elements, out_elements: Elements that go in and come out.
        group: Name of the process group. group_description: What the program calls it.
        group_size: Its number of ranks.
        ranks: The ranks in it, as text ("[0, 1]").
    """

    name: str
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    group: str | None = None
    group_description: str | None = None
    group_size: int | None = None
    ranks: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The inputs of an operator as JSON text, one list entry an input; "" where not recorded.

    Attributes:
        dims: "Input Dims": a list of numbers a tensor, a list of such lists a list of tensors.
        types: "Input type": c10's names ("c10::BFloat16", "Scalar", "").
        values: "Concrete Inputs": texts of the inputs that are no tensors.
    """

    dims: str = ""
    types: str = ""
    values: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecords:
    """Kernels, copies and fills: one row each, sorted by (start_ns, end_ns).

    Records that can't be right (no duration far outside the capture, negative or absurd duration)
    are left out and counted in `Damage.invalid_records`; of equal records one is kept.

    Attributes:
        device: (n,) int32, the trace's own device number.
        stream: (n,) int64; streams are keyed by (device, stream).
        start_ns, end_ns: (n,) int64.
        kind: (n,) int8, `RecordKind`.
        name: (n,) int32.
        correlation: (n,) int64; -1 absent or 0 (which Kineto writes for "none").
        external_id: (n,) int64, "External id"; -1 absent or 0.
        copied_bytes: (n,) int64; -1 not reported, or more than any machine has.
        collective: (n,) int32, index into `Trace.collectives`; -1 without such metadata.
    """

    device: Int32s
    stream: Int64s
    start_ns: Int64s
    end_ns: Int64s
    kind: Int8s
    name: Int32s
    correlation: Int64s
    external_id: Int64s
    copied_bytes: Int64s
    collective: Int32s

    def __len__(self) -> int:
        """The number of records."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeCalls:
    """Runtime and driver API calls on the host (CUDA, HIP), sorted by start_ns.

    Attributes:
        thread: (n,) int32, index into `Trace.threads`.
        start_ns, end_ns: (n,) int64.
        name: (n,) int32.
        correlation: (n,) int64; -1 absent.
        external_id: (n,) int64; -1 absent or 0.
        size_bytes: (n,) int64, what it copies or allocates; -1 not reported (CUDA never does).
    """

    thread: Int32s
    start_ns: Int64s
    end_ns: Int64s
    name: Int32s
    correlation: Int64s
    external_id: Int64s
    size_bytes: Int64s

    def __len__(self) -> int:
        """The number of calls."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpans:
    """Operators, annotations and calls of modules on the host, sorted by (start_ns, -end_ns).

    Modules ("nn.Module: Linear_0") are the Python functions that torch's profiler names so; other
    Python functions are not kept.

    Attributes:
        thread: (n,) int32, index into `Trace.threads`.
        start_ns, end_ns: (n,) int64.
        name: (n,) int32.
        kind: (n,) int8, `SpanKind`.
        external_id: (n,) int64; -1 absent or 0.
        sequence: (n,) int64, autograd's "Sequence number"; -1 absent. A forward operator and the
            backward operators of its node have the same one.
        forward_thread: (n,) int64, "Fwd thread id"; -1 absent, 0 on forward operators.
        shapes: (n,) int32, index into `Trace.shapes`; -1 without, or where the operator's name
            is none of those whose shapes are kept.
        collective: (n,) int32, index into `Trace.collectives`; -1 without.
    """

    thread: Int32s
    start_ns: Int64s
    end_ns: Int64s
    name: Int32s
    kind: Int8s
    external_id: Int64s
    sequence: Int64s
    forward_thread: Int64s
    shapes: Int32s
    collective: Int32s

    def __len__(self) -> int:
        """The number of spans."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpans:
    """GPU-side annotation rows (`gpu_user_annotation`), sorted by start_ns.

    Attributes:
        device: (n,) int32. stream: (n,) int64. start_ns, end_ns: (n,) int64. name: (n,) int32.
    """

    device: Int32s
    stream: Int64s
    start_ns: Int64s
    end_ns: Int64s
    name: Int32s

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEnds:
    """Ends of the arrows from forward operators to their backward ones (`fwdbwd`), by t_ns.

    Attributes:
        flow: (n,) int64, the arrow's own number: one start, one or more ends. -1 absent.
        is_end: (n,) int8, 0 at the forward operator, 1 at the backward one.
        thread: (n,) int32, index into `Trace.threads`.
        t_ns: (n,) int64, the start of the operator.
    """

    flow: Int64s
    is_end: Int8s
    thread: Int32s
    t_ns: Int64s

    def __len__(self) -> int:
        """The number of ends."""
        return len(self.t_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDevice:
    """What the trace says of one of its devices (deviceProperties, chopperd_devices).

    Attributes:
        device: The trace's device number.
        name: Product name; None if empty or absent.
        uuid: None if absent.
        pci_bus_id: None if absent.
        units: Its SMs or CUs; None if absent.
        identity_source: The key that holds its UUID or PCI bus id, if it has one.
    """

    device: int
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    units: int | None = None
    identity_source: str = "chopperd_devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What was lost while reading, by kind, and what is odd; all zero for a clean file.

    Attributes:
        damaged_events: Elements that were not JSON even on their own.
        damaged_args: Events, all kept, that were not JSON in their arguments.
        undecodable_events: JSON elements whose fields had impossible types or values.
        further_events: Events of further lists or documents in the file, of which one is read.
        invalid_records: Device records left out for their times: the next two, and those with a
            negative duration or none.
        zeroed_records: Of these, those without start or length that lie outside the capture.
        outlying_records: Of these, those that lie or last far beyond all other rows.
        duplicate_records: Device records left out because they are there twice.
        duplicate_rows: Other rows left out because they are there twice.
        overrun_records: Device records, all kept, that end after the next of their stream starts.
        cut_records: Device records that lasted far past later ones of their stream: cut.
        rows_without_detail: Rows, all kept, whose collective or shapes are not, for there are too
            many different ones in the file.
        truncated: The file ends inside an event, or a compressed stream without its end mark.
        unclosed: All events are whole but the closing brackets are missing.
        unreadable_keys: Keys beside the events could not all be read; some may be missing.
        still_written: The file changed while it was read.
    """

    damaged_events: int = 0
    damaged_args: int = 0
    undecodable_events: int = 0
    further_events: int = 0
    invalid_records: int = 0
    zeroed_records: int = 0
    outlying_records: int = 0
    duplicate_records: int = 0
    duplicate_rows: int = 0
    overrun_records: int = 0
    cut_records: int = 0
    rows_without_detail: int = 0
    truncated: bool = False
    unclosed: bool = False
    unreadable_keys: bool = False
    still_written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMeta:
    """What a trace says of itself as a whole.

    Attributes:
        path: The file as given.
        sha256: Hash of the file's bytes as stored (before decompression), hex.
        base_time_unix_ns: `baseTimeNanoseconds`; None if absent.
        anchored: Whether the times are Unix time (a base is known or the file's times are epoch).
        rank: Rank of the process; None if unknown.
        rank_source: "distributedInfo", "file name", "command line" or None.
        world_size: From distributedInfo; None if absent.
        backend: Of torch.distributed, as "nccl"; None if absent.
        groups: The process groups that the rank is in; None if absent or too many to compare.
        trace_id: torch draws one in each process; one capture asked of several may give all the
            same. None if absent.
        host_name: Of its machine or container; None if absent.
        run: `chopperd_run`; None if absent.
        job: `chopperd_job`; None if absent.
        devices: What the file says of its devices.
        simulated: Whether the file carries the mark of chopperd's simulation.
        event_count: Elements of traceEvents seen, damaged ones included.
        event_counts: Elements by category ("kernel", "cpu_op", "" for none, ...).
        runtime: "cuda", "rocm" or None, by the names of runtime calls and header keys.
        device_numbers: What the device numbers of its records count.
    """

    path: str
    sha256: str
    base_time_unix_ns: int | None = None
    anchored: bool = False
    rank: int | None = None
    rank_source: str | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: tuple[ProcessGroup, ...] | None = None
    trace_id: str | None = None
    host_name: str | None = None
    run: str | None = None
    job: str | None = None
    devices: tuple[TraceDevice, ...] = ()
    simulated: bool = False
    event_count: int = 0
    event_counts: Mapping[str, int] = field(default_factory=dict)
    runtime: str | None = None
    device_numbers: DeviceNumbers = DeviceNumbers.PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One trace file.

    Attributes:
        names: Interned strings that `name` columns index.
        threads: (pid, tid) of each host thread that `thread` columns index; either may be text.
        collectives: What `collective` columns index.
        shapes: What `shapes` columns index.
        span_ns: First start and last end over all rows kept; (0, 0) for an empty trace.
    """

    meta: TraceMeta
    names: tuple[str, ...]
    threads: tuple[tuple[int | str, int | str], ...]
    records: DeviceRecords
    calls: RuntimeCalls
    spans: HostSpans
    device_spans: DeviceSpans
    flows: FlowEnds
    collectives: tuple[Collective, ...]
    shapes: tuple[Shapes, ...]
    damage: Damage
    span_ns: tuple[int, int]
