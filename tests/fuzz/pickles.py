"""`make fuzz`: reads hostile pickles as snapshots of memory; nothing of them may be executed.

Each is read in a process of its own, in the limits of the reader's child: it gives a reply, or an
exception, or the process dies by a limit or by its stack; never does it import, open or start
anything, nor take much memory.
"""

import argparse
import os
import pickle
import pickletools
import resource
import select
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from io import BytesIO
from random import Random
from time import monotonic
from typing import Final, NoReturn

from chopperd.traces.read.snapshot import limit, reply_to, snapshots_of

_OPCODES: Final = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
_CPU_LIMIT_S: Final = 1
_TIME_LIMIT_S: Final = 60.0
"""Of the clock on the wall, on a machine that others use too."""
_MOST_GROWTH_MIB: Final = 400
READ, REFUSED, DIED, EXECUTED, GREW, HUNG = "read", "refused", "died", "executed", "grew", "hung"
#: What an input must not come to.
FAILURES: Final = frozenset({EXECUTED, GREW, HUNG, "wrong reply"})
_EXECUTED_STATUS: Final = 77
_REFUSED_STATUS: Final = 1

_CALLS: Final = (
    b"cos\nsystem\n(Vtouch /tmp/pwned\ntR.",
    b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    b"cbuiltins\neval\n(V__import__('os').abort()\ntR.",
    b"(ios\nabort\n.",
    b"\x80\x02cbuiltins\nopen\nX\x0a\x00\x00\x00/tmp/pwnedX\x01\x00\x00\x00w\x86R.",
    b"ccopyreg\n_reconstructor\n(cbuiltins\nobject\ncbuiltins\nobject\nNtR.",
    b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x06import\x94\x85R.",
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntVb\ntR.",
    b"Pos.system\n.", b"Vos.system\nQ.", b"\x80\x02\x82\x01.", b"\x80\x02\x84\xff\xff\xff\x7f.",
    b"}(Vsegments\n(cos\nabort\noVx\nVy\nu.", b"}V__class__\ncos\nabort\nsb.",
    b"\x80\x05\x97.", b"\x80\x05\x97\x98.",
)  # fmt: skip
_NEST: Final = 200_000
_GREEDY: Final = (
    *(b"]r\x00\x00\x00\x04.", b"]r\xff\xff\xff\x7f.", b"]p2147483647\n."),
    b"\x80\x05\x96\x00\x00\x00\x00\x00\x01\x00\x00.",
    b"\x80\x04\x8d\x00\x00\x00\x00\x01\x00\x00\x00.",
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    *(b"\x8b\xff\xff\xff\x7f.", b"T\xff\xff\xff\x7f.", b"L" + b"9" * 20_000 + b"L\n."),
    *(b"(" * _NEST + b"t" * _NEST + b".", b"]" + b"\x85" * _NEST + b"."),
    *(b"}N" + b"\x85" * _NEST + b"Ns.", b"N" + b"\x85" * _NEST + b"}\x8c\x01xs."),
    *(b"N" + b"2\x86" * 60 + b".", b"}N" + b"2\x86" * 60 + b"Ns."),  # of 2**60 parts, shared
)


def snapshot_tree(random: Random) -> dict[str, object]:
    """A snapshot as torch writes it, of a few blocks."""
    frames = [{"name": "f", "filename": "m.py", "line": n} for n in range(3)]
    actions = ("alloc", "free_requested", "free_completed", "segment_alloc", "snapshot", "oom")
    entries = [
        {
            "action": random.choice(actions),
            "addr": 140_000_000_000_000 + 512 * random.randrange(8),
            "size": random.choice((512, 1 << 20, 70_000)),
            "stream": 0,
            "time_us": 1_790_857_026_000_000 + number,
            "frames": frames[: random.randrange(4)],
            "compile_context": "N/A",
        }
        for number in range(random.randrange(12))
    ]
    block = {"address": 140_000_000_000_000, "size": 512, "requested_size": 500}
    segment = {
        **{"device": 0, "address": 140_000_000_000_000, "total_size": 2 << 20, "stream": 0},
        **{"allocated_size": 512, "segment_type": "small", "segment_pool_id": (0, 0)},
        **{"is_expandable": False, "blocks": [{**block, "state": "active_allocated"}]},
    }
    return {
        "segments": [segment] * random.randrange(3),
        "device_traces": [entries, []],
        "external_annotations": [],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
    }


def hostile(number: int, run: int) -> bytes:
    """The pickle of a number; of equal numbers it is equal."""
    random = Random(number * 1_000_003 + run)
    ways: Sequence[Callable[[Random], bytes]] = (_opcodes, _mutated, _mutated, _spliced, _chosen)
    return random.choice(ways)(random)


