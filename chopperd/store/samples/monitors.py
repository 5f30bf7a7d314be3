"""Samples of `dcgmi dmon` with times, of a Prometheus range query, and of `amd-smi metric`."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import isnan, nan
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from chopperd.errors import StoreError
from chopperd.model.arrays import Float64s
from chopperd.model.devices import MOST_DIES, GpuInfo, Vendor
from chopperd.model.kinds import Cause
from chopperd.model.report import Note
from chopperd.model.samples import VALUE_COLUMNS, SampleSet
from chopperd.store.samples.columns import SampleColumns, divided_by_gpu, label_order
from chopperd.store.samples.plain_csv import quantity, unix_ns_of
from chopperd.units import NS_PER_MS, NS_PER_S

_CLOCK: Final = "sm_clock_mhz"
_MIB: Final = float(1 << 20)

#: Source: short names of `dcgmi dmon` for fields 100, 101, 155, 150, 203, 252, 156 (mJ).
_DCGMI: Final = {
    "SMCLK": (_CLOCK, 1.0),
    "MMCLK": ("mem_clock_mhz", 1.0),
    "POWER": ("power_w", 1.0),
    "TMPTR": ("temperature_c", 1.0),
    "GPUTL": ("activity_ratio", 0.01),
    "FBUSD": ("memory_used_bytes", _MIB),
    "TOTEC": ("energy_j", 1e-3),
}
_DCGMI_HEADER: Final = re.compile(r"(.*?)#\s*Entity\s+(.*)")
_DCGMI_ROW: Final = re.compile(r"(.*?)\bGPU\s+(\d+)\s+(.*)")
_DCGMI_FIRST_BYTES: Final = 4096
_ADD_TIMES: Final = (
    "record again with  stdbuf -oL dcgmi dmon -e 100,155 -d 100 | ts '%.s' > FILE  (ts is in "
    'moreutils; else: | while read -r l; do echo "$(date +%s.%N) $l"; done > FILE)'
)

#: Source: dcgm-exporter (MHz, W, °C, %, MiB, mJ), nvidia_gpu_exporter, and our own metrics.
_METRICS: Final[Mapping[str, tuple[str, float]]] = {
    "DCGM_FI_DEV_SM_CLOCK": (_CLOCK, 1.0),
    "DCGM_FI_DEV_MEM_CLOCK": ("mem_clock_mhz", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": ("activity_ratio", 0.01),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", _MIB),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "nvidia_smi_clocks_current_sm_clock_hz": (_CLOCK, 1e-6),
    "nvidia_smi_power_draw_watts": ("power_w", 1.0),
    "nvidia_smi_temperature_gpu": ("temperature_c", 1.0),
    "nvidia_smi_utilization_gpu_ratio": ("activity_ratio", 1.0),
    "chopperd_gpu_sm_clock_hertz": (_CLOCK, 1e-6),
    "chopperd_gpu_mem_clock_hertz": ("mem_clock_mhz", 1e-6),
    "chopperd_gpu_power_watts": ("power_w", 1.0),
    "chopperd_gpu_energy_joules_total": ("energy_j", 1.0),
    "chopperd_gpu_activity_ratio": ("activity_ratio", 1.0),
}
_LABEL_KEYS: Final = ("gpu", "GPU", "gpu_id", "index")
_UUID_KEYS: Final = ("UUID", "uuid", "gpu_uuid")
_HOST_KEYS: Final = ("Hostname", "hostname", "node", "nodename", "instance")


class _Row(NamedTuple):
    """One sample of a monitor: when, of which GPU, and our columns."""

    t_unix_ns: int
    label: str
    values: Mapping[str, float]


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    data: _Data | None = None
    result: list[_Series] = []


def looks_like_dcgmi(data: bytes) -> bool:
    """Whether the first lines hold the header of `dcgmi dmon`."""
    first = data[:_DCGMI_FIRST_BYTES].decode(errors="replace").splitlines()
    return any(_DCGMI_HEADER.fullmatch(line) for line in first)


def parsed_dcgmi(data: bytes, *, path: str) -> SampleSet:
    """Parse `dcgmi dmon` output in which a time was put before each line.

    Raises:
        StoreError: There are no times, or no SM clock; the text is how to record them.
    """
    rows = list(_dcgmi_rows(data.decode(), path))
    if not rows:
        raise StoreError(f"{path}: dcgmi dmon output without a line of a GPU")
    return _sample_set(rows, {}, "dcgmi", path)


def _dcgmi_rows(text: str, path: str) -> Iterator[_Row]:
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := _DCGMI_HEADER.fullmatch(line):
            names = header[2].split()
            if "SMCLK" not in names:
                raise StoreError(f"{path}: line {number}: no SMCLK (field 100): {_ADD_TIMES}")
        elif (row := _DCGMI_ROW.fullmatch(line)) and len(cells := row[3].split()) == len(names):
            values = {
                _DCGMI[name][0]: _cell(cell, path, number) * _DCGMI[name][1]
                for name, cell in zip(names, cells, strict=True)
                if name in _DCGMI
            }
            yield _Row(_dcgmi_time(row[1], path, number), row[2], values)


def _cell(text: str, path: str, line: int) -> float:
    try:
        return quantity(text)
    except ValueError as error:
        raise StoreError(f"{path}: line {line}: {text!r} is no number") from error


def _dcgmi_time(text: str, path: str, line: int) -> int:
    bare = text.strip().strip("[]:").strip()
    if not bare:
        raise StoreError(f"{path}: dcgmi dmon writes no times: {_ADD_TIMES}")
    try:
        return unix_ns_of(bare)
    except ValueError as error:
        raise StoreError(
            f"{path}: line {line}: {bare!r} is no Unix time, nor a date with its zone: {_ADD_TIMES}"
        ) from error


def looks_like_json(data: bytes) -> bool:
    """Whether a file is JSON rather than lines of cells."""
    return data.lstrip()[:1] in (b"{", b"[")


def parsed_prometheus(data: bytes, *, path: str) -> SampleSet:
    """Parse the answer to a range query of Prometheus' API, whole or its result alone.

    A value of a range query was scraped up to a step before its time: the middle of the step is
    taken, and the read is as long as that.

    Raises:
        StoreError: It is other JSON, has no SM clock, or is of several nodes.
    """
    series = [(each, _METRICS.get(each.metric.get("__name__", ""))) for each in _series(data, path)]
    known = [(each, own) for each, own in series if own is not None]
    if not any(own == _CLOCK for _, (own, _) in known):
        wanted = " or ".join(name for name, (own, _) in _METRICS.items() if own == _CLOCK)
        raise StoreError(f"{path}: a Prometheus answer without SM clock: query {wanted}")
    hosts = sorted({_first(each.metric, _HOST_KEYS) for each, _ in known} - {""})
    if len(hosts) > 1:
        raise StoreError(
            f"{path}: series of several nodes ({', '.join(hosts[:3])}): query one of them"
        )
    rows, infos = _prometheus_rows(known, path)
    step_ns = max(_step_ns(each) for each, (own, _) in known if own == _CLOCK)
    moved = [row._replace(t_unix_ns=row.t_unix_ns - step_ns // 2) for row in rows]
    text = (
        f"a Prometheus range: values are up to {step_ns / NS_PER_S:g} s older than their times, "
        "which intervals allow for, and older still by what the exporter keeps them"
    )
    note = Note(code="prometheus_times", text=text)
    samples = _sample_set(moved, infos, "prometheus", path, span_ns=step_ns)
    return replace(samples, node=hosts[0] if hosts else None, notes=(note, *samples.notes))


def _series(data: bytes, path: str) -> list[_Series]:
    """Parse the series of an answer, of its `data` alone, or of a bare list as by `promtool`."""
    try:
        if data.lstrip().startswith(b"["):
            return msgspec.json.decode(data, type=list[_Series], strict=False)
        answer = msgspec.json.decode(data, type=_Answer, strict=False)
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: JSON, but no range query of Prometheus: {error}") from error
    found = answer.data.result if answer.data else answer.result
    if not any(each.values for each in found):
        raise StoreError(f"{path}: JSON without values of a Prometheus range (query_range)")
    return found


def _first(labels: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _prometheus_rows(
    series: Sequence[tuple[_Series, tuple[str, float]]], path: str
) -> tuple[list[_Row], dict[str, GpuInfo]]:
    """Convert series to a row for each GPU and time; also return the GPUs by label."""
    values: defaultdict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    infos: dict[str, GpuInfo] = {}
    label_of: dict[str, str] = {}
    for each, (own, factor) in series:
        uuid = _first(each.metric, _UUID_KEYS)
        label = _first(each.metric, _LABEL_KEYS) or label_of.setdefault(uuid, str(len(label_of)))
        name = each.metric.get("modelName", each.metric.get("name", ""))
        infos.setdefault(label, _info(label, uuid, name))
        for at_s, text in each.values:
            t_unix_ns = round(at_s * 1000) * NS_PER_MS  # Prometheus' own precision
            values[label, t_unix_ns][own] = _cell(text, path, 1) * factor
    return [_Row(t_ns, label, found) for (label, t_ns), found in values.items()], infos


def _info(label: str, uuid: str = "", name: str = "") -> GpuInfo:
    index = int(label) if label.isdecimal() else -1
    return GpuInfo(gpu=label, index=index, uuid=uuid, name=name, vendor=Vendor.OTHER)


def _step_ns(series: _Series) -> int:
    """Return the median spacing of a series' times, in ns; 0 if there are fewer than two."""
    times_s = [at_s for at_s, _ in series.values]
    return round(float(np.median(np.diff(times_s))) * 1000) * NS_PER_MS if times_s[1:] else 0


