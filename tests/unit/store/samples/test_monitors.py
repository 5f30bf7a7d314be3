import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.errors import StoreError
from chopperd.model.samples import SampleSet
from chopperd.store.samples.monitors import (
    looks_like_dcgmi,
    looks_like_json,
    parsed_dcgmi,
    parsed_prometheus,
)
from chopperd.store.samples.plain_csv import parsed_plain, unix_ns_of

#: `date -u -d '2025-11-28 03:19:59' +%s`.
T_S = 1_764_299_999
T_NS = T_S * 10**9


def plain(*lines: str) -> SampleSet:
    return parsed_plain("\n".join([*lines, ""]).encode(), path="monitor.csv")


def dcgmi(*lines: str) -> SampleSet:
    return parsed_dcgmi("\n".join([*lines, ""]).encode(), path="dmon.txt")


def prometheus(document: object) -> SampleSet:
    return parsed_prometheus(json.dumps(document).encode(), path="range.json")


@pytest.mark.parametrize(
    ("text", "unix_ns"),
    [
        ("1764299999", T_NS),
        ("1764299999.5", T_NS + 500_000_000),
        ("1764299999.123456789", T_NS + 123_456_789),
        ("1764299999123", T_NS + 123_000_000),
        ("1764299999123.25", T_NS + 123_250_000),
        ("1764299999123456", T_NS + 123_456_000),
        ("1764299999123456789", T_NS + 123_456_789),
        ("2025-11-28T03:19:59.123Z", T_NS + 123_000_000),
        ("2025-11-27 22:19:59-05:00", T_NS),
    ],
)
def test_a_time_is_in_the_unit_of_its_size(text: str, unix_ns: int) -> None:
    assert unix_ns_of(text) == unix_ns


@pytest.mark.parametrize("text", ["", "12.5", "-1764299999", "1.7643e9", "2025-11-28 03:19:59"])
def test_what_is_no_unix_time_and_has_no_zone_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        unix_ns_of(text)


def test_a_time_that_is_not_in_the_unit_of_its_column_is_refused() -> None:
    assert unix_ns_of("1764299999123", "ms") == T_NS + 123_000_000
    for unit in ("s", "us", "ns"):
        with pytest.raises(ValueError, match=r".*"):
            unix_ns_of("1764299999123", unit)


@pytest.mark.parametrize(
    ("header", "time", "clock"),
    [
        ("timestamp(ms),gpu,sm_clock(MHz)", "1764299999123", "1485"),
        ("t_unix_ns,gpu,sm_clock_ghz", "1764299999123000000", "1.485"),
        ("Time [s], GPU, SM Clock [Hz]", "1764299999.123", "1485000000"),
        ("ts,device,clocks.sm", "1764299999.123", "1485 MHz"),
        ("time_us,index,sclk_mhz", "1764299999123000", "1485"),
    ],
)
def test_columns_of_other_names_and_units_are_read(header: str, time: str, clock: str) -> None:
    samples = plain(header, f"{time},1,{clock}")
    (gpu,) = samples.gpus
    assert gpu.gpu.gpu == "1"
    assert gpu.t_unix_ns.tolist() == [T_NS + 123_000_000]
    assert gpu.sm_clock_mhz == pytest.approx([1485.0])
    (note,) = samples.notes
    assert note.code == "columns_renamed"
    assert f"times from {header.partition(',')[0]!r}" in note.text


def test_the_other_columns_come_in_our_units() -> None:
    names = (
        "t_unix_ns,gpu,sm_clock,power(mW),temperature(C),util(%),memory_used(MiB),mem_clock(MHz)"
    )
    (gpu,) = plain(names, f"{T_NS},GPU 0,1485,620100,61,97,70000,2619").gpus
    assert gpu.power_w == pytest.approx([620.1])
    assert gpu.temperature_c.tolist() == [61.0]
    assert gpu.activity_ratio == pytest.approx([0.97])
    assert gpu.memory_used_bytes.tolist() == [70_000 * 2**20]
    assert gpu.mem_clock_mhz.tolist() == [2619.0]
    assert gpu.gpu.gpu == "0"


