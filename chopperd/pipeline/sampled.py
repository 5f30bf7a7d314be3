"""Report on samples alone: busy clocks against peers, loss, drops, energy; for runs without traces.

Busy time, loss and drops are by the rules of the live figures. A busy clock includes communication
and waiting on the GPU: a GPU is named with more reserve than by a trace, which knows its compute.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd import __version__
from chopperd.correlate.clock.governing import governed
from chopperd.correlate.ranks.comparing import MIN_PEERS, Peers, peers_of, wander_ratio
from chopperd.live.drops import drops_in, median_spacing_ns, records_of
from chopperd.live.integrals import BusyRatio, LiveIntegrals
from chopperd.live.readings import BusyClock, BusyClocks
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.live import LiveTotals
from chopperd.model.report import Generated, Note
from chopperd.model.samples import BusyPeers, GpuSamples, SampledGpu, SampleSet, SamplesReport
from chopperd.report.build.rows import rfc3339
from chopperd.report.build.trace_notes import noted
from chopperd.sampling.memory.layout import Records
from chopperd.units import HZ_PER_MHZ, NS_PER_S

#: A GPU is named from so far below its peers on, with the low end of its interval: twice the
#: margin of a trace, as peers that wait for others do so at high clocks. In the simulated jobs that
#: is 1.2 to 1.5 points.
_NAMED_RATIO: Final = 0.03
#: A GPU that draws so much more than its peers has more work, not a fault.
_MORE_POWER_RATIO: Final = 1.05
#: Windows in which clocks are compared: ten of a recording, of these lengths; and the fewest.
_WINDOWS: Final = 10
_SHORTEST_NS, _LONGEST_NS = 2 * NS_PER_S, 10 * NS_PER_S
_LEAST_WINDOWS: Final = 3
#: A GPU takes part in the job if it is busy in so many of the windows in which any is.
_TAKES_PART_RATIO: Final = 0.5
#: Power that is known for less of the time is not integrated to energy.
_POWER_KNOWN_RATIO: Final = 0.95
_POWER_GAP_S: Final = 3.0
_HALF_BUSY: Final = 0.5
#: Student's t, 97.5 %, by degrees of freedom from two on.
_T_975: Final = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def report_samples(
    samples: SampleSet, *, unix_ns: int, reference_mhz: float | None = None
) -> SamplesReport:
    """Make the report on a recording's samples, at least one GPU's; `unix_ns` dates it.

    `reference_mhz`: what losses are measured against; None: each GPU's highest clock.
    """
    every = [governed(each) for each in samples.gpus]
    if reference_mhz is not None:
        every = [replace(e, gpu=replace(e.gpu, sm_clock_max_mhz=reference_mhz)) for e in every]
    tracks = [_Track.of(each, samples.asked_hz) for each in every]
    peers, why = _compared(tracks, _started_on(samples))
    gpus = tuple(_gpu(each, peers.get(i)) for i, each in enumerate(tracks))
    named = [each for each in gpus if each.peers is not None and each.peers.stands_out]
    worst = max(named, key=lambda each: each.peers.below_mhz if each.peers else 0.0, default=None)
    drops = [d for each in tracks for d in drops_in(each.records, each.samples.gpu, each.period_ns)]
    times_ns = [each.t_unix_ns for each in every if len(each)]
    start_ns = min((int(t_ns[0]) for t_ns in times_ns), default=None)
    end_ns = max((int(t_ns[-1]) for t_ns in times_ns), default=None)
    return SamplesReport(
        generated=Generated(
            version=__version__,
            node=samples.node,
            backend=samples.backend,
            driver=samples.driver,
            simulated=samples.simulated,
            time=rfc3339(unix_ns),
        ),
        start_unix_ns=start_ns,
        length_s=None if start_ns is None or end_ns is None else (end_ns - start_ns) / NS_PER_S,
        asked_hz=samples.asked_hz,
        gpus=gpus,
        drops=tuple(sorted(drops, key=lambda each: each.begin_unix_ns)),
        look_at=None if worst is None else worst.gpu,
        notes=(*samples.notes, *why, *_unknown(tracks)),
    )


class _Track(Struct, frozen=True, kw_only=True):
    """One GPU's samples as records whose time is Unix time, its integrals, and when it is busy."""

    samples: GpuSamples
    records: Records
    period_ns: int
    totals: LiveTotals
    is_busy: Bools  # (n,) of its samples; False where not known

    @classmethod
    def of(cls, samples: GpuSamples, asked_hz: float | None) -> "_Track":
        records = records_of(samples)
        integrals = LiveIntegrals(samples.gpu)
        period_ns = round(NS_PER_S / asked_hz) if asked_hz else median_spacing_ns(samples.t_unix_ns)
        integrals.add(records, period_ns)
        busy_ratio = BusyRatio(samples.gpu).at(records) if len(records) else np.zeros(0)
        return cls(
            samples=samples,
            records=records,
            period_ns=period_ns,
            totals=integrals.totals(),
            is_busy=busy_ratio >= _HALF_BUSY,
        )

    def busy_mean(self, column: Float64s) -> float | None:
        """Return the mean of a column over busy samples; None if it is never known."""
        known = column[self.is_busy & np.isfinite(column)]
        return float(known.mean()) if len(known) else None


