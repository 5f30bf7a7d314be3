"""What the load says, line by line."""

from typing import Final, TypeAlias

import msgspec

from chopperd.errors import BackendUnavailableError


class Ready(msgspec.Struct, frozen=True, tag_field="event", tag="ready"):
    """The load can begin: on which device, with which products."""

    device: str
    torch: str
    dtype: str
    size: int


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """There is no load, and why."""

    reason: str


class Begin(msgspec.Struct, frozen=True, tag_field="event", tag="begin"):
    """A phase begins with its warm-up."""

    operand: str
    round: int


class Phase(msgspec.Struct, frozen=True, tag_field="event", tag="phase"):
    """A phase is over.

    Attributes:
        operand: "zeros" or "random".
        round: Which turn, from 0.
        products_a_batch: Matrix products between two edges.
        edge_mono_ns: CLOCK_MONOTONIC of the first batch's start and of each batch's end.
    """

    operand: str
    round: int
    products_a_batch: int
    edge_mono_ns: list[int]


class Pulses(msgspec.Struct, frozen=True, tag_field="event", tag="pulses"):
    """When the load was on while it went on and off, CLOCK_MONOTONIC."""

    start_mono_ns: list[int]
    end_mono_ns: list[int]


class Done(msgspec.Struct, frozen=True, tag_field="event", tag="done"):
    """All phases are over."""


Said: TypeAlias = Ready | Failed | Begin | Phase | Pulses | Done

_DECODER: Final[msgspec.json.Decoder[Said]] = msgspec.json.Decoder(Said)


def decoded(line: str) -> Said:
    """What a line says.

    Raises:
        BackendUnavailableError: It is no line of the load's.
    """
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise BackendUnavailableError(f"the load said {line.strip()[:200]!r}: {error}") from error


class LoadLog(msgspec.Struct, frozen=True, kw_only=True):
    """All that a load said that ran to its end."""

    ready: Ready
    phases: list[Phase]
    pulses: Pulses


def log_of(said: list[Said]) -> LoadLog:
    """The lines put together.

    Raises:
        BackendUnavailableError: The load failed, with its reason, or ended early.
    """
    failed = [each.reason for each in said if isinstance(each, Failed)]
    if failed:
        raise BackendUnavailableError(f"no load: {failed[0]}")
    ready = [each for each in said if isinstance(each, Ready)]
    pulses = [each for each in said if isinstance(each, Pulses)]
    if not (ready and pulses and any(isinstance(each, Done) for each in said)):
        raise BackendUnavailableError("the load ended before it was done")
    return LoadLog(
        ready=ready[0],
        phases=[each for each in said if isinstance(each, Phase)],
        pulses=pulses[0],
    )
