"""The board "FSDP allocation": device memory next to the clock, without a cause drawn."""

from typing import Final

from grafanalib.core import Panel

from chopperd.palette import ROWS
from dashboards.document import Document, board_document
from dashboards.looks import AMBER, CELL_LINKS, GREY, named, plain
from dashboards.node_and_gpu import NO_CAPTURE
from dashboards.panels import Shelf, Step, Words, lines, stat, table, with_links
from dashboards.queries import BY_GPU, ON_GPU, Query, added_since, by_rank, chosen, of_workload

_RESERVED: Final = chosen("traced_memory_reserved_peak_bytes")
_VARIATION: Final = chosen("traced_memory_reserved_variation_ratio")
_SIZE: Final = chosen("gpu_memory_size_bytes")
_FILLED: Final = f"{_RESERVED} / {ON_GPU} {_SIZE}"
_CLOCK: Final = chosen("gpu:chopperd_gpu_busy_sm_clock_hertz:mean5m")
_NO_MEMORY: Final = "No memory figures in the last 15 minutes."
_ALLOCATOR: Final = ROWS["idle_allocator"].colour


def board() -> Document:
    """Build the board's JSON document."""
    return board_document(
        uid="chopperd-fsdp",
        title="FSDP allocation",
        description="Device memory and clock on one time axis. That they move together is no "
        "proof that one moves the other: `chopperd compare` tests it.",
        shelves=(
            Shelf(4, (_verdict(), _worst_peak(), _retries(), _idle())),
            Shelf(9, (_peaks(), _segments())),
            Shelf(9, (_variation(), _busy_clock())),
            Shelf(8, (_ranks(),)),
        ),
    )


def _verdict() -> Panel:
    verdict = of_workload(chosen("traced_determinism_verdict"))
    return stat(
        Words(
            title="Ranks by verdict",
            description="How steady the allocator was from step to step of the newest captures. "
            "`varies` is no error.",
            absent=_NO_MEMORY,
        ),
        (Query(expr=f"count by (verdict) ({verdict})", legend="{{verdict}}", instant=True),),
        unit="none",
    )


def _worst_peak() -> Panel:
    return stat(
        Words(
            title="Reserved peak, fullest GPU",
            description="Largest device memory that a rank's allocator held, as a share of the "
            "device's.",
            absent=_NO_MEMORY,
        ),
        (Query(expr=f"max({of_workload(_FILLED)})", legend="reserved"),),
        unit="percentunit",
        steps=(Step(AMBER, 0.95),),
    )


def _retries() -> Panel:
    retries = chosen("traced_memory_retries_total")
    return stat(
        Words(
            title="Retries in captures",
            description="Allocations of the captures of the last 15 minutes that worked only "
            "after cached memory was given back.",
            absent=_NO_MEMORY,
        ),
        (
            Query(
                expr=f"sum({added_since(of_workload(retries), retries)})",
                legend="retries",
                instant=True,
            ),
        ),
        unit="none",
        steps=(Step(AMBER, 1),),
    )


def _idle() -> Panel:
    traced = chosen("traced_window_seconds_total")
    recent = added_since(of_workload(traced), traced)
    calls = chosen("traced_window_seconds_total", row="idle_allocator")
    allocator = f"sum {BY_GPU} ({added_since(of_workload(calls), traced)})"
    return stat(
        Words(
            title="Malloc or free on the critical path",
            description="Share of the traced time of 15 minutes that the GPU idled for device "
            "malloc or free, of the rank with the largest.",
            absent=NO_CAPTURE,
        ),
        (
            Query(
                expr=f"max({allocator} / {ON_GPU} sum {BY_GPU} ({recent}))",
                legend="idle",
                instant=True,
            ),
        ),
        unit="percentunit",
    )


