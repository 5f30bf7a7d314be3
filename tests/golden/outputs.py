"""What came out: made comparable, reduced to hashes and a few lines, and compared."""

import csv
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from difflib import unified_diff
from hashlib import sha256
from io import StringIO
from pathlib import Path
from struct import Struct
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow.parquet

#: Of an output: `sha256`, `parts` (their names and short hashes), `lines` (its first ones).
Kept: TypeAlias = dict[str, Any]

_NUMBER: Final = re.compile(r"(?<![\w.+\-])-?\d+\.\d+(?:[eE][+-]?\d+)?(?![\w.:])")
_NOW: Final = re.compile(r'(\\?"time\\?": ?\\?")[^"\\]*')
_LINES_OF_A_DIFF: Final = 14
_LINES_OF_ALL: Final = 80
#: Members of JSON whose members are hashed one by one: those of OpenAPI and schemas.
_OPENED: Final = frozenset({"paths", "components", "schemas", "$defs"})
#: As the flight recorder's files are framed, said again here: a change of it must show.
_FRAME: Final = Struct("<8sHHIIqq")
_MAGIC: Final = b"\x93chopper"


def comparable(text: str, work: Path, version: str) -> str:
    """The text without what depends on the machine, the time and the version.

    Floats have 12 digits: the last ones differ between processors.
    """
    text = text.replace(str(work), "WORK")
    text = re.sub(rf"(?<![\d.]){re.escape(version)}(?![\d.])", "VERSION", text)
    return _NUMBER.sub(_rounded, _NOW.sub(r"\1NOW", text))


def _rounded(number: re.Match[str]) -> str:
    text = number[0]
    return f"{float(text):.12g}" if len(text) > 13 else text


def parquet_text(path: Path) -> str:
    """Schema, metadata and rows of a Parquet file as JSON."""
    table = pyarrow.parquet.read_table(path)
    metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    schema = [f"{field.name}: {field.type}" for field in table.schema]
    columns = {name: table[name].to_pylist() for name in table.column_names}
    found = {"schema": schema, "metadata": metadata, "columns": columns}
    return json.dumps(found, indent=1, default=str)


def store_text(path: Path) -> str:
    """Schema and rows of a SQLite file; compressed values as their text."""
    lines = []
    with closing(sqlite3.connect(path)) as db:
        made = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        lines += [f"user_version {db.execute('PRAGMA user_version').fetchone()[0]}"]
        for kind, name, sql in made:
            lines.append(f"{kind} {name}: {sql}")
            if kind == "table":
                rows = db.execute(f"SELECT * FROM {name}").fetchall()
                lines += ["  " + repr([_plain(value) for value in row]) for row in rows]
    return "\n".join(lines)


def recorder_text(folder: Path) -> str:
    """Files of a flight recorder, frame by frame; what is compressed as hashes of its content."""
    lines = []
    for path in sorted(folder.iterdir()):
        lines.append(path.name)
        data = path.read_bytes()
        at = data.find(_MAGIC)
        while at >= 0:
            _, layout, kind, size, _, begin, end = _FRAME.unpack_from(data, at)
            payload = data[at + _FRAME.size + 4 :][:size]
            shown = _plain(msgspec.msgpack.decode(payload) if payload else "")
            lines.append(f"  layout {layout} kind {kind} [{begin}, {end}]: {shown}")
            at = data.find(_MAGIC, at + _FRAME.size + 4 + size)
    return "\n".join(lines)


def _plain(value: object) -> object:
    """A stored value: compressed bytes as text, or the hash of what is no text."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, bytes):
        return value
    with suppress(zlib.error):
        value = zlib.decompress(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return sha256(value).hexdigest()[:16]


def kept(text: str, form: str, lines: int) -> Kept:
    """What is stored of an output."""
    found: Kept = {"sha256": sha256(text.encode()).hexdigest()}
    if parts := [f"{name}:{_short(part)}" for name, part in _parts(text, form)]:
        found["parts"] = " ".join(parts)
    if lines:
        found["lines"] = text.splitlines()[:lines]
    return found


def _short(part: str) -> str:
    return sha256(part.encode()).hexdigest()[:4]


def _parts(text: str, form: str) -> Iterator[tuple[str, str]]:
    """The members of JSON, the columns of CSV: what a difference is said to be in."""
    if form == "csv":
        rows = list(csv.reader(StringIO(text)))
        for number, name in enumerate(rows[0] if rows else ()):
            yield name, repr([row[number : number + 1] for row in rows])
    elif form != "text" and text.startswith("{"):
        document, _ = json.JSONDecoder().raw_decode(text)
        yield from _members(document)


def _members(document: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in document.items():
        if name in _OPENED:
            yield from _members(value, f"{name}.")
        else:
            yield f"{above}{name}", json.dumps(value)


def differences(before: Mapping[str, Kept], now: Mapping[str, Kept]) -> Sequence[str]:
    """What differs, for people: first a line for each output, then its lines that are stored."""
    named = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    listed = [f"differs: {name}{_where(before.get(name), now.get(name))}" for name in named]
    if len(listed) > _LINES_OF_ALL // 2:
        rest = len(listed) - _LINES_OF_ALL // 2
        listed = [*listed[: _LINES_OF_ALL // 2], f"... and {rest} more"]
    shown: list[str] = []
    for name in named:
        old, new = (each.get(name, {}).get("lines", []) for each in (before, now))
        diff = list(unified_diff(old, new, f"recorded {name}", f"now {name}", n=1, lineterm=""))
        if diff and len(listed) + len(shown) < _LINES_OF_ALL - _LINES_OF_A_DIFF:
            shown += diff[:_LINES_OF_A_DIFF]
    return [*listed, *shown]


def _where(old: Kept | None, new: Kept | None) -> str:
    if old is None or new is None:
        return " (new)" if old is None else " (missing)"
    a, b = (
        dict(part.rsplit(":", 1) for part in each.get("parts", "").split()) for each in (old, new)
    )
    changed = [part for part in {**a, **b} if a.get(part) != b.get(part)]
    if changed:
        return f" in {', '.join(changed[:8])}{' ...' if len(changed) > 8 else ''}"
    return " in the order of its parts" if a else ""
