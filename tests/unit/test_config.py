"""Problems of the environment, without files; files are in the integration tests."""

import os

import pytest
from msgspec.structs import fields

from chopperd.config.load import effective, load_config
from chopperd.config.paths import node_name
from chopperd.config.sections import Config
from chopperd.config.table import SETTINGS
from chopperd.errors import ConfigError

NO_FILE = None


def variable(key: str) -> str:
    return "CHOPPERD_" + key.upper().replace(".", "__")


def problems_of(environment: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(NO_FILE, environment)
    return caught.value.problems


def test_without_file_and_variables_the_designs_defaults_hold() -> None:
    config = load_config(NO_FILE, {})
    assert config.sampling.hz == 10.0
    assert config.sampling.slow_hz == 1.0
    assert config.sampling.record_hz == 100.0
    assert config.sampling.driver_budget_ratio == 0.002
    assert config.sampling.record_driver_budget_ratio == 0.02
    assert config.sampling.backend == "auto"
    assert config.reference.sm_clock_mhz is None
    assert config.privacy.names == "full"
    assert set(config.origins.values()) == {"default"}


def test_every_default_is_itself_allowed_or_not_set() -> None:
    refused = [s.key for s in SETTINGS if s.default is not None and not s.kind.accepts(s.default)]
    assert refused == []


def test_the_table_and_the_sections_name_the_same_keys() -> None:
    sections = {f.name: f.type for f in fields(Config) if hasattr(f.type, "__struct_fields__")}
    keys = {f"{name}.{key.name}" for name, kind in sections.items() for key in fields(kind)}
    assert keys == {setting.key for setting in SETTINGS}


def test_a_variable_overrides_the_default_and_is_named_as_origin() -> None:
    config = load_config(
        NO_FILE, {"CHOPPERD_SAMPLING__HZ": "25", "CHOPPERD_PRIVACY__NAMES": "hashed"}
    )
    assert config.sampling.hz == 25.0
    assert config.privacy.names == "hashed"
    assert config.origins["sampling.hz"] == "CHOPPERD_SAMPLING__HZ"
    assert config.origins["sampling.slow_hz"] == "default"


def test_variables_without_a_section_are_not_settings() -> None:
    assert load_config(NO_FILE, {"CHOPPERD": "0", "CHOPPERD_SHARED": "/x"}).sampling.hz == 10.0


def test_a_text_that_reads_as_a_number_stays_text_where_a_name_is_wanted() -> None:
    assert load_config(NO_FILE, {"CHOPPERD_SAMPLING__BACKEND": "7"}).sampling.backend == "7"


def test_lists_and_tables_are_written_as_in_the_file() -> None:
    config = load_config(
        NO_FILE,
        {
            "CHOPPERD_TRACES__DATA_WAIT_PATTERNS": "['^next_batch$', 'Reader']",
            "CHOPPERD_REFERENCE__MODELS": "{'NVIDIA H100 80GB HBM3' = 1755}",
        },
    )
    assert config.traces.data_wait_patterns == ("^next_batch$", "Reader")
    assert config.reference.models == {"NVIDIA H100 80GB HBM3": 1755.0}


def test_a_marker_of_steps_is_one_expression_and_no_slow_one() -> None:
    name = variable("traces.step_marker")
    assert load_config(NO_FILE, {name: "^turn ([0-9]+)"}).traces.step_marker == "^turn ([0-9]+)"
    assert load_config(NO_FILE, {}).traces.step_marker is None
    (problem,) = problems_of({name: "(a+)+b"})
    assert problem.startswith(f"{name}: traces.step_marker repeats a group")


def test_all_problems_are_reported_at_once() -> None:
    assert problems_of(
        {
            "CHOPPERD_PRIVACY__NAMES": "none",
            "CHOPPERD_SAMPLING__HZ": "5000",
            "CHOPPERD_SAMPLING__HERTZ": "5",
        }
    ) == [
        "CHOPPERD_PRIVACY__NAMES: privacy.names = 'none' is not allowed: full | hashed | classes",
        "CHOPPERD_SAMPLING__HERTZ: unknown key sampling.hertz; did you mean sampling.hz?",
        "CHOPPERD_SAMPLING__HZ: sampling.hz = 5000 is not allowed: a number from 0.1 to 1000 Hz",
    ]


def test_an_unknown_key_like_no_other_lists_those_there_are() -> None:
    (problem,) = problems_of({"CHOPPERD_X__Y": "1"})
    assert "unknown key x.y; known are: node.name, " in problem


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("sampling.hz", "nan"),
        ("sampling.hz", "true"),
        ("sampling.hz", "fast"),
        ("sampling.hz", ""),
        ("sampling.driver_budget_ratio", "0.6"),
        ("sampling.backend", "''"),
        ("ingest.max_stored_bytes", "1e9"),
        ("ingest.max_stored_bytes", "10"),
        ("traces.data_wait_patterns", "['(']"),
        ("traces.data_wait_patterns", "[1]"),
        ("reference.models", "{A = 5}"),
        ("reference.models", "{A = 'x'}"),
    ],
)
def test_values_outside_the_allowed_ones_are_refused(key: str, text: str) -> None:
    (problem,) = problems_of({variable(key): text})
    assert problem.startswith(f"{variable(key)}: {key} = ")
    assert " is not allowed: " in problem


def test_the_effective_configuration_lists_every_setting_with_its_origin() -> None:
    config = load_config(NO_FILE, {"CHOPPERD_SAMPLING__HZ": "25"})
    listed = {setting.key: (value, origin) for setting, value, origin in effective(config)}
    assert len(listed) == len(SETTINGS)
    assert listed["sampling.hz"] == (25.0, "CHOPPERD_SAMPLING__HZ")
    assert listed["reference.limit_mhz"] == (None, "default")


def test_the_node_is_called_as_configured_else_as_its_host() -> None:
    assert node_name(load_config(NO_FILE, {"CHOPPERD_NODE__NAME": "gpu-17"})) == "gpu-17"
    assert node_name(load_config(NO_FILE, {})) == os.uname().nodename


@pytest.mark.parametrize("text", ["inf", "nan", "1" + 400 * "0", "true", "[1]", "'1'"])
def test_what_is_no_number_in_the_range_is_refused_and_not_failed_on(text: str) -> None:
    """Among them whole numbers that no float holds, and texts."""
    with pytest.raises(ConfigError, match=r"sampling\.hz = .* a number from 0\.1 to 1000 Hz"):
        load_config(None, {"CHOPPERD_SAMPLING__HZ": text})


def test_a_repetition_that_no_machine_can_count_is_no_expression() -> None:
    with pytest.raises(ConfigError, match="a list of regular expressions"):
        load_config(None, {"CHOPPERD_TRACES__DATA_WAIT_PATTERNS": "['a{99999999999}']"})
