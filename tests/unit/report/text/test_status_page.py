import pytest
from msgspec.structs import replace

from chopperd.model.devices import DeviceReading, GpuProcess
from chopperd.model.live import (
    AnalysisLive,
    ArchiveLive,
    HungCall,
    Pause,
    SamplerCondition,
    SamplerLive,
    SelfTestLive,
    StoreLive,
)
from chopperd.report.text.live_pages import node_troubles, status_page
from chopperd.report.text.page import page_text
from chopperd.units import NS_PER_S
from tests.unit.report.live import STARTED_UNIX_NS, live_gpu, snapshot, totals

#: 1,800,000,000 s after 1970 are 2027-01-15 08:00:00 UTC (20,833 days and 8 hours).
STARTED = "2027-01-15 08:00:00 UTC"


def lines(text: str) -> dict[str, str]:
    """What stands after each leading word."""
    parts = (line.split(maxsplit=1) for line in text.splitlines())
    return {part[0]: part[1] for part in parts if len(part) == 2}


def test_the_agent_says_how_its_parts_stand() -> None:
    text = page_text(status_page(snapshot(live_gpu(), after_s=7265.0), []))
    said = lines(text)
    assert said["agent"] == "1.2.3 on node7, up 2 h 1 min"
    assert said["sampler"] == "running, nvml, driver 560.35.03, 2 restarts"
    assert said["recorder"] == f"300.0 MiB, samples since {STARTED}"
    assert said["store"] == "3.0 GiB, 12,345 step rows, 97 traces"
    assert said["traces"] == "analysis here, 2 waiting, spool 0 B; 95 analysed, 2 rejected"
    assert "paused" not in said
    assert "trouble" not in said


def test_every_trouble_is_a_line() -> None:
    text = page_text(status_page(snapshot(), ["GPU 3 does not answer", "disk full"]))
    assert [line.split(maxsplit=1)[1] for line in text.splitlines() if "trouble" in line] == [
        "GPU 3 does not answer",
        "disk full",
    ]


@pytest.mark.parametrize(
    ("until_unix_ns", "until"), [(None, "taken away"), (STARTED_UNIX_NS, STARTED)]
)
def test_a_pause_says_why_and_until_when(until_unix_ns: int | None, until: str) -> None:
    pause = Pause(reason="maintenance", until_unix_ns=until_unix_ns)
    text = page_text(status_page(replace(snapshot(), pause=pause), []))
    assert lines(text)["paused"] == f"until {until}: maintenance"


def test_what_was_lost_or_could_not_be_written_is_said() -> None:
    now = replace(
        snapshot(),
        archive=ArchiveLive(bytes=0, lost_samples=1234, damaged_chunks=1),
        store=StoreLive(bytes=2**19, in_memory=7, dropped=1234),
    )
    said = lines(page_text(status_page(now, [])))
    assert said["recorder"] == "0 B, samples since -, 1,234 samples lost, 1 damaged chunks"
    assert (
        said["store"]
        == "512.0 KiB, 0 step rows, 0 traces, 7 rows in memory only, 1,234 changes dropped"
    )


def test_a_gpu_shows_its_loss_as_a_share_of_busy_time() -> None:
    """Of 50 busy seconds with known clock 12.5 s are lost: 25 %."""
    gpu = live_gpu(totals=totals(200.0, 12.5, busy_sampled_s=50.0))
    text = page_text(status_page(snapshot(gpu), []))
    assert lines(text)["0"].split() == [
        *("1485", "75", "698", "600", "66", "98", "25.0", "10.0"),
        *("power", "cap", "+", "thermal"),
    ]


@pytest.mark.parametrize("busy_sampled_s", [0.0, None])
def test_without_busy_time_a_loss_is_not_known(busy_sampled_s: float | None) -> None:
    never_busy = replace(totals(200.0, 0.0), busy_sampled_s=busy_sampled_s)
    gpu = live_gpu(totals=never_busy, reading=DeviceReading(), max_mhz=None)
    text = page_text(status_page(snapshot(gpu), []))
    assert lines(text)["0"].split() == [*["-"] * 7, "10.0", "-"]


