"""Rows of all GPUs as columns, from and to one `GpuSamples` a GPU: what all forms share."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from chopperd.correlate.clock.governing import reported_dies
from chopperd.errors import StoreError
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import MOST_DIES, GpuInfo, Vendor
from chopperd.model.kinds import REPORTED_CAUSES, Cause
from chopperd.model.plausible import (
    DIE_CLOCK_MHZ,
    INFO_BOUNDS,
    LIMITED_NS,
    SAMPLE_BOUNDS,
    Bounds,
)
from chopperd.model.report import Note
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples, ProcessRow, SampleSet
from chopperd.sampling.process_table import merged_processes
from chopperd.units import TimeTriple

REQUIRED_COLUMNS: Final = ("t_unix_ns", "gpu", "sm_clock_mhz")
_REPORTED_BY_LABEL: Final = {cause.label: cause for cause in REPORTED_CAUSES}
DIES: Final = "die_clocks_mhz"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumns:
    """Samples of several GPUs, one row a sample, in any order.

    Attributes:
        labels: (n,) Label of the GPU.
        t_unix_ns, read_span_ns, causes: (n,) int64 as in `GpuSamples`.
        values: (n,) float64 for each of `VALUE_COLUMNS`.
        limited_ns: (n,) float64 for each cause with a column.
        die_clocks_mhz: (n, dies) float64, NaN where absent; None without the column.
    """

    labels: Sequence[str]
    t_unix_ns: Int64s
    read_span_ns: Int64s
    causes: Int64s
    values: Mapping[str, Float64s]
    limited_ns: Mapping[Cause, Float64s] = field(default_factory=dict)
    die_clocks_mhz: Float64s | None = None


def divided_by_gpu(
    columns: SampleColumns, infos: Mapping[str, GpuInfo]
) -> tuple[tuple[GpuSamples, ...], tuple[Note, ...]]:
    """Samples of each GPU, sorted by time, and a note if impossible values were left out.

    Of rows with one time the first is kept. GPUs of `infos` come first, also without rows; labels
    unknown to it follow in label order.
    """
    dropped: Counter[str] = Counter()
    columns = _plausible(columns, dropped)
    codes = {label: code for code, label in enumerate(dict.fromkeys(columns.labels))}
    row_codes = np.array([codes[label] for label in columns.labels], dtype=np.int64)
    known = dict(infos)
    for label in sorted(codes.keys() - known.keys(), key=label_order):
        known[label] = _unnamed(label)
    gpus = tuple(
        _one_gpu(
            columns,
            _plausible_info(info, dropped),
            np.flatnonzero(row_codes == codes.get(label, -1)),
        )
        for label, info in known.items()
    )
    return gpus, _dropped_notes(dropped)


def _plausible(columns: SampleColumns, dropped: Counter[str]) -> SampleColumns:
    """The columns with NaN for what is outside of its bounds, counted by column."""
    dies_mhz = columns.die_clocks_mhz
    values = dict(columns.values)
    if dies_mhz is not None:
        # A clock of 0 is then that of a die which is off.
        off = (values["sm_clock_mhz"] == 0) & ~np.isnan(dies_mhz).all(axis=1)
        values["sm_clock_mhz"] = np.where(off, np.nan, values["sm_clock_mhz"])
        dies_mhz = _inside(dies_mhz, DIE_CLOCK_MHZ, "die_clocks_mhz", dropped)
    return replace(
        columns,
        values={
            name: _inside(column, SAMPLE_BOUNDS[name], name, dropped)
            for name, column in values.items()
        },
        limited_ns={
            cause: _inside(column, LIMITED_NS, f"limited_{cause.label}_ns", dropped)
            for cause, column in columns.limited_ns.items()
        },
        die_clocks_mhz=dies_mhz,
    )


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
    return replace(info, **dict.fromkeys(outside)) if outside else info  # type: ignore[arg-type]


def _dropped_notes(dropped: Mapping[str, int]) -> tuple[Note, ...]:
    if not dropped:
        return ()
    columns = ", ".join(f"{count} of {name}" for name, count in sorted(dropped.items()))
    total = sum(dropped.values())
    text = f"{total} impossible {'value' if total == 1 else 'values'} left out: {columns}"
    return (Note(code="invalid_readings", text=text),)


def columns_in_turn(parts: Sequence[SampleColumns]) -> SampleColumns:
    """The samples of several recordings as one, in their order.

    Args:
        parts: At least one.
    """
    if len(parts) == 1:
        return parts[0]
    causes = dict.fromkeys(cause for part in parts for cause in part.limited_ns)
    dies = [part.die_clocks_mhz for part in parts]
    return SampleColumns(
        labels=[label for part in parts for label in part.labels],
        t_unix_ns=joined([part.t_unix_ns for part in parts], np.int64),
        read_span_ns=joined([part.read_span_ns for part in parts], np.int64),
        causes=joined([part.causes for part in parts], np.int64),
        values={
            name: joined([p.values[name] for p in parts], np.float64) for name in VALUE_COLUMNS
        },
        limited_ns={
            cause: joined([p.limited_ns.get(cause, _absent(p)) for p in parts], np.float64)
            for cause in causes
        },
        die_clocks_mhz=None
        if all(each is None for each in dies)
        else np.concatenate(
            [
                np.full((len(part.labels), MOST_DIES), np.nan) if each is None else each
                for part, each in zip(parts, dies, strict=True)
            ]
        ),
    )


def _absent(part: SampleColumns) -> Float64s:
    return np.full(len(part.labels), np.nan)


def infos_in_turn(parts: Sequence[Mapping[str, GpuInfo]], path: str) -> dict[str, GpuInfo]:
    """The GPUs of several recordings in one file, by label; the first description of each counts.

    Raises:
        StoreError: A label is one GPU's in one recording and another's in the next.
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
    """Sorting key of a GPU label: numbers by value, "2" before "10" before "10.1"."""
    parts = label.split(".")
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts)


