"""Messages between agent and worker: each is framed as its length and its MessagePack."""

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
