"""The report on a simulated job, and the traces that such a job writes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

from chopperd.clock import Clock
from chopperd.model.report import ReportDocument
from chopperd.model.samples import SampleSet
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.simulation.kineto import rank_trace
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.spec import SimulationSpec
from chopperd.units import NS_PER_S


def report_simulation(
    spec: SimulationSpec,
    seconds: float,
    finish: Callable[[], SampleSet] | None,
    clock: Clock,
) -> ReportDocument:
    """The report on a simulated job, from the traces that it writes and samples taken meanwhile.

    The traces are files without a name: nothing of them is left, however the process ends.

    Args:
        spec: What is simulated; it has started.
        seconds: How long it goes on from now.
        finish: Ends the sampling that is under way and gives its samples.
        clock: Tells and waits for the time.
    """
    begin_unix_ns = clock.unix_ns()
    end_unix_ns = begin_unix_ns + round(seconds * NS_PER_S)
    names: dict[str, str] = {}
    with ExitStack() as files:
        for name, content in simulated_traces(SimulatedNode(spec), begin_unix_ns, end_unix_ns):
            file = files.enter_context(TemporaryFile(prefix="chopperd-demo-"))
            file.writelines(content)
            file.flush()
            names[f"/proc/self/fd/{file.fileno()}"] = name
        clock.sleep_until(clock.mono_ns() + end_unix_ns - clock.unix_ns())
        samples = finish() if finish is not None else None
        paths = [Path(path) for path in names]
        document = report_files(paths, samples=samples, options=ReportOptions(), clock=clock)
    traces = tuple(replace(trace, path=names[trace.path]) for trace in document.traces)
    return replace(document, trace=traces[0], traces=traces)


def simulated_traces(
    node: SimulatedNode, begin_unix_ns: int, end_unix_ns: int
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Name and content of each rank's trace, of the steps inside a time (at least one)."""
    first_step = node.step_at(begin_unix_ns) + 1
    last_step = max(node.step_at(end_unix_ns) - 1, first_step)
    for rank in range(len(node.gpus)):
        yield f"rank{rank}.pt.trace.json", rank_trace(node, rank, first_step, last_step)
