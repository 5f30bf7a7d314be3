"""A Kineto trace as columns: what the reader produces, before anything is linked or classed.

All times are int64 ns on the trace's own axis: Unix time when `TraceMeta.anchored`, else relative
to an unknown origin. Names are interned: a `name` column holds indices into `Trace.names`.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final

from msgspec import Struct, field

from chopperd.model.arrays import Int8s, Int32s, Int64s, Timed
from chopperd.model.memory import MemoryRows
from chopperd.model.run import ProcessGroup

MOST_DETAILS: Final = 1 << 16
"""Collectives, and shapes, that are told apart in one file: many times what large jobs have.

For each an object is made: ten times the work of an event without, and a kB of memory.
"""


MOST_FRAMES: Final = 1 << 20
"""Calls of Python functions that are read of one file, the longest: 24 MiB of memory."""

MODULE_PREFIX: Final = "nn.Module: "
"""How torch's profiler names the Python functions that are calls of modules."""


class RecordKind(IntEnum):
    """Kind of a device record, by its category; the value is its code in an int8 column."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2


class SpanKind(IntEnum):
    """Kind of a host span, by its category; the value is its code in an int8 column."""

    OP = 0
    ANNOTATION = 1
    MODULE = 2


class DeviceNumbers(StrEnum):
    """What the device numbers of a trace refer to.

    `PROPERTIES`: entries of `deviceProperties` (CUDA). `HSA_NODES`: nodes of AMD's compute driver
    that the process may open, CPUs first. `GPU_ORDINALS`: the GPUs among those nodes. Unlike
    `deviceProperties`, the latter two ignore ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES.
    `UNKNOWN`: `HSA_NODES` or `GPU_ORDINALS`.
    """

    PROPERTIES = "properties"
    HSA_NODES = "hsa_nodes"
    GPU_ORDINALS = "gpu_ordinals"
    UNKNOWN = "unknown"


class Collective(Struct, frozen=True, kw_only=True):
    """Metadata of a collective on this rank, sizes in elements; None where not recorded.

    Source: `args` of `record_param_comms` operators and of communication kernels.
    """

    name: str  # as torch spells it ("allreduce", "_allgather_base")
    dtype: str | None = None  # c10's name of the element type ("BFloat16")
    # Elements that go in and come out
    in_elements: int | None = None
    out_elements: int | None = None
    group: str | None = None  # name of the process group
    group_description: str | None = None  # the program's name for it
    group_size: int | None = None  # its number of ranks
    ranks: str | None = None  # the ranks in it, as text ("[0, 1]")


class GraphMark(Struct, frozen=True, kw_only=True):
    """What the program wrote on a kernel of a captured graph; None where it did not.

    Source: `args` that torch 2.12's annotations of graphs add to each replayed kernel.
    """

    module: str | None = None  # path of the module ("layers.0.attention.wq")
    name: str | None = None  # annotation; the kernel's own name is the event's
    phase: str | None = None  # "forward", "backward", ...


class Shapes(Struct, frozen=True, kw_only=True):
    """An operator's inputs as JSON lists with one entry per input; "" where not recorded."""

    # "Input Dims": a list of numbers a tensor, a list of such lists a list of tensors
    dims: str = ""
    types: str = ""  # "Input type": c10's names ("c10::BFloat16", "Scalar", "")
    values: str = ""  # "Concrete Inputs": texts of the inputs that are no tensors


