"""Names as a site wants them shown; expected values worked out by hand."""

import hashlib

import msgspec
import pytest
from msgspec.structs import replace

from chopperd.model.answers import Held, HolderKind
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import OTHER_PARTS, UNKNOWN_PART, CollectiveTraffic, Family, Row
from chopperd.pipeline.reports import FileReport, composed
from chopperd.report.build.privacy import Names, trace_with_names
from chopperd.report.forms.schema import encode_json
from tests.fakes.clock import ScriptedClock
from tests.unit.report.documents import classes_of, host_timed, part, totals_only
from tests.unit.report.traced import Job, with_names
from tests.unit.report.traced import reported as traced_report

SECRET = "void secret_architecture_kernel<float>"


def family(name: str, class_: str, time_ns: int, lost_ns: int | None, mhz: float | None) -> Family:
    return Family(
        name=name, class_=class_, count=2, time_ns=time_ns, mean_mhz=mhz, samples=3, lost_ns=lost_ns
    )


def document() -> ReportDocument:
    """One row of totals with two families of one class, and one of another."""
    whole = totals_only()
    families = (
        family(SECRET, "gemm", 300, 30, 1500.0),
        family(SECRET + "2", "gemm", 100, 20, 1900.0),
        family("secret_copy", "memcpy", 500, None, None),
    )
    totals = replace(whole.totals[0], families=families, classes=classes_of(families))
    return replace(whole, totals=(totals,), steps=())


def test_full_names_are_left_as_they_are() -> None:
    assert with_names(document(), "full") == document()


@pytest.mark.parametrize("names", ["hashed", "classes"])
def test_no_kernel_name_is_left_in_the_whole_document(names: str) -> None:
    shown = with_names(document(), "hashed" if names == "hashed" else "classes")
    assert b"secret" not in encode_json(shown)


def test_a_hash_tells_the_class_and_is_the_same_for_the_same_name() -> None:
    (row,) = with_names(document(), "hashed").totals
    digest = hashlib.sha256(SECRET.encode()).hexdigest()[:12]
    assert row.families[0].name == f"gemm-{digest}"
    assert row.families[0].time_ns == 300
    assert len({each.name for each in row.families}) == 3


def test_classes_have_their_own_figures_and_what_is_unknown_stays_unknown() -> None:
    """As of the row's classes, which have samples of their own; copies have no clock."""
    (row,) = with_names(document(), "classes").totals
    copies, gemm = row.families
    assert (copies.name, copies.time_ns, copies.lost_ns, copies.mean_mhz) == (
        "memcpy",
        500,
        None,
        None,
    )
    assert (gemm.name, gemm.class_, gemm.count, gemm.time_ns) == ("gemm", "gemm", 4, 400)
    assert (gemm.lost_ns, gemm.mean_mhz, gemm.samples) == (50, 1500.0, 6)
    assert (gemm.lost_low_ns, gemm.lost_high_ns) == (49, 51)


def test_families_of_a_step_are_one_for_each_class() -> None:
    """Added up by hand; clocks of a class are not those of its families."""
    gemms = [several(), msgspec.structs.replace(several(), name="secret", time_ns=7, samples=2)]
    row = replace(document().totals[0], families=tuple(gemms), classes=())
    (shown,) = with_names(replace(document(), totals=(row,)), "classes").totals
    (summed,) = shown.families
    assert summed.name == summed.class_ == several().class_
    assert summed.time_ns == several().time_ns + 7
    assert summed.count == 2 * several().count
    assert summed.samples == several().samples + 2
    assert (summed.mean_mhz, summed.lost_ns) == (None, None)


@pytest.mark.parametrize("names", ["full", "hashed", "classes"])
def test_a_document_made_of_covered_reports_is_the_covered_document(names: Names) -> None:
    """A trace's report is covered before anything else sees it, with the same outcome."""
    report = traced_report(Job(rank=0, steps=(1, 2)))
    document = composed([FileReport(report=report)], ScriptedClock())
    early = composed([FileReport(report=trace_with_names(report, names))], ScriptedClock())
    assert early == with_names(document, names)
    full = {family.name for row in document.totals for family in row.families}
    shown = {family.name for row in early.totals for family in row.families}
    assert full
    assert (full == shown) == (names == "full")


