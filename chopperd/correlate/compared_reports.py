"""Compare reports: which GPUs are the same, which steps count, and what may not be compared.

Source: DESIGN.md section 2, "Comparing runs".
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import ceil, nan
from statistics import median
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from chopperd.correlate.comparison import (
    ALPHA,
    LEAST_EFFECTIVE,
    LEAST_RUNS,
    Figures,
    differences,
    estimates,
    knee,
    warm_up_steps,
)
from chopperd.correlate.memory.evidence import fsdp_evidence
from chopperd.errors import IncomparableError
from chopperd.model.arrays import Float64s
from chopperd.model.comparison import (
    ROW,
    SCHEMA,
    STEP,
    Allowed,
    Comparison,
    ComparisonDocument,
    PairedBy,
    PairedGpu,
    Side,
)
from chopperd.model.memory import RankMemory, StepMemory
from chopperd.model.report import DeviceSummary, Note, ReportDocument
from chopperd.model.report_rows import Row
from chopperd.units import NS_PER_S

_COMPUTE: Final = ("dvfs_loss", "compute_at_ref", "compute_unsampled")
#: Parts of rows, the first of which is known where the split is.
_PARTS: Final[Mapping[str, Sequence[str]]] = {
    "compute": _COMPUTE,
    "exposed_comm": ("exposed_comm/wait", "exposed_comm/transfer"),
}
_CLASS: Final = "class/"
_OF_ROW: Final = {STEP: "window_ns", "energy_j": "energy_j", "power_w": "power_w"}
_OF_CLOCK: Final = {"busy_mhz": "mean_mhz", "busy_p05_mhz": "p05_mhz", "busy_std_mhz": "std_mhz"}
_MEMORY: Final = tuple(
    ["peak_allocated_bytes", "peak_reserved_bytes", "segment_ns", "retries", "allocations"]
)
_MARK_STEPS: Final = ": `chopperd explain profiler` says how to have some in a trace"
_NAMES: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

#: Job, run, step, and how many of this number came before: files may each count from 0.
StepKey: TypeAlias = tuple[str | None, str | None, int | None, int]
#: Name of a side, and reports of A and of it.
_Reports: TypeAlias = tuple[str, Sequence[ReportDocument], Sequence[ReportDocument]]
_Place: TypeAlias = tuple[int | None, int | None, str | None]  # rank, device, GPU


class _Gpu(Struct, frozen=True, kw_only=True):
    """A device of one run: its summary, complete steps, whole file, and memory by step."""

    device: DeviceSummary | None
    rows: Mapping[StepKey, Row]
    total: Row | None  # of its whole file
    memory: Mapping[int, StepMemory]
    warm_up_steps: int


class _Run(Struct, frozen=True, kw_only=True):
    """One report: its GPUs by UUID and by rank and device, and how many steps were left out."""

    document: ReportDocument
    by_uuid: Mapping[str, _Gpu]
    by_rank: Mapping[str, _Gpu]
    partial: int


def _run(document: ReportDocument) -> _Run:
    rows: defaultdict[_Place, dict[StepKey, Row]] = defaultdict(dict)
    left_out, seen = set(), Counter[object]()
    for row in document.steps:
        place, number = (row.rank, row.device, row.gpu), (row.job, row.run, row.step)
        key = (*number, seen[place, number])
        seen[place, number] += 1
        if row.partial or row.tail or row.host_only or not row.window_ns:
            left_out.add(key)
        else:
            rows[place][key] = row
    devices: dict[_Place, DeviceSummary] = {
        (each.rank, each.device, each.gpu): each for each in document.devices
    }
    totals: dict[_Place, Row] = {
        (each.rank, each.device, each.gpu): each for each in document.totals
    }
    memory: dict[tuple[int | None, int | None], RankMemory] = {
        (each.rank, each.device): each for each in document.memory
    }
    by_uuid: dict[str, _Gpu] = {}
    by_rank: dict[str, _Gpu] = {}
    for place, found in rows.items():
        device, its = devices.get(place), memory.get(place[:2])
        gpu = _Gpu(
            device=device,
            rows=found,
            total=totals.get(place),
            memory={each.step: each for each in its.steps} if its else {},
            warm_up_steps=its.warm_up_steps if its else 0,
        )
        by_rank[f"{place[0]}/{place[1]}"] = gpu
        if device is not None and device.uuid is not None:
            by_uuid[device.uuid] = gpu
    return _Run(document=document, by_uuid=by_uuid, by_rank=by_rank, partial=len(left_out))


def _figures(gpus: Sequence[_Gpu]) -> tuple[Figures, int]:
    """Return means over GPUs, (steps,) each, of the steps that all completed; how many warm up.

    A figure that one of them lacks in a step is NaN there.
    """
    first, *others = gpus
    keys = sorted(
        (key for key in first.rows if all(key in each.rows for each in others)),
        key=lambda key: (str(key[:2]), first.rows[key].start_unix_ns or 0, key[2] or 0),
    )
    if not keys:
        return {}, 0
    rows = [each.rows[key] for each in gpus for key in keys]
    every = sorted({f"{_CLASS}{part.class_}_ns" for row in rows for part in row.families})
    steps = [[dict(_of_step(each, key, every)) for each in gpus] for key in keys]
    names = dict.fromkeys(name for step in steps for each in step for name in each)
    found: dict[str, Float64s] = {
        name: np.array([[each.get(name, nan) for each in step] for step in steps]).mean(axis=1)
        for name in names
    }
    warm = max(warm_up_steps(found[STEP]), *(each.warm_up_steps for each in gpus))
    warm = min(warm, len(keys) - 1)
    found = {name: each[warm:] for name, each in found.items()}
    return {**found, **_energy(gpus, found)}, warm


def _energy(gpus: Sequence[_Gpu], found: Figures) -> Figures:
    """Return energy and power by the whole files, one value each, where no step has its own.

    The counter may be read too rarely for a step. The mean power of a file has the time between
    steps in it, if there is any.
    """
    powers = [
        total.energy_j / total.window_ns
        for gpu in gpus
        if (total := gpu.total) is not None and total.energy_j is not None and total.window_ns
    ]
    if len(powers) < len(gpus) or np.isfinite(found.get("energy_j", np.empty(0))).any():
        return {}
    per_ns = sum(powers) / len(powers)
    whole = {"energy_j": per_ns * found[STEP].mean(), "power_w": per_ns * NS_PER_S}
    return {name: np.array([value]) for name, value in whole.items()}


def _of_step(gpu: _Gpu, key: StepKey, classes: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Yield what is known of a step; `classes`: names of those that some step has."""
    row, memory = gpu.rows[key], gpu.memory.get(key[2] if key[2] is not None else -1)
    values: dict[str, float | None] = {name: getattr(row, own) for name, own in _OF_ROW.items()}
    if row.clock is not None and row.clock.busy is not None:
        values |= {name: getattr(row.clock.busy, own) for name, own in _OF_CLOCK.items()}
    if row.temperature_c is not None:
        values["temperature_c"] = row.temperature_c.mean
    if row.waterfall_ns is not None:
        parts = asdict(row.waterfall_ns)
        values |= {f"{ROW}{name}": value for name, value in parts.items()}
        values[f"{ROW}compute"] = sum(parts[name] or 0 for name in _COMPUTE)
    if row.exposed_comm_ns is not None:
        parts = asdict(row.exposed_comm_ns)
        values |= {f"{ROW}exposed_comm/{name}": value for name, value in parts.items()}
    if row.families:
        times = {name: 0 for name in classes}
        for family in row.families:
            times[f"{_CLASS}{family.class_}_ns"] += family.time_ns
        values |= times
    if memory is not None:
        values |= {f"memory/{name}": getattr(memory, name) for name in _MEMORY}
        if memory.segment_allocs is not None and memory.segment_frees is not None:
            values["memory/segment_calls"] = memory.segment_allocs + memory.segment_frees
    return ((name, value) for name, value in values.items() if value is not None)


