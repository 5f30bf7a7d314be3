"""The board "Agent": whether its figures can be believed, and what it costs."""

from typing import Final

from grafanalib.core import Panel

from chopperd.palette import ALERT_LIGHT
from dashboards.document import Document, board_document
from dashboards.looks import AMBER, GREY, THERMAL, band, named, plain
from dashboards.panels import Shelf, Step, Words, lines, stat, table, with_links
from dashboards.queries import Query, chosen, rate

_NO_AGENT: Final = "Prometheus scrapes no agent: deploy/prometheus/scrape.yml."
_NO_MARKS: Final = (
    "Not measured: it takes steps that the job marks, and `sampling.self_test_ratio`."
)
#: What driver calls may take of a GPU's time (`sampling.driver_budget_ratio`).
_DRIVER_BUDGET_RATIO: Final = 0.002
_MEMORY_BUDGET_BYTES: Final = 120 * 2**20


def board() -> Document:
    """Build the board's JSON document."""
    return board_document(
        uid="chopperd-agent",
        title="Agent",
        description="Whether the agents' figures can be believed, and what measuring costs.",
        shelves=(
            Shelf(4, (_agents(), _oldest(), _effect_now(), _series()), (5, 5, 9, 5)),
            Shelf(5, (_hung(), _versions())),
            Shelf(8, (_kept_rate(), _driver_seconds())),
            Shelf(8, (_effect(), _cpu(), _memory())),
            Shelf(7, (_traces(), _disk(), _trouble())),
        ),
    )


def _agents() -> Panel:
    info = chosen("agent_build_info")
    return stat(
        Words(
            title="Agents",
            description="How many answer Prometheus, and how many read their GPUs.",
            absent=_NO_AGENT,
        ),
        (
            Query(expr=f"count({info})", legend="answer", instant=True),
            Query(
                expr=f"count({chosen('agent_backend_up')} == 1)", legend="read GPUs", instant=True
            ),
        ),
        unit="none",
    )


def _oldest() -> Panel:
    newest = chosen("gpu_last_sample_timestamp_seconds")
    return stat(
        Words(
            title="Oldest newest sample",
            description="Age of each GPU's newest sample when it was scraped, the largest. Clocks "
            "of node and Prometheus that differ show here, too.",
            absent="No GPU is sampled.",
        ),
        (Query(expr=f"max(timestamp({newest}) - {newest})", legend="age"),),
        unit="s",
        steps=(Step(AMBER, 3), Step(THERMAL, 10)),
    )


def _effect_now() -> Panel:
    ratio, bound = chosen("agent_step_time_ratio"), chosen("agent_step_time_bound_ratio")
    return stat(
        Words(
            title="Effect on steps",
            description="Time of a marked step with sampling over that without, less 1, and the "
            "ends of its 95 % interval: no effect is seen where that holds 0. Of the node with "
            "the largest.",
            absent=_NO_MARKS,
        ),
        (
            Query(expr=f"max({ratio} - 1)", legend="largest", instant=True),
            Query(expr=f"max by (bound) ({bound} - 1)", legend="{{bound}}", instant=True),
        ),
        unit="percentunit",
    )


def _series() -> Panel:
    return stat(
        Words(
            title="Series of an agent",
            description="Series that the largest scrape holds.",
            absent=_NO_AGENT,
        ),
        (Query(expr=f"max({chosen('agent_series')})", legend="series", instant=True),),
        unit="none",
    )


def _hung() -> Panel:
    columns = {
        "cluster": "cluster",
        "instance": "node",
        "gpu": "GPU",
        "call": "call",
        "Value": "age",
    }
    return table(
        Words(
            title="Driver calls that hang",
            description="Calls that have not returned. Such a GPU has no other series until they "
            "do.",
            absent="None.",
        ),
        (Query(expr=chosen("agent_driver_call_hung_seconds"), instant=True, table=True),),
        columns,
        overrides=(named("age", unit="s", color={"mode": "fixed", "fixedColor": ALERT_LIGHT}),),
    )


def _versions() -> Panel:
    columns = {"version": "version", "Value": "agents"}
    return table(
        Words(title="Versions", description="Agents by version.", absent=_NO_AGENT),
        (
            Query(
                expr=f"count by (version) ({chosen('agent_build_info')})", instant=True, table=True
            ),
        ),
        columns,
        overrides=(),
    )


