"""The board "Job": what clocks cost one workload, and which rank holds it back."""

from typing import Final

from grafanalib.core import Panel

from chopperd.palette import ALERT_LIGHT, ROWS
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
    matching,
    named,
    plain,
)
from dashboards.node_and_gpu import NO_CAPTURE
from dashboards.panels import (
    Shelf,
    Step,
    Words,
    held_by_rows,
    lines,
    rank_bars,
    stat,
    table,
    with_links,
)
from dashboards.queries import (
    BY_GPU,
    ON_GPU,
    Query,
    added_since,
    by_rank,
    chosen,
    furthest_below,
    of_workload,
    rate,
)

_EXCESS: Final = chosen("gpu:chopperd_gpu_excess:ratio5m")
_CLOCK: Final = chosen("gpu:chopperd_gpu_busy_sm_clock_hertz:mean5m")
_RANK: Final = "{{rank}} {{instance}} GPU {{gpu}}"
_NO_MARKS: Final = "No step is marked."
_IDLE: Final = "No GPU was busy."
_TRACED: Final = chosen("traced_window_seconds_total")


def board() -> Document:
    """Build the board's JSON document."""
    return board_document(
        uid="chopperd-job",
        title="Job",
        description="What clocks cost a workload, and which rank holds it back. Without workloads "
        "it is about all chosen GPUs.",
        one_workload=True,
        shelves=(
            Shelf(4, (_step_now(), _tokens(), _cost(), _coverage())),
            Shelf(4, (_slowest(),)),
            Shelf(8, (_step_time(),)),
            Shelf(9, (_from_median(), _held_by()), (14, 10)),
            Shelf(10, (_waterfalls(), _classes()), (14, 10)),
            Shelf(8, (_energy(), _last())),
        ),
    )


def _step_seconds(window: str) -> str:
    steps = rate("steps_total", window)
    return of_workload(f"{rate('step_seconds_total', window)} / ({steps} > 0)")


def _step_now() -> Panel:
    return stat(
        Words(
            title="Step time, slowest rank",
            description="Mean of the marked steps of 10 minutes.",
            absent=_NO_MARKS,
        ),
        (Query(expr=f"max({_step_seconds('10m')})", legend="step"),),
        unit="s",
        spark=True,
    )


def _tokens() -> Panel:
    return stat(
        Words(
            title="Tokens a second",
            description="Of all ranks, as the marks count them.",
            absent=_NO_MARKS,
        ),
        (Query(expr=f"sum({of_workload(rate('step_tokens_total', '10m'))})", legend="tokens"),),
        unit="none",
        spark=True,
    )


def _cost() -> Panel:
    worst = f"max({of_workload(_EXCESS)})"
    return stat(
        Words(
            title="The slowest rank costs, upper",
            description="GPU-hours a day: the excess of the slowest rank times all GPUs, since "
            "every rank waits for it. At most what can be won back.",
            absent="It takes four busy GPUs of a model on a node.",
        ),
        (Query(expr=f"{worst} * count({of_workload(_EXCESS)}) * 24", legend="a day"),),
        unit="h",
    )


def _coverage() -> Panel:
    known = f"sum({of_workload(rate('gpu_busy_sampled_seconds_total'))})"
    busy = f"sum({of_workload(rate('gpu_busy_seconds_total'))})"
    return stat(
        Words(
            title="Coverage",
            description="Share of busy time whose clock is known. Losses are too small by what is "
            "missing.",
            absent=_IDLE,
        ),
        (Query(expr=f"clamp_max({known} / ({busy} > 0), 1)", legend="known", instant=True),),
        unit="percentunit",
        steps=(Step(THERMAL, 0), Step(AMBER, 0.5), Step("text", 0.9)),
    )


def _slowest() -> Panel:
    worst = f"topk(1, {by_rank(_EXCESS)})"
    held = f"max {BY_GPU} ({chosen('gpu:chopperd_gpu_held_by:code5m')})"
    by = "max by (cluster, instance, gpu, workload, rank)"
    columns = {
        "workload": "workload",
        "rank": "rank",
        "cluster": "cluster",
        "instance": "node",
        "gpu": "GPU",
        "Value #A": "excess, upper",
        "Value #B": "held by",
    }
    return table(
        Words(
            title="Slowest rank",
            description="The rank that loses most against its peers, over 5 minutes, and the "
            "cause with most lost time.",
            absent="No GPU is below its peers. It takes four busy GPUs of a model on a node.",
        ),
        (
            Query(expr=f"{by} ({worst})", instant=True, table=True),
            Query(expr=f"{held} and {ON_GPU} {worst}", instant=True, table=True),
        ),
        columns,
        overrides=(
            bar_cell("excess, upper", 0.15, THERMAL),
            mapped_cell("held by", held_by_texts()),
            named("GPU", links=CELL_LINKS),
        ),
    )