def _alike(sides: Sequence[Sequence[Figures]]) -> list[list[Figures]]:
    """Leave out parts of rows that not all sides have, else what they are parts of."""
    unwanted: set[str] = set()
    for whole, parts in _PARTS.items():
        known = all(any(_has(run, f"{ROW}{parts[0]}") for run in side) for side in sides)
        unwanted |= {f"{ROW}{name}" for name in ((whole,) if known else parts)}
    return [
        [{name: each for name, each in run.items() if name not in unwanted} for run in side]
        for side in sides
    ]


def _has(run: Figures, name: str) -> bool:
    return name in run and bool(np.isfinite(run[name]).any())


# Which GPUs are compared, and what is refused.


class _Chosen(NamedTuple):
    """The GPUs of each run of two or more sides, by key; equal keys are equal GPUs if paired."""

    sides: Sequence[Sequence[Mapping[str, _Gpu]]]
    paired_by: PairedBy
    notes: list[Note]


def _chosen(sides: Sequence[Sequence[_Run]], allow: Collection[str]) -> _Chosen:
    """Pair the GPUs of all runs by UUID, where these are unknown by rank.

    Raises:
        IncomparableError: They are different GPUs, and that is not allowed.
    """
    runs = [run for side in sides for run in side]
    uuids = [set(run.by_uuid) for run in runs]
    common = set.intersection(*uuids)
    if common:
        notes = []
        most = max(len(run.by_rank) for run in runs)
        if len(common) < most:
            text = f"only {len(common)} of {most} GPUs are in all runs: only these are compared"
            notes.append(Note(code="other_gpus", text=text))
        kept = [[{k: run.by_uuid[k] for k in sorted(common)} for run in side] for side in sides]
        return _Chosen(kept, "uuid", notes)
    ranks = set.intersection(*(set(run.by_rank) for run in runs)) or None
    every = [
        [{k: gpu for k, gpu in run.by_rank.items() if not ranks or k in ranks} for run in side]
        for side in sides
    ]
    models = [{gpu.device.name for gpu in run.by_rank.values() if gpu.device} for run in runs]
    if all(uuids) or any(a and b and a != b for a, b in combinations(models, 2)):
        if "gpus" not in allow:
            raise IncomparableError("different GPUs: no GPU is in all of the runs", allow="gpus")
        text = "different GPUs: what differs may be the GPUs' own"
        return _Chosen(every, "none", [Note(code="different_gpus", text=text)])
    text = "the GPUs are not known in all of the runs: they may be different ones"
    return _Chosen(every, "rank", [Note(code="gpus_unknown", text=text)])


