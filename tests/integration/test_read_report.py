"""Reports as DataFrames and as Parquet, and who may import what they need."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from math import isfinite
from pathlib import Path

import pandas as pd
import pytest
from msgspec.structs import replace
from pandas.testing import assert_frame_equal
from pyarrow import parquet

import chopperd
from chopperd import cli
from chopperd.cli import report_commands
from chopperd.errors import ConfigError, StoreError
from chopperd.model.answers import DropShare, TracedDrop
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import CopyTraffic, MicroStep, Part, Row
from chopperd.report.forms.columns import columns_of, lists_of, render_drops_csv, render_list_csv
from chopperd.report.forms.frames import Report
from chopperd.report.forms.parquet import parquet_bytes
from chopperd.report.forms.schema import formatted
from chopperd.store.samples.files import write_samples
from tests.integration.test_pipeline import kineto, one_gpu, written
from tests.unit.report.documents import eight_gpus, host_only, host_timed

FRAMES = (
    "summary",
    *("steps", "totals", "families", "operations", "layers", "phases", "copies", "collectives"),
    *("host_operations", "host_layers", "host_phases"),
    *("micro_steps", "causes", "waterfall", "devices", "gpus", "traces", "notes"),
)
#: Large enough that a float64 would lose its last digits.
START_NS = 1_790_857_026_123_456_789
Written = Callable[[ReportDocument], Path]


def whole() -> ReportDocument:
    """A document with something in every kind of list."""
    document = eight_gpus()
    step = replace(
        document.steps[0],
        start_unix_ns=START_NS,
        micro_steps=(MicroStep(step=7, marker_start_unix_ns=None, marker_ns=5, busy_ns=None),),
        copies=(
            CopyTraffic(
                direction="h2d",
                count=2,
                time_ns=4,
                sized_count=0,
                bytes=None,
                rate_bytes_per_s=None,
            ),
        ),
        by_layer=(
            Part(name="layers.0", count=3, time_ns=9, mean_mhz=1500.5, samples=2, lost_ns=1),
            Part(name="layers.1", count=1, time_ns=2, mean_mhz=None, samples=0, lost_ns=None),
        ),
    )
    totals = tuple(replace(row, by_layer=()) for row in document.totals)
    return replace(document, steps=(step, *document.steps[1:]), totals=totals)


@pytest.fixture
def as_json(tmp_path: Path) -> Written:
    def write(document: ReportDocument) -> Path:
        path = tmp_path / "report.json"
        path.write_text(formatted(document, "json"))
        return path

    return write


@pytest.fixture
def report(as_json: Written) -> Report:
    return chopperd.read_report(as_json(whole()))


def test_steps_and_totals_have_a_line_a_row(report: Report) -> None:
    document = whole()
    assert report.steps["gpu"].tolist() == [row.gpu for row in document.steps]
    assert len(report.totals) == len(document.totals)
    assert set(report.totals["row"]) == {"total"}


def test_ns_stay_whole_and_have_a_time_beside_them(report: Report) -> None:
    first = report.steps.iloc[0]
    assert str(report.steps["start_unix_ns"].dtype) == "Int64"
    assert int(first["start_unix_ns"]) == START_NS
    assert str(report.steps["start"].dtype) == "datetime64[ns, UTC]"
    assert first["start"].value == START_NS


def test_what_is_unknown_is_na_and_never_0(report: Report) -> None:
    assert report.steps["tokens"].isna().all()
    assert report.micro_steps["marker_start_unix_ns"].isna().all()
    assert report.micro_steps["marker_start"].isna().all()
    assert report.copies["bytes"].isna().all()
    assert report.layers["lost_ns"].tolist() == [1, pd.NA]
    assert report.micro_steps["busy_ns"].isna().all()


def test_every_figure_of_the_document_is_there(report: Report) -> None:
    for frame, rows in ((report.steps, whole().steps), (report.totals, whole().totals)):
        for column in columns_of(Row):
            if column.name == "start":
                continue
            found = [None if value is pd.NA else value for value in frame[column.name]]
            assert found == [column.of(row) for row in rows], column.name


def test_lists_are_frames_with_the_keys_of_their_rows(report: Report) -> None:
    assert report.layers[["row", "step", "gpu", "name", "time_ns"]].values.tolist() == [
        ["step", whole().steps[0].step, "0", "layers.0", 9],
        ["step", whole().steps[0].step, "0", "layers.1", 2],
    ]
    assert report.micro_steps["item_step"].tolist() == [7]
    expected = sum(len(row.families) for row in (*whole().steps, *whole().totals))
    assert len(report.families) == expected > 0
    assert set(lists_of(Row)) == {
        *("micro_steps", "copies", "collectives", "families", "classes"),
        *("by_operation", "by_layer", "by_phase", "by_annotation", "held"),
    }  # each has a frame


def test_host_time_has_frames_of_its_own(as_json: Written) -> None:
    report = chopperd.read_report(as_json(host_timed()))
    assert report.host_layers[["rank", "name", "count", "host_ns"]].values.tolist() == [
        [0, "layers.0", 5, 3_000_000],
        [0, "(unknown)", 1, 1_000_000],
    ]
    assert report.layers.empty
    assert report.host_operations["name"].tolist() == ["aten::mm"]
    assert report.host_phases["host_ns"].sum() == report.host_layers["host_ns"].sum()


def test_drops_are_a_frame_and_what_ran_in_them_another(as_json: Written) -> None:
    """A drop as in the document; a time beside its ns."""
    share = DropShare(name="gemm", inside_ratio=0.7, outside_ratio=None)
    drop = TracedDrop(
        gpu="5", rank=5, device=0, start_unix_ns=START_NS, end_unix_ns=None, duration_ns=3,
        reference_mhz=1700.0, mean_mhz=1500.0, lowest_mhz=1400.0, lost_ns=2,
        by_cause_ns={"power_cap": 2}, classes=(share,),
    )  # fmt: skip
    report = chopperd.read_report(as_json(replace(whole(), drops=(drop,))))
    assert report.drops["by_cause_ns_power_cap"].tolist() == [2]
    assert report.drops["start"].iloc[0].value == START_NS
    assert report.drops["end_unix_ns"].isna().all()
    assert report.drop_work[["gpu", "by", "name"]].values.tolist() == [["5", "class", "gemm"]]
    assert report.drop_work["outside_ratio"].isna().all()
    assert chopperd.read_report(as_json(whole())).drops.empty


def test_causes_and_parts_sum_to_their_wholes(report: Report) -> None:
    for frame in (report.steps, report.totals):
        row = frame["row"].iloc[0]
        lost = report.causes[report.causes["row"] == row]["lost_ns"].sum()
        assert lost == frame["dvfs_lost_ns"].sum() > 0
        parts = report.waterfall[report.waterfall["row"] == row]["time_ns"].sum()
        assert parts == frame["window_ns"].sum() > 0


def test_a_loss_that_is_unknown_has_no_causes(as_json: Written) -> None:
    report = chopperd.read_report(as_json(host_only()))
    assert len(report.steps) > 0
    assert report.causes.empty
    assert report.waterfall.empty


def test_the_rest_of_the_document_is_there(report: Report) -> None:
    document = whole()
    assert report.notes["code"].tolist() == [note.code for note in document.notes]
    assert report.devices["reference_sm_clock_mhz"].tolist() == [1980.0] * 8
    assert report.traces["sha256"].tolist() == [trace.sha256 for trace in document.traces]
    assert report.document == replace(document, steps=(), totals=())


@pytest.mark.parametrize("document", [whole, host_only, host_timed])
def test_json_gzip_html_and_parquet_give_the_same_frames(
    as_json: Written, tmp_path: Path, document: Callable[[], ReportDocument]
) -> None:
    plain = as_json(document())
    packed, columnar = tmp_path / "report.json.gz", tmp_path / "report.parquet"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    columnar.write_bytes(parquet_bytes(document()))
    page = tmp_path / "report.html"
    page.write_text(formatted(document(), "html"))
    expected = chopperd.read_report(str(plain))
    for path in (packed, columnar, page):
        found = chopperd.read_report(path)
        for name in FRAMES:
            assert_frame_equal(getattr(found, name), getattr(expected, name))
        assert found.document == expected.document


def test_other_programs_read_the_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "report.parquet"
    path.write_bytes(parquet_bytes(whole()))
    table = parquet.read_table(path)
    assert table.num_rows == len(whole().steps) + len(whole().totals)
    assert str(table.schema.field("start_unix_ns").type) == "int64"
    assert table.column("start_unix_ns")[0].as_py() == START_NS
    assert table.column("by_layer")[0].as_py()[0]["name"] == "layers.0"
    assert table.schema.metadata[b"chopperd.schema"] == b"chopperd.report/1"
    notes = json.loads(table.schema.metadata[b"chopperd.document"])["notes"]
    assert [note["code"] for note in notes] == [note.code for note in whole().notes]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"schema": "other"}',
        b"\x1f\x8bcut",
        b"PAR1",
        b"\xff",
        b"PAR1 no PAR1",
        b"<!doctype html>",
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=str(path)) as raised:
        chopperd.read_report(path)
    assert "\n" not in str(raised.value)


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(StoreError, match="not a report"):
        chopperd.read_report(path)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't be read"):
        chopperd.read_report(tmp_path / "none.json")


@pytest.mark.parametrize("missing", ["pandas", "pyarrow"])
def test_where_a_library_is_missing_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    path = tmp_path / "report.parquet"
    path.write_bytes(parquet_bytes(whole()))
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"chopperd\[analysis\]"):
        chopperd.read_report(path)


# --- the command line


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_commands, "report_options", lambda *_, **__: None)
    monkeypatch.setattr(report_commands, "_document", lambda *_: whole())


@pytest.mark.usefixtures("documented")
@pytest.mark.parametrize("form", ["text", "json", "csv", "html"])
def test_a_report_is_written_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    out = tmp_path / "out"
    assert cli.run(["report", "x.json", "--format", form, "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert cli.run(["report", "x.json", "--format", form]) == 0
    assert out.read_text() == capsys.readouterr().out


@pytest.mark.usefixtures("documented")
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("r.json", "json"),
        ("r.JSON", "json"),
        ("r.csv", "csv"),
        ("r.txt", "text"),
        ("r.html", "html"),
    ],
)
def test_the_suffix_of_the_output_chooses_the_form(
    name: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["report", "x.json", "--format", form]) == 0
    expected = capsys.readouterr().out
    assert cli.run(["report", "x.json", "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_text() == expected
    assert cli.run(["report", "x.json", "-o", str(tmp_path / f"{name}.gz")]) == 0
    assert gzip.decompress((tmp_path / f"{name}.gz").read_bytes()).decode() == expected


@pytest.mark.usefixtures("documented")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "r.json", "--format", "csv"], "is json by its suffix, but --format is csv"),
        (["-o", "r.csv.gz", "--format", "text"], "is csv by its suffix, but --format is text"),
        (
            ["-o", "r.xlsx"],
            ".xlsx is no known format; use .txt, .md, .json, .html, .csv, .parquet or",
        ),
    ],
)
def test_a_suffix_that_contradicts_the_form_is_a_usage_error(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["report", "x.json", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("documented")
def test_another_suffix_may_have_a_form_that_is_asked_for(tmp_path: Path) -> None:
    assert cli.run(["report", "x.json", "-o", str(tmp_path / "r.dat"), "--format", "csv"]) == 0
    assert (tmp_path / "r.dat").read_text().startswith("row,")


@pytest.mark.usefixtures("documented")
def test_parquet_is_written_to_a_file_or_a_pipe(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    out = tmp_path / "out.parquet"
    assert cli.run(["report", "x.json", "--format", "parquet", "-o", str(out)]) == 0
    assert len(chopperd.read_report(out).steps) == len(whole().steps)
    assert cli.run(["report", "x.json", "--format", "parquet"]) == 0
    assert capsysbinary.readouterr().out == out.read_bytes()


@pytest.mark.usefixtures("documented")
def test_parquet_is_not_for_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.run(["report", "x.json", "--format", "parquet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "-o" in line


@pytest.mark.usefixtures("documented")
def test_without_pyarrow_parquet_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.run(["report", "x.json", "--format", "parquet"]) == 2
    assert "chopperd[analysis]" in capsys.readouterr().err


@pytest.mark.usefixtures("documented")
def test_families_are_a_csv_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "x.json", "--format", "csv", "--by", "family"]) == 0
    assert capsys.readouterr().out == render_list_csv(whole(), "families")


@pytest.mark.usefixtures("documented")
def test_layers_are_a_csv_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "x.json", "--format", "csv", "--by", "layer"]) == 0
    text = capsys.readouterr().out
    assert text == render_list_csv(whole(), "by_layer")
    assert "layers.1" in text


@pytest.mark.usefixtures("documented")
def test_drops_are_a_csv_of_their_own_and_none_are_said_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["report", "x.json", "--format", "csv", "--by", "drop"]) == 0
    printed = capsys.readouterr()
    assert printed.out == render_drops_csv(whole())
    assert printed.err == (
        "chopperd: --by drop: no drop of a GPU's busy clock in the traces' time, or no samples of "
        "it\n"
    )


# --- who imports what


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import chopperd", ("pandas", "pyarrow", "numpy", "pathlib")),
        ("from chopperd.report.forms import frames, parquet", ("pandas", "pyarrow")),
        (
            "import pkgutil, importlib\n"
            "from chopperd import agent, api, cli, pipeline\n"
            "for part in (agent, api, cli, pipeline):\n"
            "    for each in pkgutil.iter_modules(part.__path__, part.__name__ + '.'):\n"
            "        importlib.import_module(each.name)",
            ("pandas", "pyarrow"),
        ),
    ],
    ids=["root", "frames", "agent"],
)
def test_nothing_loads_pandas_before_a_frame_is_asked_for(
    program: str, absent: tuple[str, ...]
) -> None:
    code = f"import sys\nbefore = set(sys.modules)\n{program}\nprint(*(set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in absent if name in loaded] == []


def test_the_summary_is_one_line_that_compares_runs(report: Report) -> None:
    (line,) = report.summary.to_dict("records")
    expected = {"steps": 10, "step_ns": 1412e6, "lost_ns": 131e6, "basis": "critical_steps"}
    assert {name: line[name] for name in expected} == expected
    assert line["waterfall_ns_exposed_comm"] == 208e6
    assert line["cause_ratio_power_cap"] == 0.9
    assert pd.isna(line["excess_low_ns"])


def test_a_report_without_a_summary_has_an_empty_one(as_json: Written) -> None:
    report = chopperd.read_report(as_json(host_timed()))
    assert report.summary.empty
    assert report.metrics() == {}
    assert "GPU" in repr(report) or "host" in repr(report)


def test_metrics_are_flat_known_and_named_with_their_units(report: Report) -> None:
    """Of the hand-built document: 131 ms of 1412 lost, nine tenths of it to the power cap."""
    metrics = report.metrics()
    assert metrics["chopperd/steps"] == 10
    assert metrics["chopperd/step_ms"] == 1412.0
    assert metrics["chopperd/clock_lost_ms"] == 131.0
    assert metrics["chopperd/lost/power_cap_ms"] == pytest.approx(117.9)
    assert metrics["chopperd/clock_lost_low_ratio"] == 0.0899
    assert metrics["chopperd/excess_ms"] == 53.0
    assert metrics["chopperd/waterfall/exposed_comm_ms"] == 208.0
    assert metrics["chopperd/gpu/5/mean_mhz"] == 1721.0
    assert metrics["chopperd/reference_mhz"] == 1980.0
    assert "chopperd/excess_low_ms" not in metrics
    assert all(isfinite(value) for value in metrics.values())


def test_metrics_of_a_report_without_clocks_have_none_of_them(as_json: Written) -> None:
    document = whole()
    assert document.summary is not None
    blind = replace(document.summary, lost_ns=None, gap_ratio=None, excess_ns=None, causes=())
    metrics = chopperd.read_report(as_json(replace(document, summary=blind))).metrics()
    assert metrics["chopperd/waterfall/exposed_comm_ms"] == 208.0
    assert not any("lost" in name or "mhz" in name or "compute" in name for name in metrics)
    of_file = replace(blind, basis="totals", steps=0)
    metrics = chopperd.read_report(as_json(replace(document, summary=of_file))).metrics()
    assert metrics["chopperd/whole_file/window_ms"] == 1412.0
    assert all(name.startswith("chopperd/whole_file/") for name in metrics)


def test_a_report_shows_itself_in_consoles_and_notebooks(report: Report, tmp_path: Path) -> None:
    text = repr(report)
    assert text.startswith(" COMMUNICATION   208 of each 1412 ms step (14.7 %)")
    assert "CLOCK   at most 131 ms" in text
    assert "WHERE THE STEP WENT" in text
    html = report._repr_html_()
    assert "<b>COMMUNICATION</b>" in html
    assert html.count("<tr>") == html.count("</tr>") > 5
    path = tmp_path / "report.parquet"
    path.write_bytes(parquet_bytes(whole()))
    assert repr(chopperd.read_report(path)) == text


def test_simulated_figures_are_marked_and_names_escaped(as_json: Written) -> None:
    document = whole()
    simulated = replace(document.generated, simulated=True)
    notes = tuple(replace(each, text="<script>") for each in document.notes)
    report = chopperd.read_report(as_json(replace(document, generated=simulated, notes=notes)))
    assert repr(report).startswith(" SIMULATED DATA")
    assert "SIMULATED DATA" in report._repr_html_()
    assert "<script>" not in report._repr_html_()


def test_traces_are_read_as_their_report_is(tmp_path: Path) -> None:
    traces = [written(tmp_path / f"r{rank}.json.gz", kineto(rank=rank)) for rank in (0, 1)]
    samples = tmp_path / "samples.csv"
    write_samples(samples, one_gpu())
    finished = tmp_path / "report.json"
    given = [*map(str, traces), "--samples", str(samples)]
    assert cli.run(["report", *given, "-o", str(finished)]) == 0
    report = chopperd.read_report(*traces, samples=samples)
    assert len(report.steps) == 4
    assert_frame_equal(report.steps, chopperd.read_report(finished).steps)
    assert repr(report) == repr(chopperd.read_report(str(finished)))


def test_samples_are_of_traces_only(as_json: Written, tmp_path: Path) -> None:
    path = as_json(whole())
    with pytest.raises(ConfigError, match="is no Kineto trace"):
        chopperd.read_report(path, samples=tmp_path / "s.csv")
    with pytest.raises(ConfigError, match="is no Kineto trace"):
        chopperd.read_report(path, path)
