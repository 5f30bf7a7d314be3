"""Samples of all GPUs as columns, from and to `GpuSamples`; headers of our own files."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate.clock.governing import reported_dies
from chopperd.errors import StoreError
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import MOST_DIES, GpuInfo, Vendor
from chopperd.model.kinds import REPORTED_CAUSES, Cause
from chopperd.model.report import Note
from chopperd.model.samples import LIMITED_COLUMNS, VALUE_COLUMNS, GpuSamples, ProcessRow, SampleSet
from chopperd.plausible import DIE_CLOCK_MHZ, INFO_BOUNDS, LIMITED_NS, SAMPLE_BOUNDS, Bounds
from chopperd.sampling.process_table import merged_processes
from chopperd.units import TimeTriple

REQUIRED_COLUMNS: Final = ("t_unix_ns", "gpu", "sm_clock_mhz")
#: Columns of numbers, by their names in our files.
FLOAT_COLUMNS: Final = (*VALUE_COLUMNS, *LIMITED_COLUMNS.values())
DIES: Final = "die_clocks_mhz"
_BOUNDS: Final = {**SAMPLE_BOUNDS, **dict.fromkeys(LIMITED_COLUMNS.values(), LIMITED_NS)}
_LIMITED_BY_NAME: Final = {name: cause for cause, name in LIMITED_COLUMNS.items()}
_REPORTED_BY_LABEL: Final = {cause.label: cause for cause in REPORTED_CAUSES}


class SampleColumns(Struct, frozen=True, kw_only=True):
    """Samples of several GPUs, one row a sample, in any order."""

    labels: Sequence[str]  # (n,) Label of the GPU
    #: (n,) int64 as in `GpuSamples`.
    t_unix_ns: Int64s
    read_span_ns: Int64s
    causes: Int64s
    #: (n,) float64 for each of `FLOAT_COLUMNS` that was reported, the SM clock always.
    floats: Mapping[str, Float64s]
    #: (n, dies) float64, NaN where absent; None without the column.
    die_clocks_mhz: Float64s | None = None


def divided_by_gpu(
    columns: SampleColumns, infos: Mapping[str, GpuInfo]
) -> tuple[tuple[GpuSamples, ...], tuple[Note, ...]]:
    """Split samples by GPU, sorted by time; also note impossible values left out.

    Of rows with one time only the first stays. GPUs of `infos` come first, also without rows;
    labels unknown to it follow in label order.
    """
    dropped: Counter[str] = Counter()
    columns = _plausible(columns, dropped)
    codes = {label: code for code, label in enumerate(dict.fromkeys(columns.labels))}
    row_codes = np.array([codes[label] for label in columns.labels], dtype=np.int64)
    known = dict(infos)
    for label in sorted(codes.keys() - known.keys(), key=label_order):
        first = label.split(".", maxsplit=1)[0]
        index = int(first) if first.isdecimal() else -1
        known[label] = GpuInfo(gpu=label, index=index, uuid="", name="", vendor=Vendor.OTHER)
    gpus = []
    for label, info in known.items():
        rows = np.flatnonzero(row_codes == codes.get(label, -1))
        gpus.append(_one_gpu(columns, _plausible_info(info, dropped), rows))
    return tuple(gpus), _dropped_notes(dropped)


def _plausible(columns: SampleColumns, dropped: Counter[str]) -> SampleColumns:
    """Replace values outside of their bounds by NaN; count them by column in `dropped`."""
    dies_mhz = columns.die_clocks_mhz
    floats = dict(columns.floats)
    if dies_mhz is not None:
        # A clock of 0 is then that of a die which is off.
        off = (floats["sm_clock_mhz"] == 0) & ~np.isnan(dies_mhz).all(axis=1)
        floats["sm_clock_mhz"] = np.where(off, np.nan, floats["sm_clock_mhz"])
        dies_mhz = _inside(dies_mhz, DIE_CLOCK_MHZ, DIES, dropped)
    floats = {name: _inside(each, _BOUNDS[name], name, dropped) for name, each in floats.items()}
    return replace(columns, floats=floats, die_clocks_mhz=dies_mhz)


def _inside(column: Float64s, bounds: Bounds, name: str, dropped: Counter[str]) -> Float64s:
    outside = (column < bounds.low) | (column > bounds.high)
    count = int(np.count_nonzero(outside))
    if not count:
        return column
    dropped[name] += count
    return np.where(outside, np.nan, column)


def _plausible_info(info: GpuInfo, dropped: Counter[str]) -> GpuInfo:
    outside = [
        name
        for name, bounds in INFO_BOUNDS.items()
        if (value := getattr(info, name)) is not None and value not in bounds
    ]
    dropped.update(outside)
    return replace(info, **dict.fromkeys(outside)) if outside else info


def _dropped_notes(dropped: Mapping[str, int]) -> tuple[Note, ...]:
    if not dropped:
        return ()
    columns = ", ".join(f"{count} of {name}" for name, count in sorted(dropped.items()))
    total = sum(dropped.values())
    text = f"{total} impossible {'value' if total == 1 else 'values'} left out: {columns}"
    return (Note(code="invalid_readings", text=text),)


def columns_in_turn(parts: Sequence[SampleColumns]) -> SampleColumns:
    """Concatenate the samples of one or several recordings, in their order."""
    if len(parts) == 1:
        return parts[0]
    dies = [part.die_clocks_mhz for part in parts]
    no_dies = [np.full((len(part.labels), MOST_DIES), np.nan) for part in parts]
    return SampleColumns(
        labels=[label for part in parts for label in part.labels],
        t_unix_ns=np.concatenate([part.t_unix_ns for part in parts]),
        read_span_ns=np.concatenate([part.read_span_ns for part in parts]),
        causes=np.concatenate([part.causes for part in parts]),
        floats={
            name: np.concatenate(
                [p.floats.get(name, np.full(len(p.labels), np.nan)) for p in parts]
            )
            for name in dict.fromkeys(name for part in parts for name in part.floats)
        },
        die_clocks_mhz=None
        if all(each is None for each in dies)
        else np.concatenate([n if d is None else d for d, n in zip(dies, no_dies, strict=True)]),
    )


def infos_in_turn(parts: Sequence[Mapping[str, GpuInfo]], path: str) -> dict[str, GpuInfo]:
    """Merge the GPUs of a file's recordings, by label; the first description of each counts.

    Raises:
        StoreError: A label names different GPUs in two recordings.
    """
    found: dict[str, GpuInfo] = {}
    for nth, part in enumerate(parts, 1):
        for label, info in part.items():
            before = found.setdefault(label, info)
            if before.uuid and info.uuid and before.uuid != info.uuid:
                raise StoreError(
                    f"{path}: recording {nth} in it is of other GPUs (GPU {label} is {info.uuid}, "
                    f"before {before.uuid}): keep each recording in a file of its own"
                )
    return found


def label_order(label: str) -> tuple[tuple[int, int | str], ...]:
    """Return the sorting key of a GPU label: numbers by value, "2" before "10" before "10.1"."""
    parts = label.split(".")
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts)


def cause_bits(cell: str) -> int:
    """Parse labels of causes joined by `+` to a bit set; 0 for an empty cell.

    Raises:
        ValueError: A label is not that of a reported cause.
    """
    bits = 0
    for label in cell.split("+") if cell else ():
        if label not in _REPORTED_BY_LABEL:
            raise ValueError(label)
        bits |= _REPORTED_BY_LABEL[label].bit
    return bits


def written_columns(
    samples: SampleSet, die_cells: Callable[[GpuSamples], Iterable[object]]
) -> dict[str, np.ndarray]:
    """Convert samples to the columns of a file, by name, in order of time.

    Columns without any value are left out; `die_cells` makes a GPU's cells of `DIES`.
    """
    gpus = samples.gpus
    columns: dict[str, np.ndarray] = {
        "t_unix_ns": joined([gpu.t_unix_ns for gpu in gpus], np.int64),
        "gpu": np.array([gpu.gpu.gpu for gpu in gpus for _ in range(len(gpu))], object),
    }
    for name in FLOAT_COLUMNS:
        values = joined([_floats(gpu, name) for gpu in gpus], np.float64)
        if name in REQUIRED_COLUMNS or not np.isnan(values).all():
            columns[name] = values
    if any(gpu.die_clocks_mhz is not None for gpu in gpus):
        columns[DIES] = np.fromiter((cell for gpu in gpus for cell in die_cells(gpu)), object)
    causes = joined([gpu.causes for gpu in gpus], np.int64)
    if (causes != Cause.UNKNOWN.bit).any():
        different, rows = np.unique(causes, return_inverse=True)
        cells = ["+".join(c.label for c in Cause if bits & c.bit) for bits in different.tolist()]
        columns["cause"] = np.array(cells, object)[rows]
    spans = joined([gpu.read_span_ns for gpu in gpus], np.int64)
    if spans.any():
        columns["read_span_ns"] = spans
    order = np.argsort(columns["t_unix_ns"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """Concatenate the parts; an empty array if there are none."""
    return np.concatenate([np.empty(0, dtype), *parts])


def _floats(gpu: GpuSamples, name: str) -> Float64s:
    """Return a GPU's column of this name in `FLOAT_COLUMNS`; NaN where it has none."""
    nan = np.full(len(gpu), np.nan)
    limited = _LIMITED_BY_NAME.get(name)
    return getattr(gpu, name, nan) if limited is None else gpu.limited_ns.get(limited, nan)


