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
