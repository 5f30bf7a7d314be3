"""Finds and imports AMD's Python binding. The only module that imports `amdsmi`.

Of the binding only the wrapper is used: the structures and numbers of its version, and the entry
points of the library that it loads. Importing it may print, raise anything, or exit.
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
#: Below a ROCm installation.
_SHARE: Final = Path("share/amd_smi")
#: By which AMD's binding finds its library: the one beside it is meant.
_VARIABLES: Final = ("ROCM_PATH", "ROCM_HOME")
_USUAL: Final = Path("/opt")
_OUTPUTS: Final = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A version of AMD's binding, with the library that it loaded.

    Attributes:
        wrapper: Its module of structures, numbers and entry points.
        version: What it says of itself; None where it says nothing.
        folder: Where it lies.
    """

    wrapper: ModuleType
    version: str | None
    folder: Path

    def structure(self, name: str) -> type[Structure] | type[Union] | None:
        """A structure by its name in C ("amdsmi_gpu_metrics_t"); None where it has none."""
        for candidate in (f"struct_{name}", name):
            found = getattr(self.wrapper, candidate, None)
            if isinstance(found, type) and issubclass(found, Structure | Union):
                return found
        return None

    def number(self, name: str) -> int | None:
        """A number of an enumeration by its name in C; None where it has none."""
        found = getattr(self.wrapper, name, None)
        return found if isinstance(found, int) else None

    def address(self, name: str) -> int | None:
        """Of an entry point; None where this version has none of the name."""
        found = getattr(self.wrapper, name, None)
        # What a version can't bind is a stand-in for it: a class, which is no function.
        if found is None or isinstance(found, type):
            return None
        return cast(found, c_void_p).value

    @property
    def library_path(self) -> str:
        """The library that it loaded, as it named it; for people."""
        libraries = getattr(self.wrapper, "_libraries", {})
        return str(getattr(libraries.get("libamd_smi.so"), "_name", "libamd_smi.so"))


def import_binding() -> Binding:
    """The host ROCm's own binding, which alone is sure to fit its library; else the installed one.

    Raises:
        BackendUnavailableError: There is none, or none that loads: why.
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
def contained_noise() -> Iterator[list[str]]:
    """What is written to standard output and error meanwhile, by any code, as lines at the end."""
    lines: list[str] = []
    with TemporaryFile() as file, io.StringIO() as printed:
        kept = [os.dup(output) for output in _OUTPUTS]
        try:
            for output in _OUTPUTS:
                os.dup2(file.fileno(), output)
            with redirect_stdout(printed), redirect_stderr(printed):
                yield lines
        finally:
            for output, before in zip(_OUTPUTS, kept, strict=True):
                os.dup2(before, output)
                os.close(before)
            file.seek(0)
            said = printed.getvalue() + file.read().decode(errors="replace")
            lines.extend(line.strip() for line in said.splitlines() if line.strip())
            for line in lines:
                logger.debug("AMD SMI said: %s", line)


def _rocm_folders(environ: Mapping[str, str]) -> list[Path]:
    """The folders of ROCm installations that hold a binding, the one that is meant first."""
    roots = [Path(environ[name]) for name in _VARIABLES if environ.get(name)]
    roots.append(_USUAL / "rocm")
    roots.extend(sorted(_USUAL.glob("rocm-*"), reverse=True))
    folders = dict.fromkeys((root / _SHARE).resolve() for root in roots)
    return [folder for folder in folders if (folder / _PACKAGE / "__init__.py").is_file()]


def _imported(folder: Path | None) -> Binding:
    """The binding in a folder, or the installed one."""
    searched = [] if folder is None else [str(folder)]
    sys.path[:0] = searched
    said: list[str] = []
    try:
        with contained_noise() as said:
            wrapper = import_module(f"{_PACKAGE}.amdsmi_wrapper")
            package = import_module(_PACKAGE)
    # Bindings raise whatever their first missing library or symbol leads to; some exit.
    except (Exception, SystemExit) as error:
        _forget()
        where = "the installed amdsmi" if folder is None else f"AMD's binding in {folder}"
        heard = f"; it said: {said[0]}" if said else ""
        raise BackendUnavailableError(f"{where} does not load: {error!r}{heard}") from error
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
    """Let what was half imported not be taken for the next."""
    for name in [each for each in sys.modules if each.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]


# Which library of AMD SMI a version of its binding was made for; pure.

Version: TypeAlias = tuple[int, int]

#: From here on a binding's version is the library's own; below, it is that of a release of ROCm.
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
    """Whether a binding was made for a library; None where its version does not say.

    Structures change with the second number at most.

    Args:
        binding: What the binding says of itself: "7.0.2" (of PyPI), "26.0.2+39589fda" (of ROCm).
        library: The library's numbers.
    """
    numbers = _numbers(binding)
    if numbers is None:
        return None
    if numbers[0] >= _OWN_NUMBERS_FROM:
        return numbers == library[:2]
    made_for = _LIBRARY_BY_ROCM.get(numbers)
    return None if made_for is None else library[:2] in made_for


def rocm_of(library: tuple[int, ...]) -> str | None:
    """The series of ROCm that a library is of ("6.4"); None where that is not known."""
    for rocm, versions in _LIBRARY_BY_ROCM.items():
        if library[:2] in versions:
            return f"{rocm[0]}.{rocm[1]}"
    return None


def _numbers(version: str | None) -> Version | None:
    found = _NUMBERS.match(version or "")
    return (int(found[1]), int(found[2])) if found else None
