"""The board "Fleet": which GPU is worth a visit, why, and what it costs."""

from typing import Final

from grafanalib.core import Panel

from chopperd.palette import CAUSES
from dashboards.document import Document, board_document
from dashboards.looks import (
    AMBER,
    CELL_LINKS,
    GREY,
    THERMAL,
    bar_cell,
    held_by_texts,
    mapped_cell,
    marked,
    named,
)
from dashboards.panels import (
    Shelf,
    Step,
    Words,
    heatmap,
    held_by_rows,
    lines,
    share_bars,
    stat,
    table,
)
from dashboards.queries import BY_GPU, ON_GPU, Query, by_rank, chosen, of_workload, over_time_shown

_EXCESS: Final = chosen("gpu:chopperd_gpu_excess:ratio5m")
#: As the alert's least: 3 % below the peers.
_VISIT_RATIO: Final = 0.03
_NO_EXCESS: Final = "No GPU is below its peers. It takes four busy GPUs of a model on a node."
_WORST: Final = f"topk(20, max {BY_GPU} ({of_workload(f'{_EXCESS} > 0.01')}))"


def board() -> Document:
    """Build the board's JSON document."""
    return board_document(
        uid="chopperd-fleet",
        title="Fleet",
        description="Which GPU is worth a visit, why, and what it costs.",
        shelves=(
            Shelf(4, (_to_visit(), _lost_hours(), _answering(), _lowered())),
            Shelf(10, (_worst(),)),
            Shelf(9, (_excess_by_cause(), _clocks())),
            Shelf(9, (_held_by(), _heat()), (14, 10)),
            Shelf(8, (_by_model(), _jobs()), (10, 14)),
            Shelf(7, (_power(), _coverage())),
        ),
    )


def _to_visit() -> Panel:
    return stat(
        Words(
            title="GPUs to visit",
            description="GPUs that lose 3 % of their busy time or more against their peers, over "
            "5 minutes. An upper figure.",
            absent="No rules: Prometheus has to load deploy/prometheus/rules.yml.",
        ),
        (
            Query(
                expr=f"count({of_workload(f'{_EXCESS} > {_VISIT_RATIO}')}) or vector(0)",
                legend="GPUs",
            ),
        ),
        unit="none",
        steps=(Step(THERMAL, 1),),
        spark=True,
    )


def _lost_hours() -> Panel:
    counter = chosen("gpu_excess_live_seconds_total")
    return stat(
        Words(
            title="GPU-hours lost to excess, upper",
            description="What clocks below those of the peers have cost in the time shown: at "
            "most what can be won back. Peers that wait for a slow GPU do so at high clocks.",
            absent=_NO_EXCESS,
        ),
        (
            Query(
                expr=f"sum({of_workload(f'increase({counter}[$__range])')}) / 3600",
                legend="h",
                instant=True,
            ),
        ),
        unit="h",
    )


def _answering() -> Panel:
    return stat(
        Words(
            title="GPUs that answer",
            description="A GPU is lost where its driver says so, or its samples have stopped.",
            absent="Prometheus scrapes no agent: deploy/prometheus/scrape.yml.",
        ),
        (
            Query(expr=f"sum({chosen('node:chopperd_gpu_up:sum')})", legend="answer"),
            Query(expr=f"sum({chosen('node:chopperd_gpu:count')})", legend="of"),
            Query(
                expr=f"sum({chosen('node:chopperd_gpu:count')}) "
                f"- sum({chosen('node:chopperd_gpu_up:sum')}) > 0",
                legend="lost",
            ),
        ),
        unit="none",
        overrides=(named("lost", color={"mode": "fixed", "fixedColor": THERMAL}),),
    )


def _lowered() -> Panel:
    limit, default = chosen("gpu_power_limit_watts"), chosen("gpu_power_limit_default_watts")
    return stat(
        Words(
            title="Power limit below default",
            description="GPUs whose enforced power limit is over 1 % below the default one.",
            absent="The driver reports no limit.",
        ),
        (Query(expr=f"count({limit} < 0.99 * {default}) or 0 * count({limit})", legend="GPUs"),),
        unit="none",
        steps=(Step(AMBER, 1),),
    )


def _worst() -> Panel:
    of_worst = f"and {ON_GPU} {_WORST}"
    below = chosen("gpu_name:chopperd_gpu_clock_below_peers:ratio5m")
    heat = chosen("gpu_temperature_celsius", sensor="gpu")
    asked = (
        _WORST,
        f"max {BY_GPU} ({chosen('gpu:chopperd_gpu_held_by:code5m')}) {of_worst}",
        f"max {BY_GPU} ({below}) {of_worst}",
        f"max {BY_GPU} ({heat}) {of_worst}",
        f"max by (cluster, instance, gpu, workload) ({by_rank(chosen('gpu_up'))}) {of_worst}",
    )
    columns = {
        "cluster": "cluster",
        "instance": "node",
        "gpu": "GPU",
        "Value #A": "excess, upper",
        "Value #B": "held by",
        "Value #C": "clock below peers",
        "Value #D": "temperature",
        "workload": "workload",
    }
    return table(
        Words(
            title="Send someone to these",
            description="The GPUs that lose most against their peers, over 5 minutes: an upper "
            "figure. Held by: the cause with most lost time, most of it physics where peers have "
            "it too.",
            absent=_NO_EXCESS,
        ),
        [Query(expr=expr, instant=True, table=True) for expr in asked],
        columns,
        overrides=(
            bar_cell("excess, upper", 0.15, THERMAL),
            mapped_cell("held by", held_by_texts()),
            named("clock below peers", unit="percentunit", decimals=1),
            named("temperature", unit="celsius"),
            named("GPU", links=CELL_LINKS),
        ),
    )


