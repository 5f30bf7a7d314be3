from collections.abc import Sequence
from datetime import UTC, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from chopperd.errors import StoreError
from chopperd.model.kinds import Cause
from chopperd.model.samples import SampleSet
from chopperd.store.samples.nvidia_smi import looks_like_smi, parsed_smi

HEADER = (
    "timestamp, index, name, uuid, clocks.current.sm [MHz], clocks.max.sm [MHz], "
    "power.draw [W], temperature.gpu, memory.used [MiB], utilization.gpu [%], "
    "clocks_event_reasons.active"
)
ROW = (
    "2026/11/27 22:21:02.123, 0, NVIDIA H100 80GB HBM3, GPU-a, 1980 MHz, 1980 MHz, "
    "699.51 W, 61, 70000 MiB, 97 %, 0x0000000000000004"
)
#: `date -u -d '2026-11-27 22:21:02' +%s` is 1795818062.
ROW_UNIX_NS = 1_795_818_062_123_000_000


def parsed(*lines: str, tz: tzinfo = UTC, fields: Sequence[str] = (), end: str = "\n") -> SampleSet:
    data = ("\n".join(lines) + end).encode()
    return parsed_smi(data, path="smi.csv", tz=tz, fields=fields)


def test_a_row_with_units_gives_our_units_and_the_identity_of_the_gpu() -> None:
    (gpu,) = parsed(HEADER, ROW).gpus
    assert gpu.t_unix_ns.tolist() == [ROW_UNIX_NS]
    assert gpu.sm_clock_mhz.tolist() == [1980.0]
    assert gpu.power_w.tolist() == [699.51]
    assert gpu.temperature_c.tolist() == [61.0]
    assert gpu.memory_used_bytes.tolist() == [70_000 * 1024 * 1024]
    assert gpu.activity_ratio == pytest.approx([0.97])
    assert gpu.causes.tolist() == [Cause.POWER_CAP.bit]
    assert np.isnan(gpu.energy_j).all()
    assert (gpu.gpu.gpu, gpu.gpu.index, gpu.gpu.uuid) == ("0", 0, "GPU-a")
    assert gpu.gpu.name == "NVIDIA H100 80GB HBM3"
    assert gpu.gpu.sm_clock_max_mhz == 1980.0


def test_nounits_and_the_older_names_read_the_same() -> None:
    old = HEADER.replace("clocks_event_reasons", "clocks_throttle_reasons")
    bare = ROW
    for unit in (" MHz", " W", " MiB", " %"):
        bare = bare.replace(unit, "")
    (with_units,), (without,) = parsed(HEADER, ROW).gpus, parsed(old, bare).gpus
    assert with_units.sm_clock_mhz.tolist() == without.sm_clock_mhz.tolist()
    assert with_units.power_w.tolist() == without.power_w.tolist()
    assert with_units.causes.tolist() == without.causes.tolist()


def test_rows_without_a_header_need_the_query_fields() -> None:
    assert looks_like_smi(ROW)
    with pytest.raises(StoreError, match="without its header line"):
        parsed(ROW)
    fields = ("timestamp", "index", "clocks.sm")
    (gpu,) = parsed("2026/11/27 22:21:02.123, 3, 1500", fields=fields).gpus
    assert gpu.gpu.gpu == "3"
    assert gpu.sm_clock_mhz.tolist() == [1500.0]


@pytest.mark.parametrize("cell", ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]", ""])
def test_what_the_driver_does_not_report_is_unknown_and_not_zero(cell: str) -> None:
    row = ROW.replace("699.51 W", cell).replace("0x0000000000000004", cell)
    (gpu,) = parsed(HEADER, row).gpus
    assert np.isnan(gpu.power_w).all()
    assert gpu.causes.tolist() == [Cause.UNKNOWN.bit]


@pytest.mark.parametrize(
    ("mask", "causes"),
    [
        (0x0, []),
        (0x1, [Cause.LOW_UTILIZATION]),
        (0x2, [Cause.USER_LIMIT]),
        (0x100, [Cause.USER_LIMIT]),
        (0x48, [Cause.HW_SLOWDOWN, Cause.HW_THERMAL]),
        (0x90, [Cause.SYNC_BOOST, Cause.POWER_BRAKE]),
        (0x20, [Cause.THERMAL]),
        (0x200, [Cause.UNKNOWN]),
        (0x204, [Cause.POWER_CAP, Cause.UNKNOWN]),
    ],
)
def test_each_bit_of_the_mask_has_its_cause_and_an_unknown_bit_shows(
    mask: int, causes: list[Cause]
) -> None:
    row = ROW.replace("0x0000000000000004", f"{mask:#018x}")
    (gpu,) = parsed(HEADER, row).gpus
    assert gpu.causes.tolist() == [sum(cause.bit for cause in causes)]


