"""The metrics of the agent itself."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from chopperd.export.metric import (
    GPU,
    ExportState,
    Label,
    Point,
    Profile,
    Read,
    View,
    metric,
    per_gpu,
    per_gpu_by,
    per_node,
    per_node_by,
)
from chopperd.model.devices import ReadScope
from chopperd.model.live import GpuLive, GuardedPart, NodeSnapshot, ProcessLive
from chopperd.sampling.memory.layout import Pace
from chopperd.units import seconds_from_ns

_M, _S = Profile.MINIMAL, Profile.STANDARD

BACKEND: Final = Label("backend")
VERSION: Final = Label("version")
#: Driver calls that are part of sampling, by how much they read, and those that are not.
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
    """Also of GPUs that are down: a hang is why they are."""
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
    """From 0 on, so that the first trace of an outcome is seen as an increase."""
    return {**dict.fromkeys(OUTCOME.values or (), 0), **snapshot.analysis.outcomes}


def _troubles(snapshot: NodeSnapshot) -> Mapping[str, float]:
    return {
        "recorder": float(snapshot.archive.trouble is not None),
        "store": float(bool(snapshot.store.trouble or snapshot.store.set_aside)),
        "analysis": float(snapshot.analysis.trouble is not None),
    }


def _outlived_faults(snapshot: NodeSnapshot) -> Mapping[str, float]:
    """From 0 on, so that the first fault of a part is seen as an increase."""
    return {part.value: snapshot.faults.get(part, 0) for part in GuardedPart}


def _per_process(value: Callable[[ProcessLive], float]) -> Read:
    return per_node_by(
        lambda snapshot: {role: value(process) for role, process in snapshot.processes.items()}
    )


def _own(value: Callable[[ExportState], float]) -> Read:
    """A figure of the exporter itself."""
    return lambda view: [] if view.state is None else [((), value(view.state))]


AGENT_METRICS: Final = (
    metric(
        "agent_build_info",
        "",
        _M,
        "The program's version; always 1",
        lambda view: [((view.snapshot.version,), 1.0)],
        VERSION,
    ),
    metric(
        "agent_backend_up",
        "",
        _M,
        "Whether any GPU is read through the back end, 1 or 0",
        _backend_up,
        BACKEND,
    ),
    metric(
        "agent_simulated",
        "",
        _M,
        "Whether the figures come from a simulation, 1 or 0",
        per_node(lambda snapshot: float(snapshot.simulated)),
    ),
    metric(
        "agent_paused",
        "",
        _M,
        "Whether somebody has paused the agent, 1 or 0",
        per_node(lambda snapshot: float(snapshot.pause is not None)),
    ),
    metric(
        "agent_start_time_seconds",
        "seconds",
        _S,
        "When the agent started, Unix time",
        per_node(lambda snapshot: seconds_from_ns(snapshot.started_unix_ns)),
    ),
    metric(
        "agent_snapshot_timestamp_seconds",
        "seconds",
        _M,
        "When these figures were put together, Unix time",
        per_node(lambda snapshot: seconds_from_ns(snapshot.taken_unix_ns)),
    ),
    metric(
        "agent_ticks_total",
        "",
        _M,
        "Reads of GPUs that were made",
        per_node(lambda snapshot: sum(gpu.ticks_count for gpu in snapshot.gpus)),
    ),
    metric(
        "agent_missed_ticks_total",
        "",
        _M,
        "Reads of GPUs that were due and not made",
        per_node(lambda snapshot: sum(gpu.missed_count for gpu in snapshot.gpus)),
    ),
    metric(
        "agent_kept_rate_hertz",
        "hertz",
        _S,
        "Reads a second that are kept; the pace says why where those are not the ones asked for",
        per_gpu(lambda gpu: gpu.kept_hz),
        GPU,
    ),
    metric(
        "agent_pace",
        "",
        Profile.FULL,
        "Why a GPU is read at the rate kept, 1 for the reason that holds",
        per_gpu_by(_paces),
        GPU,
        PACE,
    ),
    metric(
        "agent_driver_seconds_total",
        "seconds",
        _S,
        "Time in driver calls, all GPUs; call: clock and limits, everything, or no sampling",
        per_node_by(_driver_s),
        CALL,
    ),
    metric(
        "agent_step_time_ratio",
        "ratio",
        _S,
        "Time of a marked step with sampling over that without; absent until it is measured",
        per_node(lambda snapshot: snapshot.self_test.step_time_ratio),
    ),
    metric(
        "agent_step_time_bound_ratio",
        "ratio",
        _S,
        "Ends of the 95 % interval of the step time ratio",
        per_node_by(_step_time_bounds),
        BOUND,
    ),
    metric(
        "agent_driver_call_hung_seconds",
        "seconds",
        _M,
        "Age of a driver call that does not return; absent where none hangs",
        _hung,
        GPU,
        CALL,
    ),
    metric(
        "agent_errors_total",
        "",
        _S,
        "Reads of GPUs that failed, GPUs that were lost, and impossible values that were left out",
        per_node_by(_faults),
        FAULT,
    ),
    metric(
        "agent_restarts_total",
        "",
        _M,
        "Sampler processes that were replaced",
        per_node(lambda snapshot: snapshot.sampler.restart_count),
    ),
    metric(
        "agent_abandoned_processes",
        "",
        _S,
        "Sampler processes that hang in a driver and were left alone",
        per_node(lambda snapshot: len(snapshot.sampler.abandoned_pids)),
    ),
    metric(
        "agent_lost_samples_total",
        "",
        _S,
        "Samples that the flight recorder could not keep",
        per_node(lambda snapshot: snapshot.archive.lost_samples),
    ),
    metric(
        "agent_damaged_chunks_total",
        "",
        _S,
        "Chunks of the flight recorder that were passed over as damaged",
        per_node(lambda snapshot: snapshot.archive.damaged_chunks),
    ),
    metric(
        "agent_recorder_bytes",
        "bytes",
        _S,
        "Disk that the flight recorder takes",
        per_node(lambda snapshot: snapshot.archive.bytes),
    ),
    metric(
        "agent_store_bytes",
        "bytes",
        _S,
        "Disk that the store of steps and reports takes",
        per_node(lambda snapshot: snapshot.store.bytes),
    ),
    metric(
        "agent_store_memory_rows",
        "",
        _S,
        "Rows of the store that are in memory only, as they could not be written",
        per_node(lambda snapshot: snapshot.store.in_memory),
    ),
    metric(
        "agent_spool_bytes",
        "bytes",
        _S,
        "Disk that traces take which wait or are kept",
        per_node(lambda snapshot: snapshot.analysis.spool_bytes),
    ),
    metric(
        "agent_waiting_traces",
        "",
        _S,
        "Traces that wait to be analysed",
        per_node(lambda snapshot: snapshot.analysis.waiting),
    ),
    metric(
        "agent_traces_total",
        "",
        _S,
        "Traces that were taken in, by what became of them",
        per_node_by(_outcomes),
        OUTCOME,
    ),
    metric(
        "agent_trouble",
        "",
        _S,
        "Whether a part of the agent is in trouble, 1 or 0; its status says why",
        per_node_by(_troubles),
        PART,
    ),
    metric(
        "agent_faults_total",
        "",
        _S,
        "Unexpected faults that a part of the agent outlived; its log shows them",
        per_node_by(_outlived_faults),
        PART,
    ),
    metric(
        "agent_process_cpu_seconds_total",
        "seconds",
        _S,
        "CPU time of the agent's processes, with those replaced since",
        _per_process(lambda process: process.cpu_s),
        ROLE,
    ),
    metric(
        "agent_process_resident_bytes",
        "bytes",
        _S,
        "Resident memory of the agent's processes",
        _per_process(lambda process: process.resident_bytes),
        ROLE,
    ),
    metric(
        "agent_process_open_fds",
        "",
        _S,
        "Open files of the agent's processes",
        _per_process(lambda process: process.open_fds),
        ROLE,
    ),
    metric(
        "agent_process_threads",
        "",
        _S,
        "Threads of the agent's processes",
        _per_process(lambda process: process.threads),
        ROLE,
    ),
)

#: Read last, as they are about all the others.
EXPORT_METRICS: Final = (
    metric(
        "agent_series",
        "",
        _M,
        "Series in this scrape",
        _own(lambda state: state.series_count),
    ),
    metric(
        "agent_render_errors_total",
        "",
        _M,
        "Metrics or points that could not be rendered and were left out, since the start",
        _own(lambda state: state.render_errors_count),
    ),
)
