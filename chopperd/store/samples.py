"""Sample files: reads our own, bare CSV, `nvidia-smi` and `amd-smi` output; writes our own.

The format is a first line `# chopperd-samples/1 {json}` and then CSV, one row a sample; or the same
columns as Parquet, with that line in the metadata.
"""

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Sequence
from datetime import tzinfo
from math import isnan
from pathlib import Path
from typing import Final

import numpy as np

from chopperd.errors import StoreError
from chopperd.model.arrays import Int64s
from chopperd.model.causes import Cause
from chopperd.model.devices import MOST_DIES
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples, SampleSet
from chopperd.store.amd_smi_samples import looks_like_amd_smi, parsed_amd_smi
from chopperd.store.replaced_file import replaced_file
from chopperd.store.sample_columns import (
    REQUIRED_COLUMNS,
    SampleColumns,
    cause_bits,
    cause_texts,
    divided_by_gpu,
    joined,
    value_columns,
)
from chopperd.store.sample_header import (
    HEADER_MARK,
    SampleHeader,
    header_line,
    parsed_header,
    triples_of,
)
from chopperd.store.sample_parquet import (
    PARQUET,
    is_parquet,
    parquet_of,
    read_parquet_samples,
)
from chopperd.store.smi_samples import looks_like_smi, parsed_smi
from chopperd.store.text_table import TextTable

_GZIP_MAGIC: Final = b"\x1f\x8b"
_DIES: Final = "die_clocks_mhz"


def read_samples(
    path: Path, *, tz: tzinfo | None = None, smi_fields: Sequence[str] = ()
) -> SampleSet:
    """The samples in a file, which may be compressed by gzip.

    Five kinds are told apart by their content: ours, ours as Parquet, CSV with the same columns and
    no first line, `nvidia-smi --query-gpu=timestamp,... --format=csv`, and `amd-smi metric --csv`.
    Rows are sorted by time; of rows of one GPU with the same time the first is kept.

    Args:
        path: The file.
        tz: Zone of the times of `nvidia-smi`, which writes local time; None is this machine's.
        smi_fields: Query fields of `nvidia-smi` output that was written with `noheader`.

    Raises:
        StoreError: The file can't be read or is none of the five; names the line.
        ConfigError: pyarrow, which Parquet takes, is not installed.
    """
    if is_parquet(path):
        return read_parquet_samples(path)
    data = _data(path)
    if not data.strip():
        raise StoreError(f"{path}: the file is empty")
    first, _, rest = data.partition(b"\n")
    line = first.decode()
    if line.startswith(HEADER_MARK):
        return _ours(rest, parsed_header(line, str(path)), path, first_line=2)
    if looks_like_amd_smi(data):
        return parsed_amd_smi(data, path=str(path))
    if smi_fields or looks_like_smi(line):
        return parsed_smi(data, path=str(path), tz=tz, fields=smi_fields)
    return _ours(data, SampleHeader(), path, first_line=1)


def write_samples(path: Path, samples: SampleSet) -> None:
    """Write a sample file, whole or not at all.

    It is compressed where the name ends in `.gz`, and Parquet where it ends in `.parquet`. Columns
    in which no GPU has a value are left out.

    Raises:
        StoreError: The file can't be written.
        ConfigError: pyarrow, which Parquet takes, is not installed.
    """
    with replaced_file(path) as file:
        file.write(parquet_of(samples) if path.suffix == PARQUET else _text_of(samples, path))


def _text_of(samples: SampleSet, path: Path) -> bytes:
    names, columns = _columns_to_write(samples)
    rows = [header_line(samples), ",".join(names), *map(",".join, zip(*columns, strict=True))]
    data = ("\n".join(rows) + "\n").encode()
    return gzip.compress(data, 6) if path.suffix == ".gz" else data


def _data(path: Path) -> bytes:
    """The text of a file in UTF-8, each line ended by just a newline."""
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
    except (EOFError, zlib.error) as error:
        raise StoreError(f"{path}: the gzip data is cut off or damaged") from error
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror or error}") from error
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: not text (byte {error.start}); not a sample file") from error
    return data.removeprefix(BOM_UTF8).replace(b"\r\n", b"\n")


