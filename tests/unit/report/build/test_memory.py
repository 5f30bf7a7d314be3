"""Memory beside the clock of its steps, and its table: figures of two steps by hand."""

from csv import DictReader
from io import StringIO

from msgspec.structs import replace

from chopperd.model.memory import MemoryCorrelation, Offload, RankMemory, StepMemory
from chopperd.model.report import DeviceSummary, FrameworkSummary, ReportDocument, has_parts
from chopperd.model.report_rows import ClockStats, RowClock
from chopperd.report.build.memory import DeviceFacts, memory_beside_clock
from chopperd.report.forms.schema import formatted
from chopperd.report.text.report import render_text
from tests.unit.report.documents import single_gpu

GIB = 1 << 30


def step(number: int) -> StepMemory:
    return StepMemory(
        step=number,
        allocations=10,
        allocated_bytes=GIB,
        peak_allocated_bytes=2 * GIB,
        peak_reserved_bytes=3 * GIB,
        held_bytes=GIB,
        segment_allocs=1,
        segment_frees=0,
        segment_ns=500_000,
        at_least=False,
        event_queries=None,
        record_streams=None,
        rate_limiter_ns=None,
        retries=1,
        ooms=0,
        waited_ratio=None,
        waited_median_ns=None,
        waited_p95_ns=None,
    )


def memory(**changes: object) -> RankMemory:
    made = RankMemory(
        rank=0,
        device=0,
        gpu=None,
        source="rows",
        steps=(step(0), step(7)),
        warm_up_steps=0,
        breaks=0,
        program_ratio=1.0,
        worst_program_ratio=1.0,
        determinism_ratio=0.75,
        worst_determinism_ratio=0.5,
        peak_allocated_bytes=2 * GIB,
        peak_reserved_bytes=3 * GIB,
        held_bytes=GIB,
        cv_allocated=0.0,
        cv_reserved=0.0125,
        segment_calls=2,
        segment_ns=1_000_000,
        retries=2,
        ooms=0,
        verdict="churns",
        verdict_text="2 retries",
        reasons=("near_limit",),
    )
    return replace(made, **changes)


def facts(*devices: DeviceSummary) -> dict[int, DeviceFacts]:
    """Nothing but the GPU of each device is known."""
    return {each.device: DeviceFacts(gpu=each.gpu, contention={}, offload=None) for each in devices}


def shown(document: ReportDocument, *found: RankMemory) -> list[str]:
    text = render_text(replace(document, memory=found))
    blocks = [each for each in text.split("\n\n") if "MEMORY" in each.split("\n")[0]]
    return blocks[0].split("\n") if blocks else []


def test_steps_have_the_clock_of_their_rows_and_the_gpu_of_their_device() -> None:
    document = single_gpu()
    busy = ClockStats(
        mean_mhz=1700.0, low_mhz=None, high_mhz=None, p05_mhz=1600.0, p95_mhz=None, std_mhz=25.0,
        samples=9,
    )  # fmt: skip
    clock = RowClock(basis="in_class", compute=None, busy=busy, coverage_ratio=1.0)
    rows = [replace(row, clock=clock, power_w=650.0) for row in document.steps[:1]]
    assert rows[0].step == 0
    assert rows[0].waterfall_ns is not None
    (found,) = memory_beside_clock([memory()], facts(*document.devices), rows)
    first, second = found.steps
    assert (first.busy_mean_mhz, first.busy_p05_mhz, first.busy_std_mhz) == (1700.0, 1600.0, 25.0)
    assert (first.power_w, first.idle_allocator_ns) == (650.0, rows[0].waterfall_ns.idle_allocator)
    assert (second.busy_mean_mhz, second.power_w, second.idle_allocator_ns) == (None, None, None)
    assert found.gpu == document.devices[0].gpu


def test_the_only_device_of_rocm_is_the_node_s_device_of_another_number() -> None:
    """Records of MI300X traces are of device 2, rows of memory of device 0."""
    document = single_gpu()
    devices = [replace(document.devices[0], device=2)]
    rows = [replace(document.steps[0], device=2, power_w=650.0)]
    (found,) = memory_beside_clock([memory()], facts(*devices), rows)
    assert (found.device, found.gpu) == (2, document.devices[0].gpu)
    assert found.steps[0].power_w == 650.0


