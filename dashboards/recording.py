"""Recording rules: per GPU, node, cluster and workload, from integrals only.

All windows are 5 minutes: four scrapes and more at any interval up to a minute. A GPU that was not
busy has no ratio of busy time, rather than 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chopperd.palette import CAUSES
from dashboards.metrics import (
    GPU_LABELS,
    KNOWN,
    NODE_LABELS,
    Series,
    Values,
    matcher,
    metric,
    selector,
)

WINDOW: Final = "5m"
_ON_GPU: Final = f"on ({GPU_LABELS})"
#: Below this share of busy time a GPU does not count as at work: blips of an idle node.
AT_WORK_RATIO: Final = 0.2
#: A cause that takes less than this of busy time does not hold a GPU.
_HELD_RATIO: Final = 0.005
#: The excess takes at least so many GPUs of a model; so do peers here.
_FEWEST_PEERS: Final = 4

#: The value of `held_by`, from 0: its clock is at the reference; then the causes in their order.
HELD_BY: Final = ("nothing", *CAUSES)


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded series: name `LABELS:METRIC:OPERATION`, what it is, and its expression."""

    record: str
    meaning: str
    expr: str

    @property
    def level(self) -> str:
        """What it is of: gpu, node, cluster or workload, perhaps with a further label."""
        return self.record.partition(":")[0]


def rate(name: str, /, **matchers: str | tuple[str, ...]) -> str:
    """Return PromQL for a counter's increase a second over the rules' window."""
    return f"rate({metric(name, **matchers)}[{WINDOW}])"


_BUSY_SAMPLED: Final = f"({rate('gpu_busy_sampled_seconds_total')} > 0)"
_BUSY: Final = f"({rate('gpu_busy_seconds_total')} > 0)"

_WORKLOAD: Final = "gpu_workload:chopperd_gpu:info"
_BUSY_RATIO: Final = "gpu:chopperd_gpu_busy:ratio5m"
_CLOCK: Final = "gpu:chopperd_gpu_busy_sm_clock_hertz:mean5m"
_GAP: Final = "gpu_cause:chopperd_gpu_dvfs_gap:ratio5m"
_EXCESS: Final = "gpu:chopperd_gpu_excess:ratio5m"
_CLOCK_OF_MODEL: Final = "gpu_name:chopperd_gpu_busy_sm_clock_hertz:mean5m"
_EXCESS_GPUS: Final = "node_cause:chopperd_gpu_excess:gpus5m"


def _thermal() -> str:
    """Share of busy time under a thermal limit; by the loss where a driver counts no time."""
    heat = ("thermal", "hw_thermal")
    counted = f"max without (cause) ({rate('gpu_clock_limited_seconds_total', cause=heat)})"
    lost = f"sum without (cause) ({rate('gpu_dvfs_lost_live_seconds_total', cause=heat)})"
    return f"clamp_max({counted} / {_BUSY}, 1) or {lost} / {_BUSY_SAMPLED}"


def _held_by() -> str:
    """Code of the cause with the largest loss: the place of its name in `HELD_BY`."""
    most = f"max without (cause) ({_GAP} > {_HELD_RATIO})"
    codes = " or ".join(
        f'{code} * ({_GAP}{{cause="{cause}"}} == ignoring (cause) group_left () {most}) ^ 0'
        for code, cause in enumerate(HELD_BY)
        if code
    )
    return f"max without (cause) ({codes}) or 0 * {_CLOCK}"


def _excess_gpus() -> str:
    """GPUs' worth of time lost to excess, split by the shares of each GPU's causes."""
    share = f"{_GAP} / {_ON_GPU} group_left () (sum by ({GPU_LABELS}) ({_GAP}) > 0)"
    excess = rate("gpu_excess_live_seconds_total")
    return f"sum by ({NODE_LABELS}, cause) ({share} * {_ON_GPU} group_left () {excess})"


def _of_workload(expression: str) -> str:
    """A figure of each GPU by the workload on it; a shared GPU counts for each of them."""
    return f'{_WORKLOAD}{{workload!=""}} * {_ON_GPU} group_left () {expression}'