def _gpu(track: _Track, peers: BusyPeers | None) -> SampledGpu:
    samples, totals, info = track.samples, track.totals, track.samples.gpu
    busy_s, clocked_s = totals.busy_s, totals.busy_sampled_s
    lost_s = sum(totals.lost_s.values()) if totals.lost_s else None
    hot_c = samples.temperature_c[track.is_busy & np.isfinite(samples.temperature_c)]
    energy_j, source = _energy(track)
    length_s = _length_s(samples.t_unix_ns)
    return SampledGpu(
        gpu=info.gpu,
        uuid=info.uuid,
        name=info.name,
        samples=len(samples),
        kept_hz=_ratio(len(samples) - 1, length_s) if len(samples) > 1 else None,
        reference_mhz=info.sm_clock_max_mhz,
        sampled_s=totals.sampled_s,
        busy_s=busy_s,
        busy_ratio=_ratio(busy_s, length_s),
        clocked_s=clocked_s,
        busy_mhz=_ratio(totals.busy_sm_cycles, (clocked_s or 0.0) * HZ_PER_MHZ),
        lost_s=lost_s,
        lost_ratio=_ratio(lost_s, clocked_s),
        lost_by_cause_s={each.label: value for each, value in totals.lost_s.items() if value},
        power_w=track.busy_mean(samples.power_w),
        temperature_c=track.busy_mean(samples.temperature_c),
        hottest_c=float(hot_c.max()) if len(hot_c) else None,
        energy_j=energy_j,
        energy_source=source,
        peers=peers,
    )


def _length_s(t_ns: Int64s) -> float:
    return float(t_ns[-1] - t_ns[0]) / NS_PER_S if len(t_ns) else 0.0


