"""Metrics about the agent itself."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from chopperd.export.metric import (
    GPU,
    ExportState,
    Label,
    Point,
    Source,
    View,
    full,
    minimal,
    per_gpu,
    per_gpu_by,
    per_node,
    per_node_by,
    standard,
)
from chopperd.model.devices import ReadScope
from chopperd.model.live import GpuLive, GuardedPart, NodeSnapshot, ProcessLive
from chopperd.sampling.memory.layout import Pace
from chopperd.units import seconds_from_ns

BACKEND: Final = Label("backend")
VERSION: Final = Label("version")
#: Driver calls: of sampling, by how much they read; and others.
_RARE: Final = "rare"
CALL: Final = Label("call", (*(scope.value for scope in ReadScope), _RARE))
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


def _driver_s(snapshot: NodeSnapshot) -> Mapping[str, float]:
    return {
        ReadScope.FAST.value: sum(gpu.driver_fast_s for gpu in snapshot.gpus),
        ReadScope.FULL.value: sum(gpu.driver_full_s for gpu in snapshot.gpus),
        _RARE: sum(gpu.driver_rare_s for gpu in snapshot.gpus),
    }


def _paces(gpu: GpuLive) -> Mapping[str, float]:
    return {pace: float(pace == gpu.pace) for pace in PACE.values or ()}


def _step_time_bounds(snapshot: NodeSnapshot) -> Mapping[str, float | None]:
    found = snapshot.self_test
    return {"low": found.low_ratio, "high": found.high_ratio}


def _faults(snapshot: NodeSnapshot) -> Mapping[str, float]:
    return {
        "read": sum(gpu.failed_count for gpu in snapshot.gpus),
        "lost": sum(gpu.lost_count for gpu in snapshot.gpus),
        "invalid": sum(gpu.invalid_count for gpu in snapshot.gpus),
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


def _outlived_faults(snapshot: NodeSnapshot) -> Mapping[str, float]:
    """Return faults by part, with zeros, so that a part's first fault shows as an increase."""
    return {part.value: snapshot.faults.get(part, 0) for part in GuardedPart}


def _per_process(value: Callable[[ProcessLive], float]) -> Source:
    return per_node_by(
        ROLE,
        lambda snapshot: {role: value(process) for role, process in snapshot.processes.items()},
    )


