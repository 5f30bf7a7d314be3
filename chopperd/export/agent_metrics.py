"""Metrics about the agent itself."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Final

from chopperd.export.metric import (
    GPU,
    Label,
    Point,
    Source,
    View,
    full,
    gpu_by,
    gpu_value,
    minimal,
    node,
    node_by,
    standard,
)
from chopperd.model.devices import ReadScope
from chopperd.model.live import GuardedPart, NodeSnapshot
from chopperd.sampling.memory.layout import Pace
from chopperd.units import seconds_from_ns

BACKEND: Final = Label("backend")
VERSION: Final = Label("version")
#: Driver calls: of sampling, by how much they read; and others.
CALL: Final = Label("call", (*(scope.value for scope in ReadScope), "rare"))
BOUND: Final = Label("bound", ("low", "high"))
PACE: Final = Label("pace", tuple(pace.name.lower() for pace in Pace))
FAULT: Final = Label("fault", ("read", "lost", "invalid"))
OUTCOME: Final = Label(
    "outcome", ("analysed", "duplicate", "rejected", "failed", "killed", "spooled")
)
PART: Final = Label("part", tuple(part.value for part in GuardedPart))
ROLE: Final = Label("role", ("agent", "sampler", "worker"))


def _backend_up(view: View) -> Iterable[Point]:
    backend = view.snapshot.backend
    return [] if backend is None else [((backend,), float(view.snapshot.backend_up))]


def _hung(view: View) -> Iterable[Point]:
    """Yield the age of hanging driver calls, also of GPUs that are down: that is why they are."""
    for gpu in view.snapshot.gpus:
        if gpu.hung:
            yield (gpu.info.gpu, gpu.hung.scope), gpu.hung.age_s


def _sums(**names: str) -> Callable[[NodeSnapshot], Mapping[str, float]]:
    """Return a function that sums, for each label value, an attribute over all GPUs."""
    return lambda node: {
        value: sum(map(attrgetter(name), node.gpus)) for value, name in names.items()
    }


def _outcomes(snapshot: NodeSnapshot) -> Mapping[str, float]:
    """Count traces by outcome, with zeros, so that the first of an outcome shows as an increase."""
    return {**dict.fromkeys(OUTCOME.values or (), 0), **snapshot.analysis.outcomes}


def _troubles(snapshot: NodeSnapshot) -> Mapping[str, float]:
    return {
        "recorder": float(snapshot.archive.trouble is not None),
        "store": float(bool(snapshot.store.trouble or snapshot.store.set_aside)),
        "analysis": float(snapshot.analysis.trouble is not None),
    }


def _summed(name: str) -> Source:
    """Return the source of a metric that sums an attribute of all GPUs."""
    return node("gpus", lambda gpus: sum(map(attrgetter(name), gpus)))


def _per_process(name: str) -> Source:
    return node_by(
        ROLE, lambda node: {role: getattr(each, name) for role, each in node.processes.items()}
    )


def _own(name: str) -> Source:
    """Return the source of a metric about the exporter itself."""
    return Source(lambda view: [((), getattr(view, name))])


AGENT_METRICS: Final = (
    minimal(
        "agent_build_info",
        "The program's version; always 1",
        Source(lambda view: [((view.snapshot.version,), 1.0)], (VERSION,)),
    ),
    minimal(
        "agent_backend_up",
        "Whether any GPU is read through the back end, 1 or 0",
        Source(_backend_up, (BACKEND,)),
    ),
    minimal(
        "agent_simulated", "Whether the figures come from a simulation, 1 or 0", node("simulated")
    ),
    minimal(
        "agent_paused",
        "Whether the agent is paused, 1 or 0",
        Source(lambda view: [((), view.snapshot.pause is not None)]),
    ),
    standard(
        "agent_start_time_seconds",
        "When the agent started, Unix time",
        node("started_unix_ns", seconds_from_ns),
    ),
    minimal(
        "agent_snapshot_timestamp_seconds",
        "Time of the snapshot that these metrics are from, Unix time",
        node("taken_unix_ns", seconds_from_ns),
    ),
    minimal("agent_ticks_total", "Reads of GPUs that were made", _summed("ticks_count")),
    minimal(
        "agent_missed_ticks_total",
        "Reads of GPUs that were due and not made",
        _summed("missed_count"),
    ),
    standard(
        "agent_kept_rate_hertz",
        "Achieved reads a second; agent_pace is why they differ from the configured rate",
        gpu_value("kept_hz"),
    ),
    full(
        "agent_pace",
        "Why a GPU is read at its present rate, 1 for the reason that applies",
        gpu_by(PACE, lambda gpu: {pace: pace == gpu.pace for pace in PACE.values or ()}),
    ),
    standard(
        "agent_driver_seconds_total",
        "Time in driver calls, all GPUs; call: clock and limits, everything, or no sampling",
        node_by(CALL, _sums(fast="driver_fast_s", full="driver_full_s", rare="driver_rare_s")),
    ),
    standard(
        "agent_step_time_ratio",
        "Time of a marked step with sampling over that without; absent until it is measured",
        node("self_test.step_time_ratio"),
    ),
    standard(
        "agent_step_time_bound_ratio",
        "Ends of the 95 % interval of the step time ratio",
        node_by(BOUND, lambda n: {"low": n.self_test.low_ratio, "high": n.self_test.high_ratio}),
    ),
    minimal(
        "agent_driver_call_hung_seconds",
        "Age of a driver call that does not return; absent where none hangs",
        Source(_hung, (GPU, CALL)),
    ),
    standard(
        "agent_errors_total",
        "Failed reads of GPUs, lost GPUs, and impossible values that were discarded",
        node_by(FAULT, _sums(read="failed_count", lost="lost_count", invalid="invalid_count")),
    ),
    minimal(
        "agent_restarts_total",
        "Sampler processes that were replaced",
        node("sampler.restart_count"),
    ),
    standard(
        "agent_abandoned_processes",
        "Sampler processes that hang in a driver and were abandoned",
        node("sampler.abandoned_pids", len),
    ),
    standard(
        "agent_lost_samples_total",
        "Samples that the flight recorder could not store",
        node("archive.lost_samples"),
    ),
    standard(
        "agent_damaged_chunks_total",
        "Damaged chunks of the flight recorder, which were skipped",
        node("archive.damaged_chunks"),
    ),
    standard("agent_recorder_bytes", "Disk that the flight recorder takes", node("archive.bytes")),
    standard(
        "agent_recorder_max_bytes",
        "Disk that the flight recorder may take, as configured",
        node("archive.max_bytes"),
    ),
    standard(
        "agent_store_bytes", "Disk that the store of steps and reports takes", node("store.bytes")
    ),
    standard(
        "agent_store_memory_rows",
        "Rows of the store in memory only, because they could not be written",
        node("store.in_memory"),
    ),
    standard(
        "agent_spool_bytes",
        "Disk that pending and retained traces take",
        node("analysis.spool_bytes"),
    ),
    standard("agent_waiting_traces", "Traces that wait to be analysed", node("analysis.waiting")),
    standard(
        "agent_traces_total",
        "Traces that the agent received, by outcome",
        node_by(OUTCOME, _outcomes),
    ),
    standard(
        "agent_trouble",
        "Whether a part of the agent has a problem, 1 or 0; the agent's status says why",
        node_by(PART, _troubles),
    ),
    standard(
        "agent_faults_total",
        "Unexpected errors that a part of the agent survived; its log shows them",
        # With zeros, so that a part's first fault shows as an increase.
        node_by(PART, lambda n: {part.value: n.faults.get(part, 0) for part in GuardedPart}),
    ),
    standard(
        "agent_process_cpu_seconds_total",
        "CPU time of the agent's processes, with those replaced since",
        _per_process("cpu_s"),
    ),
    standard(
        "agent_process_resident_bytes",
        "Resident memory of the agent's processes",
        _per_process("resident_bytes"),
    ),
    standard(
        "agent_process_open_fds", "Open files of the agent's processes", _per_process("open_fds")
    ),
    standard("agent_process_threads", "Threads of the agent's processes", _per_process("threads")),
)

#: Read last, since they are about all the others.
EXPORT_METRICS: Final = (
    minimal("agent_series", "Series in this scrape", _own("series_count")),
    minimal(
        "agent_render_errors_total",
        "Metrics or points left out because they could not be rendered, since the start",
        _own("render_errors_count"),
    ),
)