def _sample_set(
    rows: Sequence[_Row],
    infos: Mapping[str, GpuInfo],
    backend: str,
    path: str,
    *,
    span_ns: int = 0,
    dies_mhz: Float64s | None = None,
) -> SampleSet:
    """Convert rows of a monitor to samples with unknown causes."""
    columns = SampleColumns(
        labels=[row.label for row in rows],
        t_unix_ns=np.array([row.t_unix_ns for row in rows], np.int64),
        read_span_ns=np.full(len(rows), span_ns, np.int64),
        causes=np.full(len(rows), Cause.UNKNOWN.bit, np.int64),
        floats={
            name: np.array([row.values.get(name, nan) for row in rows], np.float64)
            for name in VALUE_COLUMNS
        },
        die_clocks_mhz=dies_mhz,
    )
    in_order = {label: infos[label] for label in sorted(infos, key=label_order)}
    gpus, dropped = divided_by_gpu(columns, in_order)
    return SampleSet(gpus=gpus, backend=backend, source=path, notes=dropped)


# `amd-smi metric -c -p -t -u -w 1 --csv`.
#
# Source: amd-smi's own CSV: one line per GPU and read, `timestamp` in whole Unix seconds where it
# watches (`-w`), clocks in MHz for each die (`gfx_0_clk` to `gfx_7_clk`), `socket_power` in W,
# `hotspot` and `edge` in °C, `gfx_activity` in %, "N/A" where nothing is reported. The first line
# says how to stop, and the header is repeated at each read, unless it writes to a file itself.

