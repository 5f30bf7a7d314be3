"""The analysis worker: turns traces into reports and reports into documents, for the agent.

Requests come on standard input, replies leave on standard output. A separate thread reads standard
input, so that the process ends with the agent even while a trace is being read.
"""

import ctypes
import logging
import os
import platform
import resource
import signal
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec

from chopperd.clock import Clock, SystemClock
from chopperd.errors import ChopperdError, TraceError, TraceFormatError
from chopperd.model.captures import AnalysedTrace
from chopperd.model.report import Note, ReportDocument
from chopperd.model.services import SampleSource
from chopperd.pipeline.reports import (
    FileReport,
    Origin,
    ReportOptions,
    composed,
    report_file,
    shown,
)
from chopperd.report.build.processes import identity, span_ns
from chopperd.report.build.trace_report import TraceReport

_LENGTH: Final = struct.Struct("<I")
_MIB: Final = 1 << 20
#: Reports of all traces of a capture.
MOST_REQUEST_BYTES: Final = 512 * _MIB
#: Largest reply that the agent decodes, thousands of step rows: anyone can make a small trace of a
#: hundred thousand steps, whose report takes ten times its bytes as objects.
MOST_REPLY_BYTES: Final = 16 * _MIB


class FrameError(ChopperdError):
    """The other side sent bytes that are no message, or a message is too large."""


class Analyse(msgspec.Struct, frozen=True, kw_only=True, tag="analyse"):
    """Request for the report on one trace."""

    id: str  # of its `TraceEntry`
    path: str
    origin: Origin
    recorder: str | None  # folder of the flight recorder; None for no samples
    options: ReportOptions


class Compose(msgspec.Struct, frozen=True, kw_only=True, tag="compose"):
    """Request for the document over reports from `Analysed`, on the traces of one run."""

    reports: tuple[bytes, ...]
    run: str | None = None  # its name
    note: str | None = None  # why the capture is not part of another at the same time


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Message sent once, before any reply: if the worker dies later, its work is the cause."""


class Analysed(msgspec.Struct, frozen=True, kw_only=True, tag="analysed"):
    """Reply to `Analyse`: the report on one trace."""

    trace: AnalysedTrace


class Composed(msgspec.Struct, frozen=True, kw_only=True, tag="composed"):
    """Reply to `Compose`: the document over several reports."""

    document: ReportDocument


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Reply where there is no report or document, with the reason."""

    rejected: bool  # whether the file is at fault: it is no usable trace
    message: str  # one line for people
    offset: int | None = None  # of the fault in the (decompressed) file; None if unknown


Request = Analyse | Compose
Reply = Analysed | Composed | Failed
Sent = Ready | Reply

_REQUESTS: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_SENT: Final[msgspec.msgpack.Decoder[Sent]] = msgspec.msgpack.Decoder(Sent)


def framed(message: Request | Sent) -> bytes:
    """Encode a message as a frame; raise `FrameError` if it is too large or not Unicode."""
    try:
        data = msgspec.msgpack.encode(message)
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError) as error:
        raise FrameError(f"a message can't be sent: {error}") from error
    most_bytes = MOST_REQUEST_BYTES if isinstance(message, Request) else MOST_REPLY_BYTES
    if len(data) > most_bytes:
        raise FrameError(
            f"a report of {len(data) / _MIB:.1f} MiB is too large: {most_bytes // _MIB} MiB at most"
        )
    return _LENGTH.pack(len(data)) + data


class FrameBuffer:
    """Splits the bytes that arrive into messages of at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Append bytes that arrived."""
        self._data += data

    def next_frame(self) -> bytes | None:
        """Remove and return the next message; None until complete; `FrameError` if too large."""
        if len(self._data) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        if length > self._most_bytes:
            raise FrameError(f"a message of {length // _MIB} MiB is too large to be taken")
        end = _LENGTH.size + length
        if len(self._data) < end:
            return None
        body = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        return body


def request_of(body: bytes) -> Request:
    """Decode the body of a frame as a request; raise `FrameError` if it is none."""
    try:
        return _REQUESTS.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a request: {error}") from error


def sent_of(body: bytes) -> Sent:
    """Decode the body of a frame as a message of the worker; raise `FrameError` if it is none."""
    try:
        return _SENT.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a reply: {error}") from error


logger = logging.getLogger(__name__)

_NICEST: Final = 19
_FIRST_TO_GO: Final = "1000"
#: Source: ioprio_set(2): which = process, who = 0 (self), class 3 (idle) in the upper bits.
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS: Final = 1
_IOPRIO_IDLE: Final = 3 << 13


def lower_priority() -> None:
    """Use only idle CPU and disk time, and be the first process to be killed for memory.

    Each request is separate; one that is not allowed here is skipped.
    """
    _try("nice", lambda: os.nice(_NICEST))
    _try("SCHED_IDLE", lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)))
    _try("oom_score_adj", lambda: Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO))
    _try("idle I/O", _idle_io)


