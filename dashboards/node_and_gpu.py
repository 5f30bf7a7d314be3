"""The board "Node and GPU": what the clock costs each GPU of a node, and why."""

from typing import Final

from grafanalib.core import Panel

from dashboards.document import Document, board_document
from dashboards.panels import (
    Query,
    Shelf,
    Step,
    Variable,
    arranged,
    dashed,
    datasource_variable,
    label_variable,
    scrape_variable,
    share_bars,
    stat,
    time_series,
)

#: Without the label `cluster` the variable is empty, which matches what lacks it.
_NODE: Final = 'cluster="$cluster", instance="$node"'
_CHOSEN: Final = f'{{{_NODE}, gpu=~"$gpu"}}'
_RATE: Final = "$__rate_interval"
_NO_CAPTURE: Final = "no capture in the last 15 minutes"


def board() -> Document:
    """Build the board's JSON document."""
    return board_document(
        uid="chopperd-node-gpu",
        title="chopperd / Node and GPU",
        description="What the clock costs each GPU of a node, why, and how far to trust it.",
        variables=_variables(),
        panels=arranged(
            (
                Shelf(4, (_origin(), _answering(), _worst_excess(), _capture_age())),
                Shelf(9, (_busy_clock(), _gap_by_cause())),
                Shelf(9, (_excess(), _waterfall())),
                Shelf(9, (_power(), _temperature())),
                Shelf(7, (_sample_age(), _kept_rate())),
            )
        ),
    )


def _variables() -> tuple[Variable, ...]:
    return (
        datasource_variable(),
        label_variable("cluster", "Cluster", "label_values(chopperd_agent_build_info, cluster)"),
        label_variable(
            "node", "Node", 'label_values(chopperd_agent_build_info{cluster="$cluster"}, instance)'
        ),
        label_variable("gpu", "GPU", f"label_values(chopperd_gpu_up{{{_NODE}}}, gpu)", every=True),
        scrape_variable(),
    )


def _rate(metric: str) -> str:
    """Return PromQL for a counter's increase a second, exact at any scrape interval."""
    return f"rate({metric}{_CHOSEN}[{_RATE}])"


#: Absent, not 0/0, where a GPU was never busy.
_BUSY: Final = f"({_rate('chopperd_gpu_busy_sampled_seconds_total')} > 0)"
_EXCESS: Final = f"{_rate('chopperd_gpu_excess_live_seconds_total')} / {_BUSY}"
_TRACED: Final = f"chopperd_traced_window_seconds_total{_CHOSEN}"


def _origin() -> Panel:
    return stat(
        "Figures are",
        "Whether they come from hardware or from a simulation.",
        Query(expr=f"chopperd_agent_simulated{{{_NODE}}}", legend="figures", instant=True),
        unit="none",
        steps=(Step("green"), Step("orange", 1)),
        texts={"0": "measured", "1": "SIMULATED"},
    )


def _answering() -> Panel:
    return stat(
        "GPUs",
        "Lost: the driver reports it, or samples have stopped. Its other series end then.",
        Query(expr=f"chopperd_gpu_up{_CHOSEN}", legend="{{gpu}}", instant=True),
        unit="none",
        steps=(Step("red"), Step("green", 1)),
        texts={"0": "lost", "1": "up"},
    )


def _worst_excess() -> Panel:
    return stat(
        "Largest excess",
        "The GPU whose busy clock is furthest below its peers on this node. An upper figure: peers "
        "that wait for it do so at high clocks.",
        Query(expr=f"topk(1, {_EXCESS})", legend="GPU {{gpu}}", instant=True),
        unit="percentunit",
        steps=(Step("green"), Step("orange", 0.01), Step("red", 0.03)),
        absent="needs four GPUs of a model, busy",
    )


def _capture_age() -> Panel:
    newest = f"max(chopperd_traced_last_capture_timestamp_seconds{_CHOSEN})"
    return stat(
        "Age of the newest capture",
        "How old the traces below are. They are dropped after 15 minutes.",
        Query(expr=f"time() - {newest}", legend="age", instant=True),
        unit="s",
        steps=(Step("green"), Step("orange", 300), Step("red", 900)),
        absent=_NO_CAPTURE,
    )


