"""Scenes of a few events that belong together, as profilers of all years write them."""

from collections.abc import Callable
from decimal import Decimal
from typing import Final

from tests.layouts import Event

Scene = Callable[[Decimal], tuple[Event, ...]]
"""The events of a scene that starts at a time in us."""

_SHAPES: Final = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}
_COLLECTIVE: Final = {
    "Collective name": "allreduce",
    "In msg nelems": 1024,
    "Out msg nelems": 1024,
    "dtype": "BFloat16",
    "Group size": 8,
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1, 2, 3]",
}


def _event(category: str, name: str, start_us: Decimal, dur: object, **more: object) -> Event:
    args = more.pop("args", {})
    place = {"pid": 4242, "tid": 4243} | more
    return {"ph": "X", "cat": category, "name": name, **place, "ts": start_us, "dur": dur} | {
        "args": args
    }


def _on_device(category: str, name: str, start_us: Decimal, dur: object, **args: object) -> Event:
    return _event(
        category, name, start_us, dur, pid=0, tid=7, args={"device": 0, "stream": 7, **args}
    )


def _call(name: str, start_us: Decimal, dur: object, **args: object) -> Event:
    return _event("cuda_runtime", name, start_us, dur, args=args)


def _arrow(ph: str, number: int, at_us: Decimal, tid: object, category: str) -> Event:
    place = {"pid": 4242, "tid": tid, "ts": at_us, "cat": category, "name": category}
    return {"ph": ph, "id": number, **place} | ({"bp": "e"} if ph == "f" else {})


def product(at: Decimal) -> tuple[Event, ...]:
    """An operator with shapes, its launch, the arrow to its kernel."""
    args = {"External id": 2, "Sequence number": 5, "Fwd thread id": 0, **_SHAPES}
    return (
        _event("cpu_op", "aten::mm", at, Decimal("40.125"), args=args),
        _call("cudaLaunchKernel", at + 20, 5, correlation=11, cbid=1, **{"External id": 2}),
        _arrow("s", 11, at + 20, 4243, "ac2g"),
        _on_device(
            *("kernel", "void gemm<float, 128>(int*)", at + 40, Decimal("100.001")), correlation=11
        ),
    )


def convolution(at: Decimal) -> tuple[Event, ...]:
    """An operator whose values are kept as well, and a driver's launch."""
    values = {"Concrete Inputs": ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"]}
    dims = {"Input Dims": [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], []]}
    types = {"Input type": ["c10::Half", "c10::Half", "", "ScalarList", "", "", "Scalar"]}
    return (
        _event("cpu_op", "aten::conv2d", at, 30, args={**dims, **types, **values}),
        _event("cuda_driver", "cuLaunchKernelEx", at + 9, 4, args={"correlation": 51}),
        _on_device("kernel", "cutlass_80_wgrad", at + 20, Decimal("7.5"), correlation=51),
    )


def collective(at: Decimal) -> tuple[Event, ...]:
    """A collective on the host and on its stream."""
    kernel = _on_device("kernel", "ncclDevKernel_AllReduce", at + 15, 60, correlation=12)
    kernel["args"] = {"device": 0, "stream": 20, "correlation": 12, **_COLLECTIVE}
    return (
        _event("cpu_op", "record_param_comms", at, 8, tid=9, args=_COLLECTIVE),
        _event("cuda_runtime", "cudaLaunchKernelExC", at + 2, 3, tid=9, args={"correlation": 12}),
        kernel,
    )


def copies(at: Decimal) -> tuple[Event, ...]:
    """A copy and a fill."""
    name = "Memcpy HtoD (Pinned -> Device)"
    return (
        _call("cudaMemcpyAsync", at, 2, correlation=13),
        _on_device("gpu_memcpy", name, at + 22, 9, correlation=13, bytes=4096),
        _call("cudaMemsetAsync", at + 9, 2, correlation=14),
        _on_device("gpu_memset", "Memset (Device)", at + 40, 1, correlation=14, bytes=64),
    )


def graph(at: Decimal) -> tuple[Event, ...]:
    """One launch of a graph, three kernels of its correlation id."""
    return (
        _call("cudaGraphLaunch", at, Decimal("12.25"), correlation=31),
        *(
            _on_device("kernel", f"node_{n}", at + 20 + 5 * n, Decimal("4.999"), correlation=31)
            for n in range(3)
        ),
    )


def backward(at: Decimal) -> tuple[Event, ...]:
    """A forward operator and its backward one, the arrow between them."""
    args = {"Sequence number": 5, "Fwd thread id": 1}
    return (
        _arrow("s", 5, at, 4243, "fwdbwd"),
        _event("cpu_op", "aten::addmm", at, 9, args={**args, "Fwd thread id": 0}),
        _arrow("f", 5, at + 60, 9, "fwdbwd"),
        _event("cpu_op", "AddmmBackward0", at + 60, 20, tid=9, args=args),
    )


def steps(at: Decimal) -> tuple[Event, ...]:
    """A step on the host and on the device; layers by name; a call of an optimizer."""
    return (
        _event("user_annotation", "ProfilerStep#7", at, 900, args={"External id": 1}),
        _on_device("gpu_user_annotation", "ProfilerStep#7", at + 39, Decimal("200.002")),
        _event("user_annotation", "FSDP::all_gather (layers.0)", at + 5, 8),
        _event("user_annotation", "Optimizer.step#AdamW.step", at + 700, 100),
    )


