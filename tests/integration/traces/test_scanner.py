"""The scanner in C: sound text as the decoder in Python reads it, and any text in any pieces."""

import gzip
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chopperd.traces.native as native_package
from chopperd.model.trace import Trace
from chopperd.traces.native.scanner import ScannerLibrary, scanner_library
from chopperd.traces.read.document import find_opening
from chopperd.traces.read.reader import read_trace
from chopperd.traces.read.source import ReadLimits
from tests.decoders import (
    assert_alike,
    assert_same_columns,
    is_sound,
    read_without_scanner,
    reading,
)
from tests.integration.traces.scanner_run import DONE
from tests.layouts import LAYOUTS, Event, Layout, compact, complete_event, hard_events, native
from tests.mutations import EVENTS, mutated

FOLDER = Path(native_package.__file__).parent
SOURCES = [str(path) for path in sorted(FOLDER.glob("*.c"))]
STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-fPIC"]
ROOT = Path(__file__).parents[3]
KIB = 1 << 10


@pytest.fixture(autouse=True)
def library() -> ScannerLibrary:
    """The library as it was installed; skips where there was no compiler."""
    found = scanner_library()
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("the native scanner was not built")
        pytest.skip("the native scanner was not built")
    return found


@settings(max_examples=60, deadline=None)
@given(hard_events(), st.sampled_from(LAYOUTS), st.integers(40, 1000))
def test_events_that_are_hard_to_cut_are_read_alike(
    events: list[Event], layout: Layout, piece_bytes: int
) -> None:
    text = layout(events, {"schemaVersion": 1})
    expected = reading(text, native=False)
    assert_alike(expected, reading(text, native=True, piece_bytes=piece_bytes))


@pytest.mark.parametrize("seed", range(6))
def test_mutated_documents_are_read_alike(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(150):
        text = mutated(rng)
        expected = reading(text, native=True)
        is_plain = is_sound(text) and find_opening(text) is not None
        for native_too in (True, False) if is_plain else (True,):
            for piece_bytes in (1 << 20, rng.choice((64, 150, 333))):
                found = reading(text, native=native_too, piece_bytes=piece_bytes)
                try:
                    assert_alike(expected, found)
                except AssertionError as error:
                    raise AssertionError(text) from error


LONG = " " * 60  # longer than what is known between two values


@pytest.mark.parametrize(
    ("usual", "odd", "damaged"),
    [
        ('"args":{"device":0},"dur":1', '"args":true{"device":0},"dur":1', 1),
        ('"args":{"device":0},"dur":1', '"args":[]{"device":0},"dur":1', 1),
        ('"args":{"device":0},"dur":1', '"args":7,"device":0,"dur":1', 0),
        ('"args":{"device":0},"dur":1', '"args":{"device":0},"args":7,"dur":1', 0),
        ('"args":{"a":1,"pid":7},"dur":1', '"args":{"a":1},"pid":7,"dur":1', 0),
        (f'"args":{{"a":1,{LONG}"b":1,"pid":7}},"dur":1', f'{LONG}"b":1,"pid":7,"dur":1', 0),
        ('"args":{"device":0},"dur":1', '"args":{"device":0,"dur":1', 1),
        ('"args":{"device":0},"dur":1', '"args": \n {"device" :0} ,"dur": \t1', 0),
    ],
)
def test_what_stands_between_values_means_the_same_only_in_the_same_place(
    usual: str, odd: str, damaged: int
) -> None:
    """Each is read behind the other, so that either is known when the other comes."""
    start = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,'
    events = [f"{start % number}{(usual, odd)[number % 3 == 2]}}}" for number in range(1, 30)]
    text = f'{{"traceEvents":[{",".join(events)}]}}'.encode()
    found = reading(text, native=True)
    if not damaged:
        assert_alike(reading(text, native=False), found)
    assert found.lost["damaged"] == damaged * 10


@pytest.mark.parametrize("layout", [native, compact])
@pytest.mark.parametrize("damaged", [0, 1, 3])
def test_what_looks_like_a_border_between_events_is_none(layout: Layout, damaged: int) -> None:
    """Texts and nested lists here look like the border between two events."""
    odd = complete_event("cpu_op", '},{"ph":"X","name":"x"},{"ph":', 5, 1)
    odd["args"] = {"list": [{"id": 1}, {"name": "b"}, {"ts": 1}] * 3}
    events = [{**odd, "ts": number} if number % 3 else EVENTS[number % 7] for number in range(900)]
    text = layout(events, {})
    for number in range(damaged):
        at = text.index(b'"cpu_op"', len(text) * (number + 1) // 5)
        text = text[:at] + b'"' + text[at:]
    expected = reading(text, native=bool(damaged))
    assert expected.lost["damaged"] == damaged
    for piece_bytes in (9 * KIB, 20 * KIB, 64 * KIB):
        assert_alike(expected, reading(text, native=True, piece_bytes=piece_bytes))


def test_a_number_between_events_is_one_element_however_it_is_cut() -> None:
    text = compact([complete_event("kernel", "k", 1, 2)], {})
    text = text.replace(b'"traceEvents":[', b'"traceEvents":[' + b"9" * 300 + b",")
    expected = reading(text, native=False)
    assert expected.lost["undecodable"] == 1
    for native_too in (False, True):
        for piece_bytes in (64, 100, 299):
            found = reading(text, native=native_too, piece_bytes=piece_bytes)
            assert_alike(expected, found)


@pytest.mark.parametrize(
    ("us", "ns"),
    [
        ("0.0005", 0), ("0.0015", 2), ("1.0005", 1000), ("1.00050001", 1001), ("1.0015", 1002),
        ("-0.0015", -2), ("15e-4", 2), ("1790857026000000.1235", 1790857026000000124),
        ("1790857026000000.1245", 1790857026000000124), ("1e3", 1_000_000),
        ("1790857026000000.125", 1790857026000000125), ("1790857026000000", 1790857026000000000),
        ("3999999999999999.999", 3999999999999999999), ("0.001", 1), ("1.5", 1500),
    ],
)  # fmt: skip
def test_times_are_read_to_the_nearest_ns_halves_to_even(us: str, ns: int) -> None:
    """By hand; the decoder in Python does so too where it reads decimals."""
    text = b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%s,"dur":1}]}'
    found = reading(text % us.encode(), native=True)
    assert found.tables.spans.start_ns.tolist() == [ns]


