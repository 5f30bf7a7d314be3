"""Messages between agent and worker as bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.model.captures import AnalysedTrace
from chopperd.model.kinds import KernelClass
from chopperd.model.run import ProcessGroup, RunIdentity, device_map_of
from chopperd.pipeline.reports import Origin, ReportOptions
from chopperd.pipeline.worker import (
    MOST_REPLY_BYTES,
    MOST_REQUEST_BYTES,
    Analyse,
    Analysed,
    Compose,
    Failed,
    FrameBuffer,
    FrameError,
    Ready,
    Request,
    Sent,
    framed,
    request_of,
    sent_of,
)
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.traces.kernels.classes import ClassRule

REQUESTS: tuple[Request, ...] = (
    Analyse(
        id="00ff",
        path="/traces/00ff",
        origin=Origin(name="größe.json", job=None),
        recorder=None,
        options=ReportOptions(
            join=JoinOptions(
                device_map=device_map_of("1:3=GPU-3,pci", ""), model_references_mhz={"H100": 1755.0}
            ),
            data_wait_patterns=("dali",),
            class_rules=(ClassRule(KernelClass.COMM, "^ours"),),
            names="classes",
        ),
    ),
    Compose(reports=(b"", b"\x00\xff"), run="r", note="n"),
)
SENT: tuple[Sent, ...] = (
    Ready(),
    Failed(rejected=True, message="is no trace", offset=7),
    Analysed(
        trace=AnalysedTrace(
            id="x",
            job=None,
            identity=RunIdentity(
                rank=0,
                groups=(ProcessGroup(name="0", size=2, first=0, stride=1, digest=7),),
                steps=((1, 5), (2, 9)),
            ),
            report=b"report",
        )
    ),
)


def bodies(data: bytes, pieces: list[int]) -> list[bytes]:
    """What a buffer makes of data that arrives in pieces of these sizes, then the rest."""
    buffer, found = FrameBuffer(MOST_REQUEST_BYTES), []
    for size in [*pieces, len(data)]:
        buffer.feed(data[:size])
        data = data[size:]
        while (body := buffer.next_frame()) is not None:
            found.append(body)
    return found


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=20))
def test_messages_arrive_as_they_were_sent_however_the_pipe_cuts_them(pieces: list[int]) -> None:
    data = b"".join(framed(request) for request in REQUESTS)
    assert tuple(request_of(body) for body in bodies(data, pieces)) == REQUESTS
    data = b"".join(framed(sent) for sent in SENT)
    assert tuple(sent_of(body) for body in bodies(data, pieces)) == SENT


def test_what_is_no_message_is_an_error() -> None:
    with pytest.raises(FrameError, match="not a request"):
        request_of(b"\xc1")
    with pytest.raises(FrameError, match="not a reply"):
        sent_of(framed(REQUESTS[1])[4:])
    buffer = FrameBuffer(MOST_REPLY_BYTES)
    buffer.feed((MOST_REPLY_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(FrameError, match="too large to be taken"):
        buffer.next_frame()


def test_what_can_not_be_sent_is_an_error() -> None:
    with pytest.raises(FrameError, match="can't be sent"):
        framed(Failed(rejected=True, message="half a character: \ud800"))
    with pytest.raises(FrameError, match="can't be sent"):
        framed(Failed(rejected=True, message="", offset=1 << 64))


def test_a_report_that_would_fill_the_agents_memory_is_not_sent() -> None:
    report = bytes(MOST_REPLY_BYTES)
    trace = replace(SENT[2].trace, report=report) if isinstance(SENT[2], Analysed) else None
    assert trace is not None
    with pytest.raises(FrameError, match=r"a report of 16\.0 MiB is too large: 16 MiB at most"):
        framed(Analysed(trace=trace))
    assert len(framed(Compose(reports=(report, report)))) > 2 * MOST_REPLY_BYTES


def test_half_a_frame_is_none() -> None:
    buffer = FrameBuffer(MOST_REPLY_BYTES)
    buffer.feed(framed(Ready())[:-1])
    assert buffer.next_frame() is None