def _below_peers() -> str:
    """How far a clock is below its peers' median; nothing where they are too few."""
    peers = f"by ({NODE_LABELS}, name)"
    median = f"quantile {peers} (0.5, {_CLOCK_OF_MODEL})"
    enough = f"count {peers} ({_CLOCK_OF_MODEL}) >= {_FEWEST_PEERS}"
    match = f"on ({NODE_LABELS}, name) group_left ()"
    return f"1 - {_CLOCK_OF_MODEL} / {match} ({median} and {enough})"


def _sum(by: str, expression: str) -> str:
    return f"sum by ({by}) ({expression})"


GPU_RULES: Final = (
    Recording(
        _WORKLOAD,
        "1 for each GPU and workload on it; without the label where none is known",
        f"{metric('workload_info')} or {_ON_GPU} {metric('gpu_up')} ^ 0",
    ),
    Recording(_BUSY_RATIO, "Share of time busy", f"clamp_max({rate('gpu_busy_seconds_total')}, 1)"),
    Recording(
        "gpu:chopperd_gpu_busy:min10m",
        "Least share of time busy of the last 10 minutes: above 0.2 once a job has run so long",
        f"min_over_time({_BUSY_RATIO}[10m]) and count_over_time({_BUSY_RATIO}[10m]) >= 8",
    ),
    Recording(
        _CLOCK,
        "Mean SM clock while busy, Hz",
        f"{rate('gpu_busy_sm_cycles_total')} / {_BUSY_SAMPLED}",
    ),
    Recording(
        _GAP,
        "Share of busy time lost to the clock (ceiling), by cause",
        f"{rate('gpu_dvfs_lost_live_seconds_total')} "
        f"/ ignoring (cause) group_left () {_BUSY_SAMPLED}",
    ),
    Recording(
        _EXCESS,
        "Share of busy time lost against the median GPU of the same model on the node: an upper "
        "figure, as peers that wait for a slow GPU do so at high clocks",
        f"{rate('gpu_excess_live_seconds_total')} / {_BUSY_SAMPLED}",
    ),
    Recording(
        "gpu:chopperd_gpu_coverage:ratio5m",
        "Share of busy time whose clock is known",
        f"clamp_max({rate('gpu_busy_sampled_seconds_total')} / {_BUSY}, 1)",
    ),
    Recording(
        "gpu:chopperd_gpu_clock_to_reference:ratio5m",
        "Mean SM clock while busy over the reference clock",
        f"{_CLOCK} / {metric('gpu_sm_clock_reference_hertz')}",
    ),
    Recording(
        _CLOCK_OF_MODEL,
        "Mean SM clock while busy, with the model's name, of whole GPUs that are at work, Hz",
        f"({_CLOCK} and {_BUSY_RATIO} > {AT_WORK_RATIO}) "
        f"* {_ON_GPU} group_left (name) {metric('gpu_info', parent='')}",
    ),
    Recording(
        "gpu_name:chopperd_gpu_clock_below_peers:ratio5m",
        "How far it is below the median of at least four GPUs of the same model on the node",
        _below_peers(),
    ),
    Recording(
        "gpu:chopperd_gpu_thermal:ratio5m", "Share of busy time under a thermal limit", _thermal()
    ),
    Recording(
        "gpu:chopperd_gpu_held_by:code5m",
        "What costs most: 0 nothing, " + ", ".join(f"{n} {c}" for n, c in enumerate(CAUSES, 1)),
        _held_by(),
    ),
)

