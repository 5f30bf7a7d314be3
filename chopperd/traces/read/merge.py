"""Rewrite the events of a rank's trace so that they can stand in one file with those of others.

Processes get numbers of their own and their rank's title, times count from a common base, and flows
stay within their rank. All else is copied.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

from chopperd.errors import TraceFormatError
from chopperd.traces.read.document import find_opening
from chopperd.traces.read.event_array import cuts
from chopperd.traces.read.json_text import REFUSALS, Fault, decimal_of, first_value, refusal_of
from chopperd.units import NS_PER_US

_Event: TypeAlias = dict[str, Raw]

_EVENTS: Final = msgspec.json.Decoder(list[_Event])
_BETWEEN: Final = b",\n"
_CUTS_TRIED: Final = 4
_METADATA: Final = Raw(b'"M"')
_NAME: Final = Raw(b'"process_name"')
_SORT_INDEX: Final = Raw(b'"process_sort_index"')
#: Keys by which events of several processes belong together.
_FLOW_KEYS: Final = ("id", "bind_id")
#: Viewers sort processes by this; those of a rank stay together.
_PROCESSES_OF_A_RANK: Final = 1000


class RankEvents:
    """The events of one trace, rewritten as its text arrives.

    Arguments: `title` precedes the names of its processes; `nth` of `ranks` this is, from 0;
    `shift_ns` is added to all times; text is decoded `block_bytes` at a time, and an event may have
    `longest_bytes`; `path` is for errors.
    """

    def __init__(
        self,
        title: str,
        *,
        nth: int,
        ranks: int,
        shift_ns: int,
        block_bytes: int,
        longest_bytes: int,
        path: str,
    ) -> None:
        self._title, self._path = title, path
        self._nth, self._ranks, self._shift_ns = nth, ranks, shift_ns
        self._block_bytes, self._longest_bytes = block_bytes, longest_bytes
        self._text = b""
        self._opened = self._ended = False
        self._numbers: dict[bytes, int] = {}
        self._names: set[int] = set()
        self._places: dict[int, float] = {}

    def number(self, pid: bytes) -> int:
        """Return the number of a process of this rank, by its `pid` as JSON."""
        taken = len(self._numbers)
        return self._numbers.setdefault(pid, 1 + self._nth + self._ranks * taken)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next text; yield the events that are whole.

        Raises:
            TraceFormatError: It is no sound JSON.
        """
        if self._ended:
            return
        self._text += data
        if not self._opened:
            self._open()
        if self._opened and len(self._text) >= self._block_bytes:
            yield from self._whole_events()
        if len(self._text) > self._longest_bytes + 2 * self._block_bytes:
            raise self._damaged()

    def finish(self) -> Iterator[bytes]:
        """Yield the last events, and the names and the order of all processes.

        Raises:
            TraceFormatError: The text is no sound JSON, or breaks off.
        """
        if not self._ended:
            yield from self._last_events()
        pids = sorted(self._numbers.values(), key=lambda pid: self._places.get(pid, 0))
        for place, pid in enumerate(pids):
            if pid not in self._names:
                yield _metadata("process_name", pid, {"name": self._title})
            index = self._nth * _PROCESSES_OF_A_RANK + min(place, _PROCESSES_OF_A_RANK - 1)
            yield _metadata("process_sort_index", pid, {"sort_index": index})

    def _open(self) -> None:
        opening = find_opening(self._text)
        if opening is not None:
            self._opened, self._text = True, self._text[opening.position :]

    def _whole_events(self) -> Iterator[bytes]:
        """Yield the events before the last border of two; none if no border is right so far."""
        for end, start in islice(cuts(self._text), _CUTS_TRIED):
            array = b"".join((b"[", memoryview(self._text)[:end], b"]"))
            try:
                events = _EVENTS.decode(array)
            except REFUSALS as error:
                fault = refusal_of(error, len(array)).fault
                if fault is Fault.INCOMPLETE:
                    continue
                if fault is not Fault.TRAILING:
                    raise self._damaged() from error
                yield from self._last_events()
                return
            self._text = self._text[start:]
            yield from self._rewritten(events)
            return

    def _last_events(self) -> Iterator[bytes]:
        """Yield the events up to the end of the array."""
        found = first_value(_EVENTS, memoryview(b"[" + self._text)) if self._opened else None
        if not isinstance(found, tuple):
            raise self._damaged()
        self._ended, self._text = True, b""
        yield from self._rewritten(found[0])

    def _damaged(self) -> TraceFormatError:
        message = f"{self._path} is damaged or breaks off: annotate it alone, or leave it out"
        return TraceFormatError(message, path=self._path)

    def _rewritten(self, events: list[_Event]) -> Iterator[bytes]:
        for event in events:
            pid = self.number(bytes(event["pid"])) if "pid" in event else 0
            if event.get("ph") == _METADATA and not self._is_kept(event, pid):
                continue
            if "pid" in event:
                event["pid"] = Raw(b"%d" % pid)
            if self._shift_ns and "ts" in event:
                event["ts"] = self._shifted(event["ts"])
            for key in _FLOW_KEYS:
                if key in event:
                    event[key] = self._own(event[key])
            yield msgspec.json.encode(event)

    def _is_kept(self, event: _Event, pid: int) -> bool:
        """Rewrite a process's name in place; note its place, which is given anew at the end."""
        name = event.get("name")
        if name not in (_NAME, _SORT_INDEX):
            return True
        args = msgspec.json.decode(event.get("args", Raw(b"null")))
        args = args if isinstance(args, dict) else {}
        if name == _SORT_INDEX:
            place = args.get("sort_index")
            self._places[pid] = place if isinstance(place, int | float) else 0
            return False
        given = args.get("name")
        title = f"{self._title}: {given}" if given else self._title
        event["args"] = Raw(msgspec.json.encode({**args, "name": title}))
        self._names.add(pid)
        return True

    def _shifted(self, ts: Raw) -> Raw:
        """Add the shift to a time in us, whose digits are all retained."""
        text = bytes(ts).decode().strip('"')
        exact = decimal_of(text) + decimal_of(str(self._shift_ns)) / NS_PER_US
        return Raw(format(exact, "f").encode())

    def _own(self, flow: Raw) -> Raw:
        """Return a flow's id that no other rank has."""
        value = msgspec.json.decode(flow)
        if isinstance(value, int):
            return Raw(b"%d" % (value * self._ranks + self._nth))
        return Raw(msgspec.json.encode(f"{value} of {self._nth}"))


def _metadata(name: str, pid: int, args: dict[str, object]) -> bytes:
    return msgspec.json.encode({"ph": "M", "name": name, "pid": pid, "tid": 0, "args": args})
