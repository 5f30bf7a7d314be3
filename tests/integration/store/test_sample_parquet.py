"""Sample files as Parquet, also as other programs write and read them."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from chopperd import cli
from chopperd.errors import ConfigError, StoreError
from chopperd.model.kinds import Cause
from chopperd.store.samples.files import read_samples, write_samples

CSV = (
    '# chopperd-samples/1 {"gpus": [{"index": 0, "sm_clock_max_mhz": 1980}], "hz": 10}\n'
    "t_unix_ns,gpu,sm_clock_mhz,power_w,cause,die_clocks_mhz\n"
    "1790857026123456789,0,1500,,power_cap+thermal,2100++0\n"
    "1790857026123456799,0,,700.5,,\n"
)


def written(tmp_path: Path, **columns: list[object]) -> Path:
    path = tmp_path / "s.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def test_the_file_has_the_published_columns_and_the_first_line_as_metadata(tmp_path: Path) -> None:
    text, path = tmp_path / "s.csv", tmp_path / "s.parquet"
    text.write_text(CSV)
    write_samples(path, read_samples(text))
    table = parquet.read_table(path)
    assert table.to_pylist() == [
        {
            "t_unix_ns": 1_790_857_026_123_456_789,
            "gpu": "0",
            "sm_clock_mhz": 1500.0,
            "power_w": None,
            "die_clocks_mhz": [2100.0, None, 0.0],
            "cause": "power_cap+thermal",
        },
        {
            "t_unix_ns": 1_790_857_026_123_456_799,
            "gpu": "0",
            "sm_clock_mhz": None,
            "power_w": 700.5,
            "die_clocks_mhz": None,
            "cause": "",
        },
    ]
    header = table.schema.metadata[b"chopperd-samples"]
    assert header.startswith(b"# chopperd-samples/1 {")
    assert b'"sm_clock_max_mhz":1980' in header


def test_the_kind_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, t_unix_ns=[2, 1], gpu=["0", "0"], sm_clock_mhz=[1500, None])
    other = path.rename(tmp_path / "s.csv")
    (gpu,) = read_samples(other).gpus
    assert gpu.t_unix_ns.tolist() == [1, 2]
    np.testing.assert_array_equal(gpu.sm_clock_mhz, [np.nan, 1500])


def test_another_programs_columns_are_read_with_unknown_causes(tmp_path: Path) -> None:
    path = written(tmp_path, gpu=[1, 0], sm_clock_mhz=[1500, 1400], t_unix_ns=[5, 5], more=[0, 0])
    first, second = read_samples(path).gpus
    assert (first.gpu.gpu, second.gpu.gpu) == ("0", "1")
    assert first.causes.tolist() == [Cause.UNKNOWN.bit]
    assert first.gpu.sm_clock_max_mhz is None


def test_a_row_without_a_cause_is_not_one_without_limits(tmp_path: Path) -> None:
    path = written(
        tmp_path, t_unix_ns=[1, 2], gpu=["0", "0"], sm_clock_mhz=[1500, 1500], cause=[None, ""]
    )
    (gpu,) = read_samples(path).gpus
    assert gpu.causes.tolist() == [Cause.UNKNOWN.bit, 0]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"t_unix_ns": [1], "gpu": ["0"]}, "no column sm_clock_mhz"),
        ({"t_unix_ns": [None], "gpu": ["0"], "sm_clock_mhz": [1.0]}, "without t_unix_ns"),
        ({"t_unix_ns": ["x"], "gpu": ["0"], "sm_clock_mhz": [1.0]}, "not a sample file"),
        (
            {"t_unix_ns": [1], "gpu": ["0"], "sm_clock_mhz": [1.0], "cause": ["hot"]},
            "not a sample file",
        ),
        (
            {"t_unix_ns": [1], "gpu": ["0"], "sm_clock_mhz": [1.0], "die_clocks_mhz": [[1.0] * 9]},
            "more than 8 numbers",
        ),
    ],
)
def test_what_is_no_sample_file_is_refused_in_one_line(
    tmp_path: Path, columns: dict[str, list[object]], said: str
) -> None:
    path = written(tmp_path, **columns)
    with pytest.raises(StoreError, match=said) as raised:
        read_samples(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(StoreError, match="not a sample file"):
        read_samples(path)


def test_a_gpu_that_is_not_named_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, t_unix_ns=[1], gpu=[None], sm_clock_mhz=[1.0])
    with pytest.raises(StoreError, match="without gpu"):
        read_samples(path)


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, t_unix_ns=[1], gpu=["0"], sm_clock_mhz=[1.0])
    samples = read_samples(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for attempt in (lambda: read_samples(path), lambda: write_samples(path, samples)):
        with pytest.raises(ConfigError, match=r"chopperd\[analysis\]"):
            attempt()


def test_record_does_not_begin_where_its_samples_could_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    mark = tmp_path / "ran"
    arguments = ["record", "-o", str(tmp_path / "s.parquet"), "--", "touch", str(mark)]
    assert cli.run(arguments) == 2
    assert "chopperd[analysis]" in capsys.readouterr().err
    assert not mark.exists()