def test_a_column_in_a_unit_that_is_not_known_is_not_read() -> None:
    (gpu,) = plain("timestamp,gpu,sm_clock,power(hp)", f"{T_S},0,1485,3").gpus
    assert np.isnan(gpu.power_w).all()


def test_what_a_monitor_does_not_know_is_absent() -> None:
    rows = [f"{T_S + n},0,{cell}" for n, cell in enumerate(("N/A", "None", "", "nan", "1485"))]
    (gpu,) = plain("timestamp,gpu,sm_clock", *rows).gpus
    assert np.isnan(gpu.sm_clock_mhz).tolist() == [True, True, True, True, False]


def test_without_a_column_of_gpus_there_is_one_and_it_is_said() -> None:
    samples = plain("timestamp,sm_clock", f"{T_S},1485")
    assert [gpu.gpu.gpu for gpu in samples.gpus] == ["0"]
    assert "gpu_unnamed" in {note.code for note in samples.notes}


def test_a_header_that_comes_again_is_passed_over() -> None:
    header = "timestamp,gpu,sm_clock"
    (gpu,) = plain(header, f"{T_S},0,1485", header, f"{T_S + 9},0,1500").gpus
    assert gpu.sm_clock_mhz.tolist() == [1485.0, 1500.0]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("timestmp,gpu,sm_clock",), "no column t_unix_ns.*is it 'timestmp'"),
        (("timestamp,gpu,sm_clok",), "no column sm_clock_mhz .is it 'sm_clok'"),
        (("hello",), "not a sample file: CSV needs t_unix_ns,gpu,sm_clock_mhz"),
        (("timestamp,gpu,sm_clock", "12.5,0,1485"), "line 2: timestamp '12.5' is no Unix time"),
        (("time(s),gpu,sm_clock", f"{T_NS},0,1485"), "line 2: .* is no Unix time in s"),
        (("timestamp,gpu,sm_clock", f"{T_S},0,fast"), "line 2: sm_clock 'fast' can't be read"),
    ],
)
def test_csv_that_is_no_sample_file_is_refused_in_a_line(lines: tuple[str, ...], says: str) -> None:
    with pytest.raises(StoreError, match=says):
        plain(*lines)


DMON = ("#Entity   SMCLK     POWER     TMPTR", "ID        (MHz)     (W)       (C)")


@pytest.mark.parametrize(
    "time", ["1764299999.123 ", "[2025-11-28T03:19:59.123+00:00] ", "1764299999123: "]
)
def test_dcgmi_dmon_with_times_is_read(time: str) -> None:
    lines = [f"{time}{line}" for line in (*DMON, "GPU 1     1485      620.110   61")]
    lines += [f"{time}GPU-I 3   1485  620  61", f"{time}{DMON[0]}"]
    assert looks_like_dcgmi("\n".join(lines).encode())
    (gpu,) = dcgmi(*lines).gpus
    assert gpu.gpu.gpu == "1"
    assert gpu.t_unix_ns.tolist() == [T_NS + 123_000_000]
    assert (gpu.sm_clock_mhz.tolist(), gpu.power_w.tolist()) == ([1485.0], [620.11])
    assert gpu.temperature_c.tolist() == [61.0]


