"""The board "Node and GPU": what the clock costs each GPU of a node, and why."""

from typing import Final

from grafanalib.core import Panel

from chopperd.palette import ALERT_LIGHT, CAUSES, ROWS, UNKNOWN_LIGHT
from dashboards.document import Document, board_document
from dashboards.looks import AMBER, GREY, THERMAL, held_by_texts, marked, matching, named, plain
from dashboards.panels import (
    Shelf,
    Step,
    Words,
    heatmap,
    held_by_rows,
    lines,
    row,
    share_bars,
    stat,
    table,
    with_links,
)
from dashboards.queries import Query, added_since, chosen, furthest_below, of_workload, rate

_EXCESS: Final = chosen("gpu:chopperd_gpu_excess:ratio5m")
_CLOCK: Final = chosen("gpu:chopperd_gpu_busy_sm_clock_hertz:mean5m")
_GPU: Final = "{{instance}} GPU {{gpu}}"
NO_CAPTURE: Final = "No capture in the last 15 minutes: `chopperd record -- CMD` makes one."
_NO_PEERS: Final = "It takes four busy GPUs of a model on a node."
_IDLE: Final = "No GPU was busy: clocks of idle time are not drawn."
_TRACED: Final = chosen("traced_window_seconds_total")


def board() -> Document:
    """Build the board's JSON document."""
    return board_document(
        uid="chopperd-node-gpu",
        title="Node and GPU",
        description="What the clock costs each GPU of a node, why, and how far to trust it.",
        shelves=(
            Shelf(
                4,
                (_worst_excess(), _held_by_now(), _gpus(), _coverage(), _capture_age()),
                (5, 5, 4, 5, 5),
            ),
            Shelf(7, (_held_by(),)),
            Shelf(9, (_busy_clock(), _from_median())),
            Shelf(9, (_gap_by_cause(), _excess())),
            Shelf(8, (_power(), _thermal_margin())),
            Shelf(9, (_residency(), _waterfall())),
            row("Hardware", (Shelf(8, (_inventory(), _memory(), _others()), (12, 6, 6)),)),
        ),
    )


def _worst_excess() -> Panel:
    lost = rate("gpu_excess_live_seconds_total", "10m")
    busy = rate("gpu_busy_sampled_seconds_total", "10m")
    return with_links(
        stat(
            Words(
                title="Largest excess, upper",
                description="The GPU that loses most of its busy time against its peers on this "
                "node, over 10 minutes. An upper figure: peers that wait for it do so at high "
                "clocks.",
                absent=_NO_PEERS,
            ),
            (
                Query(
                    expr=f"topk(1, {of_workload(f'{lost} / ({busy} > 0)')})",
                    legend="GPU {{gpu}}",
                    instant=True,
                ),
            ),
            unit="percentunit",
            steps=(Step(AMBER, 0.015), Step(THERMAL, 0.03)),
        )
    )


def _held_by_now() -> Panel:
    held = chosen("gpu:chopperd_gpu_held_by:code5m")
    return stat(
        Words(
            title="Held by, now",
            description="What costs the GPU most that is furthest below its peers in the time "
            "shown.",
            absent="No GPU is busy.",
        ),
        (Query(expr=furthest_below(held), legend="GPU {{gpu}}", instant=True),),
        unit="none",
        texts=held_by_texts(),
    )


def _gpus() -> Panel:
    up, hung = chosen("gpu_up"), chosen("agent_driver_call_hung_seconds")
    return stat(
        Words(
            title="GPUs",
            description="How many answer, of how many; and for how long a driver call has not "
            "returned, where one hangs.",
            absent="Prometheus scrapes no agent: deploy/prometheus/scrape.yml.",
        ),
        (
            Query(expr=f"sum({up})", legend="answer", instant=True),
            Query(expr=f"count({up})", legend="of", instant=True),
            Query(expr=f"max({hung})", legend="a call hangs", instant=True),
        ),
        unit="none",
        overrides=(
            named("a call hangs", unit="s", color={"mode": "fixed", "fixedColor": ALERT_LIGHT}),
        ),
    )


def _coverage() -> Panel:
    known = f"sum({of_workload(rate('gpu_busy_sampled_seconds_total'))})"
    busy = f"sum({of_workload(rate('gpu_busy_seconds_total'))})"
    return stat(
        Words(
            title="Coverage",
            description="Share of busy time whose clock is known. Losses are too small by what is "
            "missing.",
            absent="No GPU is busy.",
        ),
        (Query(expr=f"clamp_max({known} / ({busy} > 0), 1)", legend="known", instant=True),),
        unit="percentunit",
        steps=(Step(THERMAL, 0), Step(AMBER, 0.5), Step("text", 0.9)),
    )


