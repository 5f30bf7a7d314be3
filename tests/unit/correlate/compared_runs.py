"""Reports of runs built by hand for comparisons: GPUs, step times and what else a step has."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from chopperd.model.memory import RankMemory, StepMemory
from chopperd.model.report import DeviceSummary, Reference, ReportDocument
from chopperd.model.report_rows import ExposedComm
from tests.unit.report.documents import MS, clockless_waterfall, eight_gpus, family, row


def run_of(
    step_ms: Sequence[float],
    *,
    uuids: Sequence[str | None] = ("GPU-a", "GPU-b"),
    name: str = "H100",
    reference_mhz: float | None = 1980.0,
    limit_w: float | None = 700.0,
    communication_ms: float | None = None,
    clocked: bool = True,
    split: bool = False,
    run: str | None = None,
    **of_row: object,
) -> ReportDocument:
    """A report whose steps take these times on each GPU; what they are more than 1412 ms is idle.

    Args:
        step_ms: Of each step; the last of a file and a partial one are added.
        uuids: Of the GPUs, one a rank.
        name: Of their model.
        reference_mhz: Their reference clock.
        limit_w: Their power limit.
        communication_ms: Exposed communication of each step; None: 208, as in `row`.
        clocked: Whether clocks are known.
        split: Whether exposed communication is split: 8 ms of transfer, the rest waits.
        run: Name of the run.
        of_row: Further fields of all steps.
    """
    base, rows = eight_gpus(), []
    for rank, uuid in enumerate(uuids):
        for nth, ms in enumerate([*step_ms, 9000.0, 9000.0]):
            made = row(rank, nth)
            parts = made.waterfall_ns if clocked else clockless_waterfall()
            assert parts is not None
            comm = parts.exposed_comm if communication_ms is None else round(communication_ms * MS)
            rest = round(ms * MS) - 1412 * MS - comm + parts.exposed_comm
            step = replace(
                made,
                run=run,
                gpu=None if uuid is None else str(rank),
                window_ns=round(ms * MS),
                clock=made.clock if clocked else None,
                waterfall_ns=replace(
                    parts, exposed_comm=comm, idle_launch_prep=parts.idle_launch_prep + rest
                ),
                exposed_comm_ns=ExposedComm(wait=comm - 8 * MS, transfer=8 * MS)
                if split
                else ExposedComm(),
                power_limit_w=limit_w,
                start_unix_ns=nth,
                partial=nth == len(step_ms),
                tail=nth == len(step_ms) + 1,
                families=(family("k", "gemm", 700, None),) if nth else (),
            )
            rows.append(replace(step, **of_row))
    devices = tuple(
        DeviceSummary(
            device=rank,
            rank=rank,
            gpu=None if uuid is None else str(rank),
            uuid=uuid,
            name=name,
            vendor="nvidia",
            mapping="chopperd_devices",
            reference=Reference(sm_clock_mhz=reference_mhz, source="device_max"),
        )
        for rank, uuid in enumerate(uuids)
    )
    traces = tuple(replace(each, run=run) for each in base.traces[: len(uuids)])
    return replace(
        base, devices=devices, steps=tuple(rows), totals=(), trace=traces[0], traces=traces
    )


def with_totals(document: ReportDocument, energy_j: float) -> ReportDocument:
    """The report with so much energy in each GPU's whole file of 10 s, and none in its steps."""
    steps = tuple(replace(each, energy_j=None, power_w=None) for each in document.steps)
    ranks = {each.rank: each for each in steps}
    totals = tuple(
        replace(each, step=None, window_ns=10_000 * MS, energy_j=energy_j)
        for each in ranks.values()
    )
    return replace(document, steps=steps, totals=totals)


def with_memory(document: ReportDocument, warm_up: int, **values: object) -> ReportDocument:
    """The report with these figures of memory in every step of its first GPU."""
    nothing: Mapping[str, None] = dict.fromkeys(StepMemory.__struct_fields__)
    steps = tuple(
        StepMemory(**{**nothing, "step": nth, "at_least": False, **values})  # type: ignore[arg-type]
        for nth in range(len(document.steps) // len(document.devices))
    )
    every: Mapping[str, None] = dict.fromkeys(RankMemory.__struct_fields__)
    memory = tuple(
        RankMemory(
            **{  # type: ignore[arg-type]
                **every,
                **{"rank": each.rank, "device": each.device, "source": "rows", "breaks": 0},
                **{"steps": steps, "warm_up_steps": warm_up, "reasons": (), "correlations": ()},
                **{"verdict": "not_measured"},
            }
        )
        for each in document.devices
    )
    return replace(document, memory=memory)
