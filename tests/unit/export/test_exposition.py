"""What is scraped: nothing unknown as 0, nothing stale; a fault costs its metric only."""

from collections import Counter
from collections.abc import Callable, Iterator
from math import inf, isfinite, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from chopperd.export.metric import Kind, Label, Metric, Profile, Source, View, metric
from chopperd.export.rendering import CATALOGUE, MetricsText, TextFormat, text_format
from chopperd.export.rendering import families as snapshot_families
from chopperd.model.devices import DeviceReading, GpuInfo, Vendor
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.live import (
    AnalysisLive,
    DiesLive,
    DropTotals,
    GpuLive,
    LiveTotals,
    NodeSnapshot,
    StoreLive,
)
from chopperd.units import NS_PER_S
from tests.exposition import OPENMETRICS, families, rendered, series, values_of
from tests.fakes.clock import ScriptedClock
from tests.fakes.snapshots import (
    TAKEN_MONO_NS,
    OneSnapshot,
    full_snapshot,
    gpu_info,
    gpu_live,
    with_gpu,
)

EMPTY_GPU = replace(
    gpu_live(0),
    info=GpuInfo(gpu="0", index=0, uuid="u", name="n", vendor=Vendor.AMD),
    last_sample_unix_ns=None,
    reading=DeviceReading(),
    totals=None,
    excess_s=None,
    residency_s={},
    drops=None,
    dies=None,
)
#: The library's writers, which are not typed.
_PLAIN: Callable[[CollectorRegistry], bytes] = generate_latest
_OPENMETRICS: Callable[[CollectorRegistry], bytes] = generate_openmetrics
BOTH_FORMATS = pytest.mark.parametrize("accept", [None, OPENMETRICS])


def node_of(*gpus: GpuLive) -> NodeSnapshot:
    return replace(full_snapshot(0), gpus=gpus, backend_up=any(gpu.up for gpu in gpus))


@BOTH_FORMATS
def test_a_node_without_gpus_says_that_its_back_end_is_down(accept: str | None) -> None:
    snapshot = replace(full_snapshot(0), backend="auto", backend_up=False)
    text = rendered(snapshot, accept=accept)
    assert values_of(text, "chopperd_agent_backend_up", "backend") == {"auto": 0.0}
    assert not [name for name, _ in series(text) if name.startswith("chopperd_gpu")]


def test_what_is_not_known_has_no_series() -> None:
    text = rendered(node_of(EMPTY_GPU))
    of_gpu = {name for name, labels in series(text) if ("gpu", "0") in labels}
    of_its_sampling = {"chopperd_agent_kept_rate_hertz", "chopperd_agent_pace"}
    assert of_gpu == {"chopperd_gpu_up", "chopperd_gpu_info"} | of_its_sampling


@pytest.mark.parametrize(
    ("spread_mhz", "found"), [(12.5, {"0": 12.5e6}), (0.0, {"0": 0}), (None, {})]
)
def test_dies_have_a_spread_where_several_run(
    spread_mhz: float | None, found: dict[str, float]
) -> None:
    dies = DiesLive(clocks_mhz=(2000.0, 0.0), running=1, gated=1, spread_mhz=spread_mhz)
    text = rendered(node_of(replace(gpu_live(), dies=dies)), Profile.FULL)
    assert values_of(text, "chopperd_gpu_xcd_clock_spread_hertz", "gpu") == found


def test_what_is_zero_is_exported_as_zero() -> None:
    reading = DeviceReading(sm_clock_mhz=0.0, power_w=0.0, memory_used_bytes=0, activity_ratio=0.0)
    text = rendered(node_of(replace(EMPTY_GPU, reading=reading, excess_s=0.0, drops=DropTotals())))
    for name in (
        "sm_clock_hertz",
        "power_watts",
        "memory_used_bytes",
        "activity_ratio",
        "excess_live_seconds_total",
        "clock_drops_total",
        "clock_drop_seconds_total",
        "clock_drop_lost_seconds_total",
    ):
        assert values_of(text, f"chopperd_gpu_{name}") == {"0": 0.0}


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_no_number_has_no_series(value: float) -> None:
    gpu = replace(EMPTY_GPU, reading=DeviceReading(power_w=value), excess_s=value)
    text = rendered(node_of(gpu))
    assert values_of(text, "chopperd_gpu_power_watts") == {}
    assert values_of(text, "chopperd_gpu_excess_live_seconds_total") == {}


