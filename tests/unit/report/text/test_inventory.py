import json

from msgspec.structs import replace

from chopperd.model.devices import (
    DeviceReading,
    FieldProbe,
    GpuInfo,
    Inventory,
    InventoryEntry,
    Vendor,
)
from chopperd.model.kinds import Cause
from chopperd.report.text.inventory import encode_inventory, render_inventory
from chopperd.report.text.page import page_text


def gpu(label: str, power_limit_w: float | None = 700.0) -> GpuInfo:
    return GpuInfo(
        gpu=label,
        index=int(label),
        uuid=f"GPU-{label}",
        name="NVIDIA H100 80GB HBM3",
        vendor=Vendor.NVIDIA,
        sm_clock_max_mhz=1980.0,
        power_limit_w=power_limit_w,
        power_limit_default_w=500.0,
    )


READING = DeviceReading(
    sm_clock_mhz=1410.0,
    power_w=99.5,
    causes=frozenset({Cause.THERMAL, Cause.POWER_CAP}),
    limited_ns={Cause.POWER_CAP: 7},
)
INVENTORY = Inventory(
    backend="nvml",
    driver="560.35.03",
    simulated=False,
    gpus=(
        InventoryEntry(info=gpu("0"), reading=READING),
        InventoryEntry(info=gpu("1", None), reading=DeviceReading(causes=frozenset())),
        InventoryEntry(info=gpu("2"), error="GPU is lost"),
    ),
)


