"""The smallest documents that the two decoders once read otherwise, found by `make fuzz`.

Both read sound ones alike; what is damaged only the scanner reads, by its own rules.
"""

import pytest

from chopperd.traces.read.event_array import DamagedTextError
from tests.decoders import Reading, assert_alike, is_sound, reading

CALL = b'{"ph":"X","cat":"cuda_runtime","name":"c","pid":1,"tid":2,"ts":%s,"dur":%s}'
GOOD = CALL % (b"1", b"2")
KERNEL = b'{"ph":"X","cat":"kernel","name":"k\xae","pid":0,"tid":7,"ts":%d,"dur":5,"args":{%s}}'


def read_alike(elements: bytes) -> Reading:
    """What is read whole and in pieces; by both decoders if it is sound."""
    text = b'{"traceEvents":[' + elements + b"]}"
    found = reading(text, native=True)
    for piece_bytes in (1 << 20, 7, 40):
        assert_alike(found, reading(text, native=True, piece_bytes=piece_bytes))
        if is_sound(text):
            assert_alike(found, reading(text, native=False, piece_bytes=piece_bytes))
        else:
            with pytest.raises(DamagedTextError):
                reading(text, native=False, piece_bytes=piece_bytes)
    return found


def starts_ns(found: Reading) -> list[int]:
    return [int(start_ns) for start_ns in found.tables.calls.start_ns]


@pytest.mark.parametrize(
    ("us", "ns"),
    [
        (b"10.0005", 10000), (b"10.0015", 10002), (b"5e-4", 0), (b"105e-4", 10), (b"1.5E-3", 2),
        (b'"10.0005"', 10000), (b"8796093022208.0005", 8796093022208000), (b"1e1", 10000),
        (b"8796093022207.9995", 8796093022208000), (b"   10.00051", 10001),
    ],
)  # fmt: skip
def test_halves_of_a_ns_go_to_the_even_one(us: bytes, ns: int) -> None:
    assert starts_ns(read_alike(CALL % (us, b"1"))) == [ns]


@pytest.mark.parametrize("us", [b'"+7"', b'" 7"', b'".5"', b'"7."', b'"1_0"', b'"07"', b'"x"'])
def test_a_text_that_is_no_json_number_is_no_time(us: bytes) -> None:
    found = read_alike(CALL % (us, b"1"))
    assert (starts_ns(found), found.lost["undecodable_rows"]) == ([], 1)


@pytest.mark.parametrize("number", [b"00", b"01", b"-01", b"1.e5", b"7x", b"truex", b"1_0"])
def test_a_number_or_word_that_goes_on_is_one_damaged_element(number: bytes) -> None:
    found = read_alike(GOOD + b"," + number + b"," + GOOD.replace(b'"ts":1', b'"ts":5'))
    assert (starts_ns(found), found.lost["damaged"], found.lost["undecodable"]) == (
        [1000, 5000],
        1,
        0,
    )


@pytest.mark.parametrize(
    "written",
    [
        b"7", b"-7", b"18446744073709551614", b"18446744073709551616", b"-9223372036854775809",
        b'"0xfffffffffffffffe"', b'"0x1ffffffffffffffff"', b'" +7 "', b'"-0x7"', b'"+-7"', b'"-"',
        b"7.0", b"1e3", b"true", b'"0x"', b"[7]", b'"\\u0037"', b"null", b'""', b'"7g"',
    ],
)  # fmt: skip
def test_sequence_numbers_and_communicators_are_read_alike(written: bytes) -> None:
    kernel = KERNEL.replace(b"\xae", b"") % (1, b'"Seq":%s,"Comms Id":%s' % (written, written))
    frame = GOOD.replace(b"cuda_runtime", b"python_function").replace(b'"c"', b'"f.py(1): f"')
    operator = b'{"ph":"X","cat":"cpu_op","name":"o","pid":1,"tid":2,"ts":1,"dur":1,"args":%s}'
    operator %= b'{"External id":7,"Seq":%s,"Comms Id":%s}' % (written, written)
    linked = KERNEL.replace(b"\xae", b"") % (9, b'"External id":7')
    found = read_alike(b",".join((kernel, frame, GOOD, operator, linked))).tables
    assert found.records.seq[0] == found.records.seq[1]
    assert found.records.comms_id[0] == found.records.comms_id[1]
    assert found.functions == ("f.py(1): f",)


def test_not_a_number_is_a_value_wherever_a_stray_quote_stood_before() -> None:
    """The quote of the damaged name opens no string that the next event lies in."""
    damaged = GOOD.replace(b'"c"', b'"c"c"')
    odd = CALL % (b"9", b'3,"x":[NaN]')
    found = read_alike(b",".join((damaged, odd, CALL % (b"11", b"NaN"), GOOD)))
    assert starts_ns(found) == [1000, 9000]
    assert (found.lost["damaged"], found.lost["undecodable_rows"]) == (1, 1)