@BOTH_FORMATS
def test_case_39_a_gpu_that_goes_away_takes_all_its_series_but_one(accept: str | None) -> None:
    snapshot = full_snapshot(2)
    gone = with_gpu(snapshot, 1, replace(snapshot.gpus[1], up=False, reading=DeviceReading()))
    text = rendered(gone, accept=accept)
    assert {name for name, labels in series(text) if ("gpu", "1") in labels} == {"chopperd_gpu_up"}
    assert values_of(text, "chopperd_gpu_up") == {"0": 1.0, "1": 0.0}
    assert {name for name, labels in series(text) if ("gpu", "0") in labels} == {
        name for name, labels in series(rendered(snapshot, accept=accept)) if ("gpu", "0") in labels
    }


def test_a_call_that_hangs_is_named_though_its_gpu_is_down() -> None:
    text = rendered(full_snapshot(2, hung=True))
    assert values_of(text, "chopperd_agent_driver_call_hung_seconds") == {"1": 12.5}
    assert values_of(text, "chopperd_gpu_up")["1"] == 0.0


@BOTH_FORMATS
def test_case_39_equal_gpus_differ_by_their_label(accept: str | None) -> None:
    twin = replace(gpu_live(0), info=replace(gpu_info(0), gpu="1", index=1, uuid="", pci_bus_id=""))
    text = rendered(node_of(gpu_live(0), twin), accept=accept)
    assert values_of(text, "chopperd_gpu_sm_clock_hertz") == {"0": 1.5e9, "1": 1.5e9}


def test_case_39_no_label_changes_with_a_reading() -> None:
    snapshot = full_snapshot(1)
    gpu = snapshot.gpus[0]
    later = replace(
        gpu,
        reading=DeviceReading(sm_clock_mhz=300.0, power_w=90.0, temperature_c=35.0),
        ticks_count=99_999,
    )
    now = set(series(rendered(snapshot)))
    assert set(series(rendered(with_gpu(snapshot, 0, later)))) <= now


def test_two_gpus_under_one_label_are_counted_and_only_one_is_shown() -> None:
    snapshot = replace(node_of(gpu_live(0), gpu_live(0)), traced={})
    text = rendered(snapshot)
    assert values_of(text, "chopperd_gpu_sm_clock_hertz") == {"0": 1.5e9}
    assert values_of(text, "chopperd_agent_render_errors_total")[""] > 0


def test_a_value_outside_its_set_makes_no_series_and_is_counted() -> None:
    analysis = AnalysisLive(outcomes={"analysed": 2, "trace-0815": 1})
    text = rendered(replace(full_snapshot(1), analysis=analysis))
    assert values_of(text, "chopperd_agent_traces_total", "outcome") == {
        **dict.fromkeys(("duplicate", "rejected", "failed", "killed", "spooled"), 0.0),
        "analysed": 2.0,
    }
    assert values_of(text, "chopperd_agent_render_errors_total") == {"": 1.0}


@pytest.mark.parametrize("name", ["chopperd_gpu_up", "chopperd_gpu_info"])
def test_a_fault_in_one_metric_costs_that_metric_only(name: str) -> None:
    def broken(_view: View) -> list[tuple[tuple[str, ...], float]]:
        raise RuntimeError("no such attribute")

    metrics = [replace(row, read=broken) if row.name == name else row for row in CATALOGUE[:-2]]
    faults: Counter[str] = Counter()
    found = {
        row.name: value
        for row, points in snapshot_families(full_snapshot(2), metrics, CATALOGUE[-2:], faults)
        for _, value in points
    }
    whole = {found for found, _ in series(rendered(full_snapshot(2)))}
    assert set(found) == whole - {name}
    assert found["chopperd_agent_render_errors_total"] == faults.total() == 1.0


def test_a_label_that_can_not_be_written_costs_its_metric_only() -> None:
    gpu = replace(gpu_live(0), info=replace(gpu_info(0), name="H100\udcff"))
    text = rendered(node_of(gpu))
    assert values_of(text, "chopperd_gpu_info") == {}
    assert values_of(text, "chopperd_gpu_power_watts") == {"0": 640.5}


