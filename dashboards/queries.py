"""Expressions of the boards: series of what the reader has chosen, and how they are joined."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dashboards.metrics import GPU_LABELS, KNOWN, Series, matcher, selector
from dashboards.recording import RECORDED

#: Four scrapes and more, as `checks` requires.
RATE: Final = "$__rate_interval"
#: Every panel's least step, from which Grafana makes `$__rate_interval`: four of these. Scrapes may
#: be a minute apart, and so the rules' are.
MIN_STEP: Final = "1m"

#: What identifies a GPU in joins.
ON_GPU: Final = f"on ({GPU_LABELS})"
BY_GPU: Final = f"by ({GPU_LABELS})"

_NAME: Final = re.compile(r"\b(?:\w+:)?chopperd_\w+(?::\w+)?")
#: Levels of recorded series without a node.
_ABOVE_NODES: Final = ("cluster", "workload")
_CHOSEN: Final = {"cluster": "$cluster", "instance": "$node", "gpu": "$gpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """PromQL expression and how its answer is named and shown.

    Attributes:
        expr: The expression.
        legend: Pattern of its series' names.
        instant: Whether only the present value is asked for.
        table: Whether a table shows it.
        optional: Whether the panel does without it, so that it says nothing of what it needs.
    """

    expr: str
    legend: str = ""
    instant: bool = False
    table: bool = False
    optional: bool = False


def chosen(name: str, /, **matchers: str | tuple[str, ...]) -> str:
    """Return a selector of the series of the clusters, nodes and GPUs that the reader has chosen.

    Args:
        name: Of a metric without `chopperd_`, or the whole name of a recorded series.
        matchers: Further labels with the value, or the values, to take.

    Raises:
        ValueError: There is no such series, label or value.
    """
    series = _series(name)
    levels = ("cluster",) if name.startswith(_ABOVE_NODES) else tuple(_CHOSEN)
    labels = [each for each in levels if each != "gpu" or "gpu" in series.labels]
    own = [matcher(series, *each) for each in matchers.items()]
    return selector(series, [f'{label}=~"{_CHOSEN[label]}"' for label in labels] + own)


def rate(name: str, /, window: str = RATE, **matchers: str | tuple[str, ...]) -> str:
    """Return a counter's increase a second."""
    return f"rate({chosen(name, **matchers)}[{window}])"


def workloads() -> str:
    """Return 1 for each chosen GPU and workload on it; with all chosen also GPUs without one."""
    found = chosen("gpu_workload:chopperd_gpu:info")
    return f'{found[:-1]}, workload=~"$workload"}}'


def of_workload(expression: str) -> str:
    """Return the part of an expression by GPU that belongs to the chosen workloads."""
    return f"({expression}) and {ON_GPU} {workloads()}"


def by_rank(expression: str) -> str:
    """Return a figure by GPU with workload and rank; a shared GPU has a row for each workload."""
    return f"{workloads()} * {ON_GPU} group_left () ({expression})"


def furthest_below(expression: str) -> str:
    """Return the part of an expression of the one GPU that is furthest below in the time shown.

    By its excess or, where GPUs have too few peers for one, by the reference clock.
    """
    excess = over_time_shown("gpu:chopperd_gpu_excess:ratio5m")
    below = f"1e-6 * (1 - {over_time_shown('gpu:chopperd_gpu_clock_to_reference:ratio5m')})"
    return f"({expression}) and {ON_GPU} topk(1, {excess} or {below})"


def added_since(shown: str, counter: str, ago: str = "15m") -> str:
    """Return PromQL for the increase of a counter of captures since a time ago.

    Captures are sparse and their series come and go, so neither `rate` nor `increase` would see the
    first one. Series that are new since the day before, or restarted, count in full.

    Args:
        shown: The counter now, perhaps only a part of its series.
        counter: Its selector.
        ago: As Prometheus writes a duration.
    """
    before = f"last_over_time({counter}[1d] offset {ago})"
    goes_on = f"sum {BY_GPU} ({counter}) >= sum {BY_GPU} ({before})"
    return f"((({shown}) - {before}) and {ON_GPU} ({goes_on}) or ({shown}))"


def over_time_shown(name: str) -> str:
    """Return a series' mean over the time that the board shows, the same at every point of it."""
    return f"avg_over_time({chosen(name)}[$__range] @ end())"


def needs(expression: str) -> Iterator[str]:
    """Yield what an expression needs beyond an agent with the profile `standard`, each once.

    Raises:
        ValueError: It names a series that is neither exported, planned nor recorded.
    """
    found = {need: None for name in _NAME.findall(expression) for need in _named(name).needs}
    yield from found


def _series(name: str) -> Series:
    return _named(name if ":" in name else f"chopperd_{name}")


def _named(name: str) -> Series:
    found = RECORDED.get(name) or KNOWN.get(name)
    if found is None:
        raise ValueError(f"neither the catalogue nor a rule has {name}")
    return found
