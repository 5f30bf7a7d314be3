"""What the agent asks of a running sampler, as lines on the pipe that is its standard input.

An order holds until its time, over successors of the process as well; another of its kind takes
its place.
"""

from typing import Final, TypeAlias

import msgspec

from chopperd.errors import ConfigError


class Burst(msgspec.Struct, frozen=True, kw_only=True, tag="burst"):
    """Read at another rate until a time, with the budget that bursts have.

    Attributes:
        hz: The rate.
        until_mono_ns: CLOCK_MONOTONIC.
    """

    hz: float
    until_mono_ns: int


class Quiet(msgspec.Struct, frozen=True, kw_only=True, tag="quiet"):
    """Make no driver call until a time (self-A/B): what sampling costs shows in the steps."""

    until_mono_ns: int


Order: TypeAlias = Burst | Quiet

_DECODER: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)


def encoded(order: Order) -> bytes:
    """The order as a line."""
    return msgspec.json.encode(order) + b"\n"


def decoded(line: bytes) -> Order:
    """The order of a line.

    Raises:
        ConfigError: It is none.
    """
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError([f"not an order: {error}"]) from error