def test_several_devices_of_other_numbers_are_not_told_apart() -> None:
    """Of a process that sees two GPUs, numbers 0 and 1 are 1 and 2 of the records."""
    first = replace(single_gpu().devices[0], device=1)
    rows = [replace(single_gpu().steps[0], device=1, power_w=650.0)]
    every = [memory(device=0), memory(device=1)]
    for devices in ([first, replace(first, device=2, gpu="1")], [first]):
        found = memory_beside_clock(every, facts(*devices), rows)
        assert [(each.device, each.gpu, each.steps[0].power_w) for each in found] == [
            (0, None, None),
            (1, None, None),
        ]


def test_a_row_without_clock_or_waterfall_leaves_them_unknown() -> None:
    document = single_gpu()
    rows = [replace(document.steps[0], clock=None, waterfall_ns=None, power_w=None)]
    (found,) = memory_beside_clock([memory()], facts(*document.devices), rows)
    assert (found.steps[0].busy_mean_mhz, found.steps[0].idle_allocator_ns) == (None, None)


def test_the_table_has_peaks_segments_likeness_verdict_and_what_to_try() -> None:
    document = replace(single_gpu(), framework=FrameworkSummary(name="fsdp1", evidence=()))
    title, header, line, *caption = shown(document, memory(gpu="3"))
    assert title == "FSDP AND MEMORY  fsdp1"
    assert header.split()[:4] == ["rank", "gpu", "allocated", "reserved"]
    assert line.split() == [
        *("0", "3", "2.0", "GiB", "3.0", "GiB", "1.25", "2", "1.00", "2"),
        *("1.000", "0.750", "churns"),
    ]
    said = " ".join(caption)
    assert "churns: 2 retries" in said
    assert "try: leave memory free" in said
    assert "profile_memory" not in said


def test_what_is_unknown_is_not_zero_and_said_once() -> None:
    nothing = memory(
        rank=None, peak_allocated_bytes=None, peak_reserved_bytes=None, held_bytes=None,
        cv_reserved=None, segment_calls=None, segment_ns=None, retries=None, program_ratio=None,
        determinism_ratio=None, verdict="not_measured", verdict_text="not measured: one step",
        reasons=(),
    )  # fmt: skip
    document = replace(single_gpu(), framework=FrameworkSummary(name="ddp", evidence=()))
    title, _, line, *caption = shown(document, nothing, replace(nothing, device=1))
    assert title == "MEMORY"
    assert line.split() == ["dev", "0", "not", "measured"]
    assert " ".join(caption).count("profile_memory=True") == 1
    assert " ".join(caption).count("one step") == 1


def test_figures_that_go_with_the_clock_are_said_with_their_interval() -> None:
    known = MemoryCorrelation(
        figure="segment_ns", rho=-0.5, low=-0.75, high=-0.25, effective_steps=80.0
    )
    few = replace(known, figure="retries", rho=None, low=None, high=None, effective_steps=4.0)
    steps = (step(0), replace(step(7), at_least=True))
    _, _, line, *caption = shown(single_gpu(), memory(steps=steps, correlations=(few, known)))
    assert "≥ 2" in line
    said = " ".join(caption)
    assert "rank 0: segment ns with the clock's deviation: rho -0.50 [-0.75, -0.25]" in said
    assert "retries with" not in said


def test_without_memory_there_is_no_table_but_fsdp_is_named_with_what_to_do() -> None:
    assert shown(replace(single_gpu(), framework=FrameworkSummary(name="ddp", evidence=()))) == []
    fsdp = replace(single_gpu(), framework=FrameworkSummary(name="fsdp1", evidence=()))
    title, *lines = shown(fsdp)
    assert title == "FSDP AND MEMORY  fsdp1"
    assert "no device memory in the trace; sizes: record with profile_memory" in " ".join(lines)
    on_cpu = shown(replace(fsdp, devices=()))
    assert on_cpu[1:] == ["no device memory in the trace: it has no device"]


