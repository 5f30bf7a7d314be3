"""Writes Kineto traces of a simulated job as torch 2.13 does, one a rank, marked as simulated."""

import pickle
from collections.abc import Iterator
from typing import Final
from uuid import UUID

import msgspec

from chopperd.model.devices import GpuInfo
from chopperd.simulation.annotations import stall_template, step_template
from chopperd.simulation.job import kernel_columns, rank_step
from chopperd.simulation.memory import RankAllocator
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import generator
from chopperd.simulation.program import Program, Stream, Thread
from chopperd.simulation.step_events import time_column
from chopperd.simulation.template import RankProcess, StepTemplate, rank_process
from chopperd.units import NS_PER_MS, NS_PER_S, NS_PER_US

#: Kineto's time base is Unix time rounded down to a multiple of this.
#: Source: libkineto output_json.h.
BASE_PERIOD_NS: Final = 7_889_238 * NS_PER_S
JOB_NAME: Final = "simulated-pretrain"

_LEAD_NS: Final = 2 * NS_PER_MS
_FIRST_ID: Final = 1_025
_RUN_KEY: Final = 17
_NCCL_VERSION: Final = "2.27.5"

Json = str | int | float | bool | list["Json"] | dict[str, "Json"]


def rank_trace(node: SimulatedNode, rank: int, first_step: int, last_step: int) -> Iterator[bytes]:
    """Yield one rank's trace of the steps `first_step` to `last_step` (inclusive) in pieces.

    Raises:
        ValueError: The node runs no job, or there is no such rank or step.
    """
    program, process = _checked(node, rank, first_step, last_step)
    return _pieces(node, program, process, range(first_step, last_step + 1))


def rank_snapshot(node: SimulatedNode, rank: int, first_step: int, last_step: int) -> bytes:
    """Return what `torch.cuda.memory._dump_snapshot` of a rank writes after its last step.

    Its history begins with the steps that the job played before the first.

    Raises:
        ValueError: The node runs no job, or there is no such rank or step.
    """
    program, process = _checked(node, rank, first_step, last_step)
    allocator = RankAllocator(program, process, node.preset.gpu)
    columns, max_mhz = kernel_columns(program), node.preset.gpu.sm_clock_max_mhz
    for run in node.steps(first_step, last_step):
        step = rank_step(columns, run, rank, max_mhz)
        allocator.play(time_column(step, rank), int(step.timing.stall_block[rank]))
    return pickle.dumps(allocator.allocator.dump(), 4)


def _checked(
    node: SimulatedNode, rank: int, first_step: int, last_step: int
) -> tuple[Program, RankProcess]:
    if node.program is None:
        raise ValueError("an idle node has no ranks")
    if not 0 <= rank < len(node.gpus) or not 0 <= first_step <= last_step:
        raise ValueError(f"no rank {rank} with steps {first_step} to {last_step}")
    return node.program, rank_process(rank, node.program.job.runtime, node.spec.pids)


def _pieces(
    node: SimulatedNode, program: Program, process: RankProcess, numbers: range
) -> Iterator[bytes]:
    first = next(node.steps(numbers[0], numbers[0])).timing
    last = next(node.steps(numbers[-1], numbers[-1])).timing
    if first is None or last is None:
        raise ValueError("an idle node has no ranks")
    begin_ns = int(first.host_start_ns[process.rank]) - _LEAD_NS
    end_ns = int(last.host_end_ns[process.rank]) + _LEAD_NS
    base_ns = begin_ns // BASE_PERIOD_NS * BASE_PERIOD_NS
    begin_us = _microseconds(begin_ns - base_ns)
    yield (_head(node, process, base_ns) + _names(process, begin_us)).encode()
    for text in _steps(node, program, process, numbers, base_ns):
        yield b"," + text.encode()
    yield _tail(process, begin_us, _microseconds(end_ns - base_ns), end_ns - begin_ns).encode()


def _steps(
    node: SimulatedNode, program: Program, process: RankProcess, numbers: range, base_ns: int
) -> Iterator[str]:
    columns, max_mhz = kernel_columns(program), node.preset.gpu.sm_clock_max_mhz
    template, next_id = step_template(program, process), _FIRST_ID
    stalls: dict[int, StepTemplate] = {}
    allocator = RankAllocator(program, process, node.preset.gpu)
    for run in node.steps(numbers[0], numbers[-1]):
        step = rank_step(columns, run, process.rank, max_mhz)
        times = time_column(step, process.rank)
        wanted = [template]
        stalled = int(step.timing.stall_block[process.rank])
        if stalled >= 0:
            wanted.append(stalls.setdefault(stalled, stall_template(program, process, stalled)))
        memory, memory_ns = allocator.step(times, stalled)
        for each, times_ns in (*((each, times) for each in wanted), (memory, memory_ns)):
            yield each.fill(times_ns, base_ns=base_ns, first_id=next_id, step=step.step)
            next_id += each.id_count


