from pathlib import Path

import pytest

from chopperd.config.load import load_config
from chopperd.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(path: Path, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, environment or {})
    return caught.value.problems


def test_a_file_overrides_defaults_and_a_variable_overrides_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[sampling]\nhz = 20\nslow_hz = 2\n[reference.models]\nA = 1755\n")
    config = load_config(path, {"CHOPPERD_SAMPLING__HZ": "50"})
    assert config.sampling.hz == 50.0
    assert config.sampling.slow_hz == 2.0
    assert config.reference.models == {"A": 1755.0}
    assert config.origins["sampling.hz"] == "CHOPPERD_SAMPLING__HZ"
    assert config.origins["sampling.slow_hz"] == str(path)
    assert config.origins["sampling.record_hz"] == "default"


def test_problems_of_file_and_environment_are_reported_together(tmp_path: Path) -> None:
    path = written(tmp_path, "hz = 5\n[sampling]\nhz = -1\n[sampel]\nhz = 5\n")
    assert problems_of(path, {"CHOPPERD_PRIVACY__NAMES": "x"}) == [
        f"{path}: hz is outside of a section such as [sampling]",
        f"{path}: sampling.hz = -1 is not allowed: a number from 0.1 to 1000 Hz",
        f"{path}: unknown key sampel.hz; did you mean sampling.hz?",
        "CHOPPERD_PRIVACY__NAMES: privacy.names = 'x' is not allowed: full | hashed | classes",
    ]


def test_a_file_that_is_not_toml_says_where(tmp_path: Path) -> None:
    path = written(tmp_path, "[sampling]\nhz = = 5\n")
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}: is not TOML: ")
    assert "line 2" in problem


def test_a_named_file_must_exist_and_be_readable_text(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert problems_of(missing) == [f"{missing}: no such file"]
    assert problems_of(tmp_path)[0].startswith(f"{tmp_path}: can't be read: ")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert problems_of(binary) == [f"{binary}: is not UTF-8 text"]
