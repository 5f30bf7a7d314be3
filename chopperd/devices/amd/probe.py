"""What a block of metrics answers, one by one, and what bringing it costs: for people."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from chopperd.clock import Clock
from chopperd.devices.amd import table
from chopperd.devices.amd.block import ABSENT, MetricPlace, MetricsSource
from chopperd.devices.amd.sensors import Beside
from chopperd.devices.amd.table import Sensor
from chopperd.devices.channel import CallFailedError, DeviceFaults
from chopperd.devices.read_plan import NumberKind
from chopperd.errors import DeviceLostError
from chopperd.model.devices import FieldProbe

_P50, _P99 = 0.5, 0.99
_BYTES: Final = {NumberKind.UINT16: 2, NumberKind.UINT32: 4, NumberKind.UINT64: 8}
_UNITS: Final = {"mhz": "MHz", "w": "W", "c": "C", "bytes": "bytes", "ratio": "ratio"}
_SENSORS: Final = (
    Sensor(name="sm_clock_mhz", bounds=table.MEM_CLOCK.bounds, ways=(table.ONE_CLOCK,)),
    table.POWER,
    table.ENERGY,
    *table.SLOW,
    *table.FULL_ONLY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Asks again and again, and times the answers.

    Attributes:
        faults: Says what an error means; nothing is counted in it.
        clock: Times the calls.
        calls_count: How often a call is made that answers.
    """

    faults: DeviceFaults
    clock: Clock
    calls_count: int

    def asked(self, base: FieldProbe, ask: Callable[[], float | None]) -> FieldProbe:
        """The probe with what was answered; it is asked again while it answers.

        Raises:
            DeviceLostError: The GPU is gone.
        """
        spans_ns: list[int] = []
        value = None
        for _ in range(max(self.calls_count, 1)):
            started_ns = self.clock.mono_ns()
            try:
                value = ask()
            except (self.faults.vendor_error, CallFailedError) as error:
                if not spans_ns:
                    return self._failed(base, error)
                break
            spans_ns.append(self.clock.mono_ns() - started_ns)
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
        failure = self.faults.classified(error, base.operation)
        if isinstance(failure, DeviceLostError):
            raise failure from error
        return replace(
            base, used=False, error=str(error), error_code=failure.vendor_code, calls_count=1
        )


def block_probes(source: MetricsSource, asker: Asker) -> Iterator[FieldProbe]:
    """Each metric of a block that is of use.

    Args:
        source: The block, for nobody else.
        asker: Brings it, and times that.

    Raises:
        DeviceLostError: The GPU is gone.
    """

    def fetch() -> float | None:
        source.fetch()
        return None

    called = asker.asked(FieldProbe(operation=source.operation, feeds=None), fetch)
    for base, place in _metrics(source, asker.faults.choices.kept):
        yield _of_block(base, called, _number(source, place))


def beside_probes(fields: Sequence[Beside], asker: Asker) -> Iterator[FieldProbe]:
    """Each way to the fields that do not come from a block."""
    for field in fields:
        for call in field.calls:
            base = FieldProbe(
                operation=call.operation,
                feeds=field.name,
                source=call.source,
                used=asker.faults.choices.kept.get(field.name) == call.operation,
                unit=_unit(field.name),
            )
            yield asker.asked(base, call.read)


def told_by_card(card: str) -> FieldProbe:
    """That of a partition, which has its card's numbers.

    Args:
        card: The card's label.
    """
    return FieldProbe(
        operation="partition", feeds="sm_clock_mhz", error=f"told by its card, GPU {card}"
    )


def _unit(field: str) -> str:
    """The unit in a field's name, in which its calls give it."""
    return _UNITS.get(field.rpartition("_")[2], "")


def _metrics(
    source: MetricsSource, kept: Mapping[str, str]
) -> Iterator[tuple[FieldProbe, MetricPlace | None]]:
    places = source.layout.places
    dies = places.get(table.DIE_CLOCKS)
    for die in range(len(dies.offsets) if dies else 0):
        base = FieldProbe(
            operation=f"{source.operation}.{table.DIE_CLOCKS}[{die}]",
            feeds=f"die_clocks_mhz.{die}",
            used=True,
            unit="MHz",
        )
        yield base, dies and MetricPlace(kind=dies.kind, offsets=dies.offsets[die : die + 1])
    for sensor in _SENSORS:
        for way in sensor.ways:
            base = FieldProbe(
                operation=f"{source.operation}.{way.metric}",
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
            operation=f"{source.operation}.{metric}",
            feeds=f"limited_ns.{cause.label}",
            unit="cycles",
        )
        yield base, places.get(metric)


def _number(source: MetricsSource, place: MetricPlace | None) -> int | None:
    """A number of the block as it was last brought; None where it is not told."""
    if place is None:
        return None
    start = place.offsets[0]
    number = int.from_bytes(bytes(source.buffer)[start : start + _BYTES[place.kind]], "little")
    return None if number == ABSENT[place.kind] else number


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