class DeviceRecords(Timed, frozen=True, kw_only=True):
    """Kernels, copies and fills: one row each, sorted by (start_ns, end_ns).

    Impossible records (zero duration far outside the capture, negative or absurd duration) are left
    out and counted in `Damage.invalid_records`; of equal records one is left.
    """

    device: Int32s  # the trace's own device number
    stream: Int64s  # streams are keyed by (device, stream)
    kind: Int8s  # `RecordKind`
    name: Int32s
    correlation: Int64s  # -1 absent or 0 (which Kineto writes for "none")
    external_id: Int64s  # "External id"; -1 absent or 0
    copied_bytes: Int64s  # -1 not reported, or more than any machine has
    collective: Int32s  # index into `Trace.collectives`; -1 without such metadata
    mark: Int32s  # index into `Trace.marks`; -1 without
    # "Seq": the collective's number in its process group (sends and receives have numbers of their
    # own); -1 absent, as before torch 2.12
    seq: Int64s
    # "Comms Id": torch's hash of group, number and ranks, all 64 bits, signed; -1 absent
    comms_id: Int64s


class RuntimeCalls(Timed, frozen=True, kw_only=True):
    """Runtime and driver API calls on the host (CUDA, HIP), sorted by start_ns."""

    thread: Int32s  # index into `Trace.threads`
    name: Int32s
    correlation: Int64s  # -1 absent
    external_id: Int64s  # -1 absent or 0
    size_bytes: Int64s  # what it copies or allocates; -1 not reported (CUDA never does)


class HostSpans(Timed, frozen=True, kw_only=True):
    """Operators, annotations and calls of modules on the host, sorted by (start_ns, -end_ns).

    Modules ("nn.Module: Linear_0") are the Python functions that torch's profiler names so; other
    Python functions are `PythonFrames`.
    """

    thread: Int32s  # index into `Trace.threads`
    name: Int32s
    kind: Int8s  # `SpanKind`
    external_id: Int64s  # -1 absent or 0
    # autograd's "Sequence number"; -1 absent. A forward operator and the backward
    # operators of its node have the same one.
    sequence: Int64s
    forward_thread: Int64s  # "Fwd thread id"; -1 absent, 0 on forward operators
    # index into `Trace.shapes`; -1 without, or where the operator's name is none
    # of those whose shapes are read
    shapes: Int32s
    collective: Int32s  # index into `Trace.collectives`; -1 without


class PythonFrames(Timed, frozen=True, kw_only=True):
    """Calls of Python functions that are no modules, sorted by (start_ns, -end_ns).

    Only those on threads that make runtime calls, and of more than `MOST_FRAMES` the longest.
    """

    thread: Int32s  # index into `Trace.threads`
    function: Int32s  # index into `Trace.functions`


class DeviceSpans(Timed, frozen=True, kw_only=True):
    """GPU-side annotation rows (`gpu_user_annotation`), sorted by start_ns."""

    device: Int32s
    stream: Int64s
    name: Int32s


class FlowEnds(Struct, frozen=True, kw_only=True):
    """Both ends of the arrows from forward to backward operators (`fwdbwd`), sorted by t_ns."""

    # the arrow's own number: one start, one or more ends. -1 absent.
    flow: Int64s
    is_end: Int8s  # 0 at the forward operator, 1 at the backward one
    thread: Int32s  # index into `Trace.threads`
    t_ns: Int64s  # the start of the operator

    def __len__(self) -> int:
        return len(self.t_ns)


class TraceDevice(Struct, frozen=True, kw_only=True):
    """One of the trace's devices (deviceProperties, chopperd_devices)."""

    device: int  # the trace's device number
    name: str | None = None  # product name; None if empty or absent
    uuid: str | None = None  # None if absent
    pci_bus_id: str | None = None  # None if absent
    units: int | None = None  # its SMs or CUs; None if absent
    # The key that holds its UUID or PCI bus id, if it has one
    identity_source: str = "chopperd_devices"