def test_a_power_limit_that_is_not_known_now_is_not_that_of_the_start() -> None:
    gpu = gpu_live(0)
    gpu = replace(gpu, reading=replace(gpu.reading, power_limit_w=None))
    assert values_of(rendered(node_of(gpu)), "chopperd_gpu_power_limit_watts") == {}


@pytest.mark.parametrize(
    ("store", "shown"),
    [(StoreLive(), 0), (StoreLive(trouble="disk full"), 1), (StoreLive(set_aside="3 lost"), 1)],
)
def test_rows_lost_with_a_damaged_store_are_trouble(store: StoreLive, shown: int) -> None:
    text = rendered(replace(full_snapshot(), store=store))
    assert values_of(text, "chopperd_agent_trouble", "part")["store"] == shown


def test_units_are_base_units() -> None:
    """Every figure of GPU 3 by hand: MHz to Hz, the rest as it is."""
    text = rendered(full_snapshot(8))
    expected = {
        "gpu_up": 1.0,
        "gpu_sm_clock_hertz": 1_503_000_000.0,
        "gpu_sm_clock_reference_hertz": 1_980_000_000.0,
        "gpu_sm_cycles_total": 1.5e12 + 3,
        "gpu_sampled_seconds_total": 1000.0,
        "gpu_busy_seconds_total": 900.0,
        "gpu_busy_sm_cycles_total": 1.3e12,
        "gpu_busy_sampled_seconds_total": 890.0,
        "gpu_excess_live_seconds_total": 2.5,
        "gpu_mem_clock_hertz": 2_619_000_000.0,
        "gpu_power_watts": 640.5,
        "gpu_power_limit_watts": 600.0,
        "gpu_power_limit_default_watts": 700.0,
        "gpu_energy_joules_total": 600_000.0,
        "gpu_temperature_slowdown_celsius": 95.0,
        "gpu_memory_reserved_bytes": 1_073_741_824.0,
        "gpu_memory_used_bytes": 75_161_927_680.0,
        "gpu_memory_size_bytes": 85_899_345_920.0,
        "gpu_activity_ratio": 0.97,
        "gpu_last_sample_timestamp_seconds": 1_799_999_999.95,
        "agent_kept_rate_hertz": 10.0,
        "traced_last_capture_timestamp_seconds": 1_799_999_940.0,
        "traced_memory_allocated_peak_bytes": 32_212_254_720.0,
        "traced_memory_reserved_peak_bytes": 42_949_672_960.0,
        "traced_memory_reserved_variation_ratio": 0.0,
        "traced_memory_steps_total": 8.0,
        "traced_memory_segment_calls_total": 24.0,
        "traced_memory_segment_seconds_total": 0.5,
        "traced_memory_retries_total": 2.0,
    }
    for name, value in expected.items():
        assert values_of(text, f"chopperd_{name}")["3"] == pytest.approx(value, rel=1e-12)
    assert values_of(text, "chopperd_gpu_temperature_celsius", "sensor") == {
        "gpu": 61.0,
        "memory": 70.0,
    }
    verdict = values_of(text, "chopperd_traced_determinism_verdict", "verdict")
    assert verdict == {"deterministic": 1.0}
    # Sums over the eight GPUs.
    assert values_of(text, "chopperd_agent_ticks_total") == {"": 80_000.0}
    assert values_of(text, "chopperd_agent_missed_ticks_total") == {"": 24.0}
    assert values_of(text, "chopperd_agent_errors_total", "fault") == {
        "read": 16.0,
        "lost": 8.0,
        "invalid": 40.0,
    }
    assert values_of(text, "chopperd_agent_driver_seconds_total", "call") == {
        "fast": 40.0,
        "full": 24.0,
        "rare": 2.0,
    }
    assert values_of(text, "chopperd_agent_step_time_bound_ratio", "bound") == {
        "low": 1.001,
        "high": 1.007,
    }
    residency = values_of(text, "chopperd_gpu_clock_residency_seconds_total", "bucket")
    assert residency == {**{f"{n / 10:.1f}": 100.0 for n in range(1, 11)}, "+Inf": 0.0}


