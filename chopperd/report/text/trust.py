"""Say what the clock cost, or how to get clocks, and how far a report can be trusted."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from chopperd.correlate.belonging import MAX_LAG_NS
from chopperd.model.report import CauseShare, ReportDocument, Summary
from chopperd.model.report_rows import Row
from chopperd.report.build.clocks import RESOLVED_HALF_WIDTH_RATIO
from chopperd.report.text import wording as fmt
from chopperd.report.text.wording import known
from chopperd.units import NS_PER_MS, NS_PER_S

#: Below this coverage the line of the clock says that the rest of compute was not sampled.
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
_HOW_TO_SAMPLE: Final = "next time  chopperd record -- CMD   or  --samples FILE"


# Shares of a window lost to the clock, with intervals, and whether sampling resolves them.


class Share(Struct, frozen=True, kw_only=True):
    """Loss over window with its 95 % interval, ratios; bounds None where there is no interval.

    `by_run` is whether the run's pooled sampling error resolves the share, as a row's own error may
    be small by chance; None where unknown.
    """

    ratio: float
    low_ratio: float | None
    high_ratio: float | None
    by_run: bool | None = None

    @property
    def half_width_ratio(self) -> float | None:
        """Return half the interval's width, a ratio; None where there is no interval."""
        if self.low_ratio is None or self.high_ratio is None:
            return None
        return (self.high_ratio - self.low_ratio) / 2

    @property
    def resolved(self) -> bool:
        """Whether the share may be shown as a figure; true without an interval, which is marked."""
        half_width_ratio = self.half_width_ratio
        if half_width_ratio is None or self.by_run is not None:
            return half_width_ratio is None or bool(self.by_run)
        return half_width_ratio <= RESOLVED_HALF_WIDTH_RATIO

    def brackets(self) -> str:
        """Format the share as `9.3 % [9.0, 9.6]`."""
        low, high = fmt.percent(self.low_ratio), fmt.percent(self.high_ratio)
        interval = ", interval unknown" if self.half_width_ratio is None else f" [{low}, {high}]"
        return f"{fmt.percent(self.ratio)} %{interval}"

    def plus_minus(self) -> str:
        """Format the share as `9.3 ± 0.3 %`."""
        if self.half_width_ratio is None:
            return self.brackets()
        return f"{fmt.percent(self.ratio)} ± {fmt.percent(self.half_width_ratio)} %"


def row_share(row: Row) -> Share | None:
    """Return a row's lost / window; its interval is the gap's times the covered share."""
    lost_ns, gap_ratio = row.dvfs.lost_ns, row.dvfs.gap_ratio
    if lost_ns is None or not row.window_ns:
        return None
    covered = _covered_ratio(row)
    low, high = row.dvfs.gap_low, row.dvfs.gap_high
    if not known(low) or not known(high) or not known(gap_ratio) or covered is None:
        return Share(ratio=lost_ns / row.window_ns, low_ratio=None, high_ratio=None)
    return Share(
        ratio=lost_ns / row.window_ns,
        low_ratio=low * covered,
        high_ratio=high * covered,
        by_run=row.dvfs.resolved,
    )


def pooled_share(totals: Sequence[Row]) -> Share | None:
    """Average the lost shares of all devices' whole files with intervals, weighted by window.

    Half-widths are averaged as if errors went together: the join's is common to all.
    """
    shares = [(share, row.window_ns or 0) for row in totals if (share := row_share(row))]
    weighted = [(s.ratio, half, w) for s, w in shares if (half := s.half_width_ratio) is not None]
    window_ns = sum(weight for _, _, weight in weighted)
    if not window_ns:
        return None
    ratio = sum(ratio * weight for ratio, _, weight in weighted) / window_ns
    half = sum(half * weight for _, half, weight in weighted) / window_ns
    return Share(ratio=ratio, low_ratio=ratio - half, high_ratio=ratio + half)


def _covered_ratio(row: Row) -> float | None:
    """Return covered compute over the window; None if unknown."""
    if row.clock is None or not known(row.clock.coverage_ratio) or row.compute_ns is None:
        return None
    return row.clock.coverage_ratio * row.compute_ns / row.window_ns if row.window_ns else None


# What the clock cost.


def clock(document: ReportDocument) -> list[str]:
    """Return the clauses on what the clock cost, or how to get clocks; none without a GPU."""
    summary = document.summary
    if not (document.totals or document.devices):
        return []
    if summary is None or not known(summary.lost_ns):
        code = _reason_code(document)
        if code == "no_samples":
            return [f"unknown, no samples: {_HOW_TO_SAMPLE}"]
        what = "GPU unknown" if code == "device_unmapped" else "unknown"
        return [f"{what}: {_unknown_reason(document, code)}"]
    if foreign := foreign_samples(document):
        return [f"unknown: {foreign}"]
    doubt = _doubt(document, summary, _DOUBTFUL_CODES)
    return [
        *_ceiling(document, summary),
        f"not certain: {doubt}" if doubt else "",
        _sampled_part(summary),
        _causes(summary),
        _sensitivity(summary),
        _excess(summary),
    ]