def _capture_age() -> Panel:
    newest = f"max({of_workload(chosen('traced_last_capture_timestamp_seconds'))})"
    return stat(
        Words(
            title="Age of the newest capture",
            description="How old the traced figures below are. They end after 15 minutes.",
            absent=NO_CAPTURE,
        ),
        (Query(expr=f"time() - {newest}", legend="age", instant=True),),
        unit="s",
        steps=(Step(GREY, 600),),
    )


def _held_by() -> Panel:
    return with_links(
        held_by_rows(
            Words(
                title="Held by",
                description="The cause with most lost time of each GPU, over 5 minutes: most of "
                "it is physics, as a power cap under full load. Nothing is drawn where a GPU is "
                "idle, lost or unknown.",
                absent="No GPU was busy.",
            ),
            Query(expr=of_workload(chosen("gpu:chopperd_gpu_held_by:code5m")), legend=_GPU),
        )
    )


def _busy_clock() -> Panel:
    reference = f"max({chosen('gpu_sm_clock_reference_hertz')})"
    return with_links(
        lines(
            Words(
                title="SM clock while busy",
                description="Mean over 5 minutes of busy time. In colour: the GPU that is "
                "furthest below its peers in the time shown. Dashed: the highest reference clock; "
                "dotted: the median GPU.",
                absent=_IDLE,
            ),
            (
                Query(expr=of_workload(_CLOCK), legend=_GPU),
                Query(expr=furthest_below(_CLOCK), legend=f"furthest below: {_GPU}"),
                Query(expr=reference, legend="reference"),
                Query(expr=f"quantile(0.5, {of_workload(_CLOCK)})", legend="median"),
            ),
            unit="hertz",
            from_zero=False,
            overrides=(
                plain(".*"),
                plain("^furthest below", THERMAL, 2),
                plain("^reference$", dash="dash"),
                plain("^median$", dash="dot"),
            ),
        )
    )


def _from_median() -> Panel:
    median = f"quantile by (cluster, instance) (0.5, {_CLOCK})"
    difference = f"{_CLOCK} - on (cluster, instance) group_left () {median}"
    return with_links(
        lines(
            Words(
                title="Clock while busy against the node's median",
                description="Slow drift and sudden drop look different here. Jobs that differ on "
                "one node differ here, too.",
                absent=_IDLE,
            ),
            (
                Query(expr=of_workload(difference), legend=_GPU),
                Query(expr=furthest_below(difference), legend=f"furthest below: {_GPU}"),
            ),
            unit="hertz",
            from_zero=False,
            overrides=(plain(".*"), plain("^furthest below", THERMAL, 2)),
        )
    )


def _gap_by_cause() -> Panel:
    gap = f"{chosen('gpu_cause:chopperd_gpu_dvfs_gap:ratio5m')} > 0"
    unknown = f"1 - {chosen('gpu:chopperd_gpu_coverage:ratio5m')} > 0.01"
    return lines(
        Words(
            title="At most lost to the clock, by cause",
            description="Share of busy time below the reference clock, of the GPU that is "
            "furthest below its peers in the time shown: a ceiling, mostly physics, not a saving. "
            "What was not sampled comes on top.",
            absent="No GPU was busy.",
        ),
        (
            Query(expr=furthest_below(gap), legend="{{cause}}"),
            Query(expr=furthest_below(unknown), legend="not sampled"),
        ),
        unit="percentunit",
        stacked=True,
        overrides=(
            *marked(CAUSES),
            named("not sampled", color={"mode": "fixed", "fixedColor": UNKNOWN_LIGHT}),
        ),
    )


def _excess() -> Panel:
    return with_links(
        lines(
            Words(
                title="Excess against peers, upper",
                description="Share of busy time lost against the median GPU of the same model on "
                "the node. Peers that wait for a slow GPU do so at high clocks, 1-1.5 points of "
                "it. Times the share of compute where a capture of the last 15 minutes knows it. "
                "Equal GPUs differ by up to 1.5 %.",
                absent=_NO_PEERS,
            ),
            (
                Query(expr=of_workload(_EXCESS), legend=_GPU),
                Query(expr=furthest_below(_EXCESS), legend=f"furthest below: {_GPU}"),
            ),
            unit="percentunit",
            levels=(Step(AMBER, 0.015), Step(THERMAL, 0.03)),
            overrides=(plain(".*"), plain("^furthest below", THERMAL, 2)),
        )
    )