def _head(node: SimulatedNode, process: RankProcess, base_ns: int) -> str:
    """Return the text before the events, with the properties of the process's one device."""
    gpu = node.gpus[process.rank]
    version = (
        {"cupti_version": 26, "cuda_runtime_version": 12080, "cuda_driver_version": 12080}
        if process.runtime == "cuda"
        else {"hip_runtime_version": 60443483, "hip_driver_version": 60443483}
    )
    metadata: dict[str, Json] = {
        **version,
        "trace_id": UUID(bytes=generator(_RUN_KEY, node.spec.seed, process.rank).bytes(16)).hex,
        "record_shapes": 0,
        "distributedInfo": _distributed(process.rank, len(node.gpus)),
        "host_name": node.spec.host,
        "chopperd_simulated": True,
        "chopperd_job": JOB_NAME,
    }
    if not node.spec.pids:
        metadata["chopperd_devices"] = [_mapping(gpu, process.device)]
    entries = "".join(f'      "{key}": {_json(value)},\n' for key, value in metadata.items())
    return (
        f'{{\n    "schemaVersion": 1,\n    "deviceProperties": [\n    {_json(_properties(gpu))}\n'
        f'    ],\n    \n{entries}    "displayTimeUnit": "ms",\n'
        f'    "baseTimeNanoseconds": {base_ns},\n    "traceEvents": [\n    '
    )


def _distributed(rank: int, world_size: int) -> Json:
    group: Json = {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cpu:gloo,cuda:nccl",
        "pg_size": world_size,
        "ranks": list(range(world_size)),
    }
    return {
        "backend": "nccl",
        "rank": rank,
        "world_size": world_size,
        "pg_count": 1,
        "pg_config": [group],
        "nccl_version": _NCCL_VERSION,
    }


def _mapping(gpu: GpuInfo, device: int) -> Json:
    return {
        "device": device,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id or "",
        "name": gpu.name,
    }


def _properties(gpu: GpuInfo) -> Json:
    nvidia = gpu.name.startswith("NVIDIA")
    return {
        "id": 0,
        "name": gpu.name,
        "totalGlobalMem": gpu.memory_size_bytes or 0,
        "computeMajor": 9,
        "computeMinor": 0 if nvidia else 4,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65536,
        "warpSize": 32 if nvidia else 64,
        "sharedMemPerBlock": 49152 if nvidia else 65536,
        "numSms": 132 if nvidia else 304,
    }


def _names(process: RankProcess, at_us: str) -> str:
    """Return the rows that name processes, threads and streams."""
    device = process.device
    entries: list[tuple[str, int, int, str, Json]] = [
        ("process_name", process.pid, 0, "name", "python3"),
        ("process_labels", process.pid, 0, "labels", "CPU"),
        ("process_sort_index", process.pid, 0, "sort_index", process.pid),
        ("process_name", device, 0, "name", "python3"),
        ("process_labels", device, 0, "labels", f"GPU {device}"),
        ("process_sort_index", device, 0, "sort_index", 16777216 + device),
    ]
    for thread in Thread:
        tid = process.host(thread).tid
        label = "python3" if thread is Thread.MAIN else "pt_autograd_0"
        entries.append(("thread_name", process.pid, tid, "name", f"thread {tid} ({label})"))
        entries.append(("thread_sort_index", process.pid, tid, "sort_index", tid))
    for stream in Stream:
        tid = process.streams[stream]
        entries.append(("thread_name", device, tid, "name", f"stream {tid} "))
        entries.append(("thread_sort_index", device, tid, "sort_index", tid))
    return ",".join(
        f'\n  {{\n    "ph": "M",\n    "name": "{name}",\n    "ts": {at_us},\n    "pid": {pid},\n'
        f'    "tid": {tid},\n    "args": {{\n      "{key}": {_json(value)}\n    }}\n  }}'
        for name, pid, tid, key, value in entries
    )


def _tail(process: RankProcess, begin_us: str, end_us: str, length_ns: int) -> str:
    """Return the profiler's own span and marks, and the end of the file."""
    name = f"rank{process.rank}.pt.trace.json"
    return (
        ',\n  {\n    "ph": "X",\n    "cat": "Trace",\n    "name": "PyTorch Profiler (0)",\n'
        '    "pid": "Spans",\n    "tid": "PyTorch Profiler",\n'
        f'    "ts": {begin_us},\n    "dur": {_microseconds(length_ns)}\n    ,\n'
        '    "args": {\n      "Op count": 0\n    }\n  },\n'
        '  {\n    "ph": "i",\n    \n    "s": "g",\n'
        '    "name": "Iteration Start: PyTorch Profiler",\n    "pid": "Traces",\n'
        f'    "tid": "Trace PyTorch Profiler",\n    "ts": {begin_us}\n    \n  }},\n'
        '  {\n    "ph": "i",\n    \n    "s": "g",\n    "name": "Record Window End",\n'
        f'    "pid": "",\n    "tid": "",\n    "ts": {end_us}\n    \n  }}\n'
        f'  ],"traceName": "{name}" }}'
    )


def _microseconds(time_ns: int) -> str:
    return f"{time_ns // NS_PER_US}.{time_ns % NS_PER_US:03d}"


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()
