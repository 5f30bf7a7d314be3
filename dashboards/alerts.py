"""Alerts: what makes a GPU worth a visit. None pages, and none fires in a job's first 10 minutes.

All compare over time that a GPU was busy, and wait 10 minutes at least; what depends on the clock
waits until the GPU was at work for 10 minutes (`busy:min10m`), so that a job's start is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dashboards.metrics import GPU_LABELS, NODE_LABELS, metric
from dashboards.recording import AT_WORK_RATIO, recorded

#: A GPU has to be this far below its peers, or three times their own median deviation.
OUTLIER_RATIO: Final = 0.03
OUTLIER_DEVIATIONS: Final = 3
OUTLIER_PEERS: Final = 8
HOT_RATIO: Final = 0.05
SLOWED_RATIO: Final = 0.02
LOWERED_RATIO: Final = 0.99
HUNG_S: Final = 60
UNCOVERED_RATIO: Final = 0.5

_ON_GPU: Final = f"on ({GPU_LABELS})"
_ON_NODE: Final = f"on ({NODE_LABELS})"
_GPU: Final = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
_NODE: Final = "{{ $labels.instance }}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert.

    Attributes:
        name: Also of its runbook, docs/runbooks/NAME.md.
        expr: What has to hold.
        for_minutes: For how long.
        summary: One line for people, as a template.
        description: What it means.
        is_default: Whether it is on unless somebody turns it off.
    """

    name: str
    expr: str
    for_minutes: int
    summary: str
    description: str
    is_default: bool = True
    labels: Mapping[str, str] = field(default_factory=lambda: {"severity": "warning"})

    @property
    def runbook(self) -> str:
        """The page about it, from the root of the repository."""
        return f"docs/runbooks/{self.name}.md"


#: The GPU was at work for the last 10 minutes, so that its job is older.
_AT_WORK: Final = f"and {_ON_GPU} {recorded('gpu:chopperd_gpu_busy:min10m')} > {AT_WORK_RATIO}"
_SLOWED: Final = recorded(
    "gpu_cause:chopperd_gpu_dvfs_gap:ratio5m", cause=("hw_slowdown", "power_brake")
)
_THERMAL: Final = recorded("gpu:chopperd_gpu_thermal:ratio5m")


def _agent_stale() -> str:
    """The agent answers, but its figures stand still; a clock that is wrong does not matter."""
    stands = f"changes({metric('agent_snapshot_timestamp_seconds')}[5m]) == 0"
    reads_nothing = f"increase({metric('agent_ticks_total')}[5m]) == 0"
    has_gpus = f"count by ({NODE_LABELS}) ({metric('gpu_up')})"
    paused = f"{metric('agent_paused')} == 1"
    hung = f"count by ({NODE_LABELS}) ({metric('agent_driver_call_hung_seconds')})"
    unread = (
        f"({reads_nothing} and {_ON_NODE} {has_gpus} unless ({paused}) unless {_ON_NODE} {hung})"
    )
    return f"{stands} or {unread}"


def _outlier() -> str:
    """Below the peers by more than 3 % and three of their median deviations, and as busy."""
    below = recorded("gpu_name:chopperd_gpu_clock_below_peers:ratio5m")
    of_peers = f"on ({NODE_LABELS}, name) group_left ()"
    peers = f"by ({NODE_LABELS}, name)"
    deviation = f"quantile {peers} (0.5, abs({below}))"
    busy = recorded("gpu:chopperd_gpu_busy:ratio5m")
    median_busy = f"quantile by ({NODE_LABELS}) (0.5, {busy})"
    return (
        f"{below} > {OUTLIER_RATIO} "
        f"and {below} > {of_peers} ({OUTLIER_DEVIATIONS} * {deviation}) "
        f"and on ({NODE_LABELS}, name) count {peers} ({below}) >= {OUTLIER_PEERS} "
        f"and {_ON_GPU} abs({busy} - {_ON_NODE} group_left () {median_busy}) < 0.1 {_AT_WORK}"
    )


def _hot() -> str:
    median = recorded("node:chopperd_gpu_thermal:median5m")
    return f"{_THERMAL} > {HOT_RATIO} unless {_ON_NODE} {median} > {HOT_RATIO} {_AT_WORK}"