def _opcodes(random: Random) -> bytes:
    """Opcodes at random, with arguments that fit most of them."""
    parts = [b"\x80" + bytes([random.randrange(7)])] if random.random() < 0.5 else []
    for _ in range(random.randrange(1, 60)):
        parts.append(random.choice(_OPCODES))
        if random.random() < 0.7:
            parts.append(
                random.choice(
                    (
                        *(b"\x01", b"\x00\x00\x00\x00", b"5\n", b"os\nsystem\n", b"x", b"\x03abc"),
                        *(random.randbytes(4), struct.pack("<q", random.getrandbits(63)), b"\n"),
                    )
                )
            )
    return b"".join(parts) + b"."


def _sound(random: Random) -> bytes:
    return pickle.dumps(snapshot_tree(random), random.choice((0, 1, 2, 4, 5)))


def _mutated(random: Random) -> bytes:
    """A sound snapshot with some bytes changed."""
    data = bytearray(_sound(random))
    for _ in range(random.choice((0, 1, 1, 2, 5, 30))):
        at = random.randrange(len(data) or 1)
        way = random.randrange(5)
        if way == 0:
            data[at : at + 1] = random.randbytes(1)
        elif way == 1:
            data[at:at] = random.choice(_OPCODES)
        elif way == 2:
            del data[at : at + random.choice((1, 4, 40))]
        elif way == 3:
            data[at:at] = data[at : at + 50] * random.choice((1, 3))
        else:
            data[at : at + 4] = struct.pack("<I", random.choice((0, 1 << 26, 1 << 31, 255)))
    return bytes(data)


def _spliced(random: Random) -> bytes:
    """A call, or an object that asks for much, in the middle of a sound snapshot."""
    data, call = _sound(random), random.choice((*_CALLS, *_GREEDY))
    at = random.choice([at for _, _, at in pickletools.genops(data) if at is not None])
    return data[:at] + call.removesuffix(b".") + data[at:]


def _chosen(random: Random) -> bytes:
    return random.choice((*_CALLS, *_GREEDY))


def outcome(data: bytes) -> str:
    """Read a pickle in a forked process; what it came to."""
    ours, theirs = os.pipe()
    process = os.fork()
    if not process:
        os.close(ours)
        _read_in_child(data, theirs)
    os.close(theirs)
    try:
        reply, is_over = _all_of(ours)
        if not is_over:
            os.kill(process, signal.SIGKILL)
    finally:
        os.close(ours)
    _, status, usage = os.wait4(process, 0)
    if not is_over:
        return HUNG
    if usage.ru_maxrss / 1024 > _base_mib() + _MOST_GROWTH_MIB:
        return GREW
    if os.WIFSIGNALED(status):
        return DIED
    if code := os.waitstatus_to_exitcode(status):
        return {_EXECUTED_STATUS: EXECUTED, _REFUSED_STATUS: REFUSED}.get(code, f"status {code}")
    try:
        snapshots_of(reply)
    except Exception:  # noqa: BLE001 (any is what is looked for)
        return "wrong reply"
    return READ


def _base_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _all_of(file: int) -> tuple[bytes, bool]:
    """All bytes of a pipe, and whether it ended in time."""
    data, end_s = b"", monotonic() + _TIME_LIMIT_S
    while (left_s := end_s - monotonic()) > 0:
        if select.select([file], [], [], left_s)[0]:
            piece = os.read(file, 1 << 16)
            if not piece:
                return data, True
            data += piece
    return data, False


def _read_in_child(data: bytes, answer: int) -> NoReturn:
    """Read a pickle in limits, and write the reply; exit with what happened as status."""
    status = _REFUSED_STATUS
    try:
        limit(len(data))
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_LIMIT_S, _CPU_LIMIT_S))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # CPython prints a fault of its own there
        sys.addaudithook(_no_event)
        reply = reply_to(BytesIO(data))
        while reply:
            reply = reply[os.write(answer, reply) :]
        status = 0
    except Exception:  # noqa: BLE001 (as the reader's child does)
        status = _REFUSED_STATUS
    finally:
        os._exit(status)


def _no_event(event: str, _args: tuple[object, ...]) -> None:
    """End the process at anything that a pickle has no business with."""
    harmless = ("gc.", "object.__getattr__", "sys._getframe", "cpython.", "sys.excepthook")
    if not event.startswith(harmless):
        os._exit(_EXECUTED_STATUS)


def main(arguments: Sequence[str]) -> int:
    """Read pickles; 1 if one was executed, or its reading not bounded."""
    parser = argparse.ArgumentParser(prog="tests.fuzz.pickles", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    seen: Counter[str] = Counter()
    for number in range(options.first, options.first + options.count):
        found = outcome(hostile(number, options.seed))
        seen[found] += 1
        if found in FAILURES or found.startswith("status"):
            again = f"--seed {options.seed} --first {number} --count 1"
            print(f"{found}: python -m tests.fuzz.pickles {again}", flush=True)
    print(f"{options.count} hostile pickles: {dict(seen.most_common())}")
    return int(any(found in FAILURES or found.startswith("status") for found in seen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
