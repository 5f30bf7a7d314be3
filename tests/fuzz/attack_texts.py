"""Texts of traces that are made to take long to read; and a sound one to hold them against."""

import gzip
from collections.abc import Callable
from itertools import count
from typing import Final

_HEAD: Final = b'{\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n  '
_TAIL: Final = b'\n  ],\n  "traceName": "t"\n}'

_GZIP_RATIO: Final = 20

Attack = Callable[[int], bytes]
"""The text of a trace of about so many bytes."""


def sound(size_bytes: int) -> bytes:
    """A trace as torch writes it, one key a line, 300 bytes an event."""
    return _document(_event, size_bytes)


def _event(number: int, **changed: bytes) -> bytes:
    """A launch or its kernel; some of their fields as given."""
    launch = number % 2 == 0
    fields = {
        "cat": b'"cuda_runtime"' if launch else b'"kernel"',
        "name": b'"cudaLaunchKernel"' if launch else b'"void gemm_%d(float*)"' % (number % 50),
        "pid": b"4242" if launch else b"0",
        "tid": b"4242" if launch else b"7",
        "ts": b"%d.%03d" % (1000 + 5 * number, number % 1000),
        "dur": b"3.125",
        "args": b'{\n      "External id": %d, "device": 0, "stream": 7, "correlation": %d,\n'
        b'      "grid": [128, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %%": 31\n    }'
        % (number + 1, number // 2 + 1),
    } | changed
    lines = (b'"%s": %s' % (key.encode(), value) for key, value in fields.items())
    return b'{\n    "ph": "X", ' + b",\n    ".join(lines) + b"\n  }"


def _document(event: Callable[[int], bytes], size_bytes: int) -> bytes:
    """A whole document, of events by their number."""
    parts, size = [], 0
    for number in count():
        parts.append(event(number))
        size += len(parts[-1])
        if size >= size_bytes:
            return _HEAD + b",\n  ".join(parts) + _TAIL
    raise AssertionError


def _of_events(**changed: Callable[[int], bytes]) -> Attack:
    def text(size_bytes: int) -> bytes:
        return _document(
            lambda number: _event(number, **{key: of(number) for key, of in changed.items()}),
            size_bytes,
        )

    return text


def _filled(before: bytes, piece: bytes, after: bytes = b"") -> Attack:
    """A document whose array has an event and then a piece over and over."""

    def text(size_bytes: int) -> bytes:
        body = before + piece * (size_bytes // len(piece)) + after
        return _HEAD + _event(0) + b",\n  " + body + _TAIL

    return text


def _in_head(piece: bytes) -> Attack:
    def text(size_bytes: int) -> bytes:
        return (
            b'{"before": ['
            + piece * (size_bytes // len(piece))
            + b"0],\n"
            + _HEAD[1:]
            + (_event(0) + _TAIL)
        )

    return text


def _in_tail(piece: bytes) -> Attack:
    def text(size_bytes: int) -> bytes:
        return _HEAD + _event(0) + b'\n], "after": [' + piece * (size_bytes // len(piece)) + b"0]}"

    return text


def _cut_sound(size_bytes: int) -> bytes:
    return sound(size_bytes)[:-100]


def _in_second_list(size_bytes: int) -> bytes:
    return _HEAD + _event(0) + b'\n], "traceEvents": [' + sound(size_bytes)[len(_HEAD) :]


def _in_lists(events: int) -> Attack:
    """One list after another, each of some events."""

    def text(size_bytes: int) -> bytes:
        one = b',\n"traceEvents": [' + b",".join(map(_event, range(events))) + b"]"
        return _HEAD + _event(0) + b"\n]" + one * (size_bytes // len(one)) + b"}"

    return text


def _in_documents(size_bytes: int) -> bytes:
    one = _HEAD + _event(0) + _TAIL
    return one * (size_bytes // len(one))


def _no_events(piece: bytes) -> Attack:
    def text(size_bytes: int) -> bytes:
        return b'{"a": [' + piece * (size_bytes // len(piece)) + b"0]}"

    return text


def _head_of_keys(size_bytes: int) -> bytes:
    keys = b"".join(b'"key_%d": 1,' % number for number in range(size_bytes // 14))
    return b"{" + keys + _HEAD[1:] + _event(0) + _TAIL


def _damaged_head(piece: bytes) -> Attack:
    """A long head whose end is damaged, so that it is no JSON."""

    def text(size_bytes: int) -> bytes:
        head = b'{"a": [' + piece * (size_bytes // len(piece)) + b'0], "b" 1,'
        return head + _HEAD[1:] + _event(0) + _TAIL

    return text


def _nested_lists_behind_head(size_bytes: int) -> bytes:
    head = b'{"a": [' + b'{"a": [1, 2]}, ' * (size_bytes // 15) + b'{"traceEvents": [1]}, ' * 9
    return head + b"0],\n" + _HEAD[1:] + _event(0) + _TAIL


def _kept(category: bytes, name: bytes, args: Callable[[int], bytes]) -> Attack:
    """Events of one category and name, by their arguments."""
    return _of_events(cat=lambda _: b'"%s"' % category, name=lambda _: name, args=args)


def _flow(number: int) -> bytes:
    """One end of an arrow, all of one id."""
    start = b'"ph": "s"' if number % 2 == 0 else b'"ph": "f", "bp": "e"'
    return b'{%s, "id": 7, "pid": 1, "tid": 2, "ts": %d, "cat": "fwdbwd", "name": "a"}' % (
        start,
        number,
    )


def _mixed(number: int) -> int:
    """Numbers in no order, each once."""
    return number * 7919 % 1000003


ATTACKS: Final[dict[str, Attack]] = {
    "a quote in every name": _of_events(name=lambda n: b'"a"b_%d"' % n),
    "a quote in every 10th name": _of_events(name=lambda n: b'"a"b"' if n % 10 == 0 else b'"ab"'),
    "a quote in every 1000th name": _of_events(
        name=lambda n: b'"a"b"' if n % 1000 == 0 else b'"ab"'
    ),
    "an opening quote too many in every name": _of_events(name=lambda n: b'""a_%d"' % n),
    "no closing quote in any name": _of_events(name=lambda n: b'"a_%d' % n),
    "a control byte in every name": _of_events(name=lambda n: b'"a\x01b_%d"' % n),
    "a lone backslash in every name": _of_events(name=lambda n: rb'"C:\app\new_%d"' % n),
    "a stray byte in every name": _of_events(name=lambda n: b'"a\xff_%d"' % n),
    "half a surrogate in every name": _of_events(name=lambda n: rb'"a\ud83d_%d"' % n),
    "NaN as every duration": _of_events(dur=lambda _: b"NaN"),
    "NaN as every number": _of_events(
        dur=lambda _: b"NaN", ts=lambda _: b"NaN", pid=lambda _: b"NaN"
    ),
    "every name of escapes": _of_events(name=lambda _: b'"' + rb"\u0041\n\"" * 20 + b'"'),
    "every name another one": _of_events(name=lambda n: b'"kernel_%d_%d"' % (n, n * 7919)),
    "every thread another one": _of_events(tid=lambda n: b"%d" % n),
    "times with exponents": _of_events(ts=lambda n: b"%d.5e1" % (100 + n), dur=lambda _: b"1E-1"),
    "times of 19 digits": _of_events(ts=lambda n: b"1790857026%06d.125" % (n % 10**6)),
    "times of 40 digits": _of_events(ts=lambda n: b"1000%06d.%s" % (n % 10**6, b"1" * 30)),
    "ids of 20 digits": _of_events(
        args=lambda n: b'{"correlation": 2530000000000000%04d, "device": 0}' % (n % 10**4)
    ),
    "types of no event": _of_events(pid=lambda _: b"[7]", ts=lambda _: b'"5"'),
    "1000 arguments an event": _of_events(
        args=lambda _: b"{" + b",".join(b'"key_%d": %d' % (k, k) for k in range(1000)) + b"}"
    ),
    "1000 times the same key": _of_events(args=lambda _: b"{" + b'"stream": 7,' * 999 + b'"a": 0}'),
    "borders of events in every name": _of_events(
        name=lambda _: b'"' + rb"},{\"ph\":\"X\"" * 20 + b'"'
    ),
    "borders of events in unescaped names": _of_events(
        name=lambda _: b'"' + b'},{"ph":"X"' * 20 + b'"'
    ),
    "lists of objects like events": _of_events(
        args=lambda _: b'{"x": [' + b'{"name": "x"}, ' * 20 + b"0]}"
    ),
    "damaged lists of objects like events": _of_events(
        args=lambda _: b'{"x": [' + b'{"name": "x"}, ' * 20 + b"]]}"
    ),
    "no commas between events": lambda size: sound(size).replace(b"},\n  {", b"}\n  {"),
    "one string without end": _filled(b'{"ph": "X", "name": "', b"a" * 1000),
    "one string without end, of borders": _filled(
        b'{"ph": "X", "name": "', rb"},{\"ph\": \"X\", " * 50
    ),
    "one event as long as the file": _filled(
        b'{"ph": "X", "args": {', b'"key": [1, 2],', b'"a": 0}}'
    ),
    "one event of events": _filled(b'{"ph": "X", "args": [', b'{"ph": "X"}, ', b"0]}"),
    "a damaged event of events": _filled(b'{"ph": "X" "args": [', b'{"name": "X"}, ', b"0]}"),
    "a damaged event of ends": _filled(b'{"ph": "X" "args": [', b'{}], "a": [', b"0]}"),
    "lists in lists": _filled(b"", b"["),
    "lists in lists, in an event": _filled(b'{"ph": "X", "args": ', b"["),
    "objects in objects": _filled(b'{"ph": "X", "args": ', b'{"a":'),
    "closing brackets": _filled(b"", b"]"),
    "closing braces": _filled(b"", b"}"),
    "empty objects": _filled(b"", b"{},", b"{}"),
    "empty strings": _filled(b"", b'"",', b'""'),
    "nulls": _filled(b"", b"null,", b"null"),
    "commas": _filled(b"", b","),
    "quotes": _filled(b"", b'"'),
    "backslashes": _filled(b'{"ph": "X", "name": "', b"\\"),
    "white space": _filled(b"", b" \n\t"),
    "null bytes": _filled(b"", b"\0"),
    "stray bytes": _filled(b"", b"\xff"),
    "digits": _filled(b'{"ph": "X", "ts": ', b"1"),
    "opening keys of events": _filled(b"", b'{"ph": "X", '),
    "halves of events": _filled(b"", b'{"ph": "X", "name": "a},'),
    "a long head": _in_head(b'{"a": [1, 2]}, '),
    "a head of event lists": _in_head(b'{"traceEvents": [1]}, '),
    "a head of event lists in text": _in_head(rb'"\"traceEvents\": [", '),
    "a long tail": _in_tail(b'{"a": [1, 2]}, '),
    "a tail of brackets": _in_tail(b"[], "),
    "no end": _cut_sound,
    "all events in a second list": _in_second_list,
    "lists of one event": _in_lists(1),
    "lists of no event": _in_lists(0),
    "lists of 100 events": _in_lists(100),
    "documents of one event": _in_documents,
    "no list of events": _no_events(b"{}, "),
    "a head of keys": _head_of_keys,
    "a damaged head": _damaged_head(b'{"a": [1, 2]}, '),
    "a head of NaN": _in_head(b"NaN, "),
    "a head of NaN and numbers": _in_head(b"NaN, 1, "),
    "a head of half surrogates": _in_head(rb'"\ud83d", '),
    "a head of escapes": _damaged_head(b'"' + rb"\n" * 20 + b'", '),
    "a head of stray bytes": _in_head(b'"\xff\xff\xff", '),
    "a head of nested event lists at its end": _nested_lists_behind_head,
    "a tail of NaN": _in_tail(b"NaN, "),
    "every name another one, in no order": _of_events(name=lambda n: b'"%d_kernel"' % _mixed(n)),
    "every name another one, not ASCII": _of_events(
        name=lambda n: '"\N{GREEK SMALL LETTER ALPHA}%d"'.encode() % _mixed(n)
    ),
    "every thread another text": _of_events(tid=lambda n: b'"t%d"' % _mixed(n)),
    "every category another one": _of_events(cat=lambda n: b'"category %d"' % _mixed(n)),
    "every collective another one": _kept(
        b"kernel",
        b'"nccl"',
        lambda n: b'{"Collective name": "a%d", "In msg nelems": %d}' % (_mixed(n), n),
    ),
    "every field of collectives another one": _kept(
        b"kernel",
        b'"nccl"',
        lambda n: (
            b'{"Collective name": "a%d", "In msg nelems": %d, "dtype": "%d", "Group size": %d,'
            b'"Out msg nelems": %d, "Process Group Name": "%d", "Process Group Description": "%d",'
            b'"Process Group Ranks": "[%d]"}' % ((_mixed(n),) * 8)
        ),
    ),
    "every shape another one": _kept(
        b"cpu_op",
        b'"aten::mm"',
        lambda n: (
            b'{"Input Dims": [[%d, %d]], "Input type": ["%d"], "Concrete Inputs": ["%d"]}'
            % ((_mixed(n),) * 4)
        ),
    ),
    "every operator another one, with shapes": _of_events(
        cat=lambda _: b'"cpu_op"',
        name=lambda n: b'"aten::mm_%d"' % _mixed(n),
        args=lambda n: b'{"Input Dims": [[%d]]}' % n,
    ),
    "shapes of 100 kB": _kept(
        b"cpu_op", b'"aten::mm"', lambda _: b'{"Input Dims": [%s0]}' % (b"[1],[]," * 14000)
    ),
    "shapes nested deep": _kept(
        b"cpu_op", b'"aten::mm"', lambda n: b'{"Input Dims": %s%d%s}' % (b"[" * 500, n, b"]" * 500)
    ),
    "arguments nested deep": _of_events(
        args=lambda _: b"{" + b'"a":[' * 1 + b"[" * 500 + b"]" * 501 + b"}"
    ),
    "arguments nested too deep": _of_events(
        args=lambda _: b'{"a":' + b"[" * 600 + b"]" * 600 + b"}"
    ),
    "names of 100 kB": _of_events(name=lambda n: b'"%d%s"' % (n, b"ma" * 50000)),
    "names of 1 MB": _of_events(name=lambda n: b'"%d%s"' % (n, b"a" * 1000000)),
    "operators of 1 MB": _of_events(
        cat=lambda _: b'"cpu_op"',
        name=lambda n: b'"%d%s"' % (n, b"mamha" * 200000),
        args=lambda _: b'{"Input Dims": []}',
    ),
    "all times equal": _of_events(ts=lambda _: b"1000.5"),
    "all times falling": _of_events(ts=lambda n: b"%d.5" % (10**9 - n)),
    "times in no order": _of_events(ts=lambda n: b"%d.5" % _mixed(n)),
    "copies of one event": lambda size: _document(lambda _: _event(1), size),
    "copies of one launch": lambda size: _document(lambda _: _event(0), size),
    "one correlation": _of_events(args=lambda _: b'{"device": 0, "stream": 7, "correlation": 1}'),
    "every stream another one": _of_events(
        args=lambda n: b'{"device": 0, "stream": %d, "correlation": %d}' % (n, n // 2 + 1)
    ),
    "every device another one": _of_events(
        args=lambda n: b'{"device": %d, "stream": 7, "correlation": %d}' % (n, n // 2 + 1)
    ),
    "flows of one id": lambda size: _document(_flow, size),
    "zeros between events": lambda size: sound(size).replace(b"},\n  {", b"},00,{"),
    "a damaged event in 3": _of_events(name=lambda n: b'"a"b"' if n % 3 == 0 else b'"ab"'),
    "annotations": _of_events(
        cat=lambda _: b'"user_annotation"', name=lambda n: b'"ProfilerStep#%d"' % n
    ),
    "modules": _of_events(
        cat=lambda _: b'"python_function"', name=lambda n: b'"nn.Module: M_%d"' % (n % 100)
    ),
    "nested modules": _of_events(
        cat=lambda _: b'"python_function"',
        name=lambda n: b'"nn.Module: M_%d"' % (n % 100),
        ts=lambda n: b"%d" % n,
        dur=lambda n: b"%d" % (10**7 - 2 * n),
    ),
}


def sound_gzip(size_bytes: int) -> bytes:
    """A sound trace, compressed to about so many bytes."""
    return gzip.compress(sound(_GZIP_RATIO * size_bytes))


def _members(text_bytes: int) -> Attack:
    """Many gzip members, each of so much text."""

    def text(size_bytes: int) -> bytes:
        whole = sound(size_bytes)
        parts: list[bytes] = []
        stored = at = 0
        while stored < size_bytes and at < len(whole):
            parts.append(gzip.compress(whole[at : at + text_bytes], 1))
            stored, at = stored + len(parts[-1]), at + text_bytes
        return b"".join(parts)

    return text


def _empty_members(size_bytes: int) -> bytes:
    empty = gzip.compress(b"")
    start = sound(2000)
    between = empty * (size_bytes // len(empty))
    return gzip.compress(start[:500]) + between + gzip.compress(start[500:])


GZIP_ATTACKS: Final[dict[str, Attack]] = {
    "members of 1000 bytes": _members(1000),
    "members of 100 bytes": _members(100),
    "empty members": _empty_members,
    "zeros behind the last member": lambda size: gzip.compress(sound(2000)) + bytes(size),
}
"""Against `sound_gzip`."""