def cap_memory(limit_bytes: int) -> None:
    """Make allocations beyond a limit fail.

    The limit is on writable private memory (RLIMIT_DATA): code mapped from libraries, which all
    processes share, and address space reserved but not used do not count.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def one_thread_each() -> None:
    """Set OpenBLAS, unused here, to one thread instead of one a core; before numpy is imported."""
    os.putenv("OPENBLAS_NUM_THREADS", "1")


def _idle_io() -> None:
    number = _IOPRIO_SET[platform.machine()]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _try(what: str, ask: Callable[[], object]) -> None:
    try:
        ask()
    except (OSError, LookupError) as error:
        logger.info("%s is not allowed here: %s", what, error)


OpenSamples = Callable[[Path], SampleSource]

_STDIN_FD: Final = 0
_STDOUT_FD: Final = 1
_STDERR_FD: Final = 2
_READ_BYTES: Final = 1 << 20
_STACK_BYTES: Final = 1 << 20


def main(open_samples: OpenSamples, *, memory_max_bytes: int, in_background: bool) -> int:
    """Answer requests until standard input ends, which exits the process with status 0.

    Allocations beyond `memory_max_bytes` fail; `in_background` takes the lowest priorities.
    """
    for asked in (signal.SIGINT, signal.SIGTERM):  # the agent ends the worker, by its input
        signal.signal(asked, signal.SIG_IGN)
    replies_fd = _own_stdout()
    if in_background:
        lower_priority()
    threading.stack_size(_STACK_BYTES)
    cap_memory(memory_max_bytes)
    requests: SimpleQueue[bytes] = SimpleQueue()
    _send(replies_fd, Ready())
    threading.Thread(target=_read, args=(requests,), daemon=True, name="chopperd-requests").start()
    desk = Desk(open_samples, SystemClock())
    while True:
        _send(replies_fd, desk.answer(request_of(requests.get())))


class Desk:
    """Answers requests; `clock` gives the time written into documents."""

    def __init__(self, open_samples: OpenSamples, clock: Clock) -> None:
        self._open_samples = open_samples
        self._clock = clock

    def answer(self, request: Request) -> Reply:
        """Carry out a request and return the reply: `Failed` for any error."""
        try:
            match request:
                case Analyse():
                    return self._analysed(request)
                case Compose():
                    return self._composed(request)
        except TraceError as error:
            return Failed(rejected=True, message=str(error), offset=error.offset)
        except MemoryError:
            return Failed(rejected=False, message="needs more than analysis.memory_max_bytes")
        except ChopperdError as error:
            return Failed(rejected=False, message=str(error))
        except Exception as error:
            logger.exception("a request failed")
            message = " ".join(f"{type(error).__name__}: {error}".split())
            return Failed(rejected=False, message=message)

    def _analysed(self, request: Analyse) -> Analysed:
        samples = self._open_samples(Path(request.recorder)) if request.recorder else None
        file = report_file(
            Path(request.path), samples, request.options, one_of_several=True, origin=request.origin
        )
        _refuse_empty(file.report)
        file = shown(file, request.options.names)
        return Analysed(
            trace=AnalysedTrace(
                id=request.id,
                job=file.report.trace.job,
                identity=identity(file.report),
                report=packed(file),
            )
        )

    def _composed(self, request: Compose) -> Composed:
        files = sorted((unpacked(each) for each in request.reports), key=_order)
        code = "rank_conflict" if (request.note or "").startswith("rank ") else "capture_split"
        notes = [Note(code=code, text=request.note)] if request.note else []
        document = composed(files, self._clock, notes=notes, run=request.run, in_agent=True)
        return Composed(document=document)


def _refuse_empty(report: TraceReport) -> None:
    """Refuse an empty trace: as the newest of its job it would hide one with content."""
    if not (report.totals or report.host_steps):
        path = report.trace.path
        raise TraceFormatError(f"{path} has neither a step nor a device record", path=path)


def packed(file: FileReport) -> bytes:
    """Encode a report on a file for storage; NaN stays NaN. Raises `FrameError` if it can't be."""
    try:
        return msgspec.msgpack.encode(file)
    except (UnicodeEncodeError, OverflowError) as error:
        raise FrameError(f"the report can't be stored: {error}") from error


def unpacked(data: bytes) -> FileReport:
    """Decode what `packed` encoded; `FrameError` for anything else, as that of another version."""
    try:
        return msgspec.msgpack.decode(data, type=FileReport)
    except msgspec.MsgspecError as error:
        raise FrameError(f"a stored report can't be read: {error}") from error


def _order(file: FileReport) -> tuple[bool, int, tuple[int, int], str]:
    """Sort key of reports: by rank, then by time; unknown ranks last."""
    trace = file.report.trace
    return trace.rank is None, trace.rank or 0, span_ns(file.report) or (0, 0), trace.path


def _own_stdout() -> int:
    """Return a descriptor for replies only; other output then goes to standard error."""
    sys.stdout.flush()
    replies_fd = os.dup(_STDOUT_FD)
    os.dup2(_STDERR_FD, _STDOUT_FD)
    return replies_fd


def _read(requests: SimpleQueue[bytes]) -> None:
    """Put requests from standard input into the queue; exit the process when the input ends."""
    try:
        frames = FrameBuffer(MOST_REQUEST_BYTES)
        while data := os.read(_STDIN_FD, _READ_BYTES):
            frames.feed(data)
            while (body := frames.next_frame()) is not None:
                requests.put(body)
    finally:
        os._exit(0)


def _send(fd: int, message: Sent) -> None:
    try:
        data = framed(message)
    except FrameError as error:
        data = framed(Failed(rejected=False, message=str(error)))
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:  # the agent is gone: nothing reads replies
        os._exit(0)
