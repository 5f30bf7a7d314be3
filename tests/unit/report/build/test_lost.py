"""Kinds of loss: each is counted somewhere, and told wherever kinds are listed."""

import json

import msgspec
from msgspec.structs import fields

from chopperd.model.report import LostKind
from chopperd.model.trace import Damage
from chopperd.report.build.trace_notes import damage_notes, lost_by_kind
from chopperd.report.forms.schema import encode_schema
from chopperd.traces.timeline.layout import lay_out
from tests.trace_building import TraceBuilder

#: In `Damage`, yet no kind: the sum of three kinds, what stays in all figures, and Python frames,
#: on which no figure of time rests.
NO_KINDS = {"invalid_records", "overrun_records", "frames_left_out", "shortest_frame_ns"}
COUNTS = [each.name for each in fields(Damage) if each.type is int]


def test_every_count_of_damage_is_a_kind_of_loss() -> None:
    kinds = {kind.value for kind in LostKind}
    assert "damaged_events" in COUNTS
    assert set(COUNTS) - NO_KINDS <= kinds
    # What is left of the sum, and what linking and not reading tells.
    assert kinds - set(COUNTS) == {"negative_records", "launches_without_record"}


def test_every_kind_is_counted_where_it_occurs_and_said_in_a_note() -> None:
    """One of everything: of 3 records with impossible times one each of two kinds, so one more."""
    damage = msgspec.convert(dict.fromkeys(COUNTS, 1) | {"invalid_records": 3}, Damage)
    made = TraceBuilder()
    made.call("cudaLaunchKernel", 0, correlation=1)
    found = lost_by_kind(damage, lay_out(made.build()))
    assert found == dict.fromkeys((kind.value for kind in LostKind), 1)
    assert {note.code for note in damage_notes(damage)} == set(COUNTS) - {
        "zeroed_records",
        "outlying_records",
        "shortest_frame_ns",
    }


def test_the_schema_tells_every_kind_and_what_it_means() -> None:
    summary = json.loads(encode_schema())["$defs"]["TraceSummary"]
    lost = summary["properties"]["lost"]
    told = {kind: each["description"] for kind, each in lost["properties"].items()}
    assert told == {kind.value: kind.meaning for kind in LostKind}
