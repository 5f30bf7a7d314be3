"""Findings about clocks: GPUs below their peers, and limits that hold a whole node.

A GPU is accused only where it stands out among its peers by the interval of its excess, or where
the driver reports one limit on nearly all GPUs. A power cap that holds all GPUs alike is physics:
no finding.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final

from msgspec import Struct

from chopperd.model.answers import Finding
from chopperd.model.devices import Vendor
from chopperd.model.kinds import Cause
from chopperd.model.report import DeviceSummary, GpuLine, ReportDocument
from chopperd.model.report_rows import Row
from chopperd.report.build.summary import is_complete
from chopperd.report.text.wording import brief_ms, largest_shares, ms_interval, plural, whole, words

#: A limit that costs less of the step is no finding: nobody sees it in the step's time.
LEAST_RATIO: Final = 0.02
#: A GPU is accused if the low end of its excess is so much of its compute: of healthy nodes, whose
#: clocks wander, `stands_out` alone names somebody on 3 of 200, from here on on 1.
ACCUSED_RATIO: Final = 0.03
#: Less is enough for a GPU with a thermal limit that is so much hotter than the median of the
#: others, which sensors and places in the airflow do not make of healthy ones.
HOTTER_C: Final = 8.0
#: A limit explains why a GPU stands out, if so much of the excess is loss that its peers lack.
EXPLAINS_RATIO: Final = 0.5
#: A limit is the node's, if so many of its GPUs lose `LEAST_RATIO` of the step to it,
NODE_RATIO: Final = 0.75
#: and hardware is blamed if these are so many: one GPU says nothing about its node.
NODE_GPUS: Final = 2
#: A power limit that is so far below the default was lowered; drivers round it to whole watts.
LOWERED_RATIO: Final = 0.99
#: A power cap that holds the clock at less of the limit is not by that limit.
AT_CAP_RATIO: Final = 0.9


class _Words(Struct, frozen=True, kw_only=True):
    """What a finding says about a limit; `{gpu}` and `{node}` stand for their names."""

    code: str
    title: str
    action: str


class _Limit(Struct, frozen=True, kw_only=True):
    """A limit by which a GPU differs from its peers (`one`), or that holds a node (`all`)."""

    causes: tuple[str, ...]
    shown: str  # sections of `nvidia-smi -q` that show it
    one: _Words
    all: _Words | None = None
    node_gpus: int = 1  # the least that `all` needs


_UNLOCK: Final = "remove the limit if nobody needs it (nvidia-smi -rgc and -rac; amd-smi reset -c)"
_HEAT: Final = _Limit(
    causes=(Cause.THERMAL.label, Cause.HW_THERMAL.label),
    shown="PERFORMANCE,TEMPERATURE",
    one=_Words(
        code="cooling.hot_gpu",
        title="{gpu} is slowed down by heat more than its peers",
        action="have the cooling of {gpu} checked: airflow, heat sink, fans or coolant",
    ),
    all=_Words(
        code="cooling.hot_node",
        title="heat slows down nearly all GPUs of {node}",
        action="have the inlet temperature, the fans and the coolant of {node} checked",
    ),
    node_gpus=NODE_GPUS,
)
_BRAKE: Final = _Limit(
    causes=(Cause.POWER_BRAKE.label, Cause.HW_SLOWDOWN.label),
    shown="PERFORMANCE",
    one=_Words(
        code="hw.slowdown_or_brake",
        title="the hardware slows {gpu} down more than its peers",
        action="have the power supply and the cables of {gpu} checked",
    ),
    all=_Words(
        code="hw.slowdown_or_brake",
        title="the hardware slows down nearly all GPUs of {node}",
        action="have the power supplies of {node} and the power of its rack checked",
    ),
    node_gpus=NODE_GPUS,
)
_LOCK: Final = _Limit(
    causes=(Cause.USER_LIMIT.label,),
    shown="CLOCK",
    one=_Words(
        code="clock.locked",
        title="{gpu} is held by a clock limit more than its peers",
        action=_UNLOCK,
    ),
    all=_Words(
        code="clock.locked", title="a limit that somebody set holds the clock", action=_UNLOCK
    ),
)
_LOWERED: Final = _Limit(
    causes=(Cause.POWER_CAP.label,),
    shown="POWER",
    one=_Words(
        code="power.cap_lowered",
        title="the power limit of {gpu} is lower than its default or its peers'",
        action="set the power limit of {gpu} back if nobody wants it lower",
    ),
    all=_Words(
        code="power.cap_lowered",
        title="the power limit is below its default, and holds the clock",
        action="set the power limit back to the default if nobody wants it lower",
    ),
)
_CAP: Final = _Limit(
    causes=_LOWERED.causes,
    shown="POWER",
    one=_Words(
        code="power.at_cap",
        title="{gpu} reaches its power limit at a lower clock than its peers",
        action="compare the cooling of {gpu} with its peers'; if it is alike, the chip needs more "
        "power: leave it out of jobs that wait for the slowest GPU",
    ),
)
#: Clocks that are low as the work or other GPUs want them so: nothing to say against a GPU.
_INNOCENT: Final = (Cause.LOW_UTILIZATION.label, Cause.SYNC_BOOST.label)
_UNEXPLAINED: Final = _Limit(
    causes=(),
    shown="PERFORMANCE",
    one=_Words(
        code="clock.unexplained_low",
        title="{gpu} runs below its peers, and no limit explains it",
        action="run the job without {gpu}, and {gpu} in another slot: does the low clock follow?",
    ),
)
_AMD_PARTS: Final = {
    "PERFORMANCE,TEMPERATURE": "--clock --temperature",
    "PERFORMANCE": "--clock --power",
    "POWER": "--power",
    "CLOCK": "--clock",
}


class _Gpu(Struct, frozen=True, kw_only=True):
    """A GPU of the run: its line, its device, and its mean loss by cause in a step."""

    line: GpuLine
    device: DeviceSummary | None
    lost_ns: Mapping[str, float]  # by cause; empty where unknown
    power_w: float | None
    power_limit_w: float | None
    looks_locked: bool

    @property
    def default_w(self) -> float | None:
        """Return its default power limit in W; None if unknown."""
        return self.device.power_limit_default_w if self.device is not None else None

    @property
    def is_lowered(self) -> bool:
        """Whether its power limit is known to be below its default."""
        limit_w, default_w = self.power_limit_w, self.default_w
        return bool(limit_w and default_w and limit_w < LOWERED_RATIO * default_w)

    def lost_to(self, causes: Sequence[str]) -> float:
        """Return the mean loss in a step to some causes, in ns."""
        return sum(self.lost_ns.get(cause, 0.0) for cause in causes)


def clock_findings(document: ReportDocument) -> list[Finding]:
    """Return the findings about clocks; none where losses are unknown or in doubt."""
    summary = document.summary
    if summary is None or not summary.step_ns or summary.gap_low is None:
        return []
    gpus = [_gpu(document, line) for line in summary.gpus]
    single = [_of_one(document, gpu, gpus) for gpu in gpus if gpu.line.stands_out]
    found = [finding for finding in single if finding is not None]
    named = {finding.code for finding in found}
    node = document.generated.node or "the node"
    for limit in (_HEAT, _BRAKE, _LOCK, _LOWERED):
        held = [gpu for gpu in gpus if _is_held(gpu, limit, summary.step_ns)]
        is_all = len(held) >= max(NODE_RATIO * len(gpus), limit.node_gpus)
        if limit.all is not None and is_all and limit.one.code not in named:
            found.append(_of_all(limit, limit.all, held, node))
    return found


def _gpu(document: ReportDocument, line: GpuLine) -> _Gpu:
    steps = [row for row in document.steps if is_complete(row) and _key(row) == _key(line)]
    rows = steps or [row for row in document.totals if _key(row) == _key(line)]
    return _Gpu(
        line=line,
        device=next((each for each in document.devices if _key(each) == _key(line)), None),
        lost_ns=_mean_by_cause(rows),
        power_w=_mean([row.power_w for row in rows]),
        power_limit_w=_mean([row.power_limit_w for row in rows]),
        looks_locked=any(
            note.code == "looks_locked" and f"GPU {line.gpu} computes" in note.text
            for note in document.notes
        ),
    )


def _key(of: GpuLine | DeviceSummary | Row) -> tuple[int | None, int | None, str | None]:
    return of.rank, of.device, of.gpu


def _mean_by_cause(rows: Sequence[Row]) -> dict[str, float]:
    known = [row.dvfs.by_cause_ns for row in rows if row.dvfs.by_cause_ns is not None]
    causes = dict.fromkeys(cause for each in known for cause in each)
    return {cause: fmean(each.get(cause, 0) for each in known) for cause in causes}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


# A GPU that is slower than its peers, with its excess as the bound.


def _of_one(document: ReportDocument, gpu: _Gpu, gpus: Sequence[_Gpu]) -> Finding | None:
    """Return the finding on a GPU that stands out; None where the work wants its clock low."""
    limit = _explaining(document, gpu, gpus)
    if limit is None or not _is_certain(limit, gpu, gpus):
        return None
    said, name = limit.one, f"GPU {gpu.line.gpu}"  # all that stand out have a GPU
    return Finding(
        code=said.code,
        title=said.title.format(gpu=name),
        evidence=tuple(filter(None, (_clocks(gpu), _heat(gpu, gpus), _power(gpu), _causes(gpu)))),
        bound_ns=round(gpu.line.excess_ns_per_step or 0.0),
        basis="peers",
        gpu=gpu.line.gpu,
        rank=gpu.line.rank,
        action=said.action.format(gpu=name),
        command=_shown(limit.shown, [gpu]),
    )


def _explaining(document: ReportDocument, gpu: _Gpu, gpus: Sequence[_Gpu]) -> _Limit | None:
    """Return the limit that costs a GPU most of what its peers do not lose."""
    others = [each for each in gpus if each is not gpu and each.lost_ns]
    groups = {limit.causes: limit for limit in (_HEAT, _BRAKE, _LOCK, _CAP)}
    above_ns = {
        causes: gpu.lost_to(causes) - median([each.lost_to(causes) for each in others] or [0.0])
        for causes in (*groups, _INNOCENT)
    }
    most = max(above_ns, key=above_ns.__getitem__)
    if above_ns[most] < EXPLAINS_RATIO * (gpu.line.excess_ns_per_step or 0.0):
        return _LOCK if gpu.looks_locked else _UNEXPLAINED
    limit = groups.get(most)
    return _by_power(document, gpu, others) if limit is _CAP else limit


def _is_certain(limit: _Limit, gpu: _Gpu, gpus: Sequence[_Gpu]) -> bool:
    """Whether a GPU is far below its peers, or its heat or power limit says the same."""
    line, others = gpu.line, [each for each in gpus if each is not gpu]
    if line.mean_mhz and line.peers_median_mhz and line.excess_ns_per_step:
        low = (line.excess_low_ns_per_step or 0.0) / line.excess_ns_per_step
        if low * (1.0 - line.mean_mhz / line.peers_median_mhz) >= ACCUSED_RATIO:
            return True
    own_c, peers_c = line.temperature_mean_c, _peers_c(others)
    is_hotter = own_c is not None and peers_c is not None and own_c >= peers_c + HOTTER_C
    return limit is _LOWERED or (limit is _HEAT and is_hotter)


def _peers_c(others: Sequence[_Gpu]) -> float | None:
    known_c = _temperatures_c(others)
    return median(known_c) if known_c else None


def _temperatures_c(gpus: Sequence[_Gpu]) -> list[float]:
    return [c for each in gpus if (c := each.line.temperature_mean_c) is not None]


def _by_power(document: ReportDocument, gpu: _Gpu, others: Sequence[_Gpu]) -> _Limit:
    """Return what a power cap says about a GPU: its limit is lower, or it needs more power."""
    limits_w = [each.power_limit_w for each in others if each.power_limit_w is not None]
    own_w = gpu.power_limit_w
    is_below = limits_w and own_w is not None and own_w < LOWERED_RATIO * median(limits_w)
    if gpu.is_lowered or is_below:
        return _LOWERED
    return _UNEXPLAINED if _is_far_below_cap(document, gpu) else _CAP


def _is_far_below_cap(document: ReportDocument, gpu: _Gpu) -> bool:
    """Whether the power under the cap, known for critical GPUs, is far below the limit."""
    causes = document.summary.causes if document.summary is not None else ()
    return bool(gpu.line.slowest_steps) and any(
        cause.power_w < AT_CAP_RATIO * cause.power_limit_w
        for cause in causes
        if cause.power_w is not None and cause.power_limit_w is not None
    )


def _clocks(gpu: _Gpu) -> str:
    line = gpu.line
    interval = ms_interval(line.excess_low_ns_per_step, line.excess_high_ns_per_step)
    return (
        f"{whole(line.mean_mhz)} MHz in compute, its peers {whole(line.peers_median_mhz)}: "
        f"{brief_ms(line.excess_ns_per_step)} ms a step {interval}"
    )


def _heat(gpu: _Gpu, gpus: Sequence[_Gpu]) -> str:
    own_c = gpu.line.temperature_mean_c
    peers_c = _peers_c([each for each in gpus if each is not gpu])
    peers = "" if peers_c is None else f", its peers {whole(peers_c)} C"
    return "" if own_c is None else f"{whole(own_c)} C{peers}"


def _power(gpu: _Gpu) -> str:
    if gpu.power_limit_w is None:
        return ""
    mean = "" if gpu.power_w is None else f"{whole(gpu.power_w)} W on average, "
    default = "" if gpu.default_w is None else f", {whole(gpu.default_w)} W by default"
    return f"{mean}limit {whole(gpu.power_limit_w)} W{default}"


def _causes(gpu: _Gpu) -> str:
    shares = largest_shares(gpu.lost_ns, 2)
    return f"causes of its loss: {shares}" if shares else ""


# A limit that holds nearly all GPUs, with what it costs them as the bound.


def _is_held(gpu: _Gpu, limit: _Limit, step_ns: float) -> bool:
    costs = gpu.lost_to(limit.causes) >= LEAST_RATIO * step_ns
    return costs and (limit is not _LOWERED or gpu.is_lowered)


def _of_all(limit: _Limit, said: _Words, held: Sequence[_Gpu], node: str) -> Finding:
    lost_ns = [gpu.lost_to(limit.causes) for gpu in held]
    causes = " and ".join(words(c) for c in limit.causes if any(c in g.lost_ns for g in held))
    cost = f"{causes}: {brief_ms(median(lost_ns))} ms of a step"
    known_c = _temperatures_c(held)
    heat = f"{whole(min(known_c))} to {whole(max(known_c))} C" if known_c else ""
    power = _power(held[0]) if limit is _LOWERED else ""
    line = held[0].line if len(held) == 1 else None
    return Finding(
        code=said.code,
        title=said.title.format(node=node),
        evidence=tuple(filter(None, (f"{cost}, on {plural(len(held), 'GPU')}", heat, power))),
        bound_ns=round(max(lost_ns)),
        basis="row",
        gpu=line.gpu if line else None,
        rank=line.rank if line else None,
        action=said.action.format(node=node),
        command=_shown(limit.shown, held),
    )


def _shown(what: str, held: Sequence[_Gpu]) -> str:
    first, label = held[0].device, held[0].line.gpu
    is_amd = first is not None and first.vendor == Vendor.AMD.value
    command = f"amd-smi metric {_AMD_PARTS[what]}" if is_amd else f"nvidia-smi -q -d {what}"
    option = "--gpu" if is_amd else "-i"
    return command if len(held) > 1 or label is None else f"{command} {option} {label}"