def _ours(data: bytes, header: SampleHeader, path: Path, *, first_line: int) -> SampleSet:
    first, _, rest = data.partition(b"\n")
    names = [name.strip().strip('"') for name in first.decode().split(",")]
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing or len(set(names)) != len(names):
        problem = f"no column {missing[0]}" if missing else "a column is named twice"
        raise StoreError(f"{path}: line {first_line}: {problem}; not a sample file")
    table = TextTable(rest, names, path=str(path), first_line=first_line + 1)
    gpus, dropped = divided_by_gpu(_columns(table), header.infos(str(path)))
    return SampleSet(
        gpus=gpus,
        asked_hz=header.hz,
        started_unix_ns=header.started_unix_ns,
        simulated=header.simulated,
        backend=header.backend,
        driver=header.driver,
        node=header.node,
        triples=triples_of(header),
        source=str(path),
        notes=(*header.notes, *dropped),
    )


def _columns(table: TextTable) -> SampleColumns:
    limited = {cause: f"limited_{cause.label}_ns" for cause in Cause}
    spans, has_dies = "read_span_ns", _DIES in table.names
    return SampleColumns(
        labels=table.cells("gpu"),
        t_unix_ns=table.int64s("t_unix_ns"),
        read_span_ns=table.int64s(spans) if spans in table.names else _filled(table, 0),
        causes=_causes(table),
        values={name: table.floats(name) for name in VALUE_COLUMNS},
        limited_ns={
            cause: table.floats(name) for cause, name in limited.items() if name in table.names
        },
        die_clocks_mhz=table.joined_floats(_DIES, MOST_DIES) if has_dies else None,
    )


def _filled(table: TextTable, value: int) -> Int64s:
    return np.full(len(table), value, dtype=np.int64)


def _causes(table: TextTable) -> Int64s:
    """The bit sets of the `cause` column; without the column, nothing is known of causes."""
    if "cause" not in table.names:
        return _filled(table, Cause.UNKNOWN.bit)
    return np.array(table.parsed("cause", cause_bits), dtype=np.int64)


def _columns_to_write(samples: SampleSet) -> tuple[list[str], list[Sequence[str]]]:
    """Names and cells of the columns, rows in order of time."""
    gpus = samples.gpus
    t_unix_ns = joined([gpu.t_unix_ns for gpu in gpus], np.int64)
    order = np.argsort(t_unix_ns, kind="stable")
    labels = [gpu.gpu.gpu for gpu in gpus for _ in range(len(gpu))]
    spans = joined([gpu.read_span_ns for gpu in gpus], np.int64)
    causes = joined([gpu.causes for gpu in gpus], np.int64)
    columns: dict[str, Sequence[str]] = {
        "t_unix_ns": list(map(str, t_unix_ns[order].tolist())),
        "gpu": [labels[row] for row in order.tolist()],
    }
    for name, values in value_columns(samples).items():
        if name == "sm_clock_mhz" or not np.isnan(values).all():
            columns[name] = [_number(value) for value in values[order].tolist()]
    if any(gpu.die_clocks_mhz is not None for gpu in gpus):
        cells = [cell for gpu in gpus for cell in _die_cells(gpu)]
        columns[_DIES] = [cells[row] for row in order.tolist()]
    if (causes != Cause.UNKNOWN.bit).any():
        columns["cause"] = cause_texts(causes[order])
    if spans.any():
        columns["read_span_ns"] = list(map(str, spans[order].tolist()))
    return list(columns), list(columns.values())


def _die_cells(gpu: GpuSamples) -> list[str]:
    """The clocks of the dies in each row, joined by `+`; empty where none is known."""
    dies_mhz = gpu.die_clocks_mhz
    if dies_mhz is None:
        return [""] * len(gpu)
    different, codes = np.unique(dies_mhz, return_inverse=True)
    texts = np.array([_number(value) for value in different.tolist()], object)
    rows = texts[codes].reshape(dies_mhz.shape).tolist()
    return ["+".join(row) if any(row) else "" for row in rows]


def _number(value: float) -> str:
    """The shortest text that reads back as the same number; empty for NaN."""
    return "" if isnan(value) else repr(value).removesuffix(".0")