def test_calls_that_are_none_are_shown_of_fsdp_only() -> None:
    calls = memory(source="runtime", segment_calls=0)
    ddp = replace(single_gpu(), framework=FrameworkSummary(name="ddp", evidence=()))
    assert shown(ddp, calls) == []
    assert len(shown(ddp, replace(calls, segment_calls=1))) > 2
    fsdp = replace(ddp, framework=FrameworkSummary(name="fsdp2", evidence=()))
    assert len(shown(fsdp, calls)) > 2


def test_where_ranks_differ_one_is_named() -> None:
    others = memory(rank=1, verdict_text="5 retries"), memory(rank=2, verdict_text="5 retries")
    said = " ".join(shown(single_gpu(), memory(), *others))
    assert "churns (rank 0): 2 retries;" in said
    assert "5 retries" not in said


OFFLOADED = Offload(
    stage="optimizer",
    hidden_h2d_bytes=GIB,
    exposed_h2d_bytes=3 * GIB,
    hidden_d2h_bytes=0,
    exposed_d2h_bytes=2 * GIB,
    cpu_optimizer_ns=12_500_000,
)


def test_offload_is_said_with_what_is_hidden_and_that_it_is_a_guess() -> None:
    said = " ".join(shown(single_gpu(), memory(offload=OFFLOADED)))
    assert (
        "rank 0: offload of optimizer (guessed): 4.0 GiB to the device (25.0 % hidden), "
        "2.0 GiB to the host (0 % hidden), idle in Optimizer.step 12.5 ms a step"
    ) in said
    on_gpu = replace(OFFLOADED, cpu_optimizer_ns=None)
    assert "Optimizer.step" not in " ".join(shown(single_gpu(), memory(offload=on_gpu)))


def test_a_device_s_contention_and_offload_go_with_its_memory() -> None:
    document = single_gpu()
    found_of = {0: DeviceFacts(gpu="0", contention={0: 1.25}, offload=OFFLOADED)}
    (found,) = memory_beside_clock([memory()], found_of, document.steps[:1])
    assert [step.contention_factor for step in found.steps] == [1.25, None]
    assert found.offload == OFFLOADED
    (other,) = memory_beside_clock([memory(device=1), memory(device=2)], found_of, ())[:1]
    assert (other.offload, other.steps[0].contention_factor) == (None, None)


def test_memory_by_step_is_a_table_and_csv() -> None:
    steps = (step(0), replace(step(7), busy_mean_mhz=1700.0, retries=None, at_least=True))
    document = replace(single_gpu(), memory=(memory(gpu="3", steps=steps),))
    text = render_text(document, by="memory")
    (block,) = [each for each in text.split("\n\n") if each.startswith("MEMORY BY STEP")]
    _, header, first, second = block.split("\n")
    assert header.split()[:6] == ["rank", "gpu", "step", "allocated", "reserved", "calls"]
    assert first.split() == ["0", "3", "0", "2.0", "GiB", "3.0", "GiB", "1", "0.500", "1", "-"]
    assert second.split()[7:] == ["≥", "1", "0.500", "-", "1700"]
    lines = list(DictReader(StringIO(formatted(document, "csv", by="memory"))))
    assert [line["step"] for line in lines] == ["0", "7"]
    assert [line["retries"] for line in lines] == ["1", ""]
    assert {line["device_verdict"] for line in lines} == {"churns"}
    assert {line["device_retries"] for line in lines} == {"2"}
    assert lines[1]["busy_mean_mhz"] == "1700.0"


def test_without_memory_the_table_by_step_says_so_and_the_csv_is_empty() -> None:
    assert "no step with rows of device memory" in render_text(single_gpu(), by="memory")
    assert len(formatted(single_gpu(), "csv", by="memory").splitlines()) == 1
    assert not has_parts(single_gpu(), "memory")
    assert has_parts(replace(single_gpu(), memory=(memory(),)), "memory")


def test_of_many_steps_some_are_shown() -> None:
    many = memory(steps=tuple(step(number) for number in range(100)))
    text = render_text(replace(single_gpu(), memory=(many,)), by="memory")
    assert "24 of 100 (--format csv has all)" in text