def _kept_rate() -> Panel:
    return lines(
        Words(
            title="Achieved samples a second, lowest GPU",
            description="Falls to 1 on an idle GPU, and where reads would take more than their "
            "share of time.",
            absent="No GPU is sampled.",
        ),
        (
            Query(
                expr=f"min by (cluster, instance) ({chosen('agent_kept_rate_hertz')})",
                legend="{{instance}}",
            ),
        ),
        unit="hertz",
        overrides=(plain(".*"),),
    )


def _driver_seconds() -> Panel:
    gpus = f"scalar(sum({chosen('gpu_up')}))"
    return lines(
        Words(
            title="Share of time in driver calls, a GPU",
            description="By how much a call reads. The line is the budget of sampling.",
            absent=_NO_AGENT,
        ),
        (
            Query(
                expr=f"sum by (call) ({rate('agent_driver_seconds_total')}) / {gpus} > 0",
                legend="{{call}}",
            ),
        ),
        unit="percentunit",
        stacked=True,
        levels=(Step(AMBER, _DRIVER_BUDGET_RATIO),),
    )


def _effect() -> Panel:
    bound = chosen("agent_step_time_bound_ratio")
    low, high = (f'{bound[:-1]}, bound="{end}"}} - 1' for end in ("low", "high"))
    return with_links(
        lines(
            Words(
                title="Effect on steps, with its 95 % interval",
                description="Time of a marked step with sampling over that without, less 1; the "
                "mean over nodes.",
                absent=_NO_MARKS,
            ),
            (
                Query(expr=f"avg({low})", legend="low"),
                Query(expr=f"avg({chosen('agent_step_time_ratio')} - 1)", legend="effect"),
                Query(expr=f"avg({high})", legend="high"),
            ),
            unit="percentunit",
            levels=(Step(GREY, 0),),
            overrides=(plain(".*"), band("low", "high")),
        )
    )


def _cpu() -> Panel:
    return lines(
        Words(
            title="CPU of a node's agent",
            description="Cores, by process, mean over nodes: the worker only while it analyses a "
            "trace.",
            absent=_NO_AGENT,
        ),
        (
            Query(
                expr=f"avg by (role) ({rate('agent_process_cpu_seconds_total')})", legend="{{role}}"
            ),
        ),
        unit="none",
        stacked=True,
    )


def _memory() -> Panel:
    return lines(
        Words(
            title="Memory of a node's agent",
            description="Resident, by process, of the largest; shared pages count in each. The "
            "line is 120 MiB.",
            absent=_NO_AGENT,
        ),
        (
            Query(
                expr=f"max by (role) ({chosen('agent_process_resident_bytes')}) > 0",
                legend="{{role}}",
            ),
        ),
        unit="bytes",
        levels=(Step(GREY, _MEMORY_BUDGET_BYTES),),
    )


def _traces() -> Panel:
    return lines(
        Words(
            title="Traces an hour, by outcome",
            description="`chopperd traces` on the node says why one was rejected.",
            absent="No trace came in the last hour.",
        ),
        (
            Query(
                expr=f"sum by (outcome) (increase({chosen('agent_traces_total')}[1h])) > 0",
                legend="{{outcome}}",
            ),
        ),
        unit="none",
        overrides=(
            plain("^(analysed|duplicate|spooled)$"),
            plain("^(rejected|failed|killed)$", ALERT_LIGHT, 2),
        ),
    )


def _disk() -> Panel:
    parts = {
        "samples": "agent_recorder_bytes",
        "steps and reports": "agent_store_bytes",
        "traces": "agent_spool_bytes",
        "limit of samples": "agent_recorder_max_bytes",
    }
    return lines(
        Words(
            title="Disk of a node's agent",
            description="Of the node that takes most. Dashed: what samples may take at most "
            "(`recorder.max_bytes`); `store.max_bytes` and `analysis.spool_max_bytes` bound the "
            "others.",
            absent=_NO_AGENT,
        ),
        [Query(expr=f"max({chosen(name)})", legend=legend) for legend, name in parts.items()],
        unit="bytes",
        overrides=(plain("^limit of samples$", dash="dash"),),
    )


def _trouble() -> Panel:
    return lines(
        Words(
            title="Nodes with a problem, by part",
            description="`chopperd status` on the node says what it is. Also faults that a part "
            "survived.",
            absent="None.",
        ),
        (
            Query(
                expr=f"sum by (part) ({chosen('agent_trouble')}) > 0", legend="problem: {{part}}"
            ),
            Query(
                expr=f"sum by (part) (increase({chosen('agent_faults_total')}[1h])) > 0",
                legend="faults an hour: {{part}}",
            ),
        ),
        unit="none",
        overrides=(plain(".*", ALERT_LIGHT),),
    )
