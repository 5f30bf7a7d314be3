"""The first line of a sample file: `# chopperd-samples/1 {json}`."""

from collections.abc import Sequence
from typing import Final

import msgspec

from chopperd.errors import StoreError
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.report import Note
from chopperd.model.samples import ProcessRow, SampleSet
from chopperd.sampling.process_table import merged_processes
from chopperd.store.samples.columns import (
    SampleColumns,
    columns_in_turn,
    divided_by_gpu,
    infos_in_turn,
)
from chopperd.units import TimeTriple

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
