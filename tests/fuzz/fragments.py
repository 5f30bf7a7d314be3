"""Pieces of text and values that readers of JSON and of traces trip over."""

from decimal import Decimal
from typing import Final

from msgspec import Raw

FRAGMENTS: Final = (
    *(b'"', b"\\", b'\\"', b"\\u00", b"\\ud83d", b"\\ude00", b"\\x", b"'", b"`"),
    *(b"\0", b"\x01", b"\x1f", b"\x7f", b"\t", b"\n", b"\r\n", b"\x0b", b"\x0c", b" " * 50),
    *(b"\xff", b"\xc3", b"\xe2\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"),
    *(b"{", b"}", b"[", b"]", b",", b":", b",,", b"{}", b"[]", b"}}", b"]]", b"]}", b"},", b"},{"),
    *(b'},{"ph":"X"', b'"},\n  {\n    "ph": "X", "cat": "kernel"', b'}],"x":[', b'"traceEvents":['),
    *(b"NaN", b"-Infinity", b"Infinity", b"null", b"true", b"nul", b"-", b"+1", b"01", b".5"),
    *(b"5.", b"1e5", b"1e999", b"-1e999", b"1e-999", b"9" * 19, b"9" * 40, b"9" * 400, b"0x7"),
    *(b"nan", b"-inf", b"None", b"0x7f", b"1.", b":,", b": }", b"[,", b",]", b"4. ", b"nan,"),
    *(b"1E+2", b"-0", b",NaN,", b", 7 ", b',"x"', b",{}", b",null", b":NaN", b"[NaN]"),
    *(b"/* x */", b"// x\n", b"#", b"[" * 40, b"[" * 3000, b'{"a":' * 40, b'{"a":' * 3000),
    *(b'"args":{"device":0},', b'"ph":"X",', b'"name":"x",', b'"ts":5,', b'"a' * 100, b"a" * 3000),
    *(b'"args":{},', b'"args":[1],', b'"ph":7,', b'"ts":null,', b'"dur":"5",', b'"cat":"kernel",'),
)
"""Texts put where they may not stand, or may."""

PIECES: Final = (
    *(b'{"ph":"X"}', b'{"ph":"X","cat":"cuda_runtime","ts":1,"dur":1}', b'{"ph":"X","a":NaN}'),
    *(b'{"a":1}', b'{"ph":5}', b'{"ph":"X","x":[{"ph":"X"},{"a":1},{"name":2}]}', b'"ph":"X"'),
    *(b",", b",", b",", b"]", b"}", b"{", b'"', b"[", b":", b" ", b"\\", b"\n", b"\x0b", b"\0"),
    *(
        b"7",
        b"0",
        b"-",
        b".",
        b'"x"',
        b"x",
        b"true",
        b"nul",
        b"NaN",
        b"-Infinity",
        b"[NaN]",
        b"[1]",
    ),
    *(b'},{"ph":"X"', b'},{"name":', b'"ph"', b'"name":', b"]}", b'],"a":1}', b"\xff", b"\\u0041"),
    *(b'"\\ud800"', b"-1", b"e5", b'"ts":', b'{"ph":"X"', b"[[", b"}}"),
)
"""What arrays of events are made of, and what breaks them."""

NUMBERS: Final = (
    *(b"0", b"-1", b"-0.0", b"1e3", b"1E-3", b"1e400", b"9223372036854775807", b"5e-1", b"12E2"),
    *(b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"1099511627776"),
    *(b"0.0000000000000000000000001", b"1.5e15", b"4000000000000001", b"25300000000000000001"),
    *(b"0.0005", b"0.0015", b"1000.0005", b"1000.00049999999999999999", b"2000.0005000000000001"),
    *(b"8796093022208.5", b"8796093022207.9995", b"-3.0005", b"1" * 300, b"7.0", b"7.5"),
    *(b"1790857026000000.1234", b"1790857026000000.1235", b"4000000000000000", b"1e-7", b"1e5e"),
    *(
        b"00",
        b"01",
        b"-01",
        b"1.",
        b"1.e5",
        b"- 1",
        b"1_000",
        b"1e+",
        b"0e0",
        b"5e1111111111111",
        b"9" * 5000,
    ),
)
"""Numbers, and what is nearly one, as text."""

STAND_INS: Final = (
    *(b"NaN", b"-Infinity", b"null", b"true", b"false", b'"7"', b'"0x7"', b'"stream 7"', b'"-3"'),
    *(b'"7.5"', b'" 7 "', b'"7."', b'".5"', b'"1e2"', b'"+7"', b'"1_0"', b'"\\u0037"', b'"7\\n"'),
    *(b'"stream  7"', b'"stream -1"', b'"0X1f"', b'"inf"', b'"nan"', b'""', b"[7]", b"{}", b"[]"),
    *(b'"\xd9\xa7"', b'"stream 99999999999999999999"', b'"0xffffffffffffffff"', b'"0x"'),
)
"""What stands in the place of a number in some files, or might."""

VALUES: Final[tuple[object, ...]] = (
    *(None, True, False, 0, -1, 7.5, 2**31, 2**31 - 1, 2**40, 2**44, 2**62, 2**63, 2**64, 10**19),
    *(1e300, 4e15, -4e15, Decimal("0.0005"), Decimal("-0.001"), Decimal("1e5"), 1),
    *("", "7", "0x7", "stream 7", "x" * 1000, "\0\x01\x1f", 'a"b\\c', "\ud7ff\U0001f600"),
    *([], {}, [[]], [None], [{"ph": "X", "cat": "kernel"}], {"ph": "X"}, [["},{"]], [[[[[[]]]]]]),
    *(Raw(text) for text in (b"1e3", b"1E+2", b"-0", b"-0.0", b"1e400", b"0.00050", b"12.3456789")),
    *(Raw(b'"\\u0037"'), Raw(b'"a\\/b"'), Raw(b"5e-1"), Raw(b"5e1111111111111111111")),
)
"""Values that are JSON."""

ELEMENTS: Final[tuple[object, ...]] = (
    *(None, 7, "x", True, [], {}, [[]], {"ph": 7}, {"cat": "kernel"}, {"ph": None}, 0, -1, 7.5, ""),
    *([{"ph": "X"}], {"args": {}}, {"ph": "X"}, {"ph": "XX"}, {"ph": ""}, {"ph": "\u00fc"}),
)
"""Elements that are no events of use."""

PHASES: Final = (
    "X",
    "s",
    "f",
    "t",
    "i",
    "I",
    "M",
    "B",
    "E",
    "b",
    "n",
    "e",
    "C",
    "N",
    "D",
    "p",
    "x",
)
CATEGORIES: Final[tuple[object, ...]] = (
    *("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset", "cuda_runtime"),
    *("cuda_driver", "Runtime", "cpu_op", "Operator", "user_annotation", "python_function"),
    *("gpu_user_annotation", "fwdbwd", "ac2g", "overhead", "", "KERNEL", None, 7),
    *(
        "cpu_instant_event",
        "xpu_runtime",
        "privateuse1_driver",
        "mtia_runtime",
        "musa_driver",
        "xpu_op",
    ),
)
NAMES: Final[tuple[object, ...]] = (
    *("nn.Module: X", "nn.Module: ", "nn.Module:", "aten::mm", "aten::bmm", "ProfilerStep#1"),
    *("Optimizer.step#X", "", "x" * 300, "a\tb", "nn.Module: \u00e9", "ncclKernel", None, 7, []),
    *("[memory]", "[OutOfMemory]", "[memory", "[Memory]"),
)
