"""The versions of AMD's Python binding that tests use, and what each takes a library to be.

Its structures grow from version to version; the fake library is built for one of them. A binding
is read here without a library: what it binds is written down, nothing is called.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

import pytest

#: Next to the installed one; `make` puts them there (`$(VENV)/amdsmi/6.4.4/amdsmi/`).
OLDEST = "6.2.4"
BETWEEN = ("6.3.3", "6.4.4")
INSTALLED = "installed"
#: Parameters of tests. Those of the versions in between run in `make compat`.
OLDER = (OLDEST, *(pytest.param(version, marks=pytest.mark.compat) for version in BETWEEN))
ALL = (*OLDER, INSTALLED)
_FOLDER = Path(sys.prefix) / "amdsmi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A version of the binding.

    Attributes:
        version: Its own ("7.0.2").
        folder: Holds the package `amdsmi`.
        module: Its wrapper with the structures and numbers; its calls call nothing.
        symbols: What it binds when it is imported.
    """

    version: str
    folder: Path
    module: ModuleType = field(repr=False)
    symbols: frozenset[str] = field(repr=False)

    def structure(self, name: str) -> type[ctypes.Structure]:
        """A structure by its name in C ("amdsmi_gpu_metrics_t")."""
        found = getattr(self.module, f"struct_{name}", None) or getattr(self.module, name)
        assert isinstance(found, type)
        return found

    def has(self, name: str) -> bool:
        """Whether it has a structure."""
        return hasattr(self.module, f"struct_{name}") or hasattr(self.module, name)

    def number(self, name: str) -> int:
        """A number of an enumeration by its name in C."""
        value = getattr(self.module, name)
        assert isinstance(value, int)
        return value

    @property
    def library_version(self) -> tuple[int, ...]:
        """What `amdsmi_get_lib_version` gives: year first until ROCm 6.4, three numbers since.

        Source: the releases of ROCm/amdsmi (24.6.3.0 with ROCm 6.2, 24.7.1.0 with 6.3, 25.5.1.0
        with 6.4, 26.0.2 with 7.0).
        """
        series = tuple(int(part) for part in self.version.split(".")[:2])
        known: dict[tuple[int, ...], tuple[int, ...]] = {
            (6, 2): (24, 6, 3, 0), (6, 3): (24, 7, 1, 0), (6, 4): (25, 5, 1, 0), (7, 0): (26, 0, 2),
        }  # fmt: skip
        return known.get(series, (26, 2, 0))


def binding(version: str = INSTALLED) -> Binding:
    """A version of the binding; skips the test (fails it in CI) where it isn't there."""
    try:
        folder = installed_folder() if version == INSTALLED else _FOLDER / version
    except PackageNotFoundError:
        folder = _FOLDER / INSTALLED
    wrapper = folder / "amdsmi" / "amdsmi_wrapper.py"
    if not wrapper.exists():
        missing = f"AMD's binding {version} is not at {folder}; `make compat` puts it there"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return _load(wrapper)


def installed_folder() -> Path:
    """Where the installed binding lies."""
    return Path(str(distribution("amdsmi").locate_file("")))


class _Symbol:
    """An entry point that may be typed and not called."""

    restype: object = None
    argtypes: object = None


class _Nothing:
    """Stands for the library: has all that is asked for, and writes it down."""

    def __init__(self, *_: object) -> None:
        self.bound: set[str] = set()

    def __getattr__(self, name: str) -> _Symbol:
        self.bound.add(name)
        return _Symbol()


@contextmanager
def _without_library() -> Iterator[_Nothing]:
    nothing, real = _Nothing(), ctypes.CDLL
    ctypes.CDLL = lambda *_, **__: nothing  # type: ignore[misc, assignment]
    try:
        yield nothing
    finally:
        ctypes.CDLL = real  # type: ignore[misc]


@cache
def _load(wrapper: Path) -> Binding:
    module = ModuleType("amdsmi_wrapper_without_library")
    module.__file__ = str(wrapper)
    with _without_library() as nothing:
        exec(compile(wrapper.read_text(), str(wrapper), "exec"), module.__dict__)
    version = (wrapper.parent / "_version.py").read_text().split("=")[1].strip().strip("\"'")
    return Binding(
        version=version, folder=wrapper.parent.parent, module=module,
        symbols=frozenset(nothing.bound),
    )  # fmt: skip