def _power() -> Panel:
    limit, default = chosen("gpu_power_limit_watts"), chosen("gpu_power_limit_default_watts")
    return with_links(
        lines(
            Words(
                title="Power against its limits",
                description="Mean by the energy counter. Dashed: the highest limit in force; "
                "dotted: the default one, where a GPU's limit differs from it.",
                absent="No GPU reports power.",
            ),
            (
                Query(expr=of_workload(rate("gpu_energy_joules_total")), legend=_GPU),
                Query(
                    expr=furthest_below(rate("gpu_energy_joules_total")),
                    legend=f"furthest below: {_GPU}",
                ),
                Query(expr=f"max({limit})", legend="limit"),
                Query(
                    expr=f"max({default} != on (cluster, instance, gpu) {limit})", legend="default"
                ),
            ),
            unit="watt",
            overrides=(
                plain(".*"),
                plain("^furthest below", THERMAL, 2),
                plain("^limit$", dash="dash"),
                plain("^default$", dash="dot"),
            ),
        )
    )


def _thermal_margin() -> Panel:
    heat = chosen("gpu_temperature_celsius", sensor="gpu")
    slowdown = chosen("gpu_temperature_slowdown_celsius")
    return with_links(
        lines(
            Words(
                title="Temperature",
                description="Of the GPU. Dashed: where its hardware slows down, with "
                "metrics.profile = full and a driver that reports it.",
                absent="No GPU reports a temperature.",
            ),
            (
                Query(expr=of_workload(heat), legend=_GPU),
                Query(expr=furthest_below(heat), legend=f"furthest below: {_GPU}"),
                Query(expr=f"min({slowdown})", legend="slowdown", optional=True),
            ),
            unit="celsius",
            from_zero=False,
            overrides=(
                plain(".*"),
                plain("^furthest below", THERMAL, 2),
                plain("^slowdown$", THERMAL, dash="dash"),
            ),
        )
    )


def _residency() -> Panel:
    dwelt = f"sum by (bucket) ({of_workload(rate('gpu_clock_residency_seconds_total'))})"
    # Named so that it is drawn above the tenths, in the order of names.
    ordered = f'label_replace({dwelt}, "bucket", "above", "bucket", "[+]Inf")'
    return heatmap(
        Words(
            title="Time at each clock",
            description="Sampled time, idle time included, by tenths of the reference clock. A "
            "clock that hops shows as two bands.",
            absent="No clock is known.",
        ),
        Query(expr=ordered, legend="{{bucket}}"),
        unit="s",
    )


def _waterfall() -> Panel:
    recent = added_since(of_workload(_TRACED), _TRACED)
    shares = f"sum by (row) ({recent}) / ignoring (row) group_left () sum({recent})"
    return share_bars(
        Words(
            title="Where the steps went that were traced in the last 15 minutes",
            description="Shares of the windows of these captures; the age of the newest is shown "
            "above.",
            absent=NO_CAPTURE,
        ),
        (Query(expr=f"sort_desc({shares} > 0.0005)", legend="{{row}}", instant=True),),
        overrides=marked(ROWS),
    )


def _inventory() -> Panel:
    wanted = ("instance", "gpu", "name", "uuid", "pci_bus_id", "backend", "parent")
    names = ("node", "GPU", "model", "UUID", "PCI address", "read by", "part of")
    return table(
        Words(
            title="Inventory",
            description="The GPUs as their driver reports them.",
            absent="Prometheus scrapes no agent: deploy/prometheus/scrape.yml.",
        ),
        (Query(expr=chosen("gpu_info"), instant=True, table=True),),
        dict(zip(wanted, names, strict=True)),
        overrides=(),
    )


def _memory() -> Panel:
    return with_links(
        lines(
            Words(
                title="Device memory",
                description="In use by all processes; dashed: what the device has.",
                absent="No GPU reports its memory.",
            ),
            (
                Query(expr=of_workload(chosen("gpu_memory_used_bytes")), legend=_GPU),
                Query(expr=f"max({chosen('gpu_memory_size_bytes')})", legend="device"),
            ),
            unit="bytes",
            overrides=(plain(".*"), plain("^device$", dash="dash")),
        )
    )


def _others() -> Panel:
    return lines(
        Words(
            title="Memory clock, spread of compute dies",
            description="Spread: the highest less the lowest clock of the dies of a GPU that has "
            "several (AMD).",
            absent="Neither is reported.",
        ),
        (
            Query(expr=of_workload(chosen("gpu_mem_clock_hertz")), legend=f"memory {_GPU}"),
            Query(
                expr=of_workload(chosen("gpu_xcd_clock_spread_hertz")),
                legend=f"spread {_GPU}",
                optional=True,
            ),
        ),
        unit="hertz",
        overrides=(matching("^spread", **{"custom.axisPlacement": "right"}),),
    )
