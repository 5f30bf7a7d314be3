"""Single sensors read back to back, with a block of their own."""

from collections.abc import Mapping
from struct import Struct
from typing import Final

from chopperd.devices.amd import table
from chopperd.devices.amd.layout import ABSENT, MetricPlace, MetricsSource
from chopperd.devices.base import SensorRead
from chopperd.devices.read_plan import NumberKind

_FORMATS: Final = {
    NumberKind.UINT16: Struct("<H"),
    NumberKind.UINT32: Struct("<I"),
    NumberKind.UINT64: Struct("<Q"),
}


def sensor_reads(
    source: MetricsSource, power_source: str | None, vendor_error: type[Exception]
) -> Mapping[str, SensorRead]:
    """How to read a GPU's clock (of its first die), power, energy and activity.

    Args:
        source: Its block, for nobody else.
        power_source: Which power samples hold.
        vendor_error: What bringing the block raises.
    """
    power = next(
        (way for way in table.POWER.ways if way.source == power_source), table.POWER.ways[1]
    )
    ways = {
        "sm_clock_mhz": table.ONE_CLOCK,
        "power_w": power,
        "energy_j": table.ENERGY.ways[0],
        "activity_ratio": table.ACTIVITY.ways[0],
    }
    places = source.layout.places
    return {
        name: _read(source, places[way.metric], way.per_unit, vendor_error)
        for name, way in ways.items()
        if way.metric in places
    }


def _read(
    source: MetricsSource, place: MetricPlace, per_unit: int, vendor_error: type[Exception]
) -> SensorRead:
    unpack, offset, absent = _FORMATS[place.kind].unpack_from, place.offsets[0], ABSENT[place.kind]

    def read() -> float | None:
        try:
            source.fetch()
        except vendor_error:
            return None
        number: int = unpack(source.buffer, offset)[0]
        return None if number == absent else number / per_unit

    return read
