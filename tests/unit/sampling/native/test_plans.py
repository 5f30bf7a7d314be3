"""Plans in the library's form: what does not fit is refused before any of it is carried out."""

from ctypes import addressof, create_string_buffer
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.devices.read_plan import (
    CallShape,
    NumberKind,
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedStamp,
    PlannedValue,
    ReadPlan,
    SharedLock,
)
from chopperd.model.kinds import Cause
from chopperd.sampling.native.library import Plan, PlanCall, PlanNumber
from chopperd.sampling.native.ticks import NativePlan, PlanMismatchError
from chopperd.units import watts_from_milliwatts

CALL = PlannedCall(
    operation="read", address=1, shape=CallShape.BUFFER, handle=2, buffer=create_string_buffer(16)
)
POWER = PlannedValue(
    call=0, offset=12, kind=NumberKind.UINT32, name="power_w", scale=0.001, low=0.0, high=1e5
)
COUNTER = PlannedCounter(
    call=0, offset=0, kind=NumberKind.UINT64, cause=Cause.THERMAL, low=0, high=2.0**63
)
CAUSES = PlannedCauses(call=0, offset=8, kind=NumberKind.UINT32, causes=(1,) * 64)
PLAN = ReadPlan(calls=(CALL,), values=(POWER,), causes=CAUSES, counters=(COUNTER,))


def numbers_of(plan: NativePlan) -> list[PlanNumber]:
    native = Plan.from_address(plan.address)
    return list((PlanNumber * native.numbers_count).from_address(native.numbers))


def test_a_plan_that_fits_names_its_buffers_and_places() -> None:
    """By hand: a record's words 6 to 12 are its values, power the third; 13 on its counters."""
    plan = NativePlan(PLAN)
    native = Plan.from_address(plan.address)
    assert (native.calls_count, native.causes_call, native.causes_offset) == (1, 0, 8)
    call = PlanCall.from_address(native.calls)
    assert (call.buffer, call.buffer_bytes) == (addressof(CALL.buffer), 16)
    power, counter = numbers_of(plan)
    assert (power.place, power.offset, power.kind) == (8, 12, NumberKind.UINT32)
    assert (counter.place, counter.multiplier, counter.divisor) == (13 + Cause.THERMAL, 1.0, 1.0)


@pytest.mark.parametrize(
    "values",
    [
        (replace(POWER, offset=13),),
        (replace(POWER, offset=-1),),
        (replace(POWER, offset=9, kind=NumberKind.UINT64),),
        (replace(POWER, call=1),),
        (replace(POWER, call=-1),),
        (replace(POWER, checks={13: 0}),),
        (replace(POWER, name="gpu"),),
    ],
)
def test_a_number_that_is_nowhere_is_refused(values: tuple[PlannedValue, ...]) -> None:
    with pytest.raises(PlanMismatchError):
        NativePlan(replace(PLAN, values=values))


@pytest.mark.parametrize(
    "counter",
    [
        replace(COUNTER, cause=len(Cause)),
        replace(COUNTER, cause=-1),
        replace(COUNTER, kind=NumberKind.FLOAT64),
        replace(COUNTER, offset=9),
    ],
)
def test_a_counter_that_is_none_is_refused(counter: PlannedCounter) -> None:
    with pytest.raises(PlanMismatchError):
        NativePlan(replace(PLAN, counters=(counter,)))


@pytest.mark.parametrize(
    "causes",
    [
        replace(CAUSES, offset=14),
        replace(CAUSES, kind=NumberKind.INT32),
        replace(CAUSES, causes=(1,) * 63),
    ],
)
def test_causes_that_are_no_bits_are_refused(causes: PlannedCauses) -> None:
    with pytest.raises(PlanMismatchError):
        NativePlan(replace(PLAN, causes=causes))


def test_without_causes_they_are_not_readable() -> None:
    plan = NativePlan(replace(PLAN, causes=None))
    assert Plan.from_address(plan.address).causes_call == -1


def test_dies_counters_that_add_up_a_lock_and_a_stamp_are_taken_over() -> None:
    """By hand: a record's dies begin after its 23 words and the four numbers of the state."""
    lock = SharedLock()
    die = replace(POWER, name="die_clocks_mhz.7", offset=2, kind=NumberKind.UINT16, scale=1.0)
    wrapped = replace(COUNTER, scale=10.0, addend=5e9)
    stamp = PlannedStamp(call=0, offset=8, kind=NumberKind.UINT64, still_ns=10**9)
    source = ReadPlan(
        calls=(replace(CALL, lock=lock),), values=(die,), counters=(COUNTER, wrapped), stamp=stamp
    )
    plan = NativePlan(source)
    native = Plan.from_address(plan.address)
    assert (native.stamp_call, native.stamp_still_ns) == (0, 10**9)
    assert PlanCall.from_address(native.calls).lock == lock.address
    placed = [(n.place, n.multiplier, n.addend, n.is_counted) for n in numbers_of(plan)]
    thermal = 13 + Cause.THERMAL
    assert placed == [(34, 1.0, 0.0, 0), (thermal, 1.0, 0.0, 1), (thermal, 10.0, 5e9, 1)]
    bare = NativePlan(PLAN)
    native = Plan.from_address(bare.address)
    assert native.stamp_call == -1


@pytest.mark.parametrize("offset", [-1, 9])
def test_a_stamp_that_is_nowhere_is_refused(offset: int) -> None:
    stamp = PlannedStamp(call=0, offset=offset, kind=NumberKind.UINT64, still_ns=1)
    with pytest.raises(PlanMismatchError):
        NativePlan(replace(PLAN, stamp=stamp))


@pytest.mark.parametrize(
    "call",
    [
        replace(CALL, address=0),
        replace(CALL, address=0, shape=CallShape.FILE, argument=17),
        replace(CALL, address=0, shape=CallShape.FILE, argument=0),
        replace(CALL, address=0, shape=CallShape.FILE, argument=16, handle=-1),
    ],
)
def test_a_call_that_can_not_be_made_is_refused(call: PlannedCall) -> None:
    with pytest.raises(PlanMismatchError):
        NativePlan(replace(PLAN, calls=(call,)))


def test_a_file_needs_no_address() -> None:
    call = replace(CALL, address=0, shape=CallShape.FILE, argument=16)
    plan = NativePlan(replace(PLAN, calls=(call,)))
    made = PlanCall.from_address(Plan.from_address(plan.address).calls)
    assert (made.shape, made.argument, made.lock) == (CallShape.FILE, 16, 0)


@given(value_mw=st.integers(0, 2**53))
@settings(max_examples=100, deadline=None)
def test_a_scale_of_a_thousandth_gives_the_last_bit_as_a_division_does(value_mw: int) -> None:
    power = numbers_of(NativePlan(PLAN))[0]
    scaled = float(value_mw) * power.multiplier / power.divisor
    assert scaled == watts_from_milliwatts(value_mw)


@pytest.mark.parametrize(("scale", "factors"), [(0.01, (1, 100)), (1e6, (1e6, 1)), (0.3, (0.3, 1))])
def test_other_scales_divide_where_they_are_one_over_a_whole_number(
    scale: float, factors: tuple[float, float]
) -> None:
    plan = NativePlan(replace(PLAN, values=(replace(POWER, scale=scale),)))
    power = numbers_of(plan)[0]
    assert (power.multiplier, power.divisor) == factors
