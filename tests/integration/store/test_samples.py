import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import replace

from chopperd.errors import StoreError
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import REPORTED_CAUSES, Cause
from chopperd.model.report import Note
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples, SampleSet
from chopperd.plausible import DIE_CLOCK_MHZ, LIMITED_NS, SAMPLE_BOUNDS, Bounds
from chopperd.store.samples.files import read_samples, write_samples
from chopperd.units import TimeTriple

T0 = 1_795_818_062_000_000_123


def numbers(bounds: Bounds) -> st.SearchStrategy[float]:
    """Numbers that a reader believes, and NaN."""
    return st.just(np.nan) | st.floats(bounds.low, bounds.high)


@st.composite
def die_clocks(draw: st.DrawFn, n: int) -> np.ndarray | None:
    """Of a GPU whose last die has a clock at least once, or of one that tells none."""
    clock = st.just(np.nan) | st.floats(DIE_CLOCK_MHZ.low, DIE_CLOCK_MHZ.high)
    clocks = draw(hnp.arrays(np.float64, (n, draw(st.integers(1, 8))), elements=clock))
    return None if np.isnan(clocks[:, -1]).all() else clocks


@st.composite
def gpu_samples(draw: st.DrawFn, label: str) -> GpuSamples:
    spacings = draw(st.lists(st.integers(1, 10**10), max_size=6))
    n = len(spacings)

    def values(bounds: Bounds) -> np.ndarray:
        return draw(hnp.arrays(np.float64, n, elements=numbers(bounds)))

    counters = Bounds(LIMITED_NS.low, 2**53)
    limited = {
        cause: values(counters) for cause in draw(st.sets(st.sampled_from(Cause), max_size=3))
    }
    bits = st.sets(st.sampled_from(REPORTED_CAUSES)).map(lambda s: sum(c.bit for c in s))
    optional_mhz = st.none() | st.floats(1, 3000)
    info = GpuInfo(
        gpu=label,
        index=int(label.split(".", maxsplit=1)[0]),
        uuid=draw(st.text(max_size=5)),
        name=draw(st.text(max_size=5)),
        vendor=draw(st.sampled_from(Vendor)),
        pci_bus_id=draw(st.none() | st.text(max_size=5)),
        sm_clock_max_mhz=draw(optional_mhz),
        sm_clock_limit_mhz=draw(optional_mhz),
        memory_size_bytes=draw(st.none() | st.integers(0, 2**50)),
        sensor_lag_ns=draw(st.none() | st.integers(0, 10**9)),
    )
    return GpuSamples(
        gpu=info,
        t_unix_ns=T0 + np.cumsum(np.array(spacings, dtype=np.int64)),
        read_span_ns=draw(hnp.arrays(np.int64, n, elements=st.integers(0, 10**9))),
        causes=np.array(draw(st.lists(bits, min_size=n, max_size=n)), dtype=np.int64),
        # A counter without a single value is one that the GPU does not have.
        limited_ns={cause: v for cause, v in limited.items() if not np.isnan(v).all()},
        die_clocks_mhz=draw(die_clocks(n)),
        **{name: values(SAMPLE_BOUNDS[name]) for name in VALUE_COLUMNS},
    )


@st.composite
def sample_sets(draw: st.DrawFn) -> SampleSet:
    labels = draw(st.lists(st.sampled_from(["0", "1", "2", "10", "0.1"]), unique=True))
    seconds = draw(st.integers(0, 3))
    return SampleSet(
        gpus=tuple(draw(gpu_samples(label)) for label in labels),
        asked_hz=draw(st.none() | st.floats(0.1, 1000)),
        started_unix_ns=draw(st.none() | st.integers(0, 2**62)),
        simulated=draw(st.booleans()),
        backend=draw(st.sampled_from(["file", "nvml"])),
        driver=draw(st.none() | st.text(max_size=5)),
        node=draw(st.none() | st.text(max_size=5)),
        triples=tuple(
            TimeTriple(unix_ns=T0 + i * 10**9, mono_ns=i * 10**9 + 7, boot_ns=i * 10**9)
            for i in range(seconds)
        ),
        notes=(Note(code="x", text="y"),) if draw(st.booleans()) else (),
    )


