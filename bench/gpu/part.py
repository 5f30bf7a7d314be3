"""A part of the suite as a program: what it was told, and where its results go."""

import argparse
import gzip
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

_LARGEST_KEPT_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a part is told.

    Attributes:
        device: "cuda" or "cpu".
        is_dry: Whether to be done soon rather than to measure.
        out: Its folder for files beside its results.
    """

    device: str
    is_dry: bool
    out: Path


#: Gives Markdown for the summary and everything as data.
Measure: TypeAlias = Callable[[Options], tuple[str, object]]


def main(measure: Measure) -> None:
    """Measure and write `NAME.md` and `NAME.json` of `--name` into `--out`."""
    # At its time limit it is asked to end: what it started must end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    device = "cpu" if given.cpu else "cuda"
    text, data = measure(Options(device=device, is_dry=given.cpu, out=given.out))
    encoded = msgspec.json.format(msgspec.json.encode(data), indent=2)
    (given.out / f"{given.name}.json").write_bytes(encoded + b"\n")
    (given.out / f"{given.name}.md").write_text(f"{text}\n")


def output_of(command: Sequence[str], cwd: Path | None = None) -> tuple[int, str]:
    """The status and standard output of this Python with these arguments.

    If we are asked to end meanwhile, so is it; it is never killed, as it may be in a driver.
    """
    process = subprocess.Popen(
        [sys.executable, *command], cwd=cwd, stdout=subprocess.PIPE, text=True
    )
    try:
        printed, _ = process.communicate()
    except BaseException:
        process.terminate()
        raise
    return process.returncode, printed


def kept_packed(path: Path, out: Path) -> str:
    """Keep a file, compressed, if it is small enough; what became of it."""
    packed = out / f"{path.name}.gz"
    with path.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    if packed.stat().st_size <= _LARGEST_KEPT_BYTES:
        return packed.name
    packed.unlink()
    return f"{path.name} (not: over {_LARGEST_KEPT_BYTES >> 20} MiB)"