_AMD_HEADER: Final = frozenset({"gpu", "gfx_0_clk"})
_AMD_FIRST_LINES: Final = 10
#: Our columns from its fields, best first, with the factor from its unit to ours.
_AMD_FIELDS: Final[Mapping[str, tuple[tuple[str, ...], float]]] = {
    _CLOCK: (("gfx_0_clk",), 1.0),
    "mem_clock_mhz": (("mem_0_clk",), 1.0),
    "power_w": (("socket_power",), 1.0),
    "temperature_c": (("hotspot", "edge"), 1.0),
    "activity_ratio": (("gfx_activity",), 0.01),
}
_AMD_NOTE: Final = Note(
    code="amd_smi_seconds",
    text="amd-smi prints times in whole seconds: intervals allow for half a second either way, and"
    " not for the time that it took to read",
)


def looks_like_amd_smi(data: bytes) -> bool:
    """Whether the first lines hold a header of `amd-smi metric --csv` with clocks."""
    first = data[: 1 << 16].decode(errors="replace").splitlines()[:_AMD_FIRST_LINES]
    return any({cell.strip() for cell in line.split(",")} >= _AMD_HEADER for line in first)


def parsed_amd_smi(data: bytes, *, path: str) -> SampleSet:
    """Parse `amd-smi metric --csv` output.

    A read's time is the middle of its second, and its length that second. Causes are unknown: the
    output's `throttle_status` does not name any. Its energy is left out.

    Raises:
        StoreError: There are no times, or a cell can't be read; names the line.
    """
    rows: list[_Row] = []
    dies: list[list[float]] = []
    highest_mhz: dict[str, float] = {}
    for line, cells in _amd_lines(data.decode()):
        label, where = cells["gpu"], f"{path}: line {line}"
        number = partial(_amd_number, cells, where)
        values = {
            own: next((v for v in map(number, fields) if not isnan(v)), nan) * factor
            for own, (fields, factor) in _AMD_FIELDS.items()
        }
        rows.append(_Row(_amd_time(cells, where), label, values))
        dies.append([number(f"gfx_{die}_clk") for die in range(MOST_DIES)])
        # The other way round NaN would stay.
        highest_mhz[label] = max(highest_mhz.get(label, 0.0), number("gfx_0_max_clk"))
    dies_mhz = np.array(dies, np.float64).reshape(-1, MOST_DIES)
    infos = {
        label: replace(_info(label), vendor=Vendor.AMD, sm_clock_max_mhz=mhz or None)
        for label, mhz in highest_mhz.items()
    }
    several = None if np.isnan(dies_mhz[:, 1:]).all() else dies_mhz
    samples = _sample_set(rows, infos, "amd-smi", path, span_ns=NS_PER_S, dies_mhz=several)
    return replace(samples, notes=(_AMD_NOTE, *samples.notes))


def _amd_lines(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield number and cells of each data line; skip incomplete ones, as the last may be."""
    names: list[str] = []
    reader = csv.reader(text.splitlines())
    for cells in reader:
        bare = [cell.strip() for cell in cells]
        if _AMD_HEADER.issubset(bare):
            names = bare
        elif names and len(bare) == len(names):
            yield reader.line_num, dict(zip(names, bare, strict=True))


def _amd_time(cells: Mapping[str, str], where: str) -> int:
    """Return the middle of a line's second, in Unix ns."""
    if (text := cells.get("timestamp")) is None:
        raise StoreError(
            f"{where}: no times; let amd-smi watch: amd-smi metric -c -p -t -u -w 1 --csv"
        )
    if not text.isdecimal():
        raise StoreError(f"{where}: timestamp {text!r} is no whole second")
    return int(text) * NS_PER_S + NS_PER_S // 2


def _amd_number(cells: Mapping[str, str], where: str, field: str) -> float:
    text = cells.get(field, "N/A")
    try:
        return nan if text in ("N/A", "") else float(text)
    except ValueError as error:
        raise StoreError(f"{where}: {field} {text!r} is no number") from error
