"""Make the four summary lines of a report: clock cost, cause, GPU to check, and data quality."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chopperd.correlate.belonging import MAX_LAG_NS
from chopperd.model.report import CauseShare, GpuLine, ReportDocument, Summary
from chopperd.report.text.resolution import Share, pooled_share, summary_share
from chopperd.report.text.wording import (
    brief_milliseconds,
    decimal,
    known,
    percent,
    plural,
    spread,
    whole,
    words,
)
from chopperd.units import NS_PER_MS, NS_PER_S

#: Number of GPUs that are named after the one with the largest excess.
_ALSO_NAMED: Final = 3
#: Below this coverage the headline says that the rest of compute was not sampled.
_FULL_COVERAGE_RATIO: Final = 0.95
#: An achieved rate below this share of the requested one is shown with it.
_FULL_RATE_RATIO: Final = 0.95
#: A clock sensor that is read this often between two of its updates is reported as slow.
_SLOW_SENSOR_READS: Final = 2
#: A power cap at a smaller share of the limit is not by that limit.
_AT_CAP_RATIO: Final = 0.9
_UNRESOLVED: Final = "not resolved at this rate"
#: Notes that explain an unknown clock cost, the most basic reason first.
_REASON_CODES: Final = (
    "no_device_records",
    "no_samples",
    "no_timebase",
    "no_overlap",
    "device_unmapped",
    "no_reference",
)
#: Notes of samples that are not the trace's: a loss computed from them is no figure to show.
_FOREIGN_CODES: Final = ("samples_contradict_trace", "time_axes_differ")
#: Notes of a loss that is shown, but not as certain: samples were moved to where they fit.
_DOUBTFUL_CODES: Final = ("time_axes_differ", "reference_doubtful")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadlineRow:
    """One of the four lines: its label, and the clauses that a line break may separate."""

    label: str
    clauses: tuple[str, ...]
    separator: str


def headline(document: ReportDocument) -> tuple[HeadlineRow, ...]:
    """Return the four rows of a report, from its clock cost to its trust (`_ROWS`)."""
    return tuple(
        HeadlineRow(
            label=label, clauses=tuple(filter(None, clauses(document))), separator=separator
        )
        for label, clauses, separator in _ROWS
    )


def _clock_cost(document: ReportDocument) -> list[str]:
    summary = document.summary
    if summary is None or not known(summary.lost_ns):
        return [f"{_unknown(document)}: {unknown_reason(document)}"]
    foreign = _foreign(document, summary)
    if foreign:
        return [f"unknown: {foreign}"]
    doubt = _doubt(document, summary, _DOUBTFUL_CODES)
    return [
        *_ceiling(document, summary),
        f"not certain: {doubt}" if doubt else "",
        _sampled_part(summary),
        _sensitivity(summary),
        _excess(summary),
    ]


def _doubt(document: ReportDocument, summary: Summary, codes: tuple[str, ...]) -> str:
    """Return why the loss has no interval: the first note with one of `codes`.

    Empty where it has one, or there is no such note.
    """
    if known(summary.gap_low):
        return ""
    return next((note.text for note in document.notes if note.code in codes), "")


def _foreign(document: ReportDocument, summary: Summary) -> str:
    """Return why the samples can't be the trace's; empty where they may be, shifted or not."""
    lag_ns = document.alignment.lag_ns
    is_moved = lag_ns is not None and abs(lag_ns) > MAX_LAG_NS
    return _doubt(document, summary, _FOREIGN_CODES[:1] if is_moved else _FOREIGN_CODES)


def _unknown(document: ReportDocument) -> str:
    """Return what is unknown where there is no clock cost: the cost itself, or the GPU."""
    code = _reason_code(document)
    return "GPU unknown" if code == "device_unmapped" else "unknown"


def _reason_code(document: ReportDocument) -> str | None:
    """Return the code of the most basic note that explains a missing clock cost; else None."""
    codes = {note.code for note in document.notes}
    return next((code for code in _REASON_CODES if code in codes), None)


def _ceiling(document: ReportDocument, summary: Summary) -> list[str]:
    lost, step = brief_milliseconds(summary.lost_ns), brief_milliseconds(summary.step_ns)
    if summary.basis == "totals":
        amount = f"at most {lost} of {step} ms traced, no complete step"
    else:
        amount = f"at most {lost} of each {step} ms step"
    share = summary_share(summary)
    if share is None:
        return [amount]
    if share.resolved:
        return [f"{amount} ({share.brackets()})"]
    pooled = pooled_share(document.totals) or share
    return [f"{amount}, {_UNRESOLVED}", _pooled(pooled)]


def _sampled_part(summary: Summary) -> str:
    """Return a remark on the share of compute with a clock; empty where that is nearly all."""
    if not known(summary.coverage_ratio) or summary.coverage_ratio >= _FULL_COVERAGE_RATIO:
        return ""
    return (
        f"only {percent(summary.coverage_ratio, 0)} % of compute was sampled, the rest adds to it"
    )


def unresolved(pooled: Share) -> str:
    """Return the text for an interval that is too wide for a figure, with the pooled share."""
    return f"{_UNRESOLVED}; {_pooled(pooled)}"


def _pooled(share: Share) -> str:
    return f"pooled over the run: {share.plus_minus()}"


def _sensitivity(summary: Summary) -> str:
    low_ns, high_ns = summary.lost_measured_low_ns, summary.lost_measured_high_ns
    if not known(low_ns) or not known(high_ns):
        return "sensitivity not measured"
    low, high = brief_milliseconds(low_ns), brief_milliseconds(high_ns)
    return f"{low if low == high else f'{low} to {high}'} ms by measured sensitivity"


def _excess(summary: Summary) -> str:
    if not known(summary.excess_ns):
        return ""
    low_ns, high_ns = summary.excess_low_ns, summary.excess_high_ns
    if summary.excess_ns == 0 or low_ns == 0:
        return "no more than peers"
    excess = f"{brief_milliseconds(summary.excess_ns)} ms more than peers"
    if not known(low_ns) or not known(high_ns):
        return excess
    return f"{excess} [{brief_milliseconds(low_ns)}, {brief_milliseconds(high_ns)}]"


def unknown_reason(document: ReportDocument) -> str:
    """Return why there is no clock cost, from the notes if possible, else from the document."""
    if code := _reason_code(document):
        return next(note.text for note in document.notes if note.code == code)
    if not document.totals:
        return "the trace has no device records"
    if document.sampling.samples_in_compute == 0:
        return "no clock samples while compute ran"
    if not any(known(device.reference.sm_clock_mhz) for device in document.devices):
        return "no reference clock"
    return "no compute is covered by clock samples"


def _causes(document: ReportDocument) -> list[str]:
    summary = document.summary
    is_foreign = summary is not None and _foreign(document, summary)
    if summary is None or is_foreign or not known(summary.lost_ns):
        shares = ["unknown"]
    elif not summary.causes:
        shares = ["no loss to explain" if summary.lost_ns == 0 else "unknown"]
    else:
        shares = [
            f"{words(c.cause)} {percent(c.share, 0)} %{_below_cap(c)}" for c in summary.causes
        ]
    return [*shares, _reference(document)]


def _below_cap(cause: CauseShare) -> str:
    """Return power and limit, where a power cap holds the clock far below the limit; else ""."""
    power_w, limit_w = cause.power_w, cause.power_limit_w
    if not known(power_w) or not known(limit_w) or power_w >= _AT_CAP_RATIO * limit_w:
        return ""
    return f" (at {whole(power_w)} of {whole(limit_w)} W: not by this limit)"


def _reference(document: ReportDocument) -> str:
    references = {(d.reference.sm_clock_mhz, d.reference.source) for d in document.devices}
    if document.summary is not None:
        references.add((document.summary.reference_mhz, document.summary.reference_source))
    clocks_mhz = [clock_mhz for clock_mhz, _ in references if known(clock_mhz)]
    if not clocks_mhz:
        return "reference unknown"
    sources = sorted({source or "source unknown" for clock_mhz, source in references if clock_mhz})
    return f"reference {spread(clocks_mhz)} MHz ({words(' and '.join(sources))})"


def _look_at(document: ReportDocument) -> list[str]:
    summary = document.summary
    if summary is None or not summary.gpus:
        return ["no GPU in the trace"]
    compared = [line for line in summary.gpus if known(line.excess_ns_per_step)]
    if len(summary.gpus) == 1:
        return [f"{gpu_name(summary.gpus[0])}: the only one traced, no peers to compare with"]
    if not compared:
        return ["no GPU can be singled out: no peers to compare with"]
    if all(line.stands_out is None for line in compared):
        return ["no GPU can be singled out: the intervals of their clocks are unknown"]
    named = [line for line in compared if line.stands_out]
    if not named:
        return [f"no GPU stands out among {len(compared)}"]
    worst, *others = sorted(named, key=lambda line: -(line.excess_ns_per_step or 0.0))
    facts = ", ".join(filter(None, _facts(document, summary, worst)))
    unit = "ms" if summary.basis == "totals" else "ms/step"
    excess = f"{facts} -> at most {brief_milliseconds(worst.excess_ns_per_step)} {unit}"
    shown = [
        f"also {gpu_name(line)} ({brief_milliseconds(line.excess_ns_per_step)})"
        for line in others[:_ALSO_NAMED]
    ]
    more = len(others) - len(shown)
    return [f"{gpu_name(worst)}: {excess}", *shown, f"and {more} more (GPUS)" if more else ""]


def _facts(document: ReportDocument, summary: Summary, line: GpuLine) -> list[str]:
    return [
        _below_peers(document, line),
        f"{whole(line.temperature_mean_c)} C" if known(line.temperature_mean_c) else "",
        f"slowest in {line.slowest_steps} of {plural(summary.steps, 'step')}"
        if line.slowest_steps is not None and summary.steps
        else "",
    ]


def _below_peers(document: ReportDocument, line: GpuLine) -> str:
    if not known(line.mean_mhz) or not known(line.peers_median_mhz):
        return "slower than its peers"
    sizes = [
        row.peers.n - 1
        for row in (*document.steps, *document.totals)
        if row.peers is not None and (row.device, row.rank) == (line.device, line.rank)
    ]
    others = plural(max(sizes), "peer") if sizes else "peers"
    return f"{whole(line.peers_median_mhz - line.mean_mhz)} MHz below its {others}"


def gpu_name(line: GpuLine) -> str:
    """Return the GPU as "GPU 5", or the trace's device number where it was mapped to no GPU."""
    return f"GPU {line.gpu}" if line.gpu is not None else f"trace device {line.device}"