@pytest.mark.parametrize(
    "us",
    [
        "4000000000000001", "4000000000000001.001", "9223372036854775808", "18446744073709551617",
        "18446744073709551.617", "100000000000000000000", "-4000000000000001",
    ],
)  # fmt: skip
def test_times_too_far_away_are_none(us: str) -> None:
    text = b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%s,"dur":1}]}'
    found = reading(text % us.encode(), native=True)
    assert found.lost["undecodable_rows"] == 1


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Path]:
    """Builds the library with more care than a user's; skips where there is no compiler."""

    def build(*options: str) -> Path:
        gcc = shutil.which("gcc")
        if gcc is None:
            if os.environ.get("CI"):
                pytest.fail("gcc is not installed")
            pytest.skip("gcc is not installed")
        to = tmp_path / "scanner.so"
        subprocess.run([gcc, *STRICT, *options, "-shared", "-o", str(to), *SOURCES], check=True)
        return to

    return build


def test_it_compiles_without_a_warning_and_fits_this_package(compiled: Callable[..., Path]) -> None:
    ScannerLibrary(compiled("-O2"))  # else it raises


def test_a_library_of_another_version_is_refused(
    compiled: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="another version"):
        ScannerLibrary(compiled("-O0", "-DSCANNER_VERSION=99"))
    with pytest.raises(OSError, match="nothing"):
        ScannerLibrary(tmp_path / "nothing.so")


def test_it_runs_clean_under_sanitizers(compiled: Callable[..., Path]) -> None:
    """Over mutated documents cut into pieces, by the program in `scanner_run.py`."""
    library = compiled("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    found = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    runtime = found.stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("the compiler has no sanitizers")
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.traces.scanner_run", str(library)],
        cwd=ROOT,
        env={
            "PYTHONPATH": str(ROOT),
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own are not ours to find
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert DONE in done.stdout


@pytest.fixture(scope="module")
def real_files(shared: Path) -> list[Path]:
    return sorted((shared / "traces").glob("*.json.gz"))


@pytest.mark.corpus
def test_every_real_file_is_read_alike(
    real_files: list[Path], real_trace: Callable[[str], Trace]
) -> None:
    """Scanned in large blocks by `real_trace`; here in small ones, and decoded in Python."""
    for path in real_files:
        usual = real_trace(path.name.removesuffix(".json.gz"))
        in_blocks = read_trace(path, limits=ReadLimits(block_bytes=64 * KIB))
        others = [in_blocks]
        if is_sound(gzip.decompress(path.read_bytes())):
            others.append(read_without_scanner(path))
        for other in others:
            assert_same_columns(usual, other)
            assert (usual.meta, usual.damage) == (other.meta, other.damage)
