import csv
from io import StringIO
from math import nan

from msgspec.structs import replace

from chopperd.model.answers import DropShare, TracedDrop
from chopperd.model.report import ReportDocument
from chopperd.report.forms.columns import (
    drop_work_table,
    render_csv,
    render_drops_csv,
    render_list_csv,
    render_steps_csv,
)
from tests.unit.report.documents import (
    eight_gpus,
    host_only,
    host_timed,
    single_gpu,
    without_clocks,
)


def lines(document: ReportDocument) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(render_csv(document))))


def test_steps_come_first_then_totals() -> None:
    assert [line["row"] for line in lines(eight_gpus())] == ["step"] * 80 + ["total"] * 8


def test_nested_values_have_flattened_names() -> None:
    first = lines(eight_gpus())[0]
    assert first["dvfs_gap_ratio"] == "0.131"
    assert first["clock_compute_mean_mhz"] == "1721.0"
    assert first["waterfall_ns_exposed_comm"] == "208000000"
    assert first["temperature_c_max"] == "72.0"
    assert first["partial"] == "false"


def test_a_cause_that_a_known_split_does_not_name_lost_nothing() -> None:
    first = lines(eight_gpus())[0]
    assert first["dvfs_by_cause_ns_power_cap"] == "118000000"
    assert first["dvfs_by_cause_ns_sync_boost"] == "0"


def test_unknown_is_empty() -> None:
    first = lines(without_clocks())[0]
    for name in ("clock_compute_mean_mhz", "dvfs_lost_ns", "dvfs_by_cause_ns_power_cap", "gpu"):
        assert first[name] == ""
    document = single_gpu()
    odd = replace(document.steps[0], mem_clock_mhz=nan)
    assert lines(replace(document, steps=(odd,)))[0]["mem_clock_mhz"] == ""


def test_every_line_says_whether_it_is_simulated() -> None:
    document = eight_gpus()
    simulated = replace(document, generated=replace(document.generated, simulated=True))
    assert {line["simulated"] for line in lines(simulated)} == {"true"}
    assert {line["simulated"] for line in lines(document)} == {"false"}


def test_reasons_are_joined_by_plus() -> None:
    document = single_gpu()
    step = replace(document.steps[0], partial=True, partial_reasons=("trace_ends", "a"))
    assert lines(replace(document, steps=(step,)))[0]["partial_reasons"] == "trace_ends+a"


def test_the_columns_are_the_same_for_every_document() -> None:
    headers = {render_csv(build()).splitlines()[0] for build in (eight_gpus, host_only)}
    (header,) = headers
    assert len(set(header.split(","))) == len(header.split(","))


def test_steps_alone_have_the_same_columns_and_may_be_of_unknown_origin() -> None:
    document = single_gpu()
    table = list(csv.DictReader(StringIO(render_steps_csv(document.steps, simulated=None))))
    assert table[0].keys() == lines(document)[0].keys()
    assert [line["row"] for line in table] == ["step"] * len(document.steps)
    assert {line["simulated"] for line in table} == {""}


def test_without_device_work_a_list_is_of_the_hosts_time_and_says_so() -> None:
    assert render_list_csv(host_timed(), "by_layer").splitlines() == [
        "job,run,rank,name,count,host_ns,merged",
        ",run,0,layers.0,5,3000000,0",
        ",run,0,(unknown),1,1000000,0",
    ]
    (header,) = render_list_csv(host_timed(), "families").splitlines()
    assert "time_ns" in header.split(",")


def test_beside_device_work_a_list_is_of_the_devices() -> None:
    mixed = replace(eight_gpus(), host=host_timed().host)
    assert render_list_csv(mixed, "by_layer") == render_list_csv(eight_gpus(), "by_layer")


def test_drops_have_a_line_each_and_what_ran_in_them_a_table_of_its_own() -> None:
    drop = TracedDrop(
        gpu="5", rank=None, device=1, start_unix_ns=7, end_unix_ns=None, duration_ns=3,
        reference_mhz=1700.0, mean_mhz=1500.0, lowest_mhz=1400.0, lost_ns=2,
        by_cause_ns={"power_cap": 2}, power_w=690.0, steps=(3, 5),
        classes=(DropShare(name="gemm", inside_ratio=0.7, outside_ratio=None),),
        families=(DropShare(name="a", inside_ratio=0.6, outside_ratio=0.5),),
    )  # fmt: skip
    document = replace(eight_gpus(), drops=(drop,))
    (line,) = csv.DictReader(StringIO(render_drops_csv(document)))
    known = {name: text for name, text in line.items() if text not in {"", "0"}}
    assert known == {
        "gpu": "5", "device": "1", "start_unix_ns": "7", "duration_ns": "3", "steps": "3+5",
        "reference_mhz": "1700.0", "mean_mhz": "1500.0", "lowest_mhz": "1400.0", "lost_ns": "2",
        "by_cause_ns_power_cap": "2", "power_w": "690.0",
    }  # fmt: skip
    assert line["end_unix_ns"] == line["rank"] == line["temperature_c"] == ""
    assert dict(drop_work_table(document).columns) == {
        "gpu": ["5", "5"], "rank": [None, None], "device": [1, 1], "start_unix_ns": [7, 7],
        "by": ["class", "family"], "name": ["gemm", "a"], "inside_ratio": [0.7, 0.6],
        "outside_ratio": [None, 0.5],
    }  # fmt: skip
    assert len(drop_work_table(eight_gpus())) == 0