def _refuse(sides: Sequence[Side], allow: Collection[str]) -> Iterator[Note]:
    """Refuse other references or power limits of sides, or note them where they are allowed.

    Power limits of three or more sides are what is compared.
    """
    checked: tuple[tuple[Allowed, str, str, Callable[[Side], float | None]], ...] = (
        ("reference", "reference clocks", "MHz", lambda side: side.reference_mhz),
        ("power-limit", "power limits", "W", lambda side: side.power_limit_w),
    )
    for asked, what, unit, of in checked:
        known = {each.name: value for each in sides if (value := of(each)) is not None}
        if not known or max(known.values()) - min(known.values()) < 1:
            continue
        listed = ", ".join(f"{name} {value:.0f} {unit}" for name, value in known.items())
        if asked in allow or (asked == "power-limit" and len(sides) > 2):
            yield Note(code=f"other_{asked}", text=f"other {what}: {listed}")
        else:
            raise IncomparableError(f"other {what}: {listed}", allow=asked)


def compare(
    sides: Sequence[Sequence[ReportDocument]], *, version: str, allow: Collection[str] = ()
) -> ComparisonDocument:
    """Compare each side after the first with the first; a side is one or more reports, one a run.

    Raises:
        IncomparableError: A side has no complete step, or runs that differ in their GPUs, reference
            clocks or power limits, and that is not in `allow`.
    """
    if len(sides) > len(_NAMES):
        raise IncomparableError(f"{len(_NAMES)} sides at most", allow=None)
    runs = [[_run(document) for document in side] for side in sides]
    for name, side in zip(_NAMES, runs, strict=False):
        if not all(run.by_rank for run in side):
            raise IncomparableError(f"{name} has no complete step{_MARK_STEPS}", allow=None)
    chosen = _chosen(runs, allow)
    taken = [[_figures(list(gpus.values())) for gpus in side] for side in chosen.sides]
    described = [
        _side(name, side, gpus, found)
        for name, side, gpus, found in zip(_NAMES, runs, chosen.sides, taken, strict=False)
    ]
    notes = [*chosen.notes, *_refuse(described, allow)]
    figures = [_by_run(side, found) for side, found in zip(runs, taken, strict=True)]
    comparisons = tuple(
        _comparison(chosen, figures, nth, (described[nth].name, sides[0], sides[nth]))
        for nth in range(1, len(sides))
    )
    limits = [each.power_limit_w for each in described]
    at = knee(limits, [each.figures[STEP] for each in described])
    return ComparisonDocument(
        schema=SCHEMA,
        version=version,
        simulated=any(document.generated.simulated for side in sides for document in side),
        sides=tuple(described),
        comparisons=comparisons,
        knee=None if at is None else described[at].name,
        notes=tuple(notes),
    )