def _peaks() -> Panel:
    allocated = of_workload(chosen("traced_memory_allocated_peak_bytes"))
    return lines(
        Words(
            title="Peaks against the device's memory",
            description="Largest over the ranks, of the newest captures. The gap between them is "
            "held and unused. Dashed: what the device has.",
            absent=_NO_MEMORY,
        ),
        (
            Query(expr=f"max({allocated})", legend="allocated"),
            Query(expr=f"max({of_workload(_RESERVED)})", legend="reserved"),
            Query(expr=f"max({of_workload(_SIZE)})", legend="device"),
        ),
        unit="bytes",
        overrides=(
            plain("^allocated$"),
            plain("^reserved$", _ALLOCATOR, 2),
            plain("^device$", dash="dash"),
        ),
    )


def _segments() -> Panel:
    names = ("traced_memory_segment_calls_total", "traced_memory_retries_total")
    steps = chosen("traced_memory_steps_total")
    counted = f"sum {BY_GPU} ({added_since(of_workload(steps), steps)}) > 0"
    calls, retries = (
        f"max(sum {BY_GPU} ({added_since(of_workload(chosen(name)), chosen(name))}) "
        f"/ {ON_GPU} ({counted}))"
        for name in names
    )
    return lines(
        Words(
            title="Segment calls and retries a step",
            description="Of the rank with the most, over the captures of 15 minutes. A steady job "
            "needs none after warm-up.",
            absent=_NO_MEMORY,
        ),
        (Query(expr=calls, legend="segment calls"), Query(expr=retries, legend="retries")),
        unit="none",
        overrides=(plain("^segment calls$", _ALLOCATOR), plain("^retries$", AMBER, 2)),
    )


def _variation() -> Panel:
    return with_links(
        lines(
            Words(
                title="Variation of the reserved peak",
                description="Standard deviation over mean of the steps' peaks, of the newest "
                "capture of each rank. Near the device's limit it may be 0 although the allocator "
                "churns.",
                absent=_NO_MEMORY,
            ),
            (Query(expr=by_rank(_VARIATION), legend="{{rank}} {{instance}} GPU {{gpu}}"),),
            unit="percentunit",
            overrides=(plain(".*", GREY),),
        )
    )


def _busy_clock() -> Panel:
    return lines(
        Words(
            title="Clock while busy",
            description="Mean over 5 minutes of busy time: of the fastest, the median and the "
            "slowest rank.",
            absent="No GPU was busy: clocks of idle time are not drawn.",
        ),
        (
            Query(expr=f"min({of_workload(_CLOCK)})", legend="slowest rank"),
            Query(expr=f"quantile(0.5, {of_workload(_CLOCK)})", legend="median rank"),
            Query(expr=f"max({of_workload(_CLOCK)})", legend="fastest rank"),
        ),
        unit="hertz",
        from_zero=False,
        overrides=(plain(".*"), plain("^median", GREY, 2)),
    )


def _ranks() -> Panel:
    by = "max by (cluster, instance, gpu, workload, rank)"
    calls = chosen("traced_memory_segment_seconds_total")
    steps = chosen("traced_memory_steps_total")
    per_step = f"({added_since(calls, calls)}) / ({added_since(steps, steps)} > 0)"
    asked = (_FILLED, _VARIATION, per_step, _CLOCK)
    columns = {
        "rank": "rank",
        "instance": "node",
        "gpu": "GPU",
        "Value #A": "reserved peak",
        "Value #B": "variation",
        "Value #C": "malloc and free a step",
        "Value #D": "clock while busy",
    }
    return table(
        Words(
            title="Ranks",
            description="Memory of the newest captures, next to the clock. Neither explains the "
            "other.",
            absent=_NO_MEMORY,
        ),
        [Query(expr=f"{by} ({by_rank(each)})", instant=True, table=True) for each in asked],
        columns,
        overrides=(
            named("reserved peak", unit="percentunit", decimals=1),
            named("variation", unit="percentunit", decimals=2),
            named("malloc and free a step", unit="s"),
            named("clock while busy", unit="hertz"),
            named("GPU", links=CELL_LINKS),
        ),
    )
