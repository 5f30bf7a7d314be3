from pathlib import Path

import pytest

from chopperd.errors import TraceFormatError
from chopperd.model.trace import Trace
from chopperd.traces.ahead import ReadAhead
from chopperd.traces.reader import DEFAULT_LIMITS, read_trace
from chopperd.traces.source import ReadLimits
from tests.decoders import assert_same_columns
from tests.layouts import compact, complete_event


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two traces."""
    paths = (tmp_path / "one.json", tmp_path / "other.json")
    for path in paths:
        path.write_bytes(compact([complete_event("kernel", path.stem, 1, 2)] * 3, {}))
    return paths


def asked(
    ahead: ReadAhead, path: Path, limits: ReadLimits = DEFAULT_LIMITS, name: str | None = None
) -> Trace:
    return ahead(path, limits=limits, progress=None, name=name, threads=1)


def test_a_file_that_is_read_ahead_is_read_as_usual(files: tuple[Path, Path]) -> None:
    path, _ = files
    found = asked(ReadAhead(path, limits=DEFAULT_LIMITS, threads=2), path)
    assert_same_columns(found, read_trace(path))
    assert found.meta == read_trace(path).meta


def test_another_file_or_the_same_under_another_name_is_read_when_asked_for(
    files: tuple[Path, Path],
) -> None:
    path, other = files
    ahead = ReadAhead(path, limits=DEFAULT_LIMITS, threads=2)
    assert asked(ahead, other).names == ("other",)
    assert asked(ahead, path, name="rank3.json").meta.rank == 3
    with pytest.raises(TraceFormatError, match="too large"):
        asked(ahead, path, ReadLimits(stored_bytes=10))
    assert asked(ahead, path).names == ("one",)
    assert asked(ahead, path).names == ("one",)  # once more, from the file


def test_what_is_wrong_with_a_file_is_said_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "missing.json"
    ahead = ReadAhead(path, limits=DEFAULT_LIMITS, threads=2)
    with pytest.raises(TraceFormatError, match=r"missing\.json can't be read"):
        asked(ahead, path)
