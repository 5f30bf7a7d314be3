"""Numbers that JSON allows and no machine holds: found by `make fuzz`."""

import pytest

from tests.decoders import assert_alike, reading

HUGE = b"5e1111111111111111111"


@pytest.mark.parametrize(
    "fields",
    [
        b'"ts":1,"dur":%s' % HUGE,
        b'"ts":%s,"dur":1' % HUGE,
        b'"ts":1,"dur":1,"tid":%s' % HUGE,
        b'"ts":1,"dur":1,"args":{"correlation":%s}' % HUGE,
        b'"ts":1,"dur":1,"args":{"device":%s}' % HUGE,
        b'"ts":1,"dur":1,"args":{"Collective name":"a","Group size":%s}' % HUGE,
        b'"ts":1,"dur":1,"args":{"Input Dims":[%s]}' % HUGE,
    ],
)
@pytest.mark.parametrize("category", [b"cpu_op", b"kernel", b"cuda_runtime"])
def test_exponents_without_end_hurt_only_their_field(category: bytes, fields: bytes) -> None:
    good = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":5}'
    text = b'{"traceEvents":[%s,{"ph":"X","cat":"%s","name":"aten::mm","pid":0,%s}]}'
    found = reading(text % (good, category, fields), native=False)
    assert found.tables.records.end_ns.tolist().count(6000) == 1
    assert_alike(found, reading(text % (good, category, fields), native=True))


LONG = b"9" * 5000
"""More digits than Python makes an integer of."""


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (b'"pid":%s' % LONG, "k"),
        (b'"args":{"correlation":-%s}' % LONG, "k"),
        (b'"args":{"Collective name":"a","Group size":%s}' % LONG, "k"),
        (b'"args":{"Input Dims":[%s, NaN]}' % LONG, "k"),
        (b'"args":{"x":[%s, 1.%s, 1e%s, 1e-%s, "%s"]}' % ((LONG,) * 5), "k"),
        (b'"name":%s' % LONG, LONG.decode()),
    ],
)
def test_integers_without_end_hurt_only_their_field(fields: bytes, name: str) -> None:
    text = b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"k","ts":1,"dur":1,%s},{"ph":"i"}]}'
    found = reading(text % fields, native=True)
    assert (found.tables.names, found.counts) == ((name,), {"cpu_op": 1, "": 1})
    assert set(found.lost.values()) == {0}