def cause_bits(cell: str) -> int:
    """The bit set of labels joined by `+`; none for an empty cell."""
    bits = 0
    for label in cell.split("+") if cell else ():
        if label not in _REPORTED_BY_LABEL:
            raise ValueError(label)
        bits |= _REPORTED_BY_LABEL[label].bit
    return bits


def written_columns(
    samples: SampleSet, die_cells: Callable[[GpuSamples], Iterable[object]]
) -> dict[str, np.ndarray]:
    """The columns of a file by name, rows in order of time; columns without a value are left out.

    Args:
        samples: All samples.
        die_cells: The cells of `DIES` for the rows of one GPU.
    """
    gpus = samples.gpus
    columns: dict[str, np.ndarray] = {
        "t_unix_ns": joined([gpu.t_unix_ns for gpu in gpus], np.int64),
        "gpu": np.array([gpu.gpu.gpu for gpu in gpus for _ in range(len(gpu))], object),
    }
    for name in VALUE_COLUMNS:
        values = joined([getattr(gpu, name) for gpu in gpus], np.float64)
        if name == "sm_clock_mhz" or not np.isnan(values).all():
            columns[name] = values
    for cause in Cause:
        if any(cause in gpu.limited_ns for gpu in gpus):
            parts = [gpu.limited_ns.get(cause, np.full(len(gpu), np.nan)) for gpu in gpus]
            if not np.isnan(values := joined(parts, np.float64)).all():
                columns[f"limited_{cause.label}_ns"] = values
    if any(gpu.die_clocks_mhz is not None for gpu in gpus):
        columns[DIES] = np.fromiter((cell for gpu in gpus for cell in die_cells(gpu)), object)
    causes = joined([gpu.causes for gpu in gpus], np.int64)
    if (causes != Cause.UNKNOWN.bit).any():
        columns["cause"] = np.array(cause_texts(causes), object)
    spans = joined([gpu.read_span_ns for gpu in gpus], np.int64)
    if spans.any():
        columns["read_span_ns"] = spans
    order = np.argsort(columns["t_unix_ns"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """The parts one after another, none of them giving an empty array."""
    return np.concatenate([np.empty(0, dtype), *parts])


def cause_texts(causes: Int64s) -> list[str]:
    """The labels in each bit set, joined by `+`."""
    text_of = {
        bits: "+".join(cause.label for cause in Cause if bits & cause.bit)
        for bits in np.unique(causes).tolist()
    }
    return [text_of[bits] for bits in causes.tolist()]


def _unnamed(label: str) -> GpuInfo:
    """A GPU of which only the label is known; its index is the label's first number, else -1."""
    first = label.split(".", maxsplit=1)[0]
    index = int(first) if first.isdecimal() else -1
    return GpuInfo(gpu=label, index=index, uuid="", name="", vendor=Vendor.OTHER)


def _one_gpu(columns: SampleColumns, info: GpuInfo, rows: Int64s) -> GpuSamples:
    rows = rows[np.argsort(columns.t_unix_ns[rows], kind="stable")]
    rows = rows[np.diff(columns.t_unix_ns[rows], prepend=np.iinfo(np.int64).min // 2) > 0]
    limited = {cause: values[rows] for cause, values in columns.limited_ns.items()}
    dies_mhz = columns.die_clocks_mhz
    return GpuSamples(
        gpu=info,
        t_unix_ns=columns.t_unix_ns[rows],
        read_span_ns=columns.read_span_ns[rows],
        causes=columns.causes[rows],
        limited_ns={cause: v for cause, v in limited.items() if not np.isnan(v).all()},
        die_clocks_mhz=None if dies_mhz is None else reported_dies(dies_mhz[rows]),
        **{name: columns.values[name][rows] for name in VALUE_COLUMNS},
    )


# The first line of a sample file: `# chopperd-samples/1 {json}`.

HEADER_MARK: Final = "# chopperd-samples/"
_VERSION: Final = "1"


class GpuEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A GPU as the header names it; the fields mean what they mean in `GpuInfo`."""

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


class ProcessEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A process as the header names it; the fields mean what they mean in `ProcessRow`.

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
        """The process."""
        held, seen = self.gpus, self.visible
        return ProcessRow(
            pid=self.pid,
            ns_pids=tuple(self.ns_pids) or (self.pid,),
            started_unix_ns=self.started_unix_ns,
            gone_unix_ns=self.gone_unix_ns,
            listed_unix_ns=self.listed_unix_ns,
            gpus=held if isinstance(held, dict) else {str(gpu): None for gpu in held},
            visible={"CUDA_VISIBLE_DEVICES": seen} if isinstance(seen, str) else seen,
            hosts=tuple(self.hosts),
            container=self.container,
        )


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

    def rows(self) -> tuple[ProcessRow, ...]:
        """The processes."""
        return tuple(entry.row() for entry in self.processes)

    def infos(self, path: str) -> dict[str, GpuInfo]:
        """The GPUs by label, in the order of the file.

        Raises:
            StoreError: A label occurs twice.
        """
        infos = [_info(entry) for entry in self.gpus]
        by_label = {info.gpu: info for info in infos}
        if len(by_label) != len(infos):
            raise StoreError(f"{path}: line 1: a GPU is named twice")
        return by_label


def header_line(samples: SampleSet) -> str:
    """The first line for a set of samples, without line end."""
    header = SampleHeader(
        gpus=[_fields(gpu.gpu) for gpu in samples.gpus],
        hz=samples.asked_hz,
        started_unix_ns=samples.started_unix_ns,
        simulated=samples.simulated,
        backend=samples.backend,
        driver=samples.driver,
        node=samples.node,
        notes=list(samples.notes),
        processes=[
            msgspec.convert(row, ProcessEntry, from_attributes=True)
            for row in samples.processes
            if row.ns_pids
        ],
        triples=[(triple.unix_ns, triple.mono_ns, triple.boot_ns) for triple in samples.triples],
    )
    return f"{HEADER_MARK}{_VERSION} {msgspec.json.encode(header).decode()}"


def parsed_header(line: str, path: str) -> SampleHeader:
    """The header in a first line; keys that this version does not know are skipped.

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
    """The samples of one or several recordings in a file of our own format, in their order.

    Raises:
        StoreError: They are of several nodes, or a label is of several GPUs.
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
        triples=_triples(first) if len(headers) == 1 else (),
        processes=merged_processes(row for header in headers for row in header.rows()),
        source=path,
        notes=(*dict.fromkeys(note for header in headers for note in header.notes), *dropped),
    )


def _triples(header: SampleHeader) -> tuple[TimeTriple, ...]:
    """The clock triples, rising."""
    return tuple(
        TimeTriple(unix_ns=unix_ns, mono_ns=mono_ns, boot_ns=boot_ns)
        for unix_ns, mono_ns, boot_ns in sorted(header.triples, key=lambda triple: triple[1])
    )


def _fields(info: GpuInfo) -> GpuEntry:
    return msgspec.convert(info, GpuEntry, from_attributes=True)


def _info(entry: GpuEntry) -> GpuInfo:
    known = {vendor.value for vendor in Vendor}
    fields = msgspec.structs.asdict(entry)
    fields["gpu"] = entry.gpu if entry.gpu is not None else str(entry.index)
    fields["vendor"] = Vendor(entry.vendor) if entry.vendor in known else Vendor.OTHER
    return GpuInfo(**fields)
