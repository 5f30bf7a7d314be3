"""Compiles the fake driver library, whole or with functions left out as on an older driver."""

import ctypes
import subprocess
from hashlib import sha256
from importlib.metadata import files
from pathlib import Path

from tests.fakes.nvml.scenario import CALLS, ScenarioLayout

FOLDER = Path(__file__).parent
SOURCES = ("library.c", "device.c", "fields.c", "instances.c", "trouble.c", "values.c")
LIBRARY_NAME = "libnvidia-ml.so.1"


class BuildUnavailableError(Exception):
    """There is no compiler, or no NVML header, on this machine."""


def build(folder: Path, without: frozenset[str] = frozenset()) -> Path:
    """The library's path; it lies alone in a folder fit for `LD_LIBRARY_PATH`.

    Args:
        folder: Where to build; what was built there before is used again.
        without: Functions that this driver does not have yet.
    """
    # Named by what is left out, which may be too long for a name.
    digest = sha256(" ".join(sorted(without)).encode()).hexdigest()[:16]
    variant = folder / f"driver-{digest}"
    library = variant / LIBRARY_NAME
    if library.exists():
        return library
    variant.mkdir(parents=True)
    symbols = variant / "symbols.map"
    left_out = "".join(f" {name};" for name in sorted(without))
    symbols.write_text(f"{{ global: nvml*; fake_nvml_*; local:{left_out} *; }};\n")
    _compile(library, symbols)
    _check_layout(library)
    return library


def _compile(library: Path, symbols: Path) -> None:
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    linked = [f"-Wl,-soname,{LIBRARY_NAME}", f"-Wl,--version-script={symbols}"]
    # A system header: NVIDIA's own warnings are not ours.
    headers = ["-isystem", str(_header_folder())]
    sources = [str(FOLDER / name) for name in SOURCES]
    command = ["gcc", *options, *linked, *headers, "-o", str(library), *sources]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError as error:
        raise BuildUnavailableError("gcc is not installed") from error


def _header_folder() -> Path:
    installed = files("nvidia-nvml-dev") or []
    for path in installed:
        if path.name == "nvml.h":
            return Path(str(path.locate())).parent
    raise BuildUnavailableError("the package nvidia-nvml-dev holds no nvml.h")


def _check_layout(library: Path) -> None:
    driver = ctypes.CDLL(str(library))
    driver.fake_nvml_layout_bytes.restype = ctypes.c_size_t
    driver.fake_nvml_call_name.restype = ctypes.c_char_p
    assert driver.fake_nvml_layout_bytes() == ctypes.sizeof(ScenarioLayout)
    names = [driver.fake_nvml_call_name(index).decode() for index in range(len(CALLS))]
    assert tuple(names) == CALLS
    assert driver.fake_nvml_call_name(len(CALLS)) is None