def test_dcgmi_values_that_are_not_there_are_absent() -> None:
    (gpu,) = dcgmi(f"{T_S} {DMON[0]}", f"{T_S} GPU 0  1485  N/A  N/A").gpus
    assert np.isnan(gpu.power_w).all()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            (*DMON, "GPU 0  1485  620  61"),
            r"dcgmi dmon writes no times: record again with .* ts '%.s'",
        ),
        ((*DMON, "Nov 28 03:19:59 GPU 0  1485  620  61"), r"line 3: 'Nov 28 03:19:59' is no .* ts"),
        (("#Entity   POWER", "GPU 0  620"), "line 1: no SMCLK"),
        (DMON, "without a line of a GPU"),
        ((*DMON, f"{T_S} GPU 0  fast  620  61"), "line 3: 'fast' is no number"),
    ],
)
def test_dcgmi_output_without_times_or_clocks_says_how_to_record_them(
    lines: tuple[str, ...], says: str
) -> None:
    with pytest.raises(StoreError, match=says):
        dcgmi(*lines)


def series(name: str, value: str, host: str = "node-a", **labels: str) -> dict[str, object]:
    """Three values, 2 s apart."""
    metric = {"__name__": name, "Hostname": host, **({"gpu": "3", "UUID": "GPU-c"} | labels)}
    return {"metric": metric, "values": [[T_S + 2 * n, value] for n in range(3)]}


CLOCK = series("DCGM_FI_DEV_SM_CLOCK", "1485")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda result: {"status": "success", "data": {"resultType": "matrix", "result": result}},
        lambda result: {"resultType": "matrix", "result": result},
        lambda result: result,
    ],
)
def test_a_prometheus_range_is_read_with_the_doubt_of_its_step(wrap: object) -> None:
    document = wrap([CLOCK, series("DCGM_FI_DEV_POWER_USAGE", "620.1"), series("up", "1")])  # type: ignore[operator]
    assert looks_like_json(json.dumps(document).encode())
    samples = prometheus(document)
    (gpu,) = samples.gpus
    assert (gpu.gpu.gpu, gpu.gpu.uuid, samples.node) == ("3", "GPU-c", "node-a")
    # Scraped within the 2 s before: the middle, and a read as long as that.
    assert gpu.t_unix_ns.tolist() == [T_NS - 10**9 + n * 2 * 10**9 for n in range(3)]
    assert gpu.read_span_ns.tolist() == [2 * 10**9] * 3
    assert gpu.sm_clock_mhz.tolist() == [1485.0] * 3
    assert gpu.power_w.tolist() == [620.1] * 3
    assert "prometheus_times" in {note.code for note in samples.notes}


def test_hertz_become_mhz_and_gpus_of_uuids_alone_get_numbers() -> None:
    labels = [{"uuid": name, "gpu": "", "UUID": ""} for name in ("a", "b")]
    clocks = [
        series("nvidia_smi_clocks_current_sm_clock_hz", "1485000000", **each) for each in labels
    ]
    samples = prometheus(clocks)
    assert [(gpu.gpu.gpu, gpu.gpu.uuid) for gpu in samples.gpus] == [("0", "a"), ("1", "b")]
    assert samples.gpus[1].sm_clock_mhz == pytest.approx([1485.0] * 3)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"traceEvents": []}, "JSON without values of a Prometheus range"),
        ({"data": {"result": [{"metric": 5}]}}, "JSON, but no range query of Prometheus"),
        ({"data": {"result": [{"metric": {}, "value": [1, "2"]}]}}, "JSON without values"),
        (
            [series("DCGM_FI_DEV_POWER_USAGE", "620")],
            "without SM clock: query DCGM_FI_DEV_SM_CLOCK",
        ),
        ([CLOCK, series("DCGM_FI_DEV_SM_CLOCK", "1", "b")], r"of several nodes \(b, node-a\)"),
        ([series("DCGM_FI_DEV_SM_CLOCK", "fast")], "'fast' is no number"),
    ],
)
def test_other_json_is_refused_in_a_line(document: object, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        prometheus(document)


@settings(max_examples=50)
@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="ignore"))
)
def test_whatever_a_file_holds_is_read_or_refused(data: bytes) -> None:
    text = data.decode(errors="ignore").encode()
    for read in (parsed_plain, parsed_dcgmi, parsed_prometheus):
        with suppress(StoreError):
            assert len(read(text, path="x").source or "") == 1
