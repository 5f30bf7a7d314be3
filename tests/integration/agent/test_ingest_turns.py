"""Whose trace is next, and that copying holds nothing up."""

import os
import threading
from pathlib import Path

import pytest

from chopperd.ingest.incoming import Incoming
from chopperd.model.captures import TraceState
from tests.integration.agent.node import Node, trace
from tests.waiting import wait_for

MANY, FEW = 4001, 4002


def owned(node: Node, name: str, content: bytes, uid: int) -> None:
    node.drop(f"{name}.tmp", content)
    os.chown(node.inbox / f"{name}.tmp", uid, -1)
    (node.inbox / f"{name}.tmp").rename(node.inbox / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_each_owner_has_one_trace_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twelve traces of one user and two of another these are second and fourth."""
    begun: list[str] = []
    with Node(tmp_path) as node:
        begin = node.service._analyses._begin_analysis

        def noted(trace_id: str) -> None:
            begun.append(trace_id)
            begin(trace_id)

        monkeypatch.setattr(node.service._analyses, "_begin_analysis", noted)
        node.service.pause()
        names = [f"many{n}.json" for n in range(12)] + ["few0.json", "few1.json"]
        for n, name in enumerate(names):
            owned(node, name, trace(second=n), MANY if name.startswith("many") else FEW)
        node.service.resume()
        wait_for(lambda: len(node.traces()) == len(names))
        wait_for(lambda: node.ended(*names))
        owner_by_id = {each.id: each.owner_uid for each in node.traces().values()}
    order = [owner_by_id[each] for each in begun]
    first = order.index(FEW)
    # The worker may have begun on the first few before all had been copied.
    assert order[first : first + 3] == [FEW, MANY, FEW]
    assert order.count(FEW) == 2


def test_results_are_collected_while_a_large_file_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_copying, may_go_on = threading.Event(), threading.Event()
    copy = Incoming.copy

    def held(incoming: Incoming, fd: int, stopped: object) -> bool:
        if os.fstat(fd).st_size > 1_000_000:
            is_copying.set()
            assert may_go_on.wait(30)
        return copy(incoming, fd, stopped)  # type: ignore[arg-type]

    monkeypatch.setattr(Incoming, "copy", held)
    with Node(tmp_path) as node:
        node.drop("small.json", trace())
        wait_for(lambda: "small.json" in node.traces())
        node.drop("large.json", trace(second=50) + b" " * 2_000_000)
        assert is_copying.wait(30)
        wait_for(lambda: node.ended("small.json"), "the small one's end while the other is copied")
        assert "large.json" not in node.traces()
        may_go_on.set()
        wait_for(lambda: node.ended("large.json"))


def test_a_sparse_file_takes_no_more_disk_than_where_it_came_from(tmp_path: Path) -> None:
    """1 GiB, of which a trace at the start and nothing after it."""
    content = trace()
    with Node(tmp_path, analysis__mode="spool") as node:
        part = node.inbox / "sparse.json.part"
        part.write_bytes(content)
        os.truncate(part, 1 << 30)
        part.rename(node.inbox / "sparse.json")
        wait_for(lambda: "sparse.json" in node.traces(), within_s=60)
        kept = tmp_path / "traces" / node.traces()["sparse.json"].id
        status = kept.stat()
    assert status.st_size == 1 << 30
    assert status.st_blocks * 512 < 4 << 20


def many_steps(steps: int) -> bytes:
    events = ",".join(
        f'{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{n}","pid":1,"tid":1,'
        f'"ts":{1000 * n},"dur":900,"args":{{}}}},'
        f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,'
        f'"ts":{1000 * n + 1},"dur":5,"args":{{"correlation":{n}}}}},'
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{1000 * n + 10},'
        f'"dur":30,"args":{{"device":0,"stream":7,"correlation":{n}}}}}'
        for n in range(1, steps + 1)
    )
    return f'{{"baseTimeNanoseconds":0,"traceEvents":[{events}]}}'.encode()


def test_a_trace_of_too_many_steps_is_rejected_with_what_to_do(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.drop("steps.json", many_steps(8193))
        wait_for(lambda: node.ended("steps.json"), within_s=60)
        entry = node.traces()["steps.json"]
    assert entry.state is TraceState.REJECTED
    assert entry.reason is not None
    assert "has 8,193 rows of steps on 1 devices, and 8,192 at most are stored" in entry.reason
    assert "profile fewer steps" in entry.reason