def test_not_a_number_in_a_text_stays_behind_a_stray_quote() -> None:
    damaged = GOOD.replace(b'"c"', b'"c"c"')
    named = GOOD.replace(b'"c"', b'"a[NaN] :NaN,"')
    found = read_alike(b",".join((damaged, named)))
    assert found.tables.names == ("a[NaN] :NaN,",)


@pytest.mark.parametrize("value", [b"NaN", b"-NaN", b"Infinity", b"[NaN]", b"nan", b"-Infinity"])
def test_not_a_number_between_events_is_damage_unless_it_is_in_a_list(value: bytes) -> None:
    found = read_alike(b",".join((GOOD, value, GOOD)))
    assert found.lost["damaged"] == (value != b"[NaN]")
    assert starts_ns(found) == [1000]  # the other one is a copy


#: What stands where a value of `args` is due, and is none; torch has written the first.
NO_VALUES = (
    *(b"", b" ", b"nan", b"-nan", b"-NaN", b"inf", b"-inf", b"None", b"True", b"undefined"),
    *(b"default_pg", b"0x7f12", b"01", b"1.", b".5", b"+1", b"1e", b"4. ", b"-", b"1_0", b"1.5.2"),
    *(b"[1, , 2]", b"[,]", b"[1,]", b"[nan, [,None]]", b'{"a": , "b": nan, "c":}'),
)


@pytest.mark.parametrize("value", NO_VALUES)
def test_a_value_that_is_missing_or_is_none_is_null_and_costs_nothing_else(value: bytes) -> None:
    for args in (
        b'"Process Group Description": %s, "correlation": 7',
        b'"correlation": 7, "Process Group Description": %s',
        b'"correlation": 7, "Process Group Description": %s, "Collective name": "allreduce"',
    ):
        found = read_alike(KERNEL % (1, args % value) + b"," + GOOD)
        assert set(found.lost.values()) == {0}
        assert found.tables.records.correlation.tolist() == [7]
        assert [one.group_description for one in found.tables.collectives] in ([], [None])
        assert starts_ns(found) == [1000]


@pytest.mark.parametrize(
    "args",
    [
        b'"Process Group Description": "the "fsdp" group", "correlation": 7, "Group size": 8',
        b'"correlation" : 7 , "Group size": "8", "x": "a"b"',
        b'"x": {"a" 1}, "Group size": 8, "y": [1 2], "correlation": 7',
        b'"x": \x01, "correlation": 7, "Group size": 8, "correlation": 9',
        b'"x": "\xff, "correlation": 7, "Group size":8',
        b'"x": "\\ud800", "y": "\xae", "correlation": 7, "Group size":8, "z" "',
    ],
)
def test_an_event_damaged_in_its_args_is_kept_with_what_can_be_told(args: bytes) -> None:
    damaged = KERNEL % (9, b'"Collective name": "allreduce", "device": 3, ' + args)
    for elements in (damaged + b"," + GOOD, GOOD + b"," + damaged, damaged + b"," + damaged):
        found = read_alike(elements)
        count = elements.count(b"kernel")
        assert found.lost == dict.fromkeys(found.lost, 0) | {"damaged_args": count}
        assert set(found.tables.records.correlation.tolist()) == {7}
        assert set(found.tables.records.device.tolist()) == {3}
        assert [(one.name, one.group_size) for one in found.tables.collectives] == [
            ("allreduce", 8)
        ]
        assert starts_ns(found) == [1000] * (count == 1)


@pytest.mark.parametrize(
    "element",
    [
        b'{"ph":"X","cat":"kernel","name":"a"b","pid":0,"ts":1,"dur":5,"args":{"x": 1}}',
        b'{"ph":"X","cat":"kernel","name":"k","pid":0,"ts":1,"dur":5,"args":{"x": 1} "y"}',
        b'{"ph":"X","cat":"kernel","name":"k","pid":0,"dur":5,"args":{"x" 1}}',
        b'{"ph":"X","cat":"kernel","name":"k","pid":0,"args":{"x" 1},"ts":1,"dur":5}',
        b'{"ph":"X","cat":7,"name":"k","pid":0,"ts":1,"dur":5,"args":{"x" 1}}',
        b'{"ph":"X","cat":"kernel","name":"k","pid":0,"ts":null,"dur":5,"args":{"x" 1}}',
        b'{"ph":"i","cat":"kernel","name":"k","pid":0,"ts":1,"dur":5,"args":{"x" 1}}',
        b'{"ph":"X","cat":"kernel","name":"k","pid":0,"ts":1,"dur":5,"arg":{"x" 1}}',
    ],
)
def test_an_event_that_lacks_more_than_its_args_is_lost(element: bytes) -> None:
    for elements in (element + b"," + GOOD, GOOD + b"," + element):
        found = read_alike(elements)
        assert (found.lost["damaged"], found.lost["damaged_args"]) == (1, 0)
        assert starts_ns(found) == [1000]


