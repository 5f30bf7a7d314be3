"""Ranks of real traces and of the public cases: compared, or said why not."""

import gzip
import json
from pathlib import Path

import pytest

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import ExposedComm
from chopperd.pipeline.reports import ReportOptions, report_files
from tests.document_checks import check_document
from tests.integration import reference_reader as plain
from tests.integration.cases import Cases

pytestmark = pytest.mark.corpus

A100 = "hta_a100_nccl_ddp.json.gz"  # rank 0 of 2
#: The other rank of the pair comes so much later to each collective that is longer.
LATER_NS = 500_000


@pytest.fixture(scope="module")
def cases(shared: Path) -> Cases:
    return Cases(shared)


def reported(*paths: Path) -> ReportDocument:
    document = report_files(list(paths), samples=None, options=ReportOptions())
    check_document(document)
    return document


@pytest.mark.parametrize("job", ["ddp", "fsdp1", "fsdp2"])
def test_ranks_on_cpus_are_not_compared_and_that_is_said(shared: Path, job: str) -> None:
    paths = [shared / "traces" / f"cpu_{job}_rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
    ranks = reported(*paths).ranks
    assert ranks is not None
    assert "no device work" in (ranks.why_not or "")
    assert (ranks.lines, ranks.missing_ranks) == ((), 0)


def test_one_rank_of_two_has_no_split(shared: Path) -> None:
    document = reported(shared / "traces" / A100)
    assert document.ranks is not None
    assert document.ranks.why_not == "1 of 2 ranks has a trace here"
    assert document.ranks.missing_ranks == 1
    assert {row.exposed_comm_ns for row in document.steps} == {ExposedComm()}


def test_a_real_trace_waits_for_a_copy_of_it_that_comes_later(shared: Path, tmp_path: Path) -> None:
    """The copy is rank 1; its collectives start half a ms later and end at the same time.

    What rank 0 waits is counted in plain Python: exposed time in the first half ms of each.
    """
    path = shared / "traces" / A100
    document = reported(path, later(path, tmp_path))
    ranks = document.ranks
    assert ranks is not None
    assert (ranks.matched, ranks.collectives, ranks.matched_by) == (21, 21, "order")
    rows = plain.device_rows(path)
    compute = plain.merged(filter(plain.is_compute, rows))
    longer = [r for r in rows if plain.is_comm(r) and r.end_ns - r.start_ns > LATER_NS]
    assert len(longer) > 8
    for row in (row for row in document.steps if row.rank == 0):
        start_ns = row.start_unix_ns or 0
        end_ns = start_ns + (row.window_ns or 0)
        waited_ns = sum(
            exposed_ns(compute, max(r.start_ns, start_ns), min(r.start_ns + LATER_NS, end_ns))
            for r in longer
        )
        assert row.exposed_comm_ns is not None
        assert row.exposed_comm_ns.wait == waited_ns > 0
    for row in (row for row in document.steps if row.rank == 1):
        assert row.exposed_comm_ns is not None
        assert row.exposed_comm_ns.wait == 0


def exposed_ns(compute: list[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    """What of a stretch has no compute."""
    hidden = sum(max(min(b, end_ns) - max(a, start_ns), 0) for a, b in compute)
    return max(end_ns - start_ns, 0) - hidden


def later(path: Path, folder: Path) -> Path:
    """The trace as another rank's, whose longer collectives start later."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["distributedInfo"]["rank"] = 1
    for event in document["traceEvents"]:
        if event.get("cat") != "kernel" or "nccl" not in event["name"]:
            continue
        if event["dur"] * 1000 > LATER_NS:
            event["ts"] += LATER_NS / 1000
            event["dur"] -= LATER_NS / 1000
    copy = folder / "rank1.json"
    copy.write_text(json.dumps(document))
    return copy


def test_ranks_known_by_file_names_are_compared(cases: Cases) -> None:
    # TP 0 communicates 80 us, TP 1 100 us and ends with it: it waits 20 us for TP 0.
    names = [f"1760012345.67-TP-{n}-DP-0-PP-0-EP-0.trace.json.gz" for n in (0, 1)]
    document = cases.report(54, *names)
    split = [row.exposed_comm_ns for row in document.steps]
    assert ExposedComm(wait=20_000, transfer=80_000) in split
    assert ExposedComm(wait=0, transfer=80_000) in split


def test_damaged_communication_of_one_rank_has_no_split(cases: Cases) -> None:
    document = cases.report(66)
    assert document.ranks is None
    assert {row.exposed_comm_ns for row in document.steps} == {ExposedComm()}
