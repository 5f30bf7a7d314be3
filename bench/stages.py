"""Where the time of a report goes: its stages in one process, timed one by one.

`python -m bench.stages TRACE SAMPLES DEVICE UUID` prints a JSON list of stages.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage: its CPU time, and the largest resident set up to its end."""

    name: str
    cpu_s: float
    peak_bytes: int


class Stopwatch:
    """Times stages by CPU time, which other processes disturb least."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._began_s = 0.0  # the interpreter's own start belongs to the first stage

    def time(self, name: str, work: Callable[[], _T]) -> _T:
        """The result of `work`, noted under a name."""
        result = work()
        now_s = time.process_time()
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.stages.append(Stage(name=name, cpu_s=now_s - self._began_s, peak_bytes=peak_bytes))
        self._began_s = now_s
        return result


def _imported() -> None:
    import chopperd.cli.commands  # noqa: PLC0415 - timing the import is the point
    import chopperd.cli.report_commands  # noqa: PLC0415
    import chopperd.pipeline.reports  # noqa: F401, PLC0415


def report_stages(trace_path: Path, samples_path: Path, device_map: str) -> list[Stage]:
    """The stages of one report as `chopperd report --format json` makes it."""
    watch = Stopwatch()
    watch.time("start, imports", _imported)
    from chopperd.model.run import device_map_of  # noqa: PLC0415
    from chopperd.report.build.clocked_device import JoinOptions  # noqa: PLC0415
    from chopperd.report.build.document import StepSelection, build_document  # noqa: PLC0415
    from chopperd.report.build.trace_report import report_trace  # noqa: PLC0415
    from chopperd.report.forms.schema import formatted  # noqa: PLC0415
    from chopperd.store.samples.files import read_samples  # noqa: PLC0415
    from chopperd.traces.read.reader import read_trace  # noqa: PLC0415
    from chopperd.traces.timeline.layout import lay_out  # noqa: PLC0415

    samples = watch.time("read samples", lambda: read_samples(samples_path))
    trace = watch.time("read trace", lambda: read_trace(trace_path))
    timeline = watch.time("lay out", lambda: lay_out(trace))
    options = JoinOptions(device_map=device_map_of(device_map, "device map"))
    report = watch.time("join", lambda: report_trace(trace, timeline, samples, options))
    document = watch.time(
        "build", lambda: build_document([report], version="", time="", selection=StepSelection())
    )
    watch.time("encode", lambda: formatted(document, "json", styled=False))
    return watch.stages


def main(argv: list[str]) -> None:
    """Print the stages."""
    trace, samples, device, uuid = argv
    stages = report_stages(Path(trace), Path(samples), f"{device}={uuid}")
    print(json.dumps([asdict(stage) for stage in stages]))


if __name__ == "__main__":
    main(sys.argv[1:])
