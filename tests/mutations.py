"""Trace documents with something wrong in them: a pure function of a random source."""

from random import Random
from typing import Final

from tests.layouts import LAYOUTS, Event

EVENTS: Final[tuple[Event, ...]] = (
    {
        "ph": "X", "cat": "kernel", "name": "k<a>(b)", "pid": 0, "tid": 7, "ts": 100.125, "dur": 5,
        "args": {
            "External id": 3, "device": 0, "stream": 7, "correlation": 9, "grid": [1, 2, 3],
            "module_fqn": "m.0", "name": "wq", "phase": "forward",
            "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 4, "Group size": 2,
            "Process Group Ranks": "[0, 1]", "Seq": 4, "Comms Id": 17293822569102704640,
        },
    },
    {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 11, "tid": 12,
        "ts": 90.5, "dur": 3.25, "args": {"External id": 3, "correlation": 9, "bytes": "5"},
    },
    {
        "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 11, "tid": 12, "ts": 80,
        "dur": 30.001,
        "args": {
            "External id": 3, "Sequence number": 5, "Fwd thread id": 0,
            "Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"],
            "Concrete Inputs": ["", ""],
        },
    },
    {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 11, "tid": 12, "ts": 85,
        "dur": 20, "args": {"External id": 3, "Seq": "4", "Comms Id": "0xf000000000000001"},
    },
    {"ph": "s", "id": 9, "pid": 11, "tid": 12, "ts": 90.5, "cat": "ac2g", "name": "ac2g"},
    {"ph": "s", "id": 1, "pid": 11, "tid": 12, "ts": 80, "cat": "fwdbwd", "name": "fwdbwd"},
    {"ph": "f", "id": 1, "pid": 11, "tid": 13, "ts": 95, "cat": "fwdbwd", "name": "f", "bp": "e"},
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}},
    {
        "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0,
        "tid": 7, "ts": 106, "dur": 1.5,
        "args": {"device": 0, "stream": "0x7", "correlation": 10, "bytes": 4096},
    },
    {
        "ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "pid": 11, "tid": 12,
        "ts": 70, "dur": 50, "args": {"Python id": 1},
    },
    {
        "ph": "X", "cat": "python_function", "name": 'a.py(3): "f\\x" \u00e9', "pid": 11,
        "tid": 12, "ts": 70, "dur": 50,
    },
    {
        "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 11, "tid": 12,
        "ts": 60, "dur": 70,
    },
    {
        "ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "pid": 0, "tid": 7,
        "ts": 60, "dur": 70, "args": {"External id": 1},
    },
)  # fmt: skip

PIECES: Final = (
    b'"', b"\\", b"\0", b"\n", b"\x1f", b"\xff", b"\xc3", b'},{"ph":"X"', b"[", b"]", b"{", b"}",
    b",", b":", b"NaN", b"-Infinity", b"1e5", b"1E-3", b"1e512", b"99999999999999999999", b"null",
    b"true", b"\\ud800", b"\\u0041", b'"ph":"X",', b'"ph":"b",', b'"args":{},', b'"args":[1],',
    b'"name":5,', b'"name":null,', b'"ts":"12.5",', b'"pid":null,', b'"stream":true,',
    b'"device":1.7,', b"-", b".5", b"0x", b" ", b"\t", b"\x0b", b"]}", b'"correlation":-3,',
    b'"tid":"stream 8",', b"\xed\xa0\x80", b'"dur":-1,', b'"ts":-0.0,',
)  # fmt: skip


def mutated(rng: Random) -> bytes:
    """A document of a few events in one of the layouts, changed in one to three places."""
    events = [rng.choice(EVENTS) for _ in range(rng.randint(1, 8))]
    text = bytearray(rng.choice(LAYOUTS)(events, {"schemaVersion": 1}))
    for _ in range(rng.randint(1, 3)):
        _mutate(text, rng)
    return bytes(text)


def _mutate(text: bytearray, rng: Random) -> None:
    at, way = rng.randrange(len(text) + 1), rng.random()
    if way < 0.5:
        text[at:at] = rng.choice(PIECES)
    elif way < 0.7:
        del text[at : at + rng.randint(1, 20)]
    elif way < 0.85:
        text[at : at + 1] = bytes((rng.randrange(256),))
    elif way < 0.93:
        del text[at:]
    else:
        source = rng.randrange(len(text) + 1)
        text[at:at] = text[source : source + rng.randint(1, 60)]
