"""How agent and worker talk: messages, each a frame of its length and its MessagePack."""

import struct
from typing import Final

import msgspec

from chopperd.errors import ChopperdError
from chopperd.model.captures import AnalysedTrace
from chopperd.model.report import ReportDocument
from chopperd.pipeline.reports import Origin, ReportOptions

_LENGTH: Final = struct.Struct("<I")
_MIB: Final = 1 << 20
#: Reports of all traces of a capture.
MOST_REQUEST_BYTES: Final = 512 * _MIB
#: What the agent takes, and decodes, of one trace or capture: thousands of step rows. Anyone can
#: make a small trace of a hundred thousand steps; as objects its report takes ten times its bytes.
MOST_REPLY_BYTES: Final = 16 * _MIB


class FrameError(ChopperdError):
    """The other side sends what can't be a message."""


class Analyse(msgspec.Struct, frozen=True, kw_only=True, tag="analyse"):
    """Ask for the report on one trace.

    Attributes:
        id: Of its `TraceEntry`.
        path: Where the file is.
        origin: What it was called and what job it was handed in for.
        recorder: Folder of the flight recorder; None for no samples.
        options: How to make the report.
    """

    id: str
    path: str
    origin: Origin
    recorder: str | None
    options: ReportOptions


class Compose(msgspec.Struct, frozen=True, kw_only=True, tag="compose"):
    """Ask for the document over reports that `Analysed` gave.

    Attributes:
        reports: Of the traces of one run.
        run: What that is called; None if it has no name.
        note: Why the capture is not part of another of its time; None if that needs no reason.
    """

    reports: tuple[bytes, ...]
    run: str | None = None
    note: str | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Said once, before any reply: whatever ends the worker from now on is the work's doing."""


class Analysed(msgspec.Struct, frozen=True, kw_only=True, tag="analysed"):
    """The report on one trace."""

    trace: AnalysedTrace


class Composed(msgspec.Struct, frozen=True, kw_only=True, tag="composed"):
    """The document over several."""

    document: ReportDocument


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Why there is none.

    Attributes:
        rejected: Whether the file is at fault: it is no trace that can be used.
        message: One line for people.
        offset: Where in the (decompressed) file the trouble lies; None if that is not known.
    """

    rejected: bool
    message: str
    offset: int | None = None


Request = Analyse | Compose
Reply = Analysed | Composed | Failed
Sent = Ready | Reply

_REQUESTS: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_SENT: Final[msgspec.msgpack.Decoder[Sent]] = msgspec.msgpack.Decoder(Sent)


def framed(message: Request | Sent) -> bytes:
    """The message as it is sent.

    Raises:
        FrameError: It is too large, or holds what can't be sent.
    """
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
    """Bytes as they arrive, and the messages that they complete.

    Args:
        most_bytes: What one message may have.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._data += data

    def next_frame(self) -> bytes | None:
        """The body of the next message; None until it is all there.

        Raises:
            FrameError: It announces more than a message may have.
        """
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
    """The request in a frame.

    Raises:
        FrameError: There is none in it.
    """
    try:
        return _REQUESTS.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a request: {error}") from error


def sent_of(body: bytes) -> Sent:
    """What the worker says in a frame.

    Raises:
        FrameError: Nothing that a worker says.
    """
    try:
        return _SENT.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a reply: {error}") from error