def _busy_clock() -> Panel:
    mean = f"{_rate('chopperd_gpu_busy_sm_cycles_total')} / {_BUSY}"
    reference = f"chopperd_gpu_sm_clock_reference_hertz{_CHOSEN}"
    return time_series(
        "SM clock while busy",
        "Cycles over time while the GPU reported itself busy. Dashed: the reference clock.",
        (Query(expr=mean, legend="GPU {{gpu}}"), Query(expr=reference, legend="reference {{gpu}}")),
        unit="hertz",
        overrides=(dashed("^reference"),),
    )


def _gap_by_cause() -> Panel:
    lost = f"sum by (cause) ({_rate('chopperd_gpu_dvfs_lost_live_seconds_total')})"
    return time_series(
        "Clock gap by cause (ceiling)",
        "Share of busy time that would be saved if all work sped up as the clock does. Mostly "
        "physics: not a saving to expect.",
        (Query(expr=f"{lost} / ignoring (cause) group_left () sum{_BUSY}", legend="{{cause}}"),),
        unit="percentunit",
        stacked=True,
    )


def _excess() -> Panel:
    return time_series(
        "Excess against peers",
        "Share of busy time lost against the median GPU of the same model on this node. An upper "
        "figure: peers that wait for a slow GPU do so at high clocks, 1-1.5 points of it. Where a "
        "capture of the last 15 minutes knows the share of compute, it is times that.",
        (Query(expr=_EXCESS, legend="GPU {{gpu}}"),),
        unit="percentunit",
    )


def _waterfall() -> Panel:
    recent = _added(_TRACED, "15m")
    shares = f"sum by (row) ({recent}) / ignoring (row) group_left () sum({recent})"
    return share_bars(
        "Where the steps went that were traced in the last 15 minutes",
        "Shares of the windows of these captures; the age of the newest is shown above.",
        Query(expr=f"sort_desc({shares})", legend="{{row}}", instant=True),
        absent=_NO_CAPTURE,
    )


def _added(counter: str, ago: str) -> str:
    """Return PromQL for the increase of a counter of captures since a time ago.

    Captures are sparse and their series come and go, so neither `rate` nor `increase` would see the
    first one. Series that are new since the day before, or restarted, count in full.
    """
    before = f"last_over_time({counter}[1d] offset {ago})"
    goes_on = f"sum by (gpu) ({counter}) >= sum by (gpu) ({before})"
    return f"((({counter} - {before}) and on (gpu) ({goes_on})) or {counter})"


def _power() -> Panel:
    return time_series(
        "Power against its limits",
        "Mean by the energy counter. Dashed: the limit in force, and the default one.",
        (
            Query(expr=_rate("chopperd_gpu_energy_joules_total"), legend="GPU {{gpu}}"),
            Query(expr=f"chopperd_gpu_power_limit_watts{_CHOSEN}", legend="limit {{gpu}}"),
            Query(
                expr=f"chopperd_gpu_power_limit_default_watts{_CHOSEN}",
                legend="default limit {{gpu}}",
            ),
        ),
        unit="watt",
        overrides=(dashed("limit"),),
    )


def _temperature() -> Panel:
    return time_series(
        "Temperature",
        "By sensor.",
        (
            Query(
                expr=f"chopperd_gpu_temperature_celsius{_CHOSEN}", legend="GPU {{gpu}} {{sensor}}"
            ),
        ),
        unit="celsius",
    )


def _sample_age() -> Panel:
    last = f"chopperd_gpu_last_sample_timestamp_seconds{_CHOSEN}"
    return time_series(
        "Age of the newest sample when scraped",
        "Nothing is drawn where a GPU is lost or the agent is down.",
        (Query(expr=f"timestamp({last}) - {last}", legend="GPU {{gpu}}"),),
        unit="s",
    )


def _kept_rate() -> Panel:
    return time_series(
        "Achieved samples a second",
        "Falls to 1 on an idle GPU, and where reads would take more than their share of time.",
        (Query(expr=f"chopperd_agent_kept_rate_hertz{_CHOSEN}", legend="GPU {{gpu}}"),),
        unit="hertz",
    )
