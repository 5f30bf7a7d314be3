"""Small sound traces of every layout, of which the mutated ones are made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import msgspec

from tests.layouts import Event, encode

_BASE_NS: Final = 1_790_857_026_000_000_000
_EPOCH_US: Final = Decimal("1790857026000000.125")

Layout = Callable[[Sequence[object], Mapping[str, object]], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A sound trace, in parts and as text.

    Attributes:
        name: What it shows.
        events: Its events.
        keys: Its other keys.
        layout: Puts both together.
    """

    name: str
    events: tuple[Event, ...]
    keys: Mapping[str, object]
    layout: Layout

    @property
    def text(self) -> bytes:
        """The whole document."""
        return self.layout(self.events, self.keys)


def seeds() -> tuple[Seed, ...]:
    """All seeds, of 1 to 8 KiB."""
    keys: dict[str, object] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "baseTimeNanoseconds": _BASE_NS,
    }
    relative, epoch = _training(Decimal("1000.250")), _training(_EPOCH_US)
    of_2021 = _training_of_2021(1_622_000_000_000_000)
    return (
        *(
            Seed(name=layout.__name__, events=relative, keys=keys, layout=layout)
            for layout in (_native, _keys_last, _compact, _windows, _pretty, _bare_array)
        ),
        Seed(name="epoch", events=epoch, keys={"schemaVersion": 1}, layout=_native),
        Seed(name="of_2021", events=of_2021, keys={"schemaVersion": 1}, layout=_native),
        Seed(name="with_stack, compact", events=_with_stack(), keys=keys, layout=_compact),
        Seed(name="with_stack", events=_with_stack(), keys=keys, layout=_native),
    )


