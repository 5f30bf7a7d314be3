"""Fixtures that put the fake libamd_smi.so under the real binding, here or in another process.

The library lies in a tree like ROCm's (`lib/libamd_smi.so`, `share/amd_smi/amdsmi`), which
`ROCM_PATH` names: that is where the binding looks first. Both are taken by path, so that several
versions of a library may be loaded in one process.
"""

import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes.amd.cards import Card
from tests.fakes.amd.smi.bindings import INSTALLED, Binding, binding
from tests.fakes.amd.smi.build import LIBRARY_NAME, BuildUnavailableError, build
from tests.fakes.amd.smi.node import SmiNode

SCENARIO_VARIABLE = "FAKE_AMDSMI_SCENARIO"
PACKAGE = "amdsmi"


@dataclass(slots=True)
class FakeAmdSmi:
    """A fake library, what it answers, and the tree that it lies in.

    Attributes:
        node: What it answers; change it at any time.
        rocm: What `ROCM_PATH` must name.
        library: The compiled library.
        binding: The version of the binding in the tree.
    """

    node: SmiNode
    rocm: Path
    library: Path
    binding: Binding
    _driver: ctypes.CDLL = field(repr=False)

    def imported(self) -> ModuleType:
        """The real binding over this library; it is forgotten at the end of the test."""
        return importlib.import_module(PACKAGE)

    def environment(self) -> dict[str, str]:
        """What another process needs to find this library, and the binding of its version."""
        folders = [str(self.binding.folder), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "ROCM_PATH": str(self.rocm),
            "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder),
            SCENARIO_VARIABLE: str(self.node.path),
        }

    def loses_library(self) -> None:
        """There is none where `ROCM_PATH` leads; for another process: this one has it loaded."""
        (self.rocm / "lib" / LIBRARY_NAME).unlink()

    @property
    def open_count(self) -> int:
        """How often the library was initialised here and not shut down."""
        return int(self._driver.fake_amdsmi_open_count())


MakeFakeAmdSmi = Callable[..., FakeAmdSmi]


@pytest.fixture(scope="session")
def amdsmi_library(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Binding, frozenset[str]], Path]:
    """Builds the library, each variant once; where that can't be, skips (fails in CI)."""
    folder = tmp_path_factory.mktemp("fake-amdsmi")

    def library(of: Binding, without: frozenset[str] = frozenset()) -> Path:
        try:
            return build(folder, of, without)
        except BuildUnavailableError as error:
            if os.environ.get("CI"):
                pytest.fail(f"the fake library can't be built: {error}")
            pytest.skip(f"the fake library can't be built: {error}")

    return library


@pytest.fixture
def make_fake_amdsmi(
    amdsmi_library: Callable[[Binding, frozenset[str]], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MakeFakeAmdSmi]:
    """Installs a fake library under the binding; one a test."""
    made: list[FakeAmdSmi] = []

    def make(
        cards: Sequence[Card] = (),
        *,
        version: str = INSTALLED,
        library_of: str | None = None,
        without: frozenset[str] = frozenset(),
    ) -> FakeAmdSmi:
        """One node.

        Args:
            cards: Its GPUs; a MI300X if none is named.
            version: Of the binding that is used.
            library_of: The binding whose structures the library fills in, if not the same.
            without: Functions that the library lacks.
        """
        assert not made, "one library a test"
        used, filled = binding(version), binding(library_of or version)
        library = amdsmi_library(used, without)
        node = SmiNode(tmp_path / "amdsmi.scenario", cards, of=filled)
        rocm = rocm_tree(tmp_path / "rocm", library, used)
        monkeypatch.setenv("ROCM_PATH", str(rocm))
        monkeypatch.delenv("ROCM_HOME", raising=False)
        monkeypatch.setenv(SCENARIO_VARIABLE, str(node.path))
        monkeypatch.syspath_prepend(str(used.folder))
        forget_binding()
        made.append(FakeAmdSmi(node, rocm, library, used, ctypes.CDLL(str(library))))
        return made[0]

    yield make
    forget_binding()
    for fake in made:
        assert fake.open_count == 0, "the library was not shut down"


@pytest.fixture
def fake_amdsmi(make_fake_amdsmi: MakeFakeAmdSmi) -> FakeAmdSmi:
    """A library with one healthy MI300X."""
    return make_fake_amdsmi()


def rocm_tree(folder: Path, library: Path, of: Binding) -> Path:
    """A tree like ROCm's with a library and a binding."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / LIBRARY_NAME).symlink_to(library)
    (folder / "share" / "amd_smi").mkdir(parents=True)
    (folder / "share" / "amd_smi" / PACKAGE).symlink_to(of.folder / PACKAGE)
    (folder / ".info").mkdir()
    (folder / ".info" / "version").write_text(f"{of.version}-1\n")
    return folder


def forget_binding() -> None:
    """The binding is imported anew when it is next asked for."""
    for name in [n for n in sys.modules if n == PACKAGE or n.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