def test_without_the_mask_causes_are_unknown() -> None:
    (gpu,) = parsed("timestamp, clocks.current.sm [MHz]", "2026/11/27 22:21:02.123, 5 MHz").gpus
    assert gpu.causes.tolist() == [Cause.UNKNOWN.bit]


def test_local_times_are_taken_in_the_zone_given_and_the_set_says_so() -> None:
    east = timezone(timedelta(hours=5, minutes=30))
    samples = parsed(HEADER, ROW, tz=east)
    assert samples.gpus[0].t_unix_ns.tolist() == [ROW_UNIX_NS - 19_800 * 10**9]
    assert [note.code for note in samples.notes] == ["local_times"]
    assert "UTC+05:30" in samples.notes[0].text


def test_a_change_to_winter_time_moves_later_rows_by_an_hour() -> None:
    rows = [
        f"2026/10/25 {time}, 0, 1000 MHz" for time in ("01:59:59.500", "03:00:00.500")
    ]  # Berlin leaves summer time at 03:00 local, so two hours pass between these
    header = "timestamp, index, clocks.current.sm [MHz]"
    (gpu,) = parsed(header, *rows, tz=ZoneInfo("Europe/Berlin")).gpus
    assert np.diff(gpu.t_unix_ns).tolist() == [7_201 * 10**9]


def test_gpus_are_told_apart_by_uuid_where_the_index_was_not_queried() -> None:
    header = "timestamp, uuid, clocks.current.sm [MHz]"
    rows = [f"2026/11/27 22:21:02.{i}, GPU-{'ab'[i % 2]}, {i} MHz" for i in range(4)]
    gpus = parsed(header, *rows).gpus
    assert [(gpu.gpu.gpu, gpu.gpu.uuid) for gpu in gpus] == [("0", "GPU-a"), ("1", "GPU-b")]
    assert gpus[1].sm_clock_mhz.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (ROW.replace("1980 MHz, 1980", "fast, 1980"), "line 3: clocks.current.sm 'fast'"),
        (ROW.replace("2026/11/27", "27.11.2026"), "line 3: timestamp"),
        (ROW.replace("2026/11/27", "2026/13/27"), "timestamp"),
        (ROW.replace("0x0000000000000004", "Active"), "line 3: clocks_event_reasons.active"),
        (ROW + ", 5", "line 3: 12 cells where 11 are named"),
    ],
)
def test_a_cell_that_can_not_be_read_is_named_with_its_line(line: str, said: str) -> None:
    with pytest.raises(StoreError, match=said.replace(".", r"\.")):
        parsed(HEADER, ROW, line)


def test_a_last_line_that_was_cut_off_is_left_out() -> None:
    (gpu,) = parsed(HEADER, ROW, ROW[:40], end="").gpus
    assert len(gpu) == 1


def test_a_query_without_clock_or_time_is_refused() -> None:
    with pytest.raises(StoreError, match=r"lacks clocks\.current\.sm"):
        parsed("timestamp, index", "2026/11/27 22:21:02.123, 0")


REASONS = ("sw_power_cap", "sw_thermal_slowdown", "hw_slowdown")
CLOCK = "timestamp, index, clocks.current.sm [MHz]"


@pytest.mark.parametrize("family", ["clocks_event_reasons", "clocks_throttle_reasons"])
@pytest.mark.parametrize(
    ("cells", "causes"),
    [
        (("Active", "Not Active", "Not Active"), {Cause.POWER_CAP}),
        (("Active", "Active", "[N/A]"), {Cause.POWER_CAP, Cause.THERMAL}),
        # Two of the five reasons that could hold the clock were not asked for: nobody knows.
        (("Not Active", "Not Active", "Not Active"), {Cause.UNKNOWN}),
        (("[N/A]", "[N/A]", "[N/A]"), {Cause.UNKNOWN}),
    ],
)
def test_reasons_in_columns_of_their_own_are_causes(
    family: str, cells: Sequence[str], causes: set[Cause]
) -> None:
    names = ", ".join(f"{family}.{name}" for name in REASONS)
    row = f"2026/11/27 22:21:02.123, 0, 1485 MHz, {', '.join(cells)}"
    (gpu,) = parsed(f"{CLOCK}, {names}", row).gpus
    assert gpu.causes.tolist() == [sum(cause.bit for cause in causes)]


def test_where_every_telling_reason_is_not_active_no_limit_is_in_force() -> None:
    names = (*REASONS, "applications_clocks_setting", "sync_boost")
    header = ", ".join([CLOCK, *(f"clocks_event_reasons.{name}" for name in names)])
    (gpu,) = parsed(header, "2026/11/27 22:21:02, 0, 1485 MHz" + 5 * ", Not Active").gpus
    assert gpu.causes.tolist() == [0]


