"""Counter tracks as events of Chrome's trace format, which Perfetto draws beside the streams."""

from collections.abc import Iterator
from typing import Final

import msgspec

from chopperd.report.forms.counter_tracks import CounterTrack
from chopperd.units import NS_PER_US

#: The category that marks our events in a trace.
CATEGORY: Final = "chopperd"
_SIMULATED: Final = " (simulated)"


def counter_events(
    track: CounterTrack, *, pid: int | float | str | None, base_ns: int, simulated: bool
) -> Iterator[bytes]:
    """One JSON object for each time of a track.

    A series is a track of its own in Perfetto, named "SM clock MHz"; Chrome's viewer stacks those
    of one event.

    Args:
        track: The values.
        pid: Of the device's records, so that the track stands beside its streams.
        base_ns: Unix time that the file's times count from; 0 where they are Unix time.
        simulated: Whether the name says that the values are.

    Source: Chrome's "Trace Event Format", counter events: `ph` C, `args` maps series to numbers,
    one counter for each process and name.
    """
    head = msgspec.json.encode(
        {
            "ph": "C",
            "cat": CATEGORY,
            "name": track.name + (_SIMULATED if simulated else ""),
            "pid": pid,
        }
    )[:-1]
    labels = [msgspec.json.encode(label).decode() for label in track.series]
    for t_ns, row in zip((track.t_ns - base_ns).tolist(), track.values.tolist(), strict=True):
        pairs = zip(labels, row, strict=True)
        args = ", ".join(f"{label}: {_number(value)}" for label, value in pairs)
        yield head + f', "ts": {us_text(t_ns)}, "args": {{{args}}}}}'.encode()


def us_text(ns: int) -> str:
    """Microseconds with all their digits: 1234567 ns are "1234.567"."""
    us, rest = divmod(abs(ns), NS_PER_US)
    return f"{'-' if ns < 0 else ''}{us}.{rest:03d}"


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")