def _trust(document: ReportDocument) -> list[str]:
    return [
        *_rate(document),
        _join(document),
        "wall clock was stepped inside the window" if document.alignment.realtime_step else "",
        _profiler(document),
        *_completeness(document),
    ]


def _rate(document: ReportDocument) -> list[str]:
    sampling, summary = document.sampling, document.summary
    if not known(sampling.kept_hz):
        is_unmapped = _reason_code(document) == "device_unmapped"
        return ["clock samples of no known GPU" if is_unmapped else "no clock samples"]
    kept = f"{sampling.kept_hz:.3g} Hz kept"
    if known(sampling.asked_hz) and sampling.kept_hz < _FULL_RATE_RATIO * sampling.asked_hz:
        kept = f"{sampling.kept_hz:.3g} of {sampling.asked_hz:.3g} Hz kept"
    coverage = summary.coverage_ratio if summary is not None else None
    return [
        kept,
        f"{plural(sampling.samples_in_compute, 'sample')} in compute",
        f"coverage {percent(coverage)} %" if known(coverage) else "coverage unknown",
        _sensor(sampling.sensor_period_ms, sampling.kept_hz),
    ]


def _sensor(period_ms: float | None, kept_hz: float) -> str:
    """Return the clock sensor's update period, where it is too long for the rate; else ""."""
    if not known(period_ms) or period_ms * NS_PER_MS * kept_hz < _SLOW_SENSOR_READS * NS_PER_S:
        return ""
    return f"clock sensor updates each {decimal(period_ms, 0)} ms"