numbers = st.none() | st.floats(allow_nan=True, allow_infinity=True)
counters = numbers.filter(lambda value: value is None or not value < 0)
counts = st.integers(0, 2**53)  # larger ones are rounded to a float
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def gpus(draw: st.DrawFn, index: int) -> GpuLive:
    return GpuLive(
        info=replace(
            gpu_info(index),
            uuid=draw(words),
            name=draw(words),
            sm_clock_max_mhz=draw(numbers),
            power_limit_w=draw(numbers),
        ),
        up=draw(st.booleans()),
        last_sample_unix_ns=draw(st.none() | counts),
        reading=DeviceReading(
            sm_clock_mhz=draw(numbers),
            power_w=draw(numbers),
            memory_used_bytes=draw(st.none() | counts),
        ),
        totals=LiveTotals(
            sm_cycles=draw(counters),
            lost_s=draw(st.dictionaries(st.sampled_from(CAUSES), st.floats(0, 1e9), max_size=4)),
        ),
        excess_s=draw(counters),
        residency_s={},
        ticks_count=draw(counts),
        missed_count=draw(counts),
        failed_count=draw(counts),
        lost_count=draw(counts),
        driver_s=1.0,
        asked_hz=10.0,
        kept_hz=10.0,
        hung=None,
    )


snapshots = st.integers(0, 3).flatmap(
    lambda count: st.tuples(*(gpus(index) for index in range(count))).map(
        lambda some: node_of(*some)
    )
)


def expected_values(snapshot: NodeSnapshot) -> dict[tuple[str, str], float]:
    """What must be there of some metrics, from the snapshot's own fields."""
    found: dict[tuple[str, str], float | None] = {}
    for gpu in snapshot.gpus:
        label = gpu.info.gpu
        found["chopperd_gpu_up", label] = float(gpu.up)
        if gpu.up and gpu.totals:
            clock, top = gpu.reading.sm_clock_mhz, gpu.info.sm_clock_max_mhz
            found["chopperd_gpu_sm_clock_hertz", label] = None if clock is None else clock * 1e6
            found["chopperd_gpu_sm_clock_reference_hertz", label] = (
                None if top is None else top * 1e6
            )
            found["chopperd_gpu_power_watts", label] = gpu.reading.power_w
            found["chopperd_gpu_memory_used_bytes", label] = gpu.reading.memory_used_bytes
            found["chopperd_gpu_sm_cycles_total", label] = gpu.totals.sm_cycles
            found["chopperd_gpu_excess_live_seconds_total", label] = gpu.excess_s
            lost_s = gpu.totals.lost_s.get(Cause.POWER_CAP)
            found["chopperd_gpu_dvfs_lost_live_seconds_total", label] = lost_s
    return {key: value for key, value in found.items() if value is not None and isfinite(value)}


@given(snapshot=snapshots, accept=st.sampled_from([None, OPENMETRICS]))
@settings(max_examples=25, deadline=None)
def test_any_snapshot_is_exported_with_its_own_values(
    snapshot: NodeSnapshot, accept: str | None
) -> None:
    found = series(rendered(snapshot, accept=accept))
    expected = expected_values(snapshot)
    names = {name for name, _ in expected} | {"chopperd_gpu_power_watts"}
    exported = {
        (name, dict(labels)["gpu"]): value
        for (name, labels), value in found.items()
        if name in names and dict(labels).get("cause") in {None, "power_cap"}
    }
    assert exported == expected
    infos = [dict(labels) for name, labels in found if name == "chopperd_gpu_info"]
    assert [(info["uuid"], info["name"]) for info in infos] == [
        (gpu.info.uuid, gpu.info.name) for gpu in snapshot.gpus if gpu.up
    ]