def assert_same(a: SampleSet, b: SampleSet) -> None:
    for name in ("asked_hz", "started_unix_ns", "simulated", "backend", "driver", "node"):
        assert getattr(a, name) == getattr(b, name)
    assert (a.triples, a.notes) == (b.triples, b.notes)
    assert len(a.gpus) == len(b.gpus)
    for mine, other in zip(a.gpus, b.gpus, strict=True):
        assert mine.gpu == other.gpu
        for name in ("t_unix_ns", "read_span_ns", "causes"):
            assert getattr(mine, name).tolist() == getattr(other, name).tolist()
            assert getattr(other, name).dtype == np.int64
        for name in VALUE_COLUMNS:
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
        assert mine.limited_ns.keys() == other.limited_ns.keys()
        for cause, values in mine.limited_ns.items():
            np.testing.assert_array_equal(values, other.limited_ns[cause])
        assert (mine.die_clocks_mhz is None) == (other.die_clocks_mhz is None)
        if mine.die_clocks_mhz is not None:
            np.testing.assert_array_equal(mine.die_clocks_mhz, other.die_clocks_mhz)


@given(samples=sample_sets(), form=st.sampled_from([".csv", ".csv.gz", ".parquet"]))
@settings(max_examples=75, deadline=None)
def test_what_is_written_is_read_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, samples: SampleSet, form: str
) -> None:
    path = tmp_path_factory.mktemp("samples") / f"s{form}"
    write_samples(path, samples)
    back = read_samples(path)
    assert_same(samples, back)
    assert back.source == str(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "samples.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_file_has_the_published_form(tmp_path: Path) -> None:
    text = (
        '# chopperd-samples/1 {"gpus": [{"index": 0, "uuid": "GPU-a", "name": "H100", "vendor": '
        '"nvidia", "sm_clock_max_mhz": 1980, "power_limit_w": 700, "later": 1}], "hz": 10, '
        '"started_unix_ns": 5}\n'
        "gpu,cause,t_unix_ns,sm_clock_mhz,limited_power_cap_ns\n"
        "0,power_cap+thermal,20,1500,7000\n"
        "0,,10,,\n"
        "0,unknown,30,1980,9000\n"
    )
    samples = read_samples(written(tmp_path, text))
    (gpu,) = samples.gpus
    assert (samples.asked_hz, samples.started_unix_ns) == (10.0, 5)
    assert (gpu.gpu.gpu, gpu.gpu.sm_clock_max_mhz) == ("0", 1980.0)
    assert (gpu.gpu.power_limit_w, gpu.gpu.vendor) == (700.0, Vendor.NVIDIA)
    assert gpu.t_unix_ns.tolist() == [10, 20, 30]
    np.testing.assert_array_equal(gpu.sm_clock_mhz, [np.nan, 1500, 1980])
    both = Cause.POWER_CAP.bit | Cause.THERMAL.bit
    assert gpu.causes.tolist() == [0, both, Cause.UNKNOWN.bit]
    np.testing.assert_array_equal(gpu.limited_ns[Cause.POWER_CAP], [np.nan, 7000, 9000])
    assert gpu.read_span_ns.tolist() == [0, 0, 0]


def test_dies_stand_in_one_column_joined_and_each_gpu_has_its_own(tmp_path: Path) -> None:
    text = (
        "t_unix_ns,gpu,sm_clock_mhz,die_clocks_mhz,cause\n"
        "10,0,2098,2100+2098++,power_cap+thermal\n"
        "20,0,2098,,\n"
        "30,0,2099,+2099.5,\n"
        "10,1,1980,,\n"
        "10,2,900,0++900,\n"
    )
    first, second, third = read_samples(written(tmp_path, text)).gpus
    nan = np.nan
    assert first.die_clocks_mhz is not None
    np.testing.assert_array_equal(first.die_clocks_mhz, [[2100, 2098], [nan, nan], [nan, 2099.5]])
    assert second.die_clocks_mhz is None
    assert third.die_clocks_mhz is not None
    np.testing.assert_array_equal(third.die_clocks_mhz, [[0, nan, 900]])


def test_dies_are_written_as_published_and_only_where_there_are_some(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "t_unix_ns,gpu,sm_clock_mhz,die_clocks_mhz\n10,0,2098,2100+2098++0\n20,0,2098,\n30,1,5,\n",
    )
    samples = read_samples(path)
    write_samples(tmp_path / "all.csv", samples)
    lines = (tmp_path / "all.csv").read_text().splitlines()[1:]
    assert lines == [
        "t_unix_ns,gpu,sm_clock_mhz,die_clocks_mhz",
        "10,0,2098,2100+2098++0",
        "20,0,2098,",
        "30,1,5,",
    ]
    write_samples(tmp_path / "one.csv", replace(samples, gpus=samples.gpus[1:]))
    assert "die" not in (tmp_path / "one.csv").read_text()


def test_more_dies_than_there_is_room_for_are_refused_with_the_line(tmp_path: Path) -> None:
    text = "t_unix_ns,gpu,sm_clock_mhz,die_clocks_mhz\n10,0,2098," + "+".join("9" * 9) + "\n"
    with pytest.raises(StoreError, match=r"line 2: .* holds more than 8 numbers"):
        read_samples(written(tmp_path, text))


def test_a_header_that_ours_wrote_names_the_format_and_holds_the_triples(tmp_path: Path) -> None:
    triple = TimeTriple(unix_ns=3, mono_ns=2, boot_ns=1)
    write_samples(tmp_path / "s.csv", SampleSet(gpus=(), triples=(triple,)))
    first, second = (tmp_path / "s.csv").read_text().splitlines()
    assert first.startswith("# chopperd-samples/1 {")
    assert json.loads(first.split(" ", 2)[2])["triples"] == [[3, 2, 1]]
    assert second == "t_unix_ns,gpu,sm_clock_mhz"


def test_a_bare_csv_is_read_with_unknown_causes_and_no_reference(tmp_path: Path) -> None:
    text = "t_unix_ns,gpu,sm_clock_mhz\r\n20,0,1900\r\n10,1,1500\r\n"
    zero, one = read_samples(written(tmp_path, text)).gpus
    assert (zero.gpu.gpu, one.gpu.gpu) == ("0", "1")
    assert zero.causes.tolist() == [Cause.UNKNOWN.bit]
    assert zero.gpu.sm_clock_max_mhz is None
    assert one.sm_clock_mhz.tolist() == [1500.0]


def test_of_rows_with_one_time_the_first_is_kept_and_labels_sort_by_number(tmp_path: Path) -> None:
    rows = ["5,10,1", "5,2,7", "5,2,8", "4,2,9"]
    path = written(tmp_path, "\n".join(["t_unix_ns,gpu,sm_clock_mhz", *rows, ""]))
    two, ten = read_samples(path).gpus
    assert (two.gpu.gpu, ten.gpu.gpu) == ("2", "10")
    assert two.t_unix_ns.tolist() == [4, 5]
    assert two.sm_clock_mhz.tolist() == [9.0, 7.0]


def test_compression_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    data = gzip.compress(b"t_unix_ns,gpu,sm_clock_mhz\n1,0,5\n")
    assert len(read_samples(written(tmp_path, data)).gpus[0]) == 1
    with pytest.raises(StoreError, match="cut off or damaged"):
        read_samples(written(tmp_path, data[:-12]))


def test_amd_smi_output_is_told_by_content(tmp_path: Path) -> None:
    prompt = "'CTRL' + 'C' to stop watching output:\n"
    text = f"{prompt}timestamp,gpu,socket_power,gfx_0_clk\n1772939616,0,350,1980\n"
    (gpu,) = read_samples(written(tmp_path, text)).gpus
    assert (gpu.gpu.vendor, gpu.sm_clock_mhz.tolist()) == (Vendor.AMD, [1980.0])


def test_nvidia_smi_output_is_told_by_content(tmp_path: Path) -> None:
    text = "timestamp, clocks.current.sm [MHz]\n2026/11/27 22:21:02.123, 1980 MHz\n"
    samples = read_samples(written(tmp_path, text))
    assert samples.backend == "nvidia-smi"
    assert samples.gpus[0].sm_clock_mhz.tolist() == [1980.0]


HEAD = "t_unix_ns,gpu,sm_clock_mhz,cause\n1,0,5,\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("hello\nworld\n", "line 1: no column t_unix_ns"),
        ("t_unix_ns,gpu,sm_clock_mhz,gpu\n", "line 1: a column is named twice"),
        (HEAD + "x,0,5,\n", "line 3: t_unix_ns 'x' can't be read"),
        (HEAD + "\n1.5,0,5,\n", "line 4: t_unix_ns '1.5' can't be read"),
        (HEAD + "99999999999999999999,0,5,\n", "line 3: t_unix_ns '9+' does not fit"),
        (HEAD + "2,0,fast,\n", "line 3: sm_clock_mhz 'fast' can't be read"),
        (HEAD + "2,0,inf,\n", "line 3: sm_clock_mhz 'inf' is not finite"),
        (HEAD + "2,0,5,gremlins\n", "line 3: cause 'gremlins' can't be read"),
        (HEAD + "2,0,5,unexplained\n", "line 3: cause 'unexplained' can't be read"),
        (HEAD + "2,0,5\n", "line 3: 3 cells where 4 are named"),
        ("# chopperd-samples/2 {}\n" + HEAD, "sample format '2' is not '1'"),
        ("# chopperd-samples/1 {\n" + HEAD, "line 1: "),
        ('# chopperd-samples/1 {"gpus": [{}]}\n' + HEAD, "line 1: .*index"),
        ('# chopperd-samples/1 {"gpus": [{"index": 0}, {"index": 0}]}\n' + HEAD, "named twice"),
        ("# chopperd-samples/1 {}\n", "line 2: no column"),
        (b"\xff\xfe\x00", "not text"),
    ],
)
def test_what_is_no_sample_file_is_refused_in_one_line(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(StoreError, match=said) as caught:
        read_samples(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(StoreError, match="can't be read: "):
            read_samples(path)


def test_a_file_that_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't be written"):
        write_samples(tmp_path / "no" / "s.csv", SampleSet(gpus=()))
    (tmp_path / "taken").mkdir()
    with pytest.raises(StoreError, match="can't be written"):
        write_samples(tmp_path / "taken", SampleSet(gpus=()))
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_quoted_cells_are_read(tmp_path: Path) -> None:
    text = '"t_unix_ns","gpu","sm_clock_mhz"\n"1","0","5"\n'
    assert read_samples(written(tmp_path, text)).gpus[0].sm_clock_mhz.tolist() == [5.0]


@pytest.mark.corpus
@pytest.mark.parametrize("case", ["08-base-time-anchor", "40-gpu-lags-cpu-step"])
def test_the_sample_files_of_the_cases_are_read(shared: Path, case: str) -> None:
    (gpu,) = read_samples(shared / "cases" / case / "samples.csv").gpus
    expected = {
        "08-base-time-anchor": [1980, 1700, 345],
        "40-gpu-lags-cpu-step": [1900, 1500, 1980],
    }
    assert gpu.sm_clock_mhz.tolist() == expected[case]


def recorded(*rows: str, uuid: object = "GPU-a", node: object = "n", **header: object) -> str:
    said = {"gpus": [{"index": 0, "uuid": uuid}], "node": node, **header}
    return "\n".join([f"# chopperd-samples/1 {json.dumps(said)}", *rows, ""])


def test_a_second_first_line_begins_a_second_recording(tmp_path: Path) -> None:
    """As `record >> log` twice leaves it: other columns, another rate, and triples of each."""
    triples: dict[str, object] = {"triples": [(5, 5, 5)]}
    first = recorded("t_unix_ns,gpu,sm_clock_mhz", "10,0,1500", hz=10, **triples)
    second = recorded("t_unix_ns,gpu,power_w,sm_clock_mhz", "30,0,600,1600", hz=20, **triples)
    samples = read_samples(written(tmp_path, first + second))
    (gpu,) = samples.gpus
    assert gpu.t_unix_ns.tolist() == [10, 30]
    assert gpu.sm_clock_mhz.tolist() == [1500.0, 1600.0]
    assert np.isnan(gpu.power_w).tolist() == [True, False]
    assert (samples.asked_hz, samples.node, samples.triples) == (None, "n", ())


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"uuid": "GPU-b"}, "recording 2 in it is of other GPUs .GPU 0 is GPU-b, before GPU-a"),
        ({"node": "m"}, "of several nodes: keep each in a file of its own"),
    ],
)
def test_recordings_of_other_gpus_or_nodes_are_not_one(
    other: dict[str, str], says: str, tmp_path: Path
) -> None:
    rows = ("t_unix_ns,gpu,sm_clock_mhz", "10,0,1500")
    with pytest.raises(StoreError, match=says):
        read_samples(written(tmp_path, recorded(*rows) + recorded(*rows, **other)))


def test_an_error_in_a_second_recording_names_the_line_of_the_file(tmp_path: Path) -> None:
    rows = ("t_unix_ns,gpu,sm_clock_mhz", "10,0,1500")
    with pytest.raises(StoreError, match="line 6: sm_clock_mhz 'x' can't be read"):
        read_samples(written(tmp_path, recorded(*rows) + recorded(rows[0], "20,0,x")))
