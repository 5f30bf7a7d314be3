"""A process that keeps samples as fast as it can; it says how many seconds it has kept so far.

Its arguments: FOLDER BEGIN_MONO_S CHUNK_EVERY_S; a chunk is written each so many of its seconds,
which pass at once.
"""

import sys
from pathlib import Path

from chopperd.store.disk import DiskLimits
from chopperd.store.recorder import writer
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.recorded import Feed


def main() -> None:
    folder, begin_s, every_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    writer._CHUNK_NS = every_s * NS_PER_S  # type: ignore[misc]
    clock = ScriptedClock(mono_ns=begin_s * NS_PER_S, unix_ns=(10**9 + begin_s) * NS_PER_S)
    limits = DiskLimits(max_bytes=2**30, max_days=7, min_free_ratio=0)
    feed = Feed(FlightRecorder(folder, limits, clock), clock)
    while True:
        feed.seconds(1)
        assert feed.recorder.live.trouble is None
        print(len(feed.given_mono_ns), flush=True)


if __name__ == "__main__":
    main()