def foreign_samples(document: ReportDocument) -> str:
    """Return why the samples can't be the trace's; empty where they may be, shifted or not."""
    summary = document.summary
    if summary is None:
        return ""
    lag_ns = document.alignment.lag_ns
    is_moved = lag_ns is not None and abs(lag_ns) > MAX_LAG_NS
    return _doubt(document, summary, _FOREIGN_CODES[:1] if is_moved else _FOREIGN_CODES)


def _doubt(document: ReportDocument, summary: Summary, codes: tuple[str, ...]) -> str:
    """Return the first note with one of `codes` where the loss has no interval; else ""."""
    if known(summary.gap_low):
        return ""
    return next((note.text for note in document.notes if note.code in codes), "")


def _reason_code(document: ReportDocument) -> str | None:
    """Return the code of the most basic note that explains a missing clock cost; else None."""
    codes = {note.code for note in document.notes}
    return next((code for code in _REASON_CODES if code in codes), None)


def _unknown_reason(document: ReportDocument, code: str | None) -> str:
    if code is not None:
        return next(note.text for note in document.notes if note.code == code)
    if document.sampling.samples_in_compute == 0:
        return "no clock samples while compute ran"
    if not any(known(device.reference.sm_clock_mhz) for device in document.devices):
        return "no reference clock"
    return "no compute is covered by clock samples"


def _ceiling(document: ReportDocument, summary: Summary) -> list[str]:
    amount = f"at most {fmt.brief_ms(summary.lost_ns)} ms"
    below, ratio = f"below {_reference(document)}", summary.gap_ratio
    if not known(ratio):
        return [f"{amount} {below}{_physics(summary)}"]
    low, high = (each if known(each) else None for each in (summary.gap_low, summary.gap_high))
    share = Share(ratio=ratio, low_ratio=low, high_ratio=high)
    if share.resolved:
        return [f"{amount} ({share.brackets()}) {below}{_physics(summary)}"]
    return [f"{amount} {below}, {unresolved(pooled_share(document.totals) or share)}"]


def _physics(summary: Summary) -> str:
    """Return that the peers lose most of it too, where that is known."""
    if not known(summary.excess_ns) or not known(summary.lost_ns):
        return ""
    return ", most of it physics" if summary.excess_ns < summary.lost_ns / 2 else ""


def _sampled_part(summary: Summary) -> str:
    """Return a remark on the share of compute with a clock; empty where that is nearly all."""
    if not known(summary.coverage_ratio) or summary.coverage_ratio >= _FULL_COVERAGE_RATIO:
        return ""
    share = fmt.percent(summary.coverage_ratio, 0)
    return f"only {share} % of compute was sampled, the rest adds to it"


def unresolved(pooled: Share) -> str:
    """Return the text for an interval that is too wide for a figure, with the pooled share."""
    return f"{_UNRESOLVED}; pooled over the run: {pooled.plus_minus()}"


def _sensitivity(summary: Summary) -> str:
    low_ns, high_ns = summary.lost_measured_low_ns, summary.lost_measured_high_ns
    if not known(low_ns) or not known(high_ns):
        return ""
    low, high = fmt.brief_ms(low_ns), fmt.brief_ms(high_ns)
    return f"{low if low == high else f'{low} to {high}'} ms by measured sensitivity"


def _excess(summary: Summary) -> str:
    if not known(summary.excess_ns):
        return ""
    low_ns, high_ns = summary.excess_low_ns, summary.excess_high_ns
    if summary.excess_ns == 0 or low_ns == 0:
        return "no more than peers"
    excess = f"{fmt.brief_ms(summary.excess_ns)} ms more than peers"
    return f"{excess} {fmt.ms_interval(low_ns, high_ns)}".rstrip()


def _causes(summary: Summary) -> str:
    if not summary.causes:
        return "" if summary.lost_ns == 0 else "cause unknown"
    return ", ".join(fmt.share_of(c.cause, c.share) + _below_cap(c) for c in summary.causes)


def _below_cap(cause: CauseShare) -> str:
    """Return power and limit, where a power cap holds the clock far below the limit; else ""."""
    power_w, limit_w = cause.power_w, cause.power_limit_w
    if not known(power_w) or not known(limit_w) or power_w >= _AT_CAP_RATIO * limit_w:
        return ""
    return f" (at {fmt.whole(power_w)} of {fmt.whole(limit_w)} W: not by this limit)"


