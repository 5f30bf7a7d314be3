"""The C library as it is built: without a warning, clean under sanitizers, never a must."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import chopperd.sampling.native as native_package
from chopperd.sampling.native.library import NativeLibrary
from tests.fakes.nvml.fixtures import FakeNvml
from tests.integration.sampling.native_run import BUILT

FOLDER = Path(native_package.__file__).parent
SOURCES = [str(FOLDER / name) for name in ("plans.c", "ticks.c")]
STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-fPIC"]
RUN = "tests.integration.sampling.native_run"
ROOT = Path(__file__).parents[3]


def compiled(to: Path, *options: str) -> Path:
    """The library, built with more care than a user's; skips where there is no compiler."""
    gcc = shutil.which("gcc")
    if gcc is None:
        if os.environ.get("CI"):
            pytest.fail("gcc is not installed")
        pytest.skip("gcc is not installed")
    subprocess.run([gcc, *STRICT, *options, "-shared", "-o", str(to), *SOURCES], check=True)
    return to


def test_the_native_part_is_there_where_it_can_be(native: NativeLibrary) -> None:
    assert isinstance(native, NativeLibrary)


def test_it_compiles_without_a_warning_and_fits_this_package(tmp_path: Path) -> None:
    NativeLibrary(compiled(tmp_path / "native.so", "-O2"))  # else it raises


def test_a_library_of_another_version_is_refused(tmp_path: Path) -> None:
    """Sampling then goes on in Python, as where there is none."""
    other = compiled(tmp_path / "native.so", "-O0", "-DNATIVE_VERSION=99")
    with pytest.raises(OSError, match="another version"):
        NativeLibrary(other)
    with pytest.raises(OSError, match="nothing"):
        NativeLibrary(tmp_path / "nothing.so")


def test_it_runs_clean_under_sanitizers(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    """A second of sampling with fields that fail, and of records that make no sense."""
    options = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    library = compiled(tmp_path / "native.so", *options)
    found = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    runtime = found.stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("the compiler has no sanitizers")
    done = subprocess.run(
        [sys.executable, "-m", RUN, str(library), str(fake_nvml.scenario.path)],
        cwd=ROOT,
        env={
            **fake_nvml.environment(),
            "PYTHONPATH": str(ROOT),
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own are not ours to find
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert BUILT in done.stdout
