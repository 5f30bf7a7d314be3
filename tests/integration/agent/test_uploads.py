"""Traces that are sent or named to the agent, instead of dropped."""

import hashlib
import threading
from pathlib import Path

import pytest

from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.admission import TraceUpload
from chopperd.model.captures import TraceState
from tests.fakes.samples import recording
from tests.integration.agent.node import Node, trace
from tests.integration.agent.test_ingest import record
from tests.waiting import wait_for


def send(
    node: Node, content: bytes, name: str = "rank5.json", job: str | None = "job"
) -> tuple[str, bool]:
    """The id of a trace that was sent in pieces, and whether it is new."""
    upload = node.service.uploads.open_upload(
        name=name, job=job, owner_uid=1000, expected_bytes=len(content)
    )
    for start in range(0, len(content), 100):
        upload.write(content[start : start + 100])
    entry, is_new = upload.finish()
    return entry.id, is_new


def opened(node: Node, expected_bytes: int | None = None) -> TraceUpload:
    return node.service.uploads.open_upload(
        name="x", job=None, owner_uid=None, expected_bytes=expected_bytes
    )


@pytest.fixture
def ready(tmp_path: Path) -> Node:
    """A node that is not entered yet."""
    return Node(tmp_path)


@pytest.fixture
def keeping(tmp_path: Path) -> Node:
    """A node, not entered yet, that only takes traces in."""
    return Node(tmp_path, analysis__mode="spool")


def started(node: Node) -> None:
    wait_for(lambda: node.service.is_ready)


def test_a_trace_that_is_sent_is_analysed_under_its_job_and_name(ready: Node) -> None:
    content = trace(1)
    with ready as node:
        started(node)
        trace_id, is_new = send(node, content)
        assert is_new
        assert trace_id == hashlib.sha256(content).hexdigest()[:16]
        assert send(node, content, "other.json", "other") == (trace_id, False)
        wait_for(lambda: node.ended("rank5.json"))
        entry = node.traces()["rank5.json"]
        assert (entry.state, entry.job, entry.rank) == (TraceState.ANALYSED, "job", 5)
        assert entry.owner_uid == 1000
        (shown,) = node.document("job").traces
        assert (shown.path, shown.rank_source) == ("rank5.json", "file name")
        wait_for(lambda: node.outcomes() == {"analysed": 1, "duplicate": 1})


def test_names_from_the_network_are_made_fit(keeping: Node) -> None:
    with keeping as node:
        started(node)
        send(node, trace(1), "../../etc/rank1\n.json")
        send(node, trace(2), "")
        send(node, trace(3), "x\ud800\0y")
        assert set(node.traces()) == {"rank1\ufffd.json", "trace", "x?\ufffdy"}


def test_uploads_that_are_given_up_leave_nothing_and_are_only_so_many(keeping: Node) -> None:
    with keeping as node:
        started(node)
        uploads = [opened(node) for _ in range(8)]
        with pytest.raises(IngestError) as raised:
            opened(node)
        assert raised.value.reason is IngestReason.BUSY
        for upload in uploads:
            upload.write(b"abc")
            upload.abort()
            upload.abort()
        assert node.service.live().spool_bytes == 0
        assert send(node, trace(1))[1]


def test_the_same_bytes_sent_by_many_at_once_are_one_trace(keeping: Node) -> None:
    content = trace(1)
    with keeping as node:
        started(node)
        outcomes: list[tuple[str, bool]] = []
        senders = [
            threading.Thread(target=lambda: outcomes.append(send(node, content))) for _ in range(8)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert sorted(is_new for _, is_new in outcomes) == [False] * 7 + [True]
        assert len(node.traces()) == 1


def test_with_analysis_off_nothing_is_taken(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    with Node(tmp_path, analysis__mode="off") as node, pytest.raises(IngestError) as raised:
        send(node, trace(1))
    assert raised.value.reason is IngestReason.OFF


def test_an_upload_that_grows_too_large_is_refused(tmp_path: Path) -> None:
    with Node(tmp_path, ingest__max_stored_bytes=1024) as node:
        started(node)
        with pytest.raises(IngestError) as raised:
            opened(node, 1025)
        assert raised.value.reason is IngestReason.TOO_LARGE
        upload = opened(node)
        upload.write(b"x" * 1024)
        with pytest.raises(IngestError) as raised:
            upload.write(b"x")
        assert raised.value.reason is IngestReason.TOO_LARGE
        upload.abort()
        assert node.service.live().spool_bytes == 0


def test_a_known_trace_with_a_device_map_is_analysed_again(ready: Node) -> None:
    """As the note on a device that is not mapped says to do."""
    content = trace(1)
    record(recording(2), ready.recorder)
    with ready as node:
        started(node)
        trace_id, _ = send(node, content)
        wait_for(lambda: node.ended("rank5.json"))
        wait_for(lambda: not node.service.live().spool_bytes)
        assert node.document("job").devices[0].mapping is None
        (text,) = [n.text for n in node.document("job").notes if n.code == "device_unmapped"]
        assert "POST /api/v1/traces?device_map=0=GPU (sampled: 0, 1)" in text
        again = node.service.uploads.open_upload(
            name="rank5.json",
            job="job",
            owner_uid=1000,
            expected_bytes=None,
            device_map="5:0=GPU-1",
        )
        again.write(content)
        entry, is_new = again.finish()
        assert (entry.id, is_new, entry.device_map) == (trace_id, True, "5:0=GPU-1")
        wait_for(lambda: node.outcomes() == {"analysed": 2})
        (device,) = node.document("job").devices
        assert (device.gpu, device.mapping) == ("1", "device_map")


def test_a_file_that_is_named_is_copied(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    path = root / "rank2.json"
    path.write_bytes(trace(1))
    with Node(tmp_path / "state", ingest__roots=f'["{root}"]') as node:
        started(node)
        entry, is_new = node.service.uploads.take_file(str(path), job="job", owner_uid=None)
        assert (entry.name, is_new) == ("rank2.json", True)
        assert path.exists()
        wait_for(lambda: node.ended("rank2.json"))
        assert node.traces()["rank2.json"].rank == 2
        assert node.service.uploads.take_file(str(path), job=None, owner_uid=None)[1] is False
        with pytest.raises(IngestError) as raised:
            node.service.uploads.take_file("/etc/passwd", job=None, owner_uid=None)
        assert raised.value.reason is IngestReason.FORBIDDEN


def test_a_state_folder_that_can_not_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("in the way")
    (tmp_path / "inbox").mkdir()
    with Node(tmp_path, analysis__mode="spool") as node:
        wait_for(lambda: node.service.live().trouble)
        with pytest.raises(IngestError, match="traces can't be taken in") as raised:
            send(node, trace(1))
        assert raised.value.reason is IngestReason.NO_ROOM
        (tmp_path / "traces").unlink()
        started(node)
        assert send(node, trace(1))[1]
        assert node.service.live().trouble is None