def test_layers_and_operations_are_hashed_or_left_out_and_phases_stay() -> None:
    """What is unknown stays so: it has no name to hide."""
    parts = (part("model.secret_layer"), part(UNKNOWN_PART, 10))
    phases = (part("backward"),)
    whole = document()
    row = replace(whole.totals[0], by_operation=parts, by_layer=parts, by_phase=phases)
    whole = replace(whole, totals=(row,))
    (hashed,) = with_names(whole, "hashed").totals
    digest = hashlib.sha256(b"model.secret_layer").hexdigest()[:12]
    assert [each.name for each in hashed.by_layer] == [f"layer-{digest}", UNKNOWN_PART]
    assert [each.name for each in hashed.by_operation] == [f"operation-{digest}", UNKNOWN_PART]
    assert hashed.by_layer[0].time_ns == parts[0].time_ns
    (classes,) = with_names(whole, "classes").totals
    assert (classes.by_operation, classes.by_layer) == ((), ())
    assert hashed.by_phase == classes.by_phase == phases
    assert b"secret" not in encode_json(with_names(whole, "hashed"))


def test_module_names_in_the_evidence_are_not_shown() -> None:
    assert document().framework.evidence
    assert with_names(document(), "hashed").framework.evidence == ()
    assert with_names(document(), "hashed").framework.name == document().framework.name


@pytest.mark.parametrize("names", ["hashed", "classes"])
def test_of_a_process_group_its_size_alone_is_shown(names: Names) -> None:
    shown = with_names(replace(document(), totals=(talking(),)), names)
    (each,) = shown.totals[0].collectives
    assert (each.group_description, each.group_ranks, each.group_size) == (None, None, 4)


def test_what_is_put_together_has_no_name_to_hide() -> None:
    other = replace(part(OTHER_PARTS), merged=7)
    row = replace(document().totals[0], by_layer=(other,), families=(several(),))
    (hashed,) = with_names(replace(document(), totals=(row,)), "hashed").totals
    assert (hashed.by_layer, hashed.families) == ((other,), (several(),))


def talking() -> Row:
    """A row with a collective of four ranks."""
    reduced = CollectiveTraffic(
        name="allreduce",
        group="1",
        group_description="secret_mesh",
        group_size=4,
        group_ranks="0-3",
        count=1,
        time_ns=1,
        sized_count=0,
        bytes=None,
        algorithm_bytes_per_s=None,
        bus_bytes_per_s=None,
    )
    return replace(document().totals[0], collectives=(reduced,))


def several() -> Family:
    return msgspec.structs.replace(family(OTHER_PARTS, "gemm", 3, 1, 1500.0), merged=3)


def test_names_of_the_hosts_work_are_hashed_or_left_out() -> None:
    (hashed,) = with_names(host_timed(), "hashed").host
    digest = hashlib.sha256(b"layers.0").hexdigest()[:12]
    assert [each.name for each in hashed.by_layer] == [f"layer-{digest}", UNKNOWN_PART]
    assert hashed.by_operation[0].name.startswith("operation-")
    (classes,) = with_names(host_timed(), "classes").host
    assert (classes.by_operation, classes.by_layer) == ((), ())
    assert classes.by_phase == hashed.by_phase == host_timed().host[0].by_phase


def test_the_hosts_work_of_a_trace_is_covered_as_that_of_the_document() -> None:
    report = replace(traced_report(Job(rank=0, steps=(1,))), host=host_timed().host[0])
    early = trace_with_names(report, "hashed").host
    assert (early,) == with_names(host_timed(), "hashed").host


def holder(name: str, kind: HolderKind, time_ns: int) -> Held:
    return Held(
        row="idle_launch_prep",
        name=name,
        kind=kind,
        inner="secret_inner",
        whole="secret",
        region="backward",
        count=1,
        time_ns=time_ns,
        in_call_ns=0,
    )


def held_row() -> ReportDocument:
    whole = document()
    held = (
        holder("secret", "operator", 5),
        holder("secret2", "operator", 6),
        holder("(launch latency)", "none", 7),
        holder("(nothing open) before secret", "none", 8),
        holder("(nothing open)", "none", 9),
    )
    return replace(whole, totals=(replace(whole.totals[0], held=held),))


def test_holders_are_hashed_and_what_no_thread_holds_keeps_its_name() -> None:
    (row,) = with_names(held_row(), "hashed").totals
    secret = f"host-{hashlib.sha256(b'secret').hexdigest()[:12]}"
    other = f"host-{hashlib.sha256(b'secret2').hexdigest()[:12]}"
    assert [each.name for each in row.held] == [
        secret, other, "(launch latency)", f"(nothing open) before {secret}", "(nothing open)",
    ]  # fmt: skip
    assert {each.whole for each in row.held} == {secret}
    assert {each.region for each in row.held} == {"backward"}
    assert b"secret" not in encode_json(with_names(held_row(), "hashed"))


def test_holders_of_one_kind_are_one_where_no_name_is_shown() -> None:
    (row,) = with_names(held_row(), "classes").totals
    assert [(each.name, each.time_ns, each.inner, each.whole, each.count) for each in row.held] == [
        ("(operator)", 11, None, None, 2),
        ("(launch latency)", 7, None, None, 1),
        ("(nothing open)", 17, None, None, 2),
    ]
