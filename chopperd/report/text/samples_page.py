"""Print what samples alone say: busy clocks against peers, loss, drops, energy, how to get steps.

Busy time includes communication and waiting, so these are not the figures of a trace's report.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from rich.console import Group, RenderableType

from chopperd.model.safe_text import visible_json
from chopperd.model.samples import BusyPeers, SampledGpu, SamplesReport
from chopperd.report.text.headline import HeadlineRow
from chopperd.report.text.lists import render_drops
from chopperd.report.text.page import plain, simulated_mark, table
from chopperd.report.text.report import FirstScreen
from chopperd.report.text.wording import (
    UNKNOWN,
    decimal,
    duration,
    known,
    percent,
    plural,
    spread,
    whole,
    words,
)

_COLUMNS: Final = (
    *("<gpu", "busy %", "MHz", "below peers", "lost %", "W", "C", "hottest"),
    *("-kJ", "-Hz", "<lost by"),
)
_CAPTION: Final = (
    "MHz, W, C: means while busy, which includes communication and waiting; lost: at most, share "
    "of busy time against the highest clock"
)
#: The causes of a loss that are named: those of the largest shares, and from which share on.
_MOST_CAUSES: Final = 2
_LEAST_CAUSE: Final = 0.05
_KILO: Final = 1000.0
_BAD: Final = "bold red"
_LAST_CODES: Final = ("no_peers",)


def samples_page(report: SamplesReport) -> Group:
    """Render the report: answer, clock, trust and steps, then GPUs, drops and notes."""
    page: list[RenderableType] = [simulated_mark()] if report.generated.simulated else []
    page.append(FirstScreen(_rows(report)))
    if report.gpus:
        cells = [_cells(each) for each in report.gpus]
        bad = {
            i: _BAD for i, each in enumerate(report.gpus) if each.peers and each.peers.stands_out
        }
        page += ["", table("GPUS", _COLUMNS, cells, caption=_CAPTION, styles=bad)]
    if report.drops:
        page += ["", render_drops(report.drops, simulated=False)]
    if report.notes:
        page += ["", plain("NOTES", [(note.text,) for note in report.notes])]
    return Group(*page)


def encode_samples_report(report: SamplesReport) -> bytes:
    """Encode the report as indented JSON; unknown is `null`."""
    return visible_json(msgspec.json.format(msgspec.json.encode(report), indent=2)) + b"\n"


def _rows(report: SamplesReport) -> tuple[HeadlineRow, ...]:
    slow = next((each for each in report.gpus if each.gpu == report.look_at), None)
    rows = [_slow(slow, report)] if slow is not None else [_none_slow(report)]
    lines = (
        *rows,
        HeadlineRow(label="CLOCK", clauses=_clock(report), separator="; "),
        HeadlineRow(label="DROPS", clauses=_drops(report), separator=", "),
        HeadlineRow(label="ENERGY", clauses=_energy(report), separator=", "),
        HeadlineRow(label="TRUST", clauses=_trust(report), separator=", "),
        HeadlineRow(
            label="STEPS",
            clauses=(
                "unknown, as there is no trace: `chopperd explain profiler` prints the lines that "
                "make a job write them",
            ),
            separator="",
        ),
    )
    return tuple(line for line in lines if line.clauses)


def _slow(gpu: SampledGpu, report: SamplesReport) -> HeadlineRow:
    clauses = [below_peers(gpu.peers)] if gpu.peers is not None else []
    others = [each for each in report.gpus if each.peers is not None and each is not gpu]
    rest_c = [each.temperature_c for each in others if known(each.temperature_c)]
    if known(gpu.temperature_c) and rest_c:
        clauses.append(f"at {whole(gpu.temperature_c)} C (peers {spread(rest_c)})")
    if causes := _causes(gpu.lost_by_cause_s):
        clauses.append(f"its loss: {causes}")
    return HeadlineRow(
        label=f"GPU {gpu.gpu} IS SLOW", clauses=tuple(clauses), separator=", ", style=_BAD
    )


def below_peers(peers: BusyPeers) -> str:
    """Return how far a GPU that stands out runs below its peers, with the interval."""
    low, high = peers.below_low_mhz, peers.below_high_mhz
    interval = f" [{whole(low)}, {whole(high)}]" if known(low) and known(high) else ""
    return (
        f"it runs {whole(peers.below_mhz)} MHz{interval} below its {peers.n - 1} peers while busy"
    )


def _none_slow(report: SamplesReport) -> HeadlineRow:
    compared = [each.peers for each in report.gpus if each.peers is not None]
    if not compared:
        why = next((n.text for n in report.notes if n.code in _LAST_CODES), "no GPU was busy")
        return HeadlineRow(label="PEERS", clauses=(why,), separator="")
    own = spread([each.own_mhz for each in compared])
    text = f"no GPU stands out: {plural(len(compared), 'GPU')} at {own} MHz while busy"
    return HeadlineRow(label="PEERS", clauses=(text,), separator="")


def _clock(report: SamplesReport) -> tuple[str, ...]:
    lost = [each for each in report.gpus if known(each.lost_s) and known(each.lost_ratio)]
    if not lost:
        return ("its cost is unknown: no busy time with a known clock and a highest clock",)
    busy_s = sum(each.clocked_s for each in lost if known(each.clocked_s))
    lost_s = sum(each.lost_s for each in lost if known(each.lost_s))
    by_cause: dict[str, float] = {}
    for each in lost:
        for cause, value_s in each.lost_by_cause_s.items():
            by_cause[cause] = by_cause.get(cause, 0.0) + value_s
    references = [each.reference_mhz for each in lost if known(each.reference_mhz)]
    share = percent(lost_s / busy_s) if busy_s else "0"
    below = f"below {spread(references)} MHz (the highest clock)"
    clauses = [f"at most {share} % of busy time {below}", _causes(by_cause)]
    return tuple(filter(None, clauses))


def _causes(by_cause: Mapping[str, float]) -> str:
    """Return the largest causes with their shares; empty without a loss."""
    whole_s = sum(by_cause.values())
    if not whole_s:
        return ""
    shares = sorted(((value / whole_s, name) for name, value in by_cause.items()), reverse=True)
    named = [each for each in shares[:_MOST_CAUSES] if each[0] >= _LEAST_CAUSE]
    return ", ".join(f"{words(name)} {percent(share, 0)} %" for share, name in named)


def _drops(report: SamplesReport) -> tuple[str, ...]:
    if not report.drops:
        return ()
    lost_s = sum(each.lost_s for each in report.drops)
    gpus = sorted({each.gpu for each in report.drops})
    return (
        f"{plural(len(report.drops), 'drop')} of the busy clock on GPU {', '.join(gpus)}",
        f"{decimal(lost_s, 1)} s lost",
    )


def _energy(report: SamplesReport) -> tuple[str, ...]:
    known_j = [each.energy_j for each in report.gpus if known(each.energy_j)]
    if not known_j or len(known_j) < len(report.gpus):
        return ()
    source = {each.energy_source for each in report.gpus}
    how = "by the counters" if source == {"counter"} else "from the power"
    return (f"{decimal(sum(known_j) / _KILO, 1)} kJ on {plural(len(known_j), 'GPU')} {how}",)


def _trust(report: SamplesReport) -> tuple[str, ...]:
    kept = [each.kept_hz for each in report.gpus if known(each.kept_hz)]
    rate = f"{spread(kept)} Hz kept" if kept else "no two samples"
    asked = f" of {decimal(report.asked_hz, 0)}" if known(report.asked_hz) else ""
    count = f"{sum(each.samples for each in report.gpus):,} samples"
    over = f"over {duration(report.length_s)}" if known(report.length_s) else "over no time"
    return f"{rate}{asked}", f"{count} {over}", f"{plural(len(report.gpus), 'GPU')}"


def _cells(gpu: SampledGpu) -> tuple[str, ...]:
    peers = gpu.peers
    return (
        gpu.gpu,
        percent(gpu.busy_ratio, 0),
        whole(gpu.busy_mhz),
        UNKNOWN if peers is None else whole(peers.below_mhz),
        percent(gpu.lost_ratio),
        whole(gpu.power_w),
        whole(gpu.temperature_c),
        whole(gpu.hottest_c),
        UNKNOWN if not known(gpu.energy_j) else decimal(gpu.energy_j / _KILO, 1),
        decimal(gpu.kept_hz, 1),
        _causes(gpu.lost_by_cause_s) or (UNKNOWN if not known(gpu.lost_s) else "nothing"),
    )