def _native(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """As torch writes it: a key a line; elements that are no objects in a line of their own."""
    head = b"".join(b"\n  %s: %s," % (encode(key), encode(value)) for key, value in keys.items())
    body = b",".join(
        b"\n  {\n    " + _lines(event) + b"\n  }" if isinstance(event, dict) else encode(event)
        for event in events
    )
    return b"{" + head + b'\n  "traceEvents": [' + body + b'\n  ],\n  "traceName": "t"\n}'


def _lines(event: Event) -> bytes:
    return b",\n    ".join(b"%s: %s" % (encode(key), encode(event[key])) for key in event)


def _keys_last(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """As of 2024: two keys a line, the keys after the events."""
    text = encode({"schemaVersion": 1, "traceEvents": list(events), **keys})
    return text.replace(b',"ph"', b',\n    "ph"')


def _compact(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """As tools write it that care for size."""
    return encode({**keys, "traceEvents": list(events)})


def _windows(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """A line an event, with tabs, carriage returns and a byte order mark."""
    head, events_text = _compact([], keys), _bare_array(events, keys)
    lines = events_text[1:-1].replace(b'},{"ph"', b'} ,\t\r\n{"ph"')
    return b"\xef\xbb\xbf" + head.removesuffix(b"]}") + b"\r\n" + lines + b"\r\n]}"


def _pretty(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """As tools write it that care for people, lists of objects after the events."""
    text = encode({"traceEvents": list(events), "after": [{"name": "x"}, {"name": "y"}], **keys})
    return msgspec.json.format(text, indent=2)


def _bare_array(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """The other form of Chrome's format: nothing but the events."""
    del keys
    return encode(list(events))


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


def _training(at_us: Decimal) -> tuple[Event, ...]:
    """A step with a product, a collective, a copy, a fill, arrows, instants and metadata."""
    shapes = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}
    collective = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "dtype": "BFloat16",
        "Group size": 8,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1, 2, 3]",
    }
    return (
        {"ph": "M", "name": "process_name", "pid": 4242, "tid": 0, "args": {"name": "python"}},
        _event(
            "user_annotation", "ProfilerStep#7", at_us, Decimal("900.5"), args={"External id": 1}
        ),
        _event(
            *("cpu_op", "aten::mm", at_us + 10, Decimal("40.125")),
            args={"External id": 2, "Sequence number": 5, "Fwd thread id": 0, **shapes},
        ),
        _event(
            "cuda_runtime", "cudaLaunchKernel", at_us + 20, 5, args={"correlation": 11, "cbid": 1}
        ),
        {
            "ph": "s",
            "id": 11,
            "pid": 4242,
            "tid": 4243,
            "ts": at_us + 20,
            "cat": "ac2g",
            "name": "ac2g",
        },
        {
            "ph": "s",
            "id": 5,
            "pid": 4242,
            "tid": 4243,
            "ts": at_us + 10,
            "cat": "fwdbwd",
            "name": "fwdbwd",
        },
        {
            "ph": "f",
            "id": 5,
            "pid": 4242,
            "tid": 9,
            "ts": at_us + 60,
            "cat": "fwdbwd",
            "name": "fwdbwd",
            "bp": "e",
        },
        _event("cpu_op", "record_param_comms", at_us + 70, 8, tid=9, args=collective),
        _event(
            "cuda_runtime", "cudaLaunchKernelExC", at_us + 72, 3, tid=9, args={"correlation": 12}
        ),
        _event("cuda_runtime", "cudaMemcpyAsync", at_us + 80, 2, args={"correlation": 13}),
        _event("cuda_runtime", "cudaMemsetAsync", at_us + 90, 2, args={"correlation": 14}),
        _on_device(
            "kernel", "void gemm<float, 128>(int*)", at_us + 40, Decimal("100.001"), correlation=11
        ),
        _on_device(
            "kernel", "ncclDevKernel_AllReduce", at_us + 150, 60, correlation=12, **collective
        ),
        _on_device(
            "gpu_memcpy",
            "Memcpy HtoD (Pinned -> Device)",
            at_us + 220,
            9,
            correlation=13,
            bytes=4096,
        ),
        _on_device("gpu_memset", "Memset (Device)", at_us + 230, 1, correlation=14, bytes=64),
        _on_device("gpu_user_annotation", "ProfilerStep#7", at_us + 39, 200),
        {
            **{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 4242},
            **{
                "tid": 4243,
                "ts": at_us + 30,
                "args": {"Bytes": -512, "Addr": 140000, "Device Id": 0},
            },
        },
        _on_device("cuda_sync", "Stream Sync", at_us + 240, 5, stream=-1),
    )


def _training_of_2021(at_us: int) -> tuple[Event, ...]:
    """The layout of 2021: whole epoch microseconds, categories with a capital, texts as ids."""
    at = Decimal(at_us)
    launch = {"external id": 21, "correlation": 21}
    return (
        _event("Operator", "ProfilerStep#3", at, 500),
        _event("Operator", "aten::conv2d", at + 5, 30, tid="4243", args={"external id": 21}),
        _event("Runtime", "cudaLaunchKernel", at + 9, 4, args=launch),
        _event("Kernel", "volta_sgemm_128x64", at + 20, 90, pid=0, tid="stream 7", args=launch),
        _event("Kernel", "short", at + 110, 0, pid=0, tid="stream 7", args=launch),
        _event("Memset", "Memset (Device)", at + 120, 2, pid=0, tid="stream 7", args={"bytes": 8}),
        {
            "ph": "f",
            "id": 21,
            "pid": 0,
            "tid": "stream 7",
            "ts": at + 20,
            "cat": "async",
            "name": "launch",
        },
    )


def _with_stack() -> tuple[Event, ...]:
    """Names as of Python stacks: paths, calls of modules, quotes, other alphabets."""
    at_us = Decimal("5000.5")
    names = (
        "torch/nn/modules/module.py(1553): _call_impl",
        "nn.Module: Linear_0",
        r"C:\app\new\model.py(12): run",
        '{"device": "cpu"}(3): init',
        'kernel },{"ph":"X"] ',
        "\u00fcber\u2028\U0001f600 <lambda>",
    )
    stack = tuple(
        _event("python_function", name, at_us + 10 * n, 500 - n, args={"Python id": n})
        for n, name in enumerate(names)
    )
    work = (
        _event(
            "cuda_runtime",
            "hipLaunchKernel",
            at_us + 90,
            3,
            args={"correlation": 1, "stream": "0x0"},
        ),
        _on_device(
            "kernel", "Cijk_Ailk_Bljk", at_us + 99, 70, correlation=1, kind="Dispatch Kernel"
        ),
        _event(
            "cuda_runtime",
            "hipMemcpyWithStream",
            at_us + 190,
            3,
            args={"correlation": 2, "size": "64"},
        ),
    )
    return (
        *stack,
        *work,
        _on_device("gpu_memcpy", "CopyHostToDevice", at_us + 199, 7, correlation=2),
    )
