import json
from collections.abc import Callable
from importlib import resources
from math import nan

import jsonschema
import pytest
from msgspec.structs import replace

from chopperd.model.report import ReportDocument
from chopperd.report.forms.schema import SCHEMA_FILE, encode_json, encode_schema, report_schema
from tests.unit.report.documents import (
    eight_gpus,
    host_only,
    host_timed,
    single_gpu,
    totals_only,
    without_clocks,
)

EVERY_DOCUMENT = pytest.mark.parametrize(
    "build", [eight_gpus, single_gpu, without_clocks, totals_only, host_only, host_timed]
)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(report_schema())
    return jsonschema.Draft202012Validator(report_schema())


def test_the_published_schema_is_the_generated_one() -> None:
    published = resources.files("chopperd.report").joinpath(SCHEMA_FILE).read_bytes()
    assert published == encode_schema(), "regenerate it with: make schema"


@EVERY_DOCUMENT
def test_documents_fit_the_published_schema(
    build: Callable[[], ReportDocument], validator: jsonschema.Draft202012Validator
) -> None:
    validator.validate(json.loads(encode_json(build())))


def test_a_document_of_another_kind_does_not_fit(
    validator: jsonschema.Draft202012Validator,
) -> None:
    document = json.loads(encode_json(single_gpu()))
    assert not validator.is_valid({**document, "schema": "chopperd.report/2"})
    assert not validator.is_valid({**document, "steps": None})
    assert not validator.is_valid({k: v for k, v in document.items() if k != "notes"})


def test_extra_keys_are_allowed_everywhere(validator: jsonschema.Draft202012Validator) -> None:
    document = json.loads(encode_json(single_gpu()))
    document["later"] = 1
    document["steps"][0]["dvfs"]["later"] = 1
    validator.validate(document)


def test_families_have_their_published_name_for_the_class() -> None:
    document = json.loads(encode_json(eight_gpus()))
    assert document["totals"][0]["families"][0]["class"] == "gemm"


def test_unknown_is_null_and_never_nan() -> None:
    document = single_gpu()
    odd = replace(document.steps[0], mem_clock_mhz=nan, energy_j=None)
    encoded = encode_json(replace(document, steps=(odd,)))
    first = json.loads(encoded)["steps"][0]
    assert first["mem_clock_mhz"] is None
    assert first["energy_j"] is None
    assert b"NaN" not in encoded


def test_people_can_read_the_json() -> None:
    encoded = encode_json(eight_gpus())
    assert encoded.startswith(b'{\n  "schema": "chopperd.report/1",\n')
    assert encoded.endswith(b"}\n")