def _limit_lowered() -> str:
    """How many GPUs of a node have a limit below the default; one alert a node."""
    default = f"{LOWERED_RATIO} * {metric('gpu_power_limit_default_watts')}"
    return f"count by ({NODE_LABELS}) ({metric('gpu_power_limit_watts')} < {default})"


ALERTS: Final = (
    Alert(
        name="ChopperdAgentDown",
        expr='up{job=~".*chopperd.*"} == 0',
        for_minutes=10,
        summary=f"{_NODE}: the agent does not answer Prometheus",
        description="Nothing is known of this node's GPUs while its agent is down. Jobs are not "
        "affected.",
    ),
    Alert(
        name="ChopperdAgentStale",
        expr=_agent_stale(),
        for_minutes=10,
        summary=f"{_NODE}: the agent answers, but reads no GPU",
        description="Its figures stand still: do not believe them. Jobs are not affected.",
    ),
    Alert(
        name="ChopperdDriverCallHung",
        expr=f"max by ({GPU_LABELS}) ({metric('agent_driver_call_hung_seconds')}) > {HUNG_S}",
        for_minutes=10,
        summary=f"{_GPU}: a driver call has not returned for {{{{ $value | humanizeDuration }}}}",
        description="The GPU or its driver is stuck; jobs on it may hang next, or already do.",
    ),
    Alert(
        name="ChopperdHardwareSlowdown",
        expr=f"{_SLOWED} > {SLOWED_RATIO} {_AT_WORK}",
        for_minutes=10,
        summary=f"{_GPU}: {{{{ $labels.cause }}}} takes {{{{ $value | humanizePercentage }}}} of "
        f"busy time",
        description="The board's protection or the node's power supply holds the clock down. A "
        "power cap is often set with it, and is not the cause.",
    ),
    Alert(
        name="ChopperdHotGpu",
        expr=_hot(),
        for_minutes=30,
        summary=f"{_GPU}: {{{{ $value | humanizePercentage }}}} of busy time under a thermal limit",
        description="This GPU is limited by heat while the median GPU of the node is not: cooling "
        "of one GPU.",
    ),
    Alert(
        name="ChopperdRankClockOutlier",
        expr=_outlier(),
        for_minutes=30,
        summary=f"{_GPU}: its clock is {{{{ $value | humanizePercentage }}}} below its peers",
        description="While as busy as the others of its model on the node it is over 3 % and "
        "three median deviations slower. In a synchronous job every rank waits for it.",
    ),
    Alert(
        name="ChopperdPowerLimitLowered",
        expr=_limit_lowered(),
        for_minutes=15,
        summary=f"{_NODE}: {{{{ $value }}}} GPUs have a power limit below the default",
        description="Somebody or something has lowered the limit by over 1 %. Turn this alert off "
        "where that is meant.",
    ),
    Alert(
        name="ChopperdGpuLost",
        expr=f"min by ({GPU_LABELS}) ({metric('gpu_up')}) == 0",
        for_minutes=10,
        summary=f"{_GPU} does not answer",
        description="The driver reports it lost, or its samples have stopped.",
        is_default=False,
    ),
    Alert(
        name="ChopperdHotNode",
        expr=f"{recorded('node:chopperd_gpu_thermal:median5m')} > {HOT_RATIO}",
        for_minutes=30,
        summary=f"{_NODE}: half of its GPUs are under a thermal limit",
        description="The node or its room is hot, not one GPU.",
        is_default=False,
    ),
    Alert(
        name="ChopperdLowCoverage",
        expr=f"{recorded('node:chopperd_gpu_coverage:ratio5m')} < {UNCOVERED_RATIO}",
        for_minutes=30,
        summary=f"{_NODE}: the clock is known for {{{{ $value | humanizePercentage }}}} of busy "
        f"time",
        description="Losses of this node are too small by what was not sampled.",
        is_default=False,
    ),
    Alert(
        name="ChopperdAgentTrouble",
        expr=f"max by ({NODE_LABELS}, part) ({metric('agent_trouble')}) == 1",
        for_minutes=30,
        summary=f"{_NODE}: the agent's {{{{ $labels.part }}}} has a problem",
        description="`chopperd status` on the node says what it is. Sampling goes on.",
        is_default=False,
    ),
)
