"""The findings of a self-test for people and as JSON."""

from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chopperd.correlate.lag import LagEstimate
from chopperd.model.safe_text import visible
from chopperd.selftest.findings import Findings, OperandFigures
from chopperd.selftest.verdict import Ratio
from chopperd.units import NS_PER_MS

_UNKNOWN: Final = "-"


def encode_findings(found: Findings) -> bytes:
    """The findings as indented JSON; what is not known is null."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def render_findings(found: Findings) -> Group:
    """The findings as something a rich console prints."""
    verdict, ready = found.verdict, found.ready
    mark = ["SIMULATED: the clocks come from a simulation, not from hardware"]
    lines = [
        *(mark if found.simulated else []),
        f"SELF-TEST  {verdict.outcome.upper()}: {verdict.meaning}",
        f"{found.gpu.name} (GPU {found.gpu.gpu}, {found.gpu.uuid}), {found.backend} "
        f"{found.driver or _UNKNOWN}; products {ready.size} x {ready.size} {ready.dtype} on "
        f"{ready.device}, torch {ready.torch}; {_number(found.kept_hz)} of "
        f"{_number(found.asked_hz)} Hz kept",
        "",
        f"time, random over zeros    {_ratio(verdict.time)}",
        f"clock, zeros over random   {_ratio(verdict.clock)}",
        f"cycles, random over zeros  {_ratio(verdict.cycles)}  (1: the clock explains the time)",
        "",
    ]
    after = [
        "",
        f"lag behind the load: clock {_lag(found.clock_lag)}; power {_lag(found.power_lag)}",
        "sensor periods found by the sampler: "
        + ", ".join(f"{name} {_period(period)}" for name, period in _periods(found)),
        "changes seen every: "
        + ", ".join(f"{name} {_ms(change)}" for name, change in found.change_ns.items()),
    ]
    return Group(Text("\n".join(map(visible, lines))), _operands(found), Text("\n".join(after)))


def _operands(found: Findings) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for column in ("operand", "products", "ms each", "MHz", "W", "samples", "limits seen"):
        table.add_column(
            column, justify="left" if column in {"operand", "limits seen"} else "right"
        )
    for name, figures in found.operands.items():
        table.add_row(name, *_cells(figures))
    return table


def _cells(figures: OperandFigures) -> tuple[str, ...]:
    product_ms = None if figures.product_ns is None else figures.product_ns / NS_PER_MS
    causes = [f"{label} {100 * share:.0f} %" for label, share in figures.cause_ratio.items()]
    return (
        str(figures.products_count),
        _number(product_ms),
        _number(figures.clock_mhz),
        _number(figures.power_w),
        str(figures.samples_count),
        ", ".join(causes) or "none",
    )


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.4g}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return _UNKNOWN
    return f"{ratio.value_ratio:.4f} [{ratio.low_ratio:.4f}, {ratio.high_ratio:.4f}]"


def _ms(value_ns: int | None) -> str:
    return "too seldom to say" if value_ns is None else f"{value_ns / NS_PER_MS:.0f} ms"


def _periods(found: Findings) -> tuple[tuple[str, int | None], ...]:
    gpu = found.gpu
    return (
        ("clock", gpu.sm_clock_period_ns),
        ("power", gpu.power_period_ns),
        ("energy", gpu.energy_period_ns),
    )


def _period(period_ns: int | None) -> str:
    return "not found" if period_ns is None else f"{period_ns / NS_PER_MS:.1f} ms"


def _lag(lag: LagEstimate) -> str:
    if lag.lag_ns is None or lag.low_ns is None or lag.high_ns is None:
        return f"not measurable ({lag.reason})"
    low, middle, high = (each / NS_PER_MS for each in (lag.low_ns, lag.lag_ns, lag.high_ns))
    return f"{middle:.1f} ms [{low:.1f}, {high:.1f}]"


def phase_words(operand: str, round_number: int) -> str:
    """What begins now, for whoever waits."""
    if operand == "pulses":
        return "load on and off"
    return f"{operand}, round {round_number + 1}"