def _reference(document: ReportDocument) -> str:
    references = {(d.reference.sm_clock_mhz, d.reference.source) for d in document.devices}
    if document.summary is not None:
        references.add((document.summary.reference_mhz, document.summary.reference_source))
    clocks_mhz = [clock_mhz for clock_mhz, _ in references if known(clock_mhz)]
    if not clocks_mhz:
        return "an unknown reference clock"
    sources = sorted({source or "source unknown" for clock_mhz, source in references if clock_mhz})
    return f"{fmt.spread(clocks_mhz)} MHz ({fmt.words(' and '.join(sources))})"


def trust(document: ReportDocument) -> list[str]:
    """Return the clauses on what the figures rest on, and what is missing."""
    lost = _losses(document)
    is_whole = not lost and not known(document.sampling.kept_hz) and bool(_complete(document))
    return [
        ("good: " if is_whole else "") + _steps(document),
        *(lost or ["nothing lost"]),
        *_rate(document),
        _join(document),
        "wall clock was stepped inside the window" if document.alignment.realtime_step else "",
        _profiler(document),
        _ranks(document),
    ]


def _steps(document: ReportDocument) -> str:
    complete = _complete(document)
    if complete:
        return fmt.plural(complete, "complete step")
    return "" if document.summary is None else "no complete step"


def _complete(document: ReportDocument) -> int:
    if document.summary is None:
        return len({(row.job, row.run, row.step) for row in document.steps if not row.partial})
    return document.summary.steps


def _losses(document: ReportDocument) -> list[str]:
    traces = document.traces or (document.trace,)
    damaged = sum(trace.damaged_events for trace in traces)
    invalid = sum(trace.invalid_records for trace in traces)
    incomplete = sum(not trace.complete for trace in traces)
    unlaunched = sum(trace.lost.get("launches_without_record", 0) for trace in traces)
    found = [
        f"{fmt.plural(incomplete, 'trace')} incomplete" if incomplete else "",
        fmt.plural(damaged, "damaged event") if damaged else "",
        f"{fmt.plural(invalid, 'invalid record')} left out" if invalid else "",
        f"{fmt.plural(unlaunched, 'launch', 'launches')} without record" if unlaunched else "",
    ]
    return [each for each in found if each]


def _ranks(document: ReportDocument) -> str:
    """Return how many of the job's ranks are here, where some are missing; else ""."""
    traces = document.traces or (document.trace,)
    world_size = max((trace.world_size or 0 for trace in traces), default=0)
    here = len({trace.rank for trace in traces if trace.rank is not None})
    if not here or here >= world_size:
        return ""
    others = "the other" if world_size - here == 1 else "the others"
    return f"{here} of {fmt.plural(world_size, 'rank')} (waits for {others} unknown)"


def _rate(document: ReportDocument) -> list[str]:
    sampling, summary = document.sampling, document.summary
    if not known(sampling.kept_hz):
        is_unmapped = _reason_code(document) == "device_unmapped"
        return ["clock samples of no known GPU"] if is_unmapped else []
    kept = f"{sampling.kept_hz:.3g} Hz kept"
    if known(sampling.asked_hz) and sampling.kept_hz < _FULL_RATE_RATIO * sampling.asked_hz:
        kept = f"{sampling.kept_hz:.3g} of {sampling.asked_hz:.3g} Hz kept"
    coverage = summary.coverage_ratio if summary is not None else None
    return [
        kept,
        f"{fmt.plural(sampling.samples_in_compute, 'sample')} in compute",
        f"coverage {fmt.percent(coverage)} %" if known(coverage) else "coverage unknown",
        _sensor(sampling.sensor_period_ms, sampling.kept_hz),
    ]


def _sensor(period_ms: float | None, kept_hz: float) -> str:
    """Return the clock sensor's update period, where it is too long for the rate; else ""."""
    if not known(period_ms) or period_ms * NS_PER_MS * kept_hz < _SLOW_SENSOR_READS * NS_PER_S:
        return ""
    return f"clock sensor updates each {fmt.decimal(period_ms, 0)} ms"


def _join(document: ReportDocument) -> str:
    alignment = document.alignment
    if not known(document.sampling.kept_hz):
        return ""
    if alignment.offset_uncertainty_ns is None:
        return "time join uncertainty unknown"
    join = f"time join ±{fmt.brief_ms(alignment.offset_uncertainty_ns)} ms"
    if alignment.lag_ns is None:
        return f"{join} (lag {alignment.check})"
    interval = fmt.ms_interval(alignment.lag_low_ns, alignment.lag_high_ns)
    return f"{join} (lag {fmt.brief_ms(alignment.lag_ns)} ms {interval})"


def _profiler(document: ReportDocument) -> str:
    ratio = document.profiler.profiled_step_ratio
    if not known(ratio):
        return ""
    if ratio <= 1:
        return "profiler slows no step"
    return f"profiler slows a step by {fmt.percent(ratio - 1)} %"