def _excess_by_cause() -> Panel:
    return lines(
        Words(
            title="GPUs' worth of time lost to excess, by cause",
            description="GPU-hours an hour, an upper figure. Excess has no cause of its own: it "
            "is split by the shares of each GPU's causes. Of all GPUs of the chosen nodes.",
            absent=_NO_EXCESS,
        ),
        (
            Query(
                expr=f"sum by (cause) ({chosen('node_cause:chopperd_gpu_excess:gpus5m')}) > 0",
                legend="{{cause}}",
            ),
        ),
        unit="none",
        stacked=True,
        overrides=marked(CAUSES),
    )


def _clocks() -> Panel:
    return heatmap(
        Words(
            title="Clock while busy over reference, all GPUs",
            description="How many GPUs are at which share of their reference clock. Two bands are "
            "two populations: models, jobs, or limits.",
            absent="No GPU is busy: clocks of idle time are not drawn.",
        ),
        Query(
            expr=of_workload(chosen("gpu:chopperd_gpu_clock_to_reference:ratio5m")),
            legend="{{instance}} GPU {{gpu}}",
        ),
        unit="percentunit",
        bucket=0.02,
    )


def _held_by() -> Panel:
    worst = f"topk(20, {over_time_shown('gpu:chopperd_gpu_excess:ratio5m')})"
    held = of_workload(chosen("gpu:chopperd_gpu_held_by:code5m"))
    return held_by_rows(
        Words(
            title="Held by: the 20 GPUs with most excess",
            description="The cause with most lost time of each, over 5 minutes. Nothing is drawn "
            "where a GPU is idle or not known.",
            absent=_NO_EXCESS,
        ),
        Query(expr=f"{held} and {ON_GPU} {worst}", legend="{{instance}} GPU {{gpu}}"),
    )


def _heat() -> Panel:
    rack = '"rack", "(.+)"'
    placed = (
        f"label_replace(label_replace({chosen('gpu:chopperd_gpu_thermal:ratio5m')}, "
        f'"place", "$1", "instance", "(.+)"), "place", "rack $1", {rack})'
    )
    return heatmap(
        Words(
            title="Heat by rack and hour",
            description="Share of busy time under a thermal limit, mean of the GPUs of a rack "
            "(the target's label `rack`) or, without it, of a node. Rows together are a room, one "
            "row is a node.",
            absent="No GPU is busy, or its driver reports no thermal limits.",
        ),
        Query(expr=f"avg by (place) ({placed})", legend="{{place}}"),
        unit="percentunit",
        scheme="Oranges",
    )


def _by_model() -> Panel:
    gap = f"sum {BY_GPU} ({chosen('gpu_cause:chopperd_gpu_dvfs_gap:ratio5m')})"
    model = f"* {ON_GPU} group_left (name) {chosen('gpu_info', parent='')}"
    return share_bars(
        Words(
            title="At most lost, by model",
            description="Share of busy time below the reference clock, mean of the GPUs of a "
            "model, and what of it is excess. A ceiling: mostly physics, not a saving.",
            absent="No GPU is busy.",
        ),
        (
            Query(expr=f"avg by (name) ({gap} {model})", legend="{{name}}", instant=True),
            Query(
                expr=f"avg by (name) ({_EXCESS} {model})", legend="{{name}}: excess", instant=True
            ),
        ),
        overrides=(),
    )


def _jobs() -> Panel:
    excess = chosen("workload:chopperd_gpu_excess:max5m")
    count = chosen("workload:chopperd_gpu:count")
    asked = (
        f"topk(20, sum by (cluster, workload) ({excess} * {count} * 24))",
        f"sum by (cluster, workload) ({excess})",
        f"sum by (cluster, workload) ({count})",
    )
    columns = {
        "cluster": "cluster",
        "workload": "workload",
        "Value #A": "GPU-hours a day, upper",
        "Value #B": "slowest rank's excess",
        "Value #C": "GPUs",
    }
    link = {
        "title": "Job",
        "url": "/d/chopperd-job?var-workload=${__data.fields.workload}&${__url_time_range}",
        "targetBlank": False,
    }
    return table(
        Words(
            title="Jobs by the cost of their slowest rank",
            description="Every rank waits for the slowest: its excess times all GPUs of the job.",
            absent="No workload is known.",
        ),
        [Query(expr=expr, instant=True, table=True) for expr in asked],
        columns,
        overrides=(
            bar_cell("slowest rank's excess", 0.15, THERMAL),
            named("GPU-hours a day, upper", unit="h", decimals=1),
            named("workload", links=[link]),
        ),
    )


def _power() -> Panel:
    return lines(
        Words(
            title="Power",
            description="Of all GPUs of the chosen nodes, by their energy counters.",
            absent="No GPU reports energy.",
        ),
        (Query(expr=f"sum({chosen('node:chopperd_gpu_power_watts:sum5m')})", legend="GPUs"),),
        unit="watt",
        overrides=(named("GPUs", color={"mode": "fixed", "fixedColor": GREY}),),
    )


def _coverage() -> Panel:
    return lines(
        Words(
            title="Coverage, the lowest nodes",
            description="Share of busy time whose clock is known. A loss is too small where this "
            "is below 100 %.",
            absent="No GPU is busy.",
        ),
        (
            Query(
                expr=f"bottomk(10, {chosen('node:chopperd_gpu_coverage:ratio5m')})",
                legend="{{instance}}",
            ),
        ),
        unit="percentunit",
        levels=(Step(AMBER, 0.9),),
    )