def test_a_reason_that_is_neither_active_nor_not_is_named() -> None:
    header = f"{CLOCK}, clocks_event_reasons.sw_power_cap"
    with pytest.raises(StoreError, match=r"line 2: .*sw_power_cap 'Maybe' can't be read"):
        parsed(header, "2026/11/27 22:21:02, 0, 1485 MHz, Maybe")


def test_counters_of_reasons_are_time_under_the_limit() -> None:
    header = f"{CLOCK}, clocks_event_reasons_counters.sw_power_cap [us]"
    rows = [f"2026/11/27 22:21:0{n}, 0, 1485 MHz, {n}500 us" for n in (1, 2)]
    (gpu,) = parsed(header, *rows).gpus
    assert gpu.limited_ns[Cause.POWER_CAP].tolist() == [1_500_000.0, 2_500_000.0]


def test_a_second_header_begins_a_second_recording_that_may_ask_for_other_fields() -> None:
    again = "timestamp, clocks.current.sm [MHz], index, power.draw [W]"
    rows = ["2026/11/27 22:21:02, 0, 1485 MHz", "2026/11/27 22:21:05, 1500 MHz, 0, 600.00 W"]
    (gpu,) = parsed(CLOCK, rows[0], again, rows[1]).gpus
    assert gpu.sm_clock_mhz.tolist() == [1485.0, 1500.0]
    assert np.isnan(gpu.power_w[0])
    assert gpu.power_w[1] == 600.0
    with pytest.raises(StoreError, match="line 5: 3 cells where 4 are named"):
        parsed(CLOCK, rows[0], again, rows[1], rows[0])


def test_a_second_recording_of_other_gpus_is_refused() -> None:
    other = ROW.replace("GPU-a", "GPU-b")
    with pytest.raises(StoreError, match=r"recording 2 .* other GPUs \(GPU 0 is GPU-b, before"):
        parsed(HEADER, ROW, HEADER, other)


def test_the_graphics_clock_is_no_sm_clock() -> None:
    with pytest.raises(StoreError, match=r"lacks clocks.current.sm \(clocks.current.graphics is"):
        parsed(HEADER.replace("current.sm", "current.graphics"), ROW)


NEW_YORK = ZoneInfo("America/New_York")
#: `TZ=UTC date -d '2026-11-01 05:30' +%s`: 01:30 EDT; 01:30 EST is an hour later.
TWICE_S = 1_793_511_000


def in_new_york(*times: str) -> SampleSet:
    return parsed(CLOCK, *(f"2026/11/01 {time}, 0, 1485 MHz" for time in times), tz=NEW_YORK)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        # Local time falls: what comes after is the second pass.
        (("01:30:00", "01:30:10", "01:30:02"), (0, 10, 3602)),
        (("00:59:50", "01:00:00", "01:59:59", "01:00:00"), (-1810, -1800, 1799, 1800)),
        # Next to 00:59 it is the first pass, next to 02:00 the second.
        (("00:59:50", "01:00:10"), (-1810, -1790)),
        (("01:59:50", "02:00:10"), (5390, 5410)),
        # Rows of one look may lie a little out of order.
        (("00:59:59", "01:00:00.010", "01:00:00.000"), (-1801, -1799.99, -1800)),
    ],
)
def test_the_order_of_the_file_tells_the_passes_of_a_repeated_hour_apart(
    times: Sequence[str], seconds: Sequence[float]
) -> None:
    samples = in_new_york(*times)
    (gpu,) = samples.gpus
    expected = sorted(TWICE_S * 10**9 + round(second * 1e9) for second in seconds)
    assert gpu.t_unix_ns.tolist() == expected
    assert "local_times_twice" not in {note.code for note in samples.notes}


def test_where_nothing_tells_the_pass_the_first_is_taken_and_the_note_names_the_zone() -> None:
    samples = in_new_york("01:30:00", "01:30:10")
    assert samples.gpus[0].t_unix_ns[0] == TWICE_S * 1_000_000_000
    (text,) = [note.text for note in samples.notes if note.code == "local_times_twice"]
    assert text.startswith("2 samples lie in an hour that America/New_York has twice: taken for")
    assert "--tz Etc/GMT+5" in text
    second = parsed(CLOCK, "2026/11/01 01:30:00, 0, 1485 MHz", tz=ZoneInfo("Etc/GMT+5"))
    assert second.gpus[0].t_unix_ns[0] == (TWICE_S + 3600) * 1_000_000_000


def test_a_skipped_hour_is_no_repeated_one() -> None:
    rows = [f"2026/03/08 {time}, 0, 1485 MHz" for time in ("01:59:59", "03:00:01")]
    samples = parsed(CLOCK, *rows, tz=NEW_YORK)
    assert np.diff(samples.gpus[0].t_unix_ns).tolist() == [2_000_000_000]
    assert "local_times_twice" not in {note.code for note in samples.notes}
