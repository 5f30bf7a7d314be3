"""Under which process id the records of each device stand in the text of a trace."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from chopperd.traces.read.json_text import (
    ANY_VALUE,
    EVENT_BORDER,
    Refusal,
    Scalar,
    first_value,
    scalar,
)
from chopperd.traces.read.rows import integer

Pids: TypeAlias = Mapping[int, Scalar]

_CATEGORIES: Final = ("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset")
_LOOKED_AT: Final = 64
"""Records of a kind looked at in each piece of text."""
_EVENT_BYTES: Final = 16 * 1024
"""Records longer than this are passed over."""


def device_pids(chunks: Iterable[bytes], devices: Iterable[int]) -> Pids:
    """The `pid` of each device's records, as the file writes it; the device's number if not found.

    Kineto writes the number itself; a file that another tool wrote may have a text. Only as much
    of the file is read as it takes.

    Args:
        chunks: The text.
        devices: Numbers of devices with records.
    """
    wanted = set(devices)
    found: dict[int, Scalar] = {}
    for text in chunks:
        for event in _records(text):
            device = _device(event)
            pid = scalar(event.get("pid"))
            if device in wanted and pid is not None:
                found.setdefault(device, pid)
        if found.keys() >= wanted:
            break
    return {device: found.get(device, device) for device in wanted}


def _records(text: bytes) -> Iterator[Mapping[str, object]]:
    """Some of the device records that lie whole in a piece of text."""
    for category in _CATEGORIES:
        word = f'"{category}"'.encode()
        position = text.find(word)
        for _ in range(_LOOKED_AT):
            if position < 0:
                break
            event = _event_around(text, position)
            if event is not None and event.get("cat") == category:
                yield event
            position = text.find(word, position + len(word))


def _event_around(text: bytes, position: int) -> Mapping[str, object] | None:
    """The event that holds a position; None if it is none or reaches beyond the text."""
    begin = max(position - _EVENT_BYTES, 0)
    starts = [border.end() for border in EVENT_BORDER.finditer(text, begin, position)]
    found = first_value(ANY_VALUE, memoryview(text)[starts[-1] :]) if starts else None
    if found is None or isinstance(found, Refusal):
        return None
    event = found[0]
    return event if isinstance(event, dict) and event.get("ph") == "X" else None


def _device(event: Mapping[str, object]) -> int:
    args = event.get("args")
    device = scalar(args.get("device")) if isinstance(args, dict) else None
    return integer(scalar(event.get("pid")) if device is None else device)