class Damage(Struct, frozen=True, kw_only=True):
    """Counts of what was lost while reading, and of oddities; all zero for a clean file."""

    damaged_events: int = 0  # elements that were not JSON even on their own
    damaged_args: int = 0  # events, none left out, whose arguments were not JSON
    undecodable_events: int = 0  # JSON elements whose fields had impossible types or values
    # Events of further lists or documents in the file, of which one is read
    further_events: int = 0
    # Device records left out for their times: the next two, and those with a negative duration or
    # none
    invalid_records: int = 0
    zeroed_records: int = 0  # of these, those without start or length that lie outside the capture
    outlying_records: int = 0  # of these, those that lie or last far beyond all other rows
    duplicate_records: int = 0  # device records left out because they are there twice
    duplicate_rows: int = 0  # other rows left out because they are there twice
    # Device records, none left out, that end after the next of their stream starts
    overrun_records: int = 0
    cut_records: int = 0  # device records that lasted far past later ones of their stream: cut
    # Rows, none left out, without their collective or shapes, of which the file has too many
    # different ones
    rows_without_detail: int = 0
    # Calls of Python functions left out, of a file with more than `MOST_FRAMES`: those shorter than
    # `shortest_frame_ns`
    frames_left_out: int = 0
    shortest_frame_ns: int = 0
    # The file ends inside an event, or a compressed stream without its end mark
    truncated: bool = False
    unclosed: bool = False  # all events are whole but the closing brackets are missing
    # Not all keys of the file's header could be read; some may be missing
    unreadable_keys: bool = False
    still_written: bool = False  # the file changed while it was read


class TraceMeta(Struct, frozen=True, kw_only=True):
    """Metadata of a trace, from its header, its file name and its events."""

    path: str  # the file as given
    sha256: str  # hash of the file's bytes as stored (before decompression), hex
    base_time_unix_ns: int | None = None  # `baseTimeNanoseconds`; None if absent
    # Whether the times are Unix time (a base is known or the file's times are epoch)
    anchored: bool = False
    rank: int | None = None  # rank of the process; None if unknown
    rank_source: str | None = None  # "distributedInfo", "file name", "command line" or None
    world_size: int | None = None  # from distributedInfo; None if absent
    backend: str | None = None  # of torch.distributed, as "nccl"; None if absent
    # The process groups that the rank is in; None if absent or too many to compare
    groups: tuple[ProcessGroup, ...] | None = None
    # torch draws one in each process; one capture of several processes may give all the same one.
    # None if absent.
    trace_id: str | None = None
    host_name: str | None = None  # of its machine or container; None if absent
    run: str | None = None  # `chopperd_run`; None if absent
    job: str | None = None  # `chopperd_job`; None if absent
    devices: tuple[TraceDevice, ...] = ()
    simulated: bool = False  # whether the file carries the mark of chopperd's simulation
    event_count: int = 0  # elements of traceEvents seen, damaged ones included
    # Elements by category ("kernel", "cpu_op", "" for none, ...)
    event_counts: Mapping[str, int] = field(default_factory=dict)
    # "cuda", "rocm" or None, by the names of runtime calls and header keys
    runtime: str | None = None
    # What the device numbers of its records count
    device_numbers: DeviceNumbers = DeviceNumbers.PROPERTIES


class Trace(Struct, frozen=True, kw_only=True):
    """The contents of one trace file, as columns."""

    meta: TraceMeta
    names: tuple[str, ...]  # interned strings that `name` columns index
    # (pid, tid) of each host thread that `thread` columns index; either may be text
    threads: tuple[tuple[int | str, int | str], ...]
    records: DeviceRecords
    calls: RuntimeCalls
    spans: HostSpans
    device_spans: DeviceSpans
    flows: FlowEnds
    frames: PythonFrames
    functions: tuple[str, ...]  # names of Python functions, that frames index
    memory: MemoryRows  # changes of devices' memory; empty without profile_memory=True
    collectives: tuple[Collective, ...]  # what `collective` columns index
    shapes: tuple[Shapes, ...]  # what `shapes` columns index
    marks: tuple[GraphMark, ...]  # what `mark` columns index
    damage: Damage
    span_ns: tuple[int, int]  # first start and last end over all rows; (0, 0) for an empty trace