def _by_run(runs: Sequence[_Run], found: Sequence[tuple[Figures, int]]) -> list[Figures]:
    """Return the figures of each run; reports on one run, by its name, are joined."""
    joined: defaultdict[object, dict[str, Float64s]] = defaultdict(dict)
    for nth, (run, (values, _)) in enumerate(zip(runs, found, strict=True)):
        trace = run.document.trace
        its = joined[nth if trace.run is None else (trace.job, trace.run)]
        for name, each in values.items():
            its[name] = np.concatenate([its.get(name, np.empty(0)), each])
    return list(joined.values())


def _side(
    name: str,
    runs: Sequence[_Run],
    gpus: Sequence[Mapping[str, _Gpu]],
    found: Sequence[tuple[Figures, int]],
) -> Side:
    figures = _by_run(runs, found)
    steps = sum(len(each[STEP]) for each in figures if STEP in each)
    if not steps:
        raise IncomparableError(f"{name} has no step that all of its GPUs completed", allow=None)
    each_gpu = [gpu for run in gpus for gpu in run.values()]
    references = [gpu.device.reference.sm_clock_mhz for gpu in each_gpu if gpu.device]
    limits = [row.power_limit_w for gpu in each_gpu for row in gpu.rows.values()]
    return Side(
        name=name,
        traces=tuple(trace.path for run in runs for trace in run.document.traces),
        runs=len(figures),
        steps=steps,
        warm_up_steps=sum(warm for _, warm in found),
        partial_steps=sum(run.partial for run in runs),
        gpus=len(gpus[0]),
        reference_mhz=_middle(references),
        power_limit_w=_middle(limits),
        figures={
            key: each.mean for key, each in estimates(figures, by_runs=len(figures) > 1).items()
        },
    )


def _comparison(
    chosen: _Chosen, figures: Sequence[Sequence[Figures]], nth: int, of: _Reports
) -> Comparison:
    a, b = _alike([figures[0], figures[nth]])
    by_runs = min(len(a), len(b)) >= LEAST_RUNS
    step, others = differences(a, b, by_runs=by_runs, alpha=ALPHA / (len(figures) - 1))
    least = min(step.effective_a, step.effective_b)
    found = Comparison(
        name=of[0],
        paired_by=chosen.paired_by,
        by_runs=by_runs,
        step=step,
        figures=others,
        record_times=ceil(LEAST_EFFECTIVE / least) if least < LEAST_EFFECTIVE else None,
        gpus=tuple(_paired(chosen, nth)) if chosen.paired_by == "uuid" else (),
    )
    return replace(found, evidence=fsdp_evidence((_NAMES[0], of[1]), (of[0], of[2]), found))


def _middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None without any."""
    known = [each for each in values if each is not None]
    return median(known) if known else None


def _paired(chosen: _Chosen, nth: int) -> Iterator[PairedGpu]:
    first = chosen.sides[0][0]
    labels = {uuid: (gpu.device and gpu.device.gpu) or "" for uuid, gpu in first.items()}
    for uuid in sorted(first, key=lambda uuid: (len(labels[uuid]), labels[uuid])):
        a, b = ([run[uuid] for run in chosen.sides[side]] for side in (0, nth))
        yield PairedGpu(
            uuid=uuid,
            gpu_a=a[0].device.gpu if a[0].device else None,
            gpu_b=b[0].device.gpu if b[0].device else None,
            busy_mhz_a=_busy_mhz(a),
            busy_mhz_b=_busy_mhz(b),
        )


def _busy_mhz(gpus: Iterable[_Gpu]) -> float | None:
    """Return the mean busy clock of a GPU's steps."""
    clocks = [row.clock.busy for gpu in gpus for row in gpu.rows.values() if row.clock]
    known = [each.mean_mhz for each in clocks if each and each.mean_mhz is not None]
    return sum(known) / len(known) if known else None