class Collected(Collector):
    """The families of a snapshot, for the client library to write."""

    def __init__(self, snapshot: NodeSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        found = snapshot_families(self._snapshot, CATALOGUE[:-2], CATALOGUE[-2:], Counter())
        for row, points in found:
            family = Family(row.family_name, row.documentation, row.kind.value, row.unit)
            for key, value in points:
                names = (label.name for label in row.labels)
                family.add_sample(row.name, dict(zip(names, key, strict=True)), value)
            yield family


@given(snapshot=snapshots)
@settings(max_examples=25, deadline=None)
def test_the_text_is_the_client_librarys_own(snapshot: NodeSnapshot) -> None:
    registry = CollectorRegistry()
    registry.register(Collected(snapshot))
    assert rendered(snapshot) == _PLAIN(registry).decode()
    assert rendered(snapshot, accept=OPENMETRICS) == _OPENMETRICS(registry).decode()


def test_openmetrics_has_units_and_info_and_nothing_created() -> None:
    text = rendered(full_snapshot(1), accept=OPENMETRICS)
    assert text.endswith("# EOF\n")
    assert "_created" not in text
    by_name = {family.name: family for family in families(text)}
    assert by_name["chopperd_gpu"].type == "info"
    assert by_name["chopperd_gpu_sm_cycles"].type == "counter"
    assert by_name["chopperd_gpu_sm_cycles"].unit == "cycles"
    assert {sample.name for sample in by_name["chopperd_gpu_sm_cycles"].samples} == {
        "chopperd_gpu_sm_cycles_total"
    }
    for row in CATALOGUE:
        if row.unit and row.family_name in by_name:
            assert by_name[row.family_name].unit == row.unit


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, TextFormat.PLAIN),
        ("", TextFormat.PLAIN),
        ("*/*", TextFormat.PLAIN),
        ("text/html,*/*;q=0.8", TextFormat.PLAIN),
        # Prometheus 2.42
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
            "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            TextFormat.OPENMETRICS,
        ),
        (
            "text/plain;version=0.0.4;q=0.9,application/openmetrics-text;version=1.0.0;q=0.5",
            TextFormat.PLAIN,
        ),
        ("application/openmetrics-text; version=2.0.0", TextFormat.PLAIN),
        ("application/openmetrics-text;q=0", TextFormat.PLAIN),
        ("application/openmetrics-text;q=much", TextFormat.PLAIN),
        ("application/openmetrics-text", TextFormat.OPENMETRICS),
        (";;;,,=,q=1", TextFormat.PLAIN),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str | None, wanted: TextFormat) -> None:
    assert text_format(accept) is wanted


def test_the_text_is_made_once_for_a_snapshot_and_format() -> None:
    source, clock = OneSnapshot(full_snapshot(1)), ScriptedClock(mono_ns=TAKEN_MONO_NS)
    metrics = MetricsText(source, Profile.STANDARD, clock)
    first = metrics.exposition()
    assert metrics.exposition() is first
    other = metrics.exposition(OPENMETRICS)
    assert other[1] != first[1]
    assert metrics.exposition() is first
    source.snapshot = full_snapshot(2)
    assert values_of(metrics.exposition()[0].decode(), "chopperd_gpu_up") == {"0": 1.0, "1": 1.0}


def test_a_snapshot_that_has_grown_old_shows_no_gpu_up() -> None:
    source, clock = OneSnapshot(full_snapshot(2)), ScriptedClock(mono_ns=TAKEN_MONO_NS)
    metrics = MetricsText(source, Profile.STANDARD, clock)
    clock.advance(5 * NS_PER_S)
    assert values_of(metrics.exposition()[0].decode(), "chopperd_gpu_up") == {"0": 1.0, "1": 1.0}
    clock.advance(1)
    text = metrics.exposition()[0].decode()
    assert values_of(text, "chopperd_gpu_up") == {"0": 0.0, "1": 0.0}
    assert values_of(text, "chopperd_gpu_sm_cycles_total") == {}
    assert values_of(text, "chopperd_agent_backend_up", "backend") == {"nvml": 0.0}
    assert values_of(text, "chopperd_agent_ticks_total") == {"": 20_000.0}


def test_a_row_of_the_catalogue_is_told_by_its_name() -> None:
    made: Metric = metric(
        Profile.FULL, "gpu_x_total", "X", Source(lambda _view: [], (Label("gpu"),))
    )
    assert (made.name, made.kind, made.family_name) == (
        "chopperd_gpu_x_total",
        Kind.COUNTER,
        "chopperd_gpu_x",
    )