def _own(value: Callable[[ExportState], float]) -> Source:
    """Return the source of a metric about the exporter itself."""
    return Source(lambda view: [] if view.state is None else [((), value(view.state))])


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
        "agent_simulated",
        "Whether the figures come from a simulation, 1 or 0",
        per_node(lambda snapshot: float(snapshot.simulated)),
    ),
    minimal(
        "agent_paused",
        "Whether the agent is paused, 1 or 0",
        per_node(lambda snapshot: float(snapshot.pause is not None)),
    ),
    standard(
        "agent_start_time_seconds",
        "When the agent started, Unix time",
        per_node(lambda snapshot: seconds_from_ns(snapshot.started_unix_ns)),
    ),
    minimal(
        "agent_snapshot_timestamp_seconds",
        "Time of the snapshot that these metrics are from, Unix time",
        per_node(lambda snapshot: seconds_from_ns(snapshot.taken_unix_ns)),
    ),
    minimal(
        "agent_ticks_total",
        "Reads of GPUs that were made",
        per_node(lambda snapshot: sum(gpu.ticks_count for gpu in snapshot.gpus)),
    ),
    minimal(
        "agent_missed_ticks_total",
        "Reads of GPUs that were due and not made",
        per_node(lambda snapshot: sum(gpu.missed_count for gpu in snapshot.gpus)),
    ),
    standard(
        "agent_kept_rate_hertz",
        "Achieved reads a second; agent_pace is why they differ from the configured rate",
        per_gpu(lambda gpu: gpu.kept_hz),
    ),
    full(
        "agent_pace",
        "Why a GPU is read at its present rate, 1 for the reason that applies",
        per_gpu_by(PACE, _paces),
    ),
    standard(
        "agent_driver_seconds_total",
        "Time in driver calls, all GPUs; call: clock and limits, everything, or no sampling",
        per_node_by(CALL, _driver_s),
    ),
    standard(
        "agent_step_time_ratio",
        "Time of a marked step with sampling over that without; absent until it is measured",
        per_node(lambda snapshot: snapshot.self_test.step_time_ratio),
    ),
    standard(
        "agent_step_time_bound_ratio",
        "Ends of the 95 % interval of the step time ratio",
        per_node_by(BOUND, _step_time_bounds),
    ),
    minimal(
        "agent_driver_call_hung_seconds",
        "Age of a driver call that does not return; absent where none hangs",
        Source(_hung, (GPU, CALL)),
    ),
    standard(
        "agent_errors_total",
        "Failed reads of GPUs, lost GPUs, and impossible values that were discarded",
        per_node_by(FAULT, _faults),
    ),
    minimal(
        "agent_restarts_total",
        "Sampler processes that were replaced",
        per_node(lambda snapshot: snapshot.sampler.restart_count),
    ),
    standard(
        "agent_abandoned_processes",
        "Sampler processes that hang in a driver and were abandoned",
        per_node(lambda snapshot: len(snapshot.sampler.abandoned_pids)),
    ),
    standard(
        "agent_lost_samples_total",
        "Samples that the flight recorder could not store",
        per_node(lambda snapshot: snapshot.archive.lost_samples),
    ),
    standard(
        "agent_damaged_chunks_total",
        "Damaged chunks of the flight recorder, which were skipped",
        per_node(lambda snapshot: snapshot.archive.damaged_chunks),
    ),
    standard(
        "agent_recorder_bytes",
        "Disk that the flight recorder takes",
        per_node(lambda snapshot: snapshot.archive.bytes),
    ),
    standard(
        "agent_store_bytes",
        "Disk that the store of steps and reports takes",
        per_node(lambda snapshot: snapshot.store.bytes),
    ),
    standard(
        "agent_store_memory_rows",
        "Rows of the store in memory only, because they could not be written",
        per_node(lambda snapshot: snapshot.store.in_memory),
    ),
    standard(
        "agent_spool_bytes",
        "Disk that pending and retained traces take",
        per_node(lambda snapshot: snapshot.analysis.spool_bytes),
    ),
    standard(
        "agent_waiting_traces",
        "Traces that wait to be analysed",
        per_node(lambda snapshot: snapshot.analysis.waiting),
    ),
    standard(
        "agent_traces_total",
        "Traces that the agent received, by outcome",
        per_node_by(OUTCOME, _outcomes),
    ),
    standard(
        "agent_trouble",
        "Whether a part of the agent has a problem, 1 or 0; the agent's status says why",
        per_node_by(PART, _troubles),
    ),
    standard(
        "agent_faults_total",
        "Unexpected errors that a part of the agent survived; its log shows them",
        per_node_by(PART, _outlived_faults),
    ),
    standard(
        "agent_process_cpu_seconds_total",
        "CPU time of the agent's processes, with those replaced since",
        _per_process(lambda process: process.cpu_s),
    ),
    standard(
        "agent_process_resident_bytes",
        "Resident memory of the agent's processes",
        _per_process(lambda process: process.resident_bytes),
    ),
    standard(
        "agent_process_open_fds",
        "Open files of the agent's processes",
        _per_process(lambda process: process.open_fds),
    ),
    standard(
        "agent_process_threads",
        "Threads of the agent's processes",
        _per_process(lambda process: process.threads),
    ),
)

#: Read last, since they are about all the others.
EXPORT_METRICS: Final = (
    minimal("agent_series", "Series in this scrape", _own(lambda state: state.series_count)),
    minimal(
        "agent_render_errors_total",
        "Metrics or points left out because they could not be rendered, since the start",
        _own(lambda state: state.render_errors_count),
    ),
)