def test_what_sampling_costs_a_step_is_said_or_why_it_is_not_known() -> None:
    unknown = replace(snapshot(), self_test=SelfTestLive(reason="no steps are marked"))
    said = lines(page_text(status_page(unknown, [])))["self-test"]
    assert said == "what sampling costs a step is not measured: no steps are marked"
    found = SelfTestLive(
        step_time_ratio=1.0041, low_ratio=0.9995, high_ratio=1.0087, block_count=24
    )
    said = lines(page_text(status_page(replace(snapshot(), self_test=found), [])))["self-test"]
    assert said == "sampling makes steps 0.41 % longer [-0.05, 0.87], by 24 blocks"


def test_simulated_data_are_marked_and_times_count_from_the_start() -> None:
    now = snapshot(live_gpu(), after_s=0.0, simulated=True)
    text = page_text(status_page(replace(now, taken_unix_ns=now.started_unix_ns - NS_PER_S), []))
    assert text.startswith(" SIMULATED DATA: ")
    assert "up 0 s" in text


def test_a_well_node_has_no_troubles_nor_has_a_paused_or_starting_one() -> None:
    assert node_troubles(snapshot(live_gpu())) == ()
    down = live_gpu(up=False, reading=DeviceReading())
    for condition in (SamplerCondition.PAUSED, SamplerCondition.STARTING):
        sampler = SamplerLive(condition=condition, reason="asked to")
        assert node_troubles(replace(snapshot(down), sampler=sampler)) == ()


def test_every_part_that_is_not_well_is_named_with_its_reason() -> None:
    hung = replace(live_gpu("3", up=False), hung=HungCall(scope="full", age_s=30.0))
    now = replace(
        snapshot(hung),
        sampler=SamplerLive(condition=SamplerCondition.RUNNING, abandoned_pids=(7, 8)),
        archive=ArchiveLive(trouble="recorder: disk full"),
        store=StoreLive(trouble="store: disk full", set_aside="store: 3 rows lost"),
        analysis=AnalysisLive(trouble="inbox: no such folder"),
    )
    assert node_troubles(now) == (
        "left alone as they hang in a driver: processes 7, 8",
        "GPU 3: full call hangs for 30 s",
        "recorder: disk full",
        "store: disk full",
        "store: 3 rows lost",
        "inbox: no such folder",
    )


@pytest.mark.parametrize(("reason", "said"), [("no GPU", "no GPU"), (None, "no reason known")])
def test_sampling_that_does_not_run_is_a_trouble(reason: str | None, said: str) -> None:
    sampler = SamplerLive(condition=SamplerCondition.UNAVAILABLE, reason=reason)
    now = replace(snapshot(), sampler=sampler)
    assert node_troubles(now) == (f"sampling is unavailable: {said}",)


def test_a_gpu_s_trouble_is_said_also_while_it_answers() -> None:
    ill = replace(live_gpu(), trouble="the GPU must be reset")
    gone = replace(live_gpu("1", up=False), trouble="XID 79 (fell off the bus)")
    assert node_troubles(snapshot(ill, gone)) == (
        "GPU 1: does not answer",
        "GPU 0: the GPU must be reset",
        "GPU 1: XID 79 (fell off the bus)",
    )


def test_processes_are_listed_once_on_the_part_that_they_are_on() -> None:
    there = GpuProcess(pid=7, memory_used_bytes=3 << 30, partition=1)
    card = replace(live_gpu(), processes=(there,))
    part = live_gpu("1")
    part = replace(part, info=replace(part.info, gpu="0.1", parent="0"), processes=(there,))
    other = replace(live_gpu("2"), processes=(GpuProcess(pid=8),))
    text = page_text(status_page(snapshot(card, part, other), []))
    rows = text.partition("PROCESSES")[2].split("\n")
    assert [row.split() for row in rows if row.strip()][1:] == [
        ["0.1", "7", "3.0", "GiB"],
        ["2", "8", "-"],
    ]
    assert "part of GPU 0" in text


def test_without_known_processes_there_is_no_table_of_them() -> None:
    assert "PROCESSES" not in page_text(status_page(snapshot(live_gpu()), []))
