"""Find and import AMD's Python binding. The only module that imports `amdsmi`.

Only its wrapper is used: structures and constants of its version, and the entry points of the
library that it loads. Importing it may print, raise anything, or exit.
"""

import io
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from ctypes import Structure, Union, c_void_p, cast
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import Final, TypeAlias

from chopperd.errors import BackendUnavailableError

logger = logging.getLogger(__name__)

_PACKAGE: Final = "amdsmi"
#: Its path in a ROCm installation.
_SHARE: Final = Path("share/amd_smi")
#: Variables by which the binding finds its library: a binding of the same ROCm is used.
_VARIABLES: Final = ("ROCM_PATH", "ROCM_HOME")
_USUAL: Final = Path("/opt")
_OUTPUTS: Final = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """AMD's imported binding, with its version (None if not reported) and its folder."""

    wrapper: ModuleType
    version: str | None
    folder: Path

    def structure(self, name: str) -> type[Structure] | type[Union] | None:
        """Return a structure by its C name ("amdsmi_gpu_metrics_t"); None if there is none."""
        for candidate in (f"struct_{name}", name):
            found = getattr(self.wrapper, candidate, None)
            if isinstance(found, type) and issubclass(found, Structure | Union):
                return found
        return None

    def number(self, name: str) -> int | None:
        """Return an integer constant by its C name; None if it does not exist."""
        found = getattr(self.wrapper, name, None)
        return found if isinstance(found, int) else None

    def address(self, name: str) -> int | None:
        """Return the address of an entry point; None if this version does not have it."""
        found = getattr(self.wrapper, name, None)
        # A missing entry point is replaced by a class, which is no function.
        if found is None or isinstance(found, type):
            return None
        return cast(found, c_void_p).value

    @property
    def library_path(self) -> str:
        """Path of the library that the binding loaded."""
        libraries = getattr(self.wrapper, "_libraries", {})
        return str(getattr(libraries.get("libamd_smi.so"), "_name", "libamd_smi.so"))


def import_binding() -> Binding:
    """Import the binding of the host's ROCm, which fits its library; else the installed one.

    Raises:
        BackendUnavailableError: There is no binding, or none loads; the text says why.
    """
    reasons = []
    for folder in (*_rocm_folders(os.environ), None):
        try:
            if folder is not None or find_spec(_PACKAGE) is not None:
                return _imported(folder)
        except BackendUnavailableError as error:
            logger.info("%s", error)
            reasons.append(str(error))
    raise BackendUnavailableError(
        "; ".join(reasons)
        or "AMD's binding is found neither in ROCm (/opt/rocm/share/amd_smi) nor installed: "
        "pip install 'chopperd[amd]'"
    )


@contextmanager
def captured_output() -> Iterator[list[str]]:
    """Redirect standard output and error of all code; at the end, fill the list with the lines."""
    lines: list[str] = []
    with TemporaryFile() as file, io.StringIO() as printed:
        saved = [os.dup(output) for output in _OUTPUTS]
        try:
            for output in _OUTPUTS:
                os.dup2(file.fileno(), output)
            with redirect_stdout(printed), redirect_stderr(printed):
                yield lines
        finally:
            for output, before in zip(_OUTPUTS, saved, strict=True):
                os.dup2(before, output)
                os.close(before)
            file.seek(0)
            text = printed.getvalue() + file.read().decode(errors="replace")
            lines.extend(line.strip() for line in text.splitlines() if line.strip())
            for line in lines:
                logger.debug("AMD SMI printed: %s", line)


def _rocm_folders(environ: Mapping[str, str]) -> list[Path]:
    """List the folders of ROCm installations that hold a binding, in order of precedence."""
    roots = [Path(environ[name]) for name in _VARIABLES if environ.get(name)]
    roots.append(_USUAL / "rocm")
    roots.extend(sorted(_USUAL.glob("rocm-*"), reverse=True))
    folders = dict.fromkeys((root / _SHARE).resolve() for root in roots)
    return [folder for folder in folders if (folder / _PACKAGE / "__init__.py").is_file()]


def _imported(folder: Path | None) -> Binding:
    """Import the binding in a folder, or for None the installed one."""
    searched = [] if folder is None else [str(folder)]
    sys.path[:0] = searched
    printed: list[str] = []
    try:
        with captured_output() as printed:
            wrapper = import_module(f"{_PACKAGE}.amdsmi_wrapper")
            package = import_module(_PACKAGE)
    # Bindings raise whatever their first missing library or symbol leads to; some exit.
    except (Exception, SystemExit) as error:
        _forget()
        where = "the installed amdsmi" if folder is None else f"AMD's binding in {folder}"
        output = f"; it printed: {printed[0]}" if printed else ""
        raise BackendUnavailableError(f"{where} does not load: {error!r}{output}") from error
    finally:
        for each in searched:
            sys.path.remove(each)
    version = getattr(package, "__version__", None)
    return Binding(
        wrapper=wrapper,
        version=version if isinstance(version, str) else None,
        folder=Path(str(package.__file__)).parent,
    )


def _forget() -> None:
    """Remove a partly imported binding from `sys.modules`, for the next attempt to import."""
    for name in [each for each in sys.modules if each.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]


# The library that a version of the binding was made for.

Version: TypeAlias = tuple[int, int]

#: From this major version on a binding's version is the library's; below, that of a ROCm release.
_OWN_NUMBERS_FROM: Final = 20
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)")

#: The library's version in each series of ROCm. Source: "AMD SMI (...)" in the consolidated
#: changelogs of ROCm 6.2 to 7.2.
_LIBRARY_BY_ROCM: Final[Mapping[Version, frozenset[Version]]] = {
    (6, 2): frozenset({(24, 6)}),
    (6, 3): frozenset({(24, 7)}),
    (6, 4): frozenset({(25, 3), (25, 4), (25, 5)}),
    (7, 0): frozenset({(26, 0)}),
    (7, 1): frozenset({(26, 1)}),
    (7, 2): frozenset({(26, 2)}),
}


def fits(binding: str | None, library: tuple[int, ...]) -> bool | None:
    """Return whether a binding was made for a library; None if its version does not show it.

    Structures do not change without the first two numbers. Versions of bindings: "7.0.2" (of PyPI),
    "26.0.2+39589fda" (of ROCm).
    """
    numbers = _numbers(binding)
    if numbers is None:
        return None
    if numbers[0] >= _OWN_NUMBERS_FROM:
        return numbers == library[:2]
    made_for = _LIBRARY_BY_ROCM.get(numbers)
    return None if made_for is None else library[:2] in made_for


def rocm_of(library: tuple[int, ...]) -> str | None:
    """Return the ROCm series ("6.4") of a library's version; None if not known."""
    for rocm, versions in _LIBRARY_BY_ROCM.items():
        if library[:2] in versions:
            return f"{rocm[0]}.{rocm[1]}"
    return None


def _numbers(version: str | None) -> Version | None:
    found = _NUMBERS.match(version or "")
    return (int(found[1]), int(found[2])) if found else None
