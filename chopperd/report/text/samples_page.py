"""Print what samples alone say: busy clocks against peers, loss, drops, energy, how to get steps.

Busy time includes communication and waiting, so these are not the figures of a trace's report.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from rich.console import Group, RenderableType

from chopperd.model.samples import BusyPeers, SampledGpu, SamplesReport
from chopperd.report.text import wording as fmt
from chopperd.report.text.headline import HeadlineRow
from chopperd.report.text.lists import drops_table
from chopperd.report.text.page import Section, plain, simulated_mark, table
from chopperd.report.text.report import FirstScreen
from chopperd.report.text.wording import UNKNOWN, known
from chopperd.safe_text import visible_json

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
_NO_STEPS: Final = (
    "unknown, as there is no trace: `chopperd explain profiler` prints the lines that make a job "
    "write them"
)


def samples_page(report: SamplesReport) -> Group:
    """Render the report: answer, clock, trust and steps, then GPUs, drops and notes."""
    page: list[RenderableType] = [simulated_mark()] if report.generated.simulated else []
    page.append(FirstScreen(first_rows(report)))
    for each in samples_tables(report):
        page += ["", each]
    return Group(*page)


def samples_tables(report: SamplesReport) -> Iterator[Section]:
    """Yield the tables of GPUs, drops and notes, those that have rows."""
    if report.gpus:
        cells = [_cells(each) for each in report.gpus]
        bad = {
            i: _BAD for i, each in enumerate(report.gpus) if each.peers and each.peers.stands_out
        }
        yield table("GPUS", _COLUMNS, cells, caption=_CAPTION, styles=bad)
    if report.drops:
        yield drops_table(report.drops)
    if report.notes:
        yield plain("NOTES", [(note.text,) for note in report.notes])


def encode_samples_report(report: SamplesReport) -> bytes:
    """Encode the report as indented JSON; unknown is `null`."""
    return visible_json(msgspec.json.format(msgspec.json.encode(report), indent=2)) + b"\n"


def first_rows(report: SamplesReport) -> tuple[HeadlineRow, ...]:
    """Return the rows of the first screen: the answer, clock, drops, energy, trust and steps."""
    slow = next((each for each in report.gpus if each.gpu == report.look_at), None)
    lines = (
        _none_slow(report) if slow is None else _slow(slow, report),
        HeadlineRow(label="CLOCK", clauses=_clock(report), separator="; "),
        HeadlineRow(label="DROPS", clauses=_drops(report)),
        HeadlineRow(label="ENERGY", clauses=_energy(report)),
        HeadlineRow(label="TRUST", clauses=_trust(report)),
        HeadlineRow(label="STEPS", clauses=(_NO_STEPS,), separator=""),
    )
    return tuple(line for line in lines if line.clauses)


def _slow(gpu: SampledGpu, report: SamplesReport) -> HeadlineRow:
    clauses = [below_peers(gpu.peers)] if gpu.peers is not None else []
    others = [each for each in report.gpus if each.peers is not None and each is not gpu]
    rest_c = [each.temperature_c for each in others if known(each.temperature_c)]
    if known(gpu.temperature_c) and rest_c:
        clauses.append(f"at {fmt.whole(gpu.temperature_c)} C (peers {fmt.spread(rest_c)})")
    if causes := fmt.largest_shares(gpu.lost_by_cause_s, _MOST_CAUSES, _LEAST_CAUSE):
        clauses.append(f"its loss: {causes}")
    return HeadlineRow(label=f"GPU {gpu.gpu} IS SLOW", clauses=tuple(clauses), style=_BAD)


def below_peers(peers: BusyPeers) -> str:
    """Return how far a GPU that stands out runs below its peers, with the interval."""
    low, high = peers.below_low_mhz, peers.below_high_mhz
    interval = f" [{fmt.whole(low)}, {fmt.whole(high)}]" if known(low) and known(high) else ""
    below = f"{fmt.whole(peers.below_mhz)} MHz{interval}"
    return f"it runs {below} below its {peers.n - 1} peers while busy"


def _none_slow(report: SamplesReport) -> HeadlineRow:
    compared = [each.peers for each in report.gpus if each.peers is not None]
    if not compared:
        text = next((n.text for n in report.notes if n.code == "no_peers"), "no GPU was busy")
    else:
        own = fmt.spread([each.own_mhz for each in compared])
        text = f"no GPU stands out: {fmt.plural(len(compared), 'GPU')} at {own} MHz while busy"
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
    share = fmt.percent(lost_s / busy_s) if busy_s else "0"
    below = f"below {fmt.spread(references)} MHz (the highest clock)"
    causes = fmt.largest_shares(by_cause, _MOST_CAUSES, _LEAST_CAUSE)
    return tuple(filter(None, (f"at most {share} % of busy time {below}", causes)))


def _drops(report: SamplesReport) -> tuple[str, ...]:
    if not report.drops:
        return ()
    lost_s = sum(each.lost_s for each in report.drops)
    gpus = sorted({each.gpu for each in report.drops})
    return (
        f"{fmt.plural(len(report.drops), 'drop')} of the busy clock on GPU {', '.join(gpus)}",
        f"{fmt.decimal(lost_s, 1)} s lost",
    )


def _energy(report: SamplesReport) -> tuple[str, ...]:
    known_j = [each.energy_j for each in report.gpus if known(each.energy_j)]
    if not known_j or len(known_j) < len(report.gpus):
        return ()
    source = {each.energy_source for each in report.gpus}
    how = "by the counters" if source == {"counter"} else "from the power"
    return (
        f"{fmt.decimal(sum(known_j) / _KILO, 1)} kJ on {fmt.plural(len(known_j), 'GPU')} {how}",
    )


def _trust(report: SamplesReport) -> tuple[str, ...]:
    kept = [each.kept_hz for each in report.gpus if known(each.kept_hz)]
    rate = f"{fmt.spread(kept)} Hz kept" if kept else "no two samples"
    asked = f" of {fmt.decimal(report.asked_hz, 0)}" if known(report.asked_hz) else ""
    count = f"{sum(each.samples for each in report.gpus):,} samples"
    over = f"over {fmt.duration(report.length_s)}" if known(report.length_s) else "over no time"
    return f"{rate}{asked}", f"{count} {over}", f"{fmt.plural(len(report.gpus), 'GPU')}"


def _cells(gpu: SampledGpu) -> tuple[str, ...]:
    peers = gpu.peers
    return (
        gpu.gpu,
        fmt.percent(gpu.busy_ratio, 0),
        fmt.whole(gpu.busy_mhz),
        UNKNOWN if peers is None else fmt.whole(peers.below_mhz),
        fmt.percent(gpu.lost_ratio),
        fmt.whole(gpu.power_w),
        fmt.whole(gpu.temperature_c),
        fmt.whole(gpu.hottest_c),
        UNKNOWN if not known(gpu.energy_j) else fmt.decimal(gpu.energy_j / _KILO, 1),
        fmt.decimal(gpu.kept_hz, 1),
        fmt.largest_shares(gpu.lost_by_cause_s, _MOST_CAUSES, _LEAST_CAUSE)
        or (UNKNOWN if not known(gpu.lost_s) else "nothing"),
    )