@pytest.mark.parametrize("value", [b"", b"nan", b"-NaN", b"None", b"1.", b"[1"])
def test_a_time_that_is_missing_is_that_of_no_row(value: bytes) -> None:
    found = read_alike(CALL % (b"1", value) + b"," + GOOD)
    assert starts_ns(found) == [1000]
    assert found.lost["damaged"] + found.lost["undecodable_rows"] == 1
    assert found.lost["damaged_args"] == 0


def test_shapes_with_what_is_no_value_in_them_are_read_alike() -> None:
    operator = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":2,"ts":%d,"dur":2,%s}'
    dims = (b"[[1, , 2]]", b"[[nan, 2]]", b"[]", b"")
    found = read_alike(
        b",".join(operator % (n, b'"args":{"Input Dims":%s}' % one) for n, one in enumerate(dims))
    )
    assert len(found.tables.spans) == 4


@pytest.mark.parametrize(
    "args", [b'"a" 1', b'"a": b c', b'"a": 1 2', b'"a": "b"c"', b"a: 1", b'"a": 1,', b"", b",,"]
)
def test_what_is_no_missing_value_is_damage_still(args: bytes) -> None:
    found = read_alike(CALL % (b"1", b"1") + b"," + GOOD.replace(b'"name"', args + b',"name"'))
    assert (starts_ns(found), found.lost["damaged"]) == ([1000], 1)


def test_letters_of_names_may_be_escapes() -> None:
    product = (
        b'{"ph":"X","cat":"cpu_op","name":"aten::m\\u006d","pid":1,"tid":2,"ts":1,"dur":2,'
        b'"args":{"Input Dims":[[1,2]]}}'
    )
    module = (
        b'{"ph":"X","cat":"python_function","name":"nn.\\u004dodule: Linear","pid":1,"tid":2,'
        b'"ts":5,"dur":2}'
    )
    found = read_alike(product + b"," + module)
    assert found.tables.names == ("aten::mm", "nn.Module: Linear")
    assert [shapes.dims for shapes in found.tables.shapes] == ["[[1,2]]"]


def test_the_least_integer_is_one_however_it_is_written() -> None:
    arguments = b'3,"args":{"correlation":5},"tid":-9223372036854775808.0'
    assert read_alike(CALL % (b"1", arguments)).tables.threads == ((1, -(2**63)),)


def test_what_follows_damage_is_judged_whole() -> None:
    """An object whose phase is no text is no event, which may not be seen in its first bytes."""
    found = read_alike(b"},{" + b'"ph":5,"args":{"x":1}},' + GOOD)
    assert (starts_ns(found), found.lost["damaged"], found.lost["undecodable"]) == ([1000], 1, 0)


@pytest.mark.parametrize(
    ("us", "ns"),
    [
        (b"9223372036854775808", None), (b"99999999999999999999", None),
        (b"18446744073709551617", None), (b"4000000000000000", 4 * 10**18),
        (b"4000000000000000.000", 4 * 10**18), (b"4000000000000000.001", None),
        (b"4000000000000001", None), (b"1790857026000000.125", 1790857026000000125),
        (b"000", None),
    ],
)  # fmt: skip
def test_times_that_64_bits_or_a_century_do_not_hold_are_none(us: bytes, ns: int | None) -> None:
    found = read_alike(CALL % (us, b"0"))
    assert starts_ns(found) == ([] if ns is None else [ns])


@pytest.mark.parametrize("piece", [b'7"x",', b"x{", b"nul:"])
def test_a_word_without_a_separator_is_a_piece_of_damage_up_to_the_next_event(piece: bytes) -> None:
    """Quotes that are out of step must not be taken for texts between words."""
    found = read_alike(GOOD + b"," + piece + b'"},' + GOOD.replace(b'"ts":1', b'"ts":5'))
    assert (starts_ns(found), found.lost["damaged"]) == ([1000, 5000], 1)


@pytest.mark.parametrize("element", [b"{\x0b}", b"[\x0c]", b'{\x0b"ph":"X"}'])
def test_blanks_that_json_does_not_know_are_damage_within_an_element(element: bytes) -> None:
    found = read_alike(GOOD + b",\x0b" + element + b"}," + GOOD.replace(b'"ts":1', b'"ts":5'))
    assert (starts_ns(found), found.lost["undecodable"]) == ([1000, 5000], 0)
    assert found.lost["damaged"] == 1


@pytest.mark.parametrize("text", [b"\x80", rb"\ud83d", b"5\xff", b"\xc3"])
def test_a_time_that_is_no_unicode_is_none(text: bytes) -> None:
    event = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":2,"ts":"%s","dur":1}'
    found = read_alike(event % text)
    assert (starts_ns(found), found.lost["undecodable_rows"]) == ([], 1)


@pytest.mark.parametrize("category", [b"xpu_runtime", b"mtia_runtime", b"privateuse1_driver"])
def test_runtime_calls_of_other_makers_are_calls(category: bytes) -> None:
    found = read_alike(GOOD.replace(b"cuda_runtime", category))
    assert starts_ns(found) == [1000]
