"""Compiles the fake libamd_smi.so for a binding, whole or with functions left out."""

import ctypes
import subprocess
from hashlib import sha256
from pathlib import Path

from tests.fakes.amd.smi.bindings import Binding
from tests.fakes.amd.smi.calls import CALLS, Shape, calls_header, entry_points
from tests.fakes.amd.smi.scenario import ScenarioLayout

FOLDER = Path(__file__).parent
SOURCES = ("fake_amd_smi.c", "values.c")
LIBRARY_NAME = "libamd_smi.so"


class BuildUnavailableError(Exception):
    """There is no compiler on this machine."""


def build(folder: Path, binding: Binding, without: frozenset[str] = frozenset()) -> Path:
    """The library's path; it lies alone in a folder.

    Args:
        folder: Where to build; what was built there before is used again.
        binding: What it is made for: it has just the symbols that this one binds.
        without: Functions that it lacks all the same.
    """
    exported = binding.symbols - without
    digest = sha256(" ".join(sorted(exported)).encode()).hexdigest()[:16]
    variant = folder / f"{binding.version}-{digest}"
    library = variant / LIBRARY_NAME
    if library.exists():
        return library
    variant.mkdir(parents=True, exist_ok=True)
    (variant / "calls.h").write_text(calls_header())
    (variant / "entry_points.c").write_text(entry_points(exported))
    shown = "".join(f" {name};" for name in sorted(exported))
    (variant / "symbols.map").write_text(f"{{ global:{shown} fake_amdsmi_*; local: *; }};\n")
    _compile(variant)
    _check(library, exported)
    return library


def _compile(variant: Path) -> None:
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    linked = [f"-Wl,-soname,{LIBRARY_NAME}", f"-Wl,--version-script={variant / 'symbols.map'}"]
    included = [f"-I{FOLDER}", f"-I{variant}"]
    sources = [*(str(FOLDER / name) for name in SOURCES), str(variant / "entry_points.c")]
    output = ["-o", str(variant / LIBRARY_NAME)]
    try:
        subprocess.run(["gcc", *options, *linked, *included, *output, *sources], check=True)
    except FileNotFoundError as error:
        raise BuildUnavailableError("gcc is not installed") from error


def _check(library: Path, exported: frozenset[str]) -> None:
    loaded = ctypes.CDLL(str(library))
    loaded.fake_amdsmi_layout_bytes.restype = ctypes.c_size_t
    assert loaded.fake_amdsmi_layout_bytes() == ctypes.sizeof(ScenarioLayout)
    assert all(hasattr(loaded, name) for name in exported)
    assert {name for name, shape in CALLS.items() if shape is Shape.OWN} & exported
