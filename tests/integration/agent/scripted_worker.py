"""The analysis worker over samples that misbehave, as a file in the recorder's folder says.

The file is named after the second in which the trace begins: "die", "die once", "hang" (and say so
in the file `hanging`), or "eat" 400 MiB. Run as `scripted_worker.py MEMORY_MAX_BYTES`.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from chopperd.model.samples import SampleSet
from chopperd.pipeline import worker
from chopperd.report.build.trace_report import HISTORY_NS
from chopperd.units import NS_PER_S


class ScriptedSamples:
    """Has no samples, but what is asked for in their stead happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> SampleSet | None:
        assert from_unix_ns < to_unix_ns
        assert gpus is None
        script = self._folder / str((from_unix_ns + HISTORY_NS) // NS_PER_S)
        deed = script.read_text() if script.exists() else ""
        if deed == "die once":
            script.unlink()
        if deed.startswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "hang":
            (self._folder / "hanging").touch()
            signal.pause()
        if deed == "eat":
            bytearray(400 << 20)
        return None


if __name__ == "__main__":
    worker.main(ScriptedSamples, memory_max_bytes=int(sys.argv[1]), in_background=False)