def cells(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.split()[1:]


def test_every_field_shows_its_answer_or_a_dash_for_each_gpu() -> None:
    text = page_text(render_inventory(INVENTORY))
    assert cells(text, "sm_clock_mhz") == ["1410", "-", "-"]
    assert cells(text, "power_w") == ["99.50", "-", "-"]
    assert cells(text, "causes") == ["power_cap+thermal", "none", "set", "-"]
    assert cells(text, "limited_ns.power_cap") == ["<0.001", "s", "-", "-"]
    assert cells(text, "energy_j") == ["-", "-", "-"]
    assert text.endswith("GPU 2: GPU is lost\n")


def test_the_dies_of_a_gpu_stand_in_one_line_and_only_where_there_are_several() -> None:
    dies = DeviceReading(die_clocks_mhz=(2100.0, 0.0, None, 1950.5))
    entry = InventoryEntry(info=gpu("0"), reading=dies)
    text = page_text(render_inventory(replace(INVENTORY, gpus=(entry,))))
    assert cells(text, "die_clocks_mhz") == ["2100", "0", "-", "1950.5"]
    assert "die_clocks_mhz" not in page_text(render_inventory(INVENTORY))


def test_a_gpu_is_listed_with_its_limits_and_what_is_unknown_of_them() -> None:
    text = page_text(render_inventory(INVENTORY))
    assert text.startswith("GPUS  nvml, driver 560.35.03\n")
    assert cells(text, "0 ")[-4:] == ["GPU-0", "1980", "700", "500"]
    assert cells(text, "1 ")[-4:] == ["GPU-1", "1980", "-", "500"]


def test_simulated_gpus_are_marked() -> None:
    simulated = Inventory(backend="simulated", driver=None, simulated=True, gpus=INVENTORY.gpus)
    assert page_text(render_inventory(simulated)).splitlines()[0].endswith("  SIMULATED")
    assert json.loads(encode_inventory(simulated))["simulated"] is True


def test_in_json_causes_have_their_names_and_unknown_is_null() -> None:
    first, second, third = json.loads(encode_inventory(INVENTORY))["gpus"]
    assert first["reading"]["causes"] == ["power_cap", "thermal"]
    assert first["reading"]["limited_ns"] == {"power_cap": 7}
    assert second["reading"]["causes"] == []
    assert second["info"]["power_limit_w"] is None
    assert third["reading"] is None
    assert third["error"] == "GPU is lost"


def test_eight_gpus_fit_the_page() -> None:
    eight = tuple(InventoryEntry(info=gpu(str(i)), reading=READING) for i in range(8))
    text = page_text(render_inventory(Inventory(
        backend="nvml", driver=None, simulated=False, gpus=eight,
    )))  # fmt: skip
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert text.count("sm_clock_mhz") == 2


CLOCK = FieldProbe(
    operation="nvmlDeviceGetClockInfo[SM]",
    feeds="sm_clock_mhz",
    used=True,
    value=1410.0,
    unit="MHz",
    calls_count=100,
    call_p50_ns=12_340,
    call_p99_ns=98_700,
)
MODULE_POWER = FieldProbe(
    operation="nvmlDeviceGetFieldValues[186]", feeds="power_w", error="Not Supported", error_code=3
)
USAGE = replace(CLOCK, operation="nvmlDeviceGetPowerUsage", feeds="power_w", source="average_1s")
ENERGY = replace(MODULE_POWER, operation="nvmlDeviceGetTotalEnergyConsumption", feeds="energy_j")
PROBED = InventoryEntry(
    info=replace(gpu("0"), power_source="average_1s"),
    reading=READING,
    probes=(CLOCK, MODULE_POWER, USAGE, ENERGY),
    buffered_period_ns={"power_w": 20_000_000},
    nvidia_smi={"sm_clock_mhz": 1755.0, "power_average_w": 101.2, "power_limit_default_w": 500.0},
)


def rendered(*entries: InventoryEntry) -> str:
    return page_text(render_inventory(replace(INVENTORY, gpus=entries)))


def test_a_probed_field_shows_call_times_and_nvidia_smi_s_number_beside_ours() -> None:
    """1410 against 1755 MHz is further apart than a tenth; 99.5 against 101.2 W is not."""
    text = rendered(PROBED)
    assert cells(text, "sm_clock_mhz") == (["1410", "1755", "!", "12.3/98.7", "GetClockInfo[SM]"])
    power = cells(text, "power_w")
    assert power[:5] == ["99.50", "101", "12.3/98.7", "GetPowerUsage", "(average_1s),"]
    assert "kept every 20.0 ms" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_a_call_that_does_not_answer_says_why() -> None:
    """The last column breaks its lines."""
    text = " ".join(rendered(PROBED).split())
    assert "energy_j - - - GetTotalEnergyConsumption: Not Supported temperature_c" in text
    assert "kept every 20.0 ms - GetFieldValues[186]: Not Supported energy_j" in text


def test_a_counter_that_was_asked_for_in_vain_has_its_row() -> None:
    asked = replace(MODULE_POWER, operation="nvmlX[269]", feeds="limited_ns.thermal")
    text = rendered(replace(PROBED, probes=(*PROBED.probes, asked)))
    assert cells(text, "limited_ns.thermal") == ["-", "-", "-", "X[269]:", "Not", "Supported"]


def test_calls_for_no_field_are_listed_last() -> None:
    unused = replace(CLOCK, operation="nvmlDeviceGetSamples[power_w]", feeds=None, used=False)
    lines = rendered(replace(PROBED, probes=(*PROBED.probes, unused))).splitlines()
    (place,) = [place for place, line in enumerate(lines) if "GetSamples" in line]
    assert lines[place].split() == ["12.3/98.7", "*", "GetSamples[power_w]"]
    assert lines[place - 1].startswith("temperature_memory_max_c")


def test_a_partition_stands_below_its_card() -> None:
    part = InventoryEntry(
        info=replace(gpu("1"), gpu="0.1", uuid="MIG-1", parent="0"), reading=READING
    )
    text = rendered(part, replace(PROBED, info=gpu("1")), PROBED)
    labels = [line.split()[0] for line in text.splitlines() if "H100" in line]
    assert labels == ["1", "0", "0.1"]
    assert "  0.1" in text
    assert "GPU 0.1  part of GPU 0, with its clock" in text


def test_in_json_each_field_has_value_unit_source_and_reason() -> None:
    (found,) = json.loads(encode_inventory(replace(INVENTORY, gpus=(PROBED,))))["gpus"]
    by_name = {each["name"]: each for each in found["fields"]}
    assert by_name["sm_clock_mhz"] == {
        "name": "sm_clock_mhz",
        "value": 1410.0,
        "unit": "mhz",
        "source": "nvmlDeviceGetClockInfo[SM]",
        "reason": None,
        "nvidia_smi": 1755.0,
        "differs": True,
        "call_p50_ns": 12_340,
        "call_p99_ns": 98_700,
        "buffered_period_ns": None,
    }
    assert by_name["energy_j"]["value"] is None
    assert by_name["energy_j"]["reason"] == "nvmlDeviceGetTotalEnergyConsumption: Not Supported"
    assert by_name["power_w"]["differs"] is False
    assert by_name["power_limit_default_w"]["differs"] is False
    assert by_name["temperature_c"]["differs"] is None
    assert (
        by_name["limited_ns.power_cap"] | {"value": 7, "unit": "ns"}
        == (by_name["limited_ns.power_cap"])
    )
    assert [call["operation"] for call in found["calls"]] == [
        probe.operation for probe in PROBED.probes
    ]