def memory(at: Decimal) -> tuple[Event, ...]:
    """A block of a GPU's memory and its free by autograd's thread, one of the host's, a refusal."""
    place = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "pid": 4242, "tid": 4243}
    totals = {"Total Allocated": 4096, "Total Reserved": 2097152}
    block = {"Bytes": 4096, "Addr": 139926520725504, "Device Id": 1, "Device Type": 1, **totals}
    free = {**block, "Bytes": -4096, "Total Allocated": 0, "Device Type": 6}
    host = {**block, "Device Id": -1, "Device Type": 0, "Total Reserved": 0}
    refused = {"Bytes": 2**40, "Device Id": 1, "Device Type": 1}
    return (
        {**place, "name": "[memory]", "ts": at + 30, "args": block},
        {**place, "name": "[memory]", "ts": at + 30, "args": block},
        {**place, "name": "[memory]", "ts": at + 30, "tid": 9, "args": free},
        {**place, "name": "[memory]", "ts": at + 2, "args": host},
        {**place, "name": "[OutOfMemory]", "ts": at + 99, "args": refused},
        {"ph": "i", "name": "[memory]", "pid": 4242, "tid": "4243", "ts": at + 31}
        | {"args": {"Bytes": 512, "Device Id": 0, "Device Type": 1}},
    )


def metadata(at: Decimal) -> tuple[Event, ...]:
    """What is only counted."""
    memory = {"Bytes": -512, "Addr": 140000, "Device Id": 0}
    instant = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "tid": 4243}
    return (
        {"ph": "M", "name": "process_name", "pid": 4242, "tid": 0, "args": {"name": "python"}},
        {**instant, "pid": 4242, "ts": at + 30, "args": memory},
        _on_device("cuda_sync", "Stream Sync", at + 240, 5, stream=-1),
        {"ph": "C", "name": "GPU 0", "pid": 0, "ts": at + 1, "args": {"clock": 1410}},
    )


def of_2021(at: Decimal) -> tuple[Event, ...]:
    """The layout of 2021: whole microseconds, categories with a capital, texts as ids."""
    at, launch = at.to_integral_value(), {"external id": 21, "correlation": 21}
    stream = {"pid": 0, "tid": "stream 7"}
    return (
        _event("Operator", "ProfilerStep#3", at, 500),
        _event("Operator", "aten::conv2d", at + 5, 30, tid="4243", args={"external id": 21}),
        _event("Runtime", "cudaLaunchKernel", at + 9, 4, args=launch),
        _event("Kernel", "volta_sgemm_128x64", at + 20, 90, **stream, args=launch),
        _event("Kernel", "short", at + 110, 0, **stream, args=launch),
        _event("Memset", "Memset (Device)", at + 120, 2, **stream, args={"bytes": 8}),
        {"ph": "f", "id": 21, **stream, "ts": at + 20, "cat": "async", "name": "launch"},
    )


def rocm(at: Decimal) -> tuple[Event, ...]:
    """HIP calls, texts as numbers, another node's number, a queue."""
    kind = {"kind": "Dispatch Kernel", "hsa_queue": 3}
    return (
        _call("hipLaunchKernel", at, 3, correlation=1, stream="0x0"),
        _event("kernel", "Cijk_Ailk_Bljk", at + 9, 70, pid=2, tid=0)
        | {"args": {"device": 2, "stream": 0, "correlation": 1, **kind}},
        _call("hipMemcpyWithStream", at + 90, 3, correlation=2, size="64"),
        _event("gpu_memcpy", "CopyHostToDevice", at + 99, 7, pid=2, tid=0)
        | {"args": {"device": 2, "stream": 0, "correlation": 2}},
    )


def stack(at: Decimal) -> tuple[Event, ...]:
    """Names as of Python stacks: paths, calls of modules, quotes, other alphabets."""
    names = (
        "torch/nn/modules/module.py(1553): _call_impl",
        "nn.Module: Linear_0",
        r"C:\app\new\model.py(12): run",
        '{"device": "cpu"}(3): init',
        'kernel },{"ph":"X"] ',
        "\u00fcber\u2028\U0001f600 <lambda>",
    )
    return tuple(
        _event("python_function", name, at + 10 * n, 500 - n, args={"Python id": n})
        for n, name in enumerate(names)
    )


def odd(at: Decimal) -> tuple[Event, ...]:
    """Right and yet odd: no length, the same twice, one over another, no start, ids of no use."""
    copy = _on_device("kernel", "twice", at + 5, Decimal("3.125"), correlation=41)
    return (
        copy,
        copy,
        _on_device("kernel", "empty", at + 9, 0, correlation=0),
        _on_device("kernel", "over", at + 10, 50, correlation=2**64),
        _on_device("kernel", "next", at + 20, 5, correlation=-1),
        _event("cpu_op", "", Decimal(0), 0, pid="Spans", tid="PyTorch Profiler"),
    )


def embedded(at: Decimal) -> tuple[Event, ...]:
    """Events within events: what looks like the border of two."""
    nested = [{"ph": "X", "name": "n", "ts": 1}, {"name": "m"}, {"ph": "X", "cat": "kernel"}]
    return (
        _event("cpu_op", "nest", at, 5, args={"list": nested, "device": {"ph": "X"}}),
        _call("cudaFree", at + 6, 1, text='},{"ph":"X","cat":"kernel"', **{"External id": 9}),
        _on_device("kernel", "after", at + 9, 1, correlation=61, grid=[1, 2, 3], x=[[[]], {}]),
    )


SCENES: Final[tuple[Scene, ...]] = (
    *(product, convolution, collective, copies, graph, backward, steps, metadata, of_2021, rocm),
    *(stack, odd, embedded, memory),
)