def _one_gpu(columns: SampleColumns, info: GpuInfo, rows: Int64s) -> GpuSamples:
    rows = rows[np.argsort(columns.t_unix_ns[rows], kind="stable")]
    rows = rows[np.diff(columns.t_unix_ns[rows], prepend=np.iinfo(np.int64).min // 2) > 0]
    found = {name: column[rows] for name, column in columns.floats.items()}
    dies_mhz = columns.die_clocks_mhz
    return GpuSamples(
        gpu=info,
        t_unix_ns=columns.t_unix_ns[rows],
        read_span_ns=columns.read_span_ns[rows],
        causes=columns.causes[rows],
        limited_ns={
            cause: found[name]
            for cause, name in LIMITED_COLUMNS.items()
            if name in found and not np.isnan(found[name]).all()
        },
        die_clocks_mhz=None if dies_mhz is None else reported_dies(dies_mhz[rows]),
        **{name: found.get(name, np.full(len(rows), np.nan)) for name in VALUE_COLUMNS},
    )


# The first line of a sample file: `# chopperd-samples/1 {json}`.

HEADER_MARK: Final = "# chopperd-samples/"
_VERSION: Final = "1"


class GpuEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A GPU in the header; fields as in `GpuInfo`."""

    index: int
    gpu: str | None = None
    uuid: str = ""
    name: str = ""
    vendor: str = Vendor.OTHER.value
    pci_bus_id: str | None = None
    sm_clock_max_mhz: float | None = None
    sm_clock_limit_mhz: float | None = None
    mem_clock_max_mhz: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    memory_size_bytes: int | None = None
    sensor_lag_ns: int | None = None
    power_source: str | None = None
    sm_clock_period_ns: int | None = None
    power_period_ns: int | None = None
    energy_period_ns: int | None = None
    sm_clock_average_ns: int | None = None
    parent: str | None = None
    kfd_node: int | None = None

    def info(self) -> GpuInfo:
        """Convert to a `GpuInfo`; without a label its index is its label."""
        fields = msgspec.structs.asdict(self)
        fields["gpu"] = self.gpu if self.gpu is not None else str(self.index)
        is_known = self.vendor in [vendor.value for vendor in Vendor]
        fields["vendor"] = Vendor(self.vendor) if is_known else Vendor.OTHER
        return GpuInfo(**fields)


class ProcessEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A process in the header; fields as in `ProcessRow`.

    `gpus` may be a list of labels or UUIDs, `visible` the text of CUDA_VISIBLE_DEVICES alone.
    """

    pid: int
    ns_pids: list[int] = []
    started_unix_ns: int | None = None
    gone_unix_ns: int | None = None
    listed_unix_ns: int | None = None
    gpus: dict[str, int | None] | list[str | int] = {}
    visible: dict[str, str] | str | None = None
    hosts: list[str] = []
    container: bool | None = None

    def row(self) -> ProcessRow:
        """Convert to a `ProcessRow`."""
        fields, held, seen = msgspec.structs.asdict(self), self.gpus, self.visible
        fields["ns_pids"] = tuple(self.ns_pids) or (self.pid,)
        fields["gpus"] = held if isinstance(held, dict) else {str(gpu): None for gpu in held}
        fields["visible"] = {"CUDA_VISIBLE_DEVICES": seen} if isinstance(seen, str) else seen
        fields["hosts"] = tuple(self.hosts)
        return ProcessRow(**fields)


class SampleHeader(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Header of a sample file; `triples` holds (unix, mono, boot) ns."""

    gpus: list[GpuEntry] = []
    hz: float | None = None
    started_unix_ns: int | None = None
    simulated: bool = False
    backend: str = "file"
    driver: str | None = None
    node: str | None = None
    notes: list[Note] = []
    triples: list[tuple[int, int, int]] = []
    processes: list[ProcessEntry] = []

    def infos(self, path: str) -> dict[str, GpuInfo]:
        """Return the GPUs by label, in the file's order; StoreError if a label occurs twice."""
        infos = [entry.info() for entry in self.gpus]
        by_label = {info.gpu: info for info in infos}
        if len(by_label) != len(infos):
            raise StoreError(f"{path}: line 1: a GPU is named twice")
        return by_label


def header_line(samples: SampleSet) -> str:
    """Make the first line of a sample file, without line end."""
    listed = (row for row in samples.processes if row.ns_pids)
    header = SampleHeader(
        gpus=[msgspec.convert(gpu.gpu, GpuEntry, from_attributes=True) for gpu in samples.gpus],
        hz=samples.asked_hz,
        started_unix_ns=samples.started_unix_ns,
        simulated=samples.simulated,
        backend=samples.backend,
        driver=samples.driver,
        node=samples.node,
        notes=list(samples.notes),
        processes=[msgspec.convert(row, ProcessEntry, from_attributes=True) for row in listed],
        triples=[(triple.unix_ns, triple.mono_ns, triple.boot_ns) for triple in samples.triples],
    )
    return f"{HEADER_MARK}{_VERSION} {msgspec.json.encode(header).decode()}"


def parsed_header(line: str, path: str) -> SampleHeader:
    """Parse the header in a first line, without keys that this version does not know.

    Raises:
        StoreError: Another version of the format, or JSON of another shape.
    """
    version, _, text = line.removeprefix(HEADER_MARK).partition(" ")
    if version != _VERSION:
        raise StoreError(f"{path}: sample format {version!r} is not {_VERSION!r}")
    try:
        return msgspec.json.decode(text, type=SampleHeader)
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: line 1: {error}") from error


def own_samples(recordings: Sequence[tuple[SampleHeader, SampleColumns]], path: str) -> SampleSet:
    """Join one or several recordings in a file of our own format, in order, to one set.

    Raises:
        StoreError: They are of several nodes, or a label names several GPUs.
    """
    headers = [header for header, _ in recordings]
    first = headers[0]
    if len({header.node for header in headers}) > 1:
        raise StoreError(f"{path}: recordings of several nodes: keep each in a file of its own")
    infos = infos_in_turn([header.infos(path) for header in headers], path)
    gpus, dropped = divided_by_gpu(columns_in_turn([columns for _, columns in recordings]), infos)
    return SampleSet(
        gpus=gpus,
        asked_hz=first.hz if len({header.hz for header in headers}) == 1 else None,
        started_unix_ns=first.started_unix_ns,
        simulated=any(header.simulated for header in headers),
        backend=first.backend,
        driver=first.driver,
        node=first.node,
        # The monotonic clocks of several recordings may be of several boots.
        triples=tuple(
            TimeTriple(unix_ns=unix_ns, mono_ns=mono_ns, boot_ns=boot_ns)
            for unix_ns, mono_ns, boot_ns in sorted(first.triples, key=lambda triple: triple[1])
            if len(headers) == 1
        ),
        processes=merged_processes(each.row() for header in headers for each in header.processes),
        source=path,
        notes=(*dict.fromkeys(note for header in headers for note in header.notes), *dropped),
    )
