"""What one GPU answers, metric by metric and call by call, and what each costs: for people."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from chopperd.clock import Clock
from chopperd.devices.amd import table
from chopperd.devices.amd.layout import ABSENT, MetricPlace
from chopperd.devices.amd.table import Sensor
from chopperd.devices.amdsmi import numbers
from chopperd.devices.amdsmi.codes import METRICS_CALL
from chopperd.devices.amdsmi.library import Library, SmiError
from chopperd.devices.amdsmi.metrics import SmiSource
from chopperd.devices.channel import CallFailedError, DeviceFaults
from chopperd.devices.read_plan import NumberKind
from chopperd.errors import DeviceLostError
from chopperd.model.devices import FieldProbe

_P50, _P99 = 0.5, 0.99
_BYTES: Final = {NumberKind.UINT16: 2, NumberKind.UINT32: 4, NumberKind.UINT64: 8}
_SENSORS: Final = (
    Sensor(name="sm_clock_mhz", bounds=table.MEM_CLOCK.bounds, ways=(table.ONE_CLOCK,)),
    table.POWER,
    table.ENERGY,
    *table.SLOW,
    *table.FULL_ONLY,
)


class Prober:
    """Asks one GPU for everything that it might answer, into buffers of its own.

    Args:
        library: Answers.
        handle: Of the GPU.
        source: Its block, for nobody else.
        faults: Tells what is read by which way; nothing is counted in it.
        clock: Times the calls.
        calls_count: How often a call is made that answers.
    """

    def __init__(
        self,
        library: Library,
        handle: int,
        source: SmiSource,
        faults: DeviceFaults,
        clock: Clock,
        calls_count: int,
    ) -> None:
        self._library = library
        self._handle = handle
        self._source = source
        self._faults = faults
        self._clock = clock
        self._calls_count = max(calls_count, 1)

    def all(self) -> Iterator[FieldProbe]:
        """Metrics of the block, then what has a call of its own.

        Raises:
            DeviceLostError: The GPU is gone.
        """
        called = self._asked(FieldProbe(operation=METRICS_CALL, feeds=None), self._fetch)
        for base, place in self._metrics():
            yield _of_block(base, called, self._number(place))
        for name, _bounds, questions in (*numbers.STAND_INS, *numbers.BESIDE):
            for question in questions:
                yield self._own(name, question, self._used(name, question))
        for name, _bounds, question in numbers.FIXED:
            probe = self._own(name, question, used=False)
            yield replace(probe, used=probe.answers)

    def _fetch(self) -> float | None:
        self._source.fetch()
        return None

    def _metrics(self) -> Iterator[tuple[FieldProbe, MetricPlace | None]]:
        places = self._source.layout.places
        dies = places.get(table.DIE_CLOCKS)
        for die in range(len(dies.offsets) if dies else 0):
            base = FieldProbe(
                operation=f"{METRICS_CALL}.{table.DIE_CLOCKS}[{die}]",
                feeds=f"die_clocks_mhz.{die}",
                used=True,
                unit="MHz",
            )
            yield base, dies and MetricPlace(kind=dies.kind, offsets=dies.offsets[die : die + 1])
        kept = self._faults.choices.kept
        for sensor in _SENSORS:
            for way in sensor.ways:
                base = FieldProbe(
                    operation=f"{METRICS_CALL}.{way.metric}",
                    feeds=sensor.name,
                    source=way.source,
                    used=kept.get(sensor.name) == way.metric,
                    unit=way.unit,
                )
                yield base, places.get(way.metric)
        for cause, metric in (
            *table.BELOW_LIMIT.items(),
            *((cause, metric) for cause, each in table.RESIDENCY.items() for metric in each),
        ):
            base = FieldProbe(
                operation=f"{METRICS_CALL}.{metric}",
                feeds=f"limited_ns.{cause.label}",
                unit="cycles",
            )
            yield base, places.get(metric)

    def _number(self, place: MetricPlace | None) -> int | None:
        """A number of the block as it was last brought; None where it is not told."""
        if place is None:
            return None
        size = _BYTES[place.kind]
        start = place.offsets[0]
        number = int.from_bytes(bytes(self._source.buffer)[start : start + size], "little")
        return None if number == ABSENT[place.kind] else number

    def _used(self, name: str, question: numbers.Question) -> bool:
        suffix = f".{question.member}" if question.source else ""
        return self._faults.choices.kept.get(name) == question.call + suffix

    def _own(self, name: str, question: numbers.Question, used: bool) -> FieldProbe:
        base = FieldProbe(
            operation=f"{question.call}{f'.{question.member}' if question.member else ''}",
            feeds=name,
            source=question.source,
            used=used,
            unit=question.unit,
        )
        try:
            number = numbers.SmiNumber(self._library, self._handle, question)
        except LookupError as error:
            return replace(base, used=False, error=f"this version has no {error}")
        return self._asked(base, number.raw)

    def _asked(self, base: FieldProbe, ask: Callable[[], float | None]) -> FieldProbe:
        """The probe with what was answered; it is asked again while it answers."""
        spans_ns: list[int] = []
        value = None
        for _ in range(self._calls_count):
            started_ns = self._clock.mono_ns()
            try:
                value = ask()
            except (SmiError, CallFailedError) as error:
                if not spans_ns:
                    return self._failed(base, error)
                break
            spans_ns.append(self._clock.mono_ns() - started_ns)
        return replace(
            base,
            value=value,
            calls_count=len(spans_ns),
            call_p50_ns=_quantile(spans_ns, _P50),
            call_p99_ns=_quantile(spans_ns, _P99),
        )

    def _failed(self, base: FieldProbe, error: Exception) -> FieldProbe:
        if isinstance(error, CallFailedError):
            return replace(base, used=False, error="not reported", calls_count=1)
        failure = self._faults.classified(error, base.operation)
        if isinstance(failure, DeviceLostError):
            raise failure from error
        return replace(
            base, used=False, error=str(error), error_code=failure.vendor_code, calls_count=1
        )


def _of_block(base: FieldProbe, called: FieldProbe, number: int | None) -> FieldProbe:
    """A metric's probe, from that of the call that brings it."""
    if called.error is not None:
        return replace(base, used=False, error=called.error, error_code=called.error_code)
    if number is None:
        return replace(base, used=False, error="not reported")
    return replace(
        base,
        value=number,
        calls_count=called.calls_count,
        call_p50_ns=called.call_p50_ns,
        call_p99_ns=called.call_p99_ns,
    )


def _quantile(spans_ns: list[int], share: float) -> int:
    """The smallest of the values that at least this share of them does not exceed."""
    return sorted(spans_ns)[max(0, math.ceil(share * len(spans_ns)) - 1)]