def _step_time() -> Panel:
    seconds = _step_seconds("$__rate_interval")
    return lines(
        Words(
            title="Step time",
            description="Of the slowest and the median rank, from marked steps. What lies between "
            "them is what the slowest costs. The axis does not begin at 0: steps differ by some "
            "percent.",
            absent=_NO_MARKS,
        ),
        (
            Query(expr=f"quantile(0.5, {seconds})", legend="median rank"),
            Query(expr=f"max({seconds})", legend="slowest rank"),
        ),
        unit="s",
        from_zero=False,
        overrides=(
            plain("^median rank$"),
            named(
                "slowest rank",
                color={"mode": "fixed", "fixedColor": THERMAL},
                **{
                    "custom.lineWidth": 2,
                    "custom.fillBelowTo": "median rank",
                    "custom.fillOpacity": 20,
                },
            ),
        ),
    )


def _from_median() -> Panel:
    median = f"scalar(quantile(0.5, {of_workload(_CLOCK)}))"
    return with_links(
        lines(
            Words(
                title="Clock while busy against the median rank",
                description="Mean over 5 minutes of busy time. In colour: the rank that is "
                "furthest below its peers.",
                absent="No GPU was busy: clocks of idle time are not drawn.",
            ),
            (
                Query(expr=f"{by_rank(_CLOCK)} - {median}", legend=_RANK),
                Query(
                    expr=f"({by_rank(furthest_below(_CLOCK))}) - {median}",
                    legend=f"furthest below: {_RANK}",
                ),
            ),
            unit="hertz",
            from_zero=False,
            overrides=(plain(".*"), plain("^furthest below", THERMAL, 2)),
        )
    )


def _held_by() -> Panel:
    return with_links(
        held_by_rows(
            Words(
                title="Held by, a row a rank",
                description="The cause with most lost time of each, over 5 minutes; most of it is "
                "physics.",
                absent=_IDLE,
            ),
            Query(expr=by_rank(chosen("gpu:chopperd_gpu_held_by:code5m")), legend=_RANK),
        )
    )


def _waterfalls() -> Panel:
    recent = added_since(of_workload(_TRACED), _TRACED)
    whole = f"on (cluster, instance, gpu) group_left () sum {BY_GPU} ({recent})"
    shares = f"sum by (cluster, instance, gpu, row) ({recent}) / {whole}"
    return rank_bars(
        Words(
            title="Where each rank's steps went that were traced in the last 15 minutes",
            description="Shares of the windows of these captures, a bar a GPU, in the order of "
            "the breakdown. The board Node and GPU shows their age.",
            absent=NO_CAPTURE,
        ),
        Query(
            expr=f'sum by (place, row) (label_join({shares}, "place", " GPU ", "instance", "gpu"))',
            instant=True,
            table=True,
        ),
        overrides=marked(ROWS),
    )


def _classes() -> Panel:
    kernels, lost = (
        chosen("traced_kernel_seconds_total"),
        chosen("traced_kernel_lost_seconds_total"),
    )
    since = {
        each: f"sum by (class) ({added_since(of_workload(each), each)})" for each in (kernels, lost)
    }
    columns = {"class": "class", "Value #A": "kernel time", "Value #B": "at most lost"}
    return table(
        Words(
            title="Classes: time, and at most lost",
            description="Of the captures of the last 15 minutes. Concurrent kernels all count. At "
            "most lost: share of a class's time below the reference clock, where the clock is "
            "known; a ceiling. Empty cells are unknown.",
            absent=NO_CAPTURE,
        ),
        (
            Query(expr=f"{since[kernels]} > 0", instant=True, table=True),
            Query(expr=f"{since[lost]} / ({since[kernels]} > 0)", instant=True, table=True),
        ),
        columns,
        overrides=(named("kernel time", unit="s"), bar_cell("at most lost", 0.5, AMBER)),
    )


def _energy() -> Panel:
    power = f"sum({of_workload(rate('gpu_energy_joules_total'))})"
    tokens = f"sum({of_workload(rate('step_tokens_total'))})"
    return lines(
        Words(
            title="Power, and tokens a joule",
            description="Power by the energy counters of all its GPUs. Tokens a joule, dashed, on "
            "the right axis, where marks count tokens.",
            absent="No GPU reports energy.",
        ),
        (
            Query(expr=power, legend="power"),
            Query(expr=f"{tokens} / ({power} > 0)", legend="tokens a joule", optional=True),
        ),
        unit="watt",
        overrides=(
            plain("^power$", GREY),
            plain("^tokens", ROWS["exposed_comm"].colour, dash="dash"),
            matching("^tokens", unit="none", **{"custom.axisPlacement": "right"}),
        ),
    )


def _last() -> Panel:
    asked = ("traced_last_rank_total", "traced_wait_caused_seconds_total")
    columns = {
        "rank": "rank",
        "instance": "node",
        "gpu": "GPU",
        "Value #A": "times last",
        "Value #B": "wait that it caused",
    }
    by = "max by (cluster, instance, gpu, workload, rank)"
    since = (by_rank(added_since(chosen(name), chosen(name))) for name in asked)
    return table(
        Words(
            title="Who was last",
            description="At the collectives of the captures of the last 15 minutes. The waits of "
            "one rank are not to be added to another's.",
            absent=NO_CAPTURE,
        ),
        [Query(expr=f"{by} ({each})", instant=True, table=True) for each in since],
        columns,
        overrides=(
            named(
                "wait that it caused", unit="s", color={"mode": "fixed", "fixedColor": ALERT_LIGHT}
            ),
        ),
    )