NODE_RULES: Final = (
    Recording("node:chopperd_gpu:count", "GPUs", f"count by ({NODE_LABELS}) ({metric('gpu_up')})"),
    Recording("node:chopperd_gpu_up:sum", "GPUs that answer", _sum(NODE_LABELS, metric("gpu_up"))),
    Recording(
        "node:chopperd_gpu_busy:ratio5m",
        "Share of time busy, mean of its GPUs",
        f"avg by ({NODE_LABELS}) ({_BUSY_RATIO})",
    ),
    Recording(
        "node:chopperd_gpu_coverage:ratio5m",
        "Share of its GPUs' busy time whose clock is known",
        f"clamp_max({_sum(NODE_LABELS, rate('gpu_busy_sampled_seconds_total'))} "
        f"/ ({_sum(NODE_LABELS, rate('gpu_busy_seconds_total'))} > 0), 1)",
    ),
    Recording(
        "node:chopperd_gpu_excess:max5m",
        "Excess of the GPU that is furthest below its peers",
        f"max by ({NODE_LABELS}) ({_EXCESS})",
    ),
    Recording(
        _EXCESS_GPUS,
        "GPUs' worth of time lost to excess, split by the shares of each GPU's causes",
        _excess_gpus(),
    ),
    Recording(
        "node:chopperd_gpu_thermal:median5m",
        "Share of busy time under a thermal limit, of its median GPU",
        f"quantile by ({NODE_LABELS}) (0.5, gpu:chopperd_gpu_thermal:ratio5m)",
    ),
    Recording(
        "node:chopperd_gpu_power_watts:sum5m",
        "Power of its GPUs, W",
        _sum(NODE_LABELS, rate("gpu_energy_joules_total")),
    ),
)

CLUSTER_RULES: Final = (
    Recording("cluster:chopperd_gpu:count", "GPUs", _sum("cluster", "node:chopperd_gpu:count")),
    Recording(
        "cluster:chopperd_gpu_up:sum",
        "GPUs that answer",
        _sum("cluster", "node:chopperd_gpu_up:sum"),
    ),
    Recording(
        "cluster:chopperd_gpu_busy:gpus5m", "GPUs' worth of busy time", _sum("cluster", _BUSY_RATIO)
    ),
    Recording(
        "cluster_cause:chopperd_gpu_excess:gpus5m",
        "GPUs' worth of time lost to excess, split by the shares of each GPU's causes",
        _sum("cluster, cause", _EXCESS_GPUS),
    ),
    Recording(
        "cluster:chopperd_gpu_power_watts:sum5m",
        "Power of its GPUs, W",
        _sum("cluster", "node:chopperd_gpu_power_watts:sum5m"),
    ),
)

_WORKLOADS_OF: Final = "by (cluster, workload)"
WORKLOAD_RULES: Final = (
    Recording(
        "workload:chopperd_gpu:count",
        "GPUs that work for it",
        f'count {_WORKLOADS_OF} ({_WORKLOAD}{{workload!=""}})',
    ),
    Recording(
        "workload:chopperd_gpu_excess:max5m",
        "Excess of its GPU that is furthest below its peers: every rank waits for that one",
        f"max {_WORKLOADS_OF} ({_of_workload(_EXCESS)})",
    ),
    Recording(
        "workload:chopperd_gpu_power_watts:sum5m",
        "Power of its GPUs, W",
        f"sum {_WORKLOADS_OF} ({_of_workload(rate('gpu_energy_joules_total'))})",
    ),
)

RULES: Final = (*GPU_RULES, *NODE_RULES, *CLUSTER_RULES, *WORKLOAD_RULES)

_LABELS: Final[Mapping[str, Mapping[str, Values]]] = {
    "gpu": {"gpu": None},
    "gpu_workload": {"gpu": None, "workload": None, "rank": None},
    "gpu_cause": {"gpu": None, "cause": tuple(CAUSES)},
    "gpu_name": {"gpu": None, "name": None},
    "node": {},
    "node_cause": {"cause": tuple(CAUSES)},
    "cluster": {},
    "cluster_cause": {"cause": tuple(CAUSES)},
    "workload": {"workload": None},
}
_WORKLOAD_NEEDS: Final = KNOWN["chopperd_workload_info"].needs

#: Recorded series by name, as expressions of boards and alerts may name them.
RECORDED: Final[Mapping[str, Series]] = {
    rule.record: Series(
        rule.record, _LABELS[rule.level], _WORKLOAD_NEEDS if rule.level == "workload" else ()
    )
    for rule in RULES
}


def recorded(name: str, /, **matchers: str | tuple[str, ...]) -> str:
    """Return the selector of a recorded series.

    Raises:
        ValueError: No rule records it, or it has no such label or value.
    """
    if name not in RECORDED:
        raise ValueError(f"no rule records {name}")
    return selector(RECORDED[name], [matcher(RECORDED[name], *each) for each in matchers.items()])