def _join(document: ReportDocument) -> str:
    alignment = document.alignment
    if not known(document.sampling.kept_hz):
        return ""
    if alignment.offset_uncertainty_ns is None:
        return "time join uncertainty unknown"
    join = f"time join ±{brief_milliseconds(alignment.offset_uncertainty_ns)} ms"
    if alignment.lag_ns is None:
        return f"{join} (lag {alignment.check})"
    interval = (
        f"[{brief_milliseconds(alignment.lag_low_ns)}, {brief_milliseconds(alignment.lag_high_ns)}]"
    )
    return f"{join} (lag {brief_milliseconds(alignment.lag_ns)} ms {interval})"


def _profiler(document: ReportDocument) -> str:
    ratio = document.profiler.profiled_step_ratio
    if not known(ratio):
        return "profiler's own cost not measured"
    if ratio <= 1:
        return "profiler slows no step"
    return f"profiler slows a step by {percent(ratio - 1)} %"


def _completeness(document: ReportDocument) -> list[str]:
    """Return what is missing, over all traces; empty texts for complete ones."""
    traces = document.traces or (document.trace,)
    damaged = sum(trace.damaged_events for trace in traces)
    invalid = sum(trace.invalid_records for trace in traces)
    incomplete = sum(not trace.complete for trace in traces)
    return [
        f"{plural(incomplete, 'trace')} incomplete" if incomplete else "",
        plural(damaged, "damaged event") if damaged else "",
        f"{plural(invalid, 'invalid record')} left out" if invalid else "",
    ]


_ROWS: Final[tuple[tuple[str, Callable[[ReportDocument], list[str]], str], ...]] = (
    ("CLOCK COST", _clock_cost, "; "),
    ("CAUSE", _causes, "   "),
    ("LOOK AT", _look_at, ", "),
    ("TRUST", _trust, ", "),
)
