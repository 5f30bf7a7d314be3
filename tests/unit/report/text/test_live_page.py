import pytest
from msgspec.structs import replace

from chopperd.model.devices import DeviceReading, GpuProcess
from chopperd.model.kinds import Cause
from chopperd.model.live import DiesLive, HungCall
from chopperd.report.text.live_pages import ProcessOwner, live_page
from chopperd.report.text.page import page_text
from tests.unit.report.live import READING, live_gpu, snapshot, totals


def cells(text: str, gpu: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{gpu} ")]
    return line.replace(" ◂", "").split()[1:]


def test_a_gpu_shows_clock_power_heat_losses_and_what_holds_it() -> None:
    """1485 of 1980 MHz are 75 %; of 4 s sampled 1 s is lost: 250 ms of each second."""
    before = snapshot(live_gpu(totals=totals(100.0, 7.0), excess_ratio=0.0015))
    after = snapshot(live_gpu(totals=totals(104.0, 8.0), excess_ratio=0.0015), after_s=4.0)
    text = page_text(live_page([before, after]))
    assert text.startswith("GPUS  node7, nvml, driver 560.35.03, running\n")
    assert cells(text, "0") == [
        *("1485", "75", "698", "600", "66", "98", "10.0", "250", "1.5"),
        *("power", "cap", "+", "thermal"),
    ]


def test_what_is_not_known_is_a_dash() -> None:
    gpu = live_gpu(reading=DeviceReading(), max_mhz=None)
    assert cells(page_text(live_page([snapshot(gpu)])), "0") == [*["-"] * 6, "10.0", *["-"] * 3]


def test_a_sum_of_excess_that_stands_still_between_two_looks_is_not_shown_as_none() -> None:
    """It grows once in 10 s: what the last window said is shown, whenever one looks."""
    looks = [
        snapshot(live_gpu(totals=totals(at_s, 0.0), excess_s=1.0, excess_ratio=0.05), after_s=at_s)
        for at_s in (1.0, 2.0)
    ]
    assert cells(page_text(live_page(looks)), "0")[8] == "50.0"


def test_known_zeros_are_zeros_and_no_limit_is_said() -> None:
    reading = replace(READING, activity_ratio=0.0, causes=frozenset())
    before = snapshot(live_gpu(totals=totals(1.0, 0.0)))
    after = snapshot(live_gpu(reading=reading, totals=totals(3.0, 0.0)), after_s=2.0)
    assert cells(page_text(live_page([before, after])), "0")[5:] == [
        *("0", "10.0", "0", "-", "nothing")
    ]


@pytest.mark.parametrize(
    ("hung", "said"),
    [(None, "does not answer"), (HungCall(scope="fast", age_s=12.4), "fast call hangs for 12 s")],
)
def test_a_gpu_that_is_down_has_no_values_and_says_why(hung: HungCall | None, said: str) -> None:
    gpu = replace(live_gpu(up=False, reading=DeviceReading()), hung=hung)
    shown = cells(page_text(live_page([snapshot(gpu)])), "0")
    assert shown[:3] == ["-", "-", "-"]
    assert shown[6] == "-"
    assert " ".join(shown[9:]) == said


@pytest.mark.parametrize(
    ("dies", "said"),
    [
        (DiesLive(clocks_mhz=(2000.0, 0.0, 0.0), running=1, gated=2), " (1/3 dies)"),
        (DiesLive(clocks_mhz=(2000.0, 2001.0), running=2, gated=0), ""),
    ],
)
def test_a_gpu_that_runs_with_some_of_its_dies_is_marked(dies: DiesLive, said: str) -> None:
    reading = replace(READING, causes=frozenset({Cause.POWER_CAP}))
    text = page_text(live_page([snapshot(replace(live_gpu(reading=reading), dies=dies))]))
    assert " ".join(cells(text, "0")).endswith(f"power cap{said}")


def test_simulated_gpus_are_marked() -> None:
    text = page_text(live_page([snapshot(live_gpu(), simulated=True)]))
    assert text.startswith(" SIMULATED DATA: ")
    assert "SIMULATED" not in page_text(live_page([snapshot(live_gpu())]))


def test_eight_gpus_fit_the_page() -> None:
    gpus = [live_gpu(str(label), totals=totals(1e4, 5e3), excess_ratio=0.9) for label in range(8)]
    for width in (80, 100):
        text = page_text(live_page([snapshot(*gpus)]), width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        assert text.count("power cap + thermal") == 8


def test_the_gpu_to_look_at_comes_first_and_is_marked() -> None:
    """More than 3 % behind its peers, or without an answer: GPU 2, then 1; GPU 0 with 2.9 % not."""
    gpus = (
        live_gpu("0", excess_ratio=0.029),
        live_gpu("1", excess_ratio=0.031),
        live_gpu("2", up=False, reading=DeviceReading()),
    )
    text = page_text(live_page([snapshot(*gpus)]), styled=True)
    rows = [line for line in text.splitlines() if "power cap" in line or "answer" in line]
    plain = page_text(live_page([snapshot(*gpus)])).splitlines()[2:5]
    assert [line[:3].strip() for line in plain] == ["2 ◂", "1 ◂", "0"]
    assert [line.startswith("\x1b[1;31m") for line in rows] == [True, True, False]


def test_the_last_minute_is_drawn_between_its_lowest_and_highest_clock() -> None:
    """Slices of 5 s: 1000 MHz 52 s ago, none 20 s ago, 1500 and 2000 (mean 1750) in the last."""
    clocks = ((8.0, 1000.0), (40.0, None), (56.0, 1500.0), (60.0, 2000.0))
    history = [
        snapshot(live_gpu(reading=replace(READING, sm_clock_mhz=mhz)), after_s=at_s)
        for at_s, mhz in clocks
    ]
    text = page_text(live_page(history), width=140)
    (line,) = [line for line in text.splitlines() if line.startswith("0 ")]
    assert " ▁         █" in line
    assert "last min: clock, from 1000 to 1750 MHz" in text
    steady = [snapshot(live_gpu(), after_s=at_s) for at_s in (1.0, 59.0)]
    assert " █          █" in page_text(live_page(steady), width=140)
    assert "last min" not in page_text(live_page(history[:1]), width=140)


def test_processes_come_with_their_owner_where_he_is_known() -> None:
    gpu = replace(
        live_gpu(), processes=(GpuProcess(pid=41, memory_used_bytes=3 * 2**30), GpuProcess(pid=42))
    )
    owners = {41: ProcessOwner(user="ada", job="77", command="python train.py")}
    lines = page_text(live_page([snapshot(gpu)], owners)).splitlines()
    assert lines[-3:] == [
        "gpu  pid  user  job   memory  command",
        "0     41  ada   77   3.0 GiB  python train.py",
        "0     42  -     -          -  -",
    ]
    unknown = page_text(live_page([snapshot(gpu)])).splitlines()
    assert unknown[-2].split() == ["0", "41", "3.0", "GiB"]


def test_a_gpu_not_sampled_yet_is_not_said_to_be_down() -> None:
    gpu = replace(live_gpu(up=False, reading=DeviceReading()), last_sample_unix_ns=None)
    assert "no sample yet" in page_text(live_page([snapshot(gpu)]))


@pytest.mark.parametrize(
    ("pace", "kept_hz", "said"),
    [
        ("idle", 1.0, ["1.0", "idle"]),
        ("budget", 2.5, ["2.5", "budget"]),
        ("burst", 100.0, ["100.0", "burst"]),
        ("quiet", 0.0, ["0", "quiet"]),
    ],
)
def test_where_a_gpu_is_not_read_at_the_rate_asked_for_it_says_why(
    pace: str, kept_hz: float, said: list[str]
) -> None:
    gpu = replace(live_gpu(), pace=pace, kept_hz=kept_hz)
    assert cells(page_text(live_page([snapshot(gpu)])), "0")[6:8] == said


def test_a_gpu_that_was_in_trouble_from_the_start_is_not_waited_for() -> None:
    gpu = replace(live_gpu(up=False, reading=DeviceReading()), last_sample_unix_ns=None)
    text = page_text(live_page([snapshot(replace(gpu, trouble="GPU is lost (NVML code 15)"))]))
    assert "does not answer" in text
    assert "no sample yet" not in text