def _ratio(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None


def _energy(track: _Track) -> tuple[float | None, Literal["counter", "power"] | None]:
    """Return the energy in J: by the driver's counter, else the integral of known power."""
    if track.totals.energy_j is not None:
        counted = np.isfinite(track.samples.energy_j)
        if np.count_nonzero(counted) > 1:
            return track.totals.energy_j, "counter"
    known = np.isfinite(track.samples.power_w)
    t_ns, power_w = track.samples.t_unix_ns[known], track.samples.power_w[known]
    whole_s = _length_s(track.samples.t_unix_ns)
    spacing_s = np.diff(t_ns) / NS_PER_S
    near = spacing_s <= _POWER_GAP_S
    if not whole_s or spacing_s[near].sum() < _POWER_KNOWN_RATIO * whole_s:
        return None, None
    energy_j = ((power_w[1:] + power_w[:-1]) / 2 * spacing_s)[near].sum()
    return float(energy_j), "power"


def _started_on(samples: SampleSet) -> frozenset[str]:
    """Return UUIDs or labels of the GPUs of processes that began after the recording; or none.

    They are those of the recorded command: what others run must not be compared with it.
    """
    if samples.started_unix_ns is None:
        return frozenset()
    return frozenset(
        gpu
        for each in samples.processes
        if each.started_unix_ns is not None and each.started_unix_ns >= samples.started_unix_ns
        for gpu in each.gpus
    )


def _compared(
    tracks: Sequence[_Track], only: frozenset[str]
) -> tuple[dict[int, BusyPeers], list[Note]]:
    """Compare the GPUs of each model over the windows in which all that take part are busy.

    `only`: UUIDs or labels of those that may take part; empty for all. Returns the comparisons by
    index of the GPU, and why there are none or why nothing is said against some.
    """
    windows = _windows(tracks)
    models: defaultdict[str, list[int]] = defaultdict(list)
    for index, each in enumerate(tracks):
        info = each.samples.gpu
        if info.parent is None and (not only or {info.uuid, info.gpu} & only):
            models[info.name].append(index)
    peers: dict[int, BusyPeers] = {}
    notes: list[Note] = []
    for indices in models.values():
        clocks = [windows[index] for index in indices]
        found, why = _of_model([tracks[index] for index in indices], clocks)
        peers |= {indices[nth]: each for nth, each in found.items()}
        notes += why
    return peers, notes


def _windows(tracks: Sequence[_Track]) -> list[list[BusyClock | None]]:
    """Return each GPU's busy clock in windows that are the same for all."""
    spans = [track.samples.t_unix_ns[[0, -1]] for track in tracks if len(track.samples)]
    if not spans:
        return [[] for _ in tracks]
    begin_ns, end_ns = int(min(span[0] for span in spans)), int(max(span[1] for span in spans))
    length_ns = min(max((end_ns - begin_ns) // _WINDOWS, _SHORTEST_NS), _LONGEST_NS)
    ends_ns = range(begin_ns + length_ns, end_ns + 1, length_ns)
    each: list[list[BusyClock | None]] = []
    for track in tracks:
        clocks = BusyClocks(track.samples.gpu)
        clocks.add(track.records)
        each.append([clocks.close_window(end, track.period_ns) for end in ends_ns])
    return each


def _of_model(
    tracks: Sequence[_Track], clocks: Sequence[Sequence[BusyClock | None]]
) -> tuple[dict[int, BusyPeers], list[Note]]:
    is_busy = np.array([[each is not None for each in row] for row in clocks], bool)
    any_busy = np.count_nonzero(is_busy.any(axis=0))
    if not any_busy:
        return {}, []
    members = np.flatnonzero(is_busy.sum(axis=1) >= _TAKES_PART_RATIO * any_busy).tolist()
    common = np.flatnonzero(is_busy[members].all(axis=0)).tolist()
    if len(members) < MIN_PEERS or len(common) < _LEAST_WINDOWS:
        too_few = f"{len(members)} of one model were busy together, and {MIN_PEERS} are needed"
        together = f"all were busy together in {len(common)} windows"
        too_short = f"{together}, and {_LEAST_WINDOWS} are needed"
        why = too_few if len(members) < MIN_PEERS else too_short
        text = f"GPUs are not compared with each other: {why}"
        return {}, [Note(code="no_peers", text=text)]
    known = [[clocks[i][w] for w in common] for i in members]
    mean_mhz = np.array([[c.mean_hz for c in row if c] for row in known]) / HZ_PER_MHZ
    busy_s = np.array([[c.busy_s for c in row if c] for row in known])
    return _judged([tracks[i] for i in members], members, mean_mhz, busy_s)


def _judged(
    tracks: Sequence[_Track], positions: Sequence[int], mean_mhz: Float64s, busy_s: Float64s
) -> tuple[dict[int, BusyPeers], list[Note]]:
    """Say which of (g,) GPUs stand out, by clocks and busy times in (w,) windows, each (g, w)."""
    own_mhz = (mean_mhz * busy_s).sum(axis=1) / busy_s.sum(axis=1)
    shares = mean_mhz / np.median(mean_mhz, axis=0)
    half_mhz = own_mhz * np.array([_half_ratio(each) for each in shares])
    half_mhz = np.hypot(half_mhz, [_half_step_mhz(each.samples) for each in tracks])
    wander = wander_ratio(list(shares))
    peers = peers_of(own_mhz, half_mhz, wander)
    if peers is None:  # at least four have a clock in each window
        return {}, []
    excess = peers.excess(own_mhz, half_mhz)
    margin = max(peers.margin_ratio, float(np.hypot(_NAMED_RATIO, wander)))
    is_low = excess.low > margin
    named, notes = _blamed(tracks, is_low, peers)
    return {
        positions[i]: BusyPeers(
            n=peers.count,
            windows=mean_mhz.shape[1],
            median_mhz=peers.reference_mhz,
            own_mhz=float(own_mhz[i]),
            below_mhz=float(excess.ratio[i]) * peers.reference_mhz,
            below_low_mhz=float(excess.low[i]) * peers.reference_mhz,
            below_high_mhz=float(excess.high[i]) * peers.reference_mhz,
            stands_out=bool(named[i]),
        )
        for i in range(len(tracks))
    }, notes


def _half_ratio(shares: Float64s) -> float:
    """Return half of the 95 % interval of the mean of a clock's shares in (w,) windows, w >= 3."""
    parts = np.array([each.mean() for each in np.array_split(shares, min(len(shares), _WINDOWS))])
    t_975 = _T_975[min(len(parts), _WINDOWS) - 3]
    return float(t_975 * parts.std(ddof=1) / np.sqrt(len(parts)))


def _half_step_mhz(samples: GpuSamples) -> float:
    """Return half of the smallest step between two clocks that the sensor showed; 0 without."""
    clock_mhz = samples.sm_clock_mhz[np.isfinite(samples.sm_clock_mhz)]
    steps_mhz = np.diff(np.unique(clock_mhz))
    return float(steps_mhz.min()) / 2 if len(steps_mhz) else 0.0


def _blamed(tracks: Sequence[_Track], is_low: Bools, peers: Peers) -> tuple[Bools, list[Note]]:
    """Return which of the GPUs that run low are to blame for it, and why others are not.

    Not where the peers fall into two groups, which may be two jobs, nor a GPU that draws more
    power than the others, or whose power is unknown: it may have more work.
    """
    if not is_low.any() or peers.disagree:
        text = "the busy clocks fall into two groups, perhaps of two jobs: no GPU is named"
        return np.zeros_like(is_low), [Note(code="peers_disagree", text=text)] * peers.disagree
    means_w = [each.busy_mean(each.samples.power_w) for each in tracks]
    power_w = np.array(means_w, np.float64)  # None as NaN
    rest_w = np.array([np.median(np.delete(power_w, i)) for i in range(len(tracks))])
    draws_no_more = power_w <= _MORE_POWER_RATIO * rest_w  # False where one is unknown
    notes = []
    for i in np.flatnonzero(is_low & ~draws_no_more).tolist():
        gpu, knows = tracks[i].samples.gpu.gpu, np.isfinite(power_w[i] - rest_w[i])
        why = "draws more power than they do" if knows else "or theirs has no known power"
        text = f"GPU {gpu} runs below its peers, but {why}: it may have more work, a trace tells"
        notes.append(Note(code="more_work", text=text))
    return is_low & draws_no_more, notes


def _unknown(tracks: Sequence[_Track]) -> list[Note]:
    untold = [each.samples.gpu.gpu for each in tracks if each.totals.busy_sampled_s is None]
    unlimited = [each.samples.gpu.gpu for each in tracks if not each.samples.gpu.sm_clock_max_mhz]
    return noted(
        busy_unknown=untold
        and f"not known when they were busy, or their clock: GPUs {', '.join(untold)}",
        no_reference=unlimited and f"no highest clock, and so no loss: GPUs {', '.join(unlimited)}",
    )
