import json

from chopperd.model.causes import Cause
from chopperd.model.devices import DeviceReading, GpuInfo, Vendor
from chopperd.model.inventory import Inventory, InventoryEntry
from chopperd.report.inventory import encode_inventory, render_inventory
from chopperd.report.text import page_text


def gpu(label: str, power_limit_w: float | None = 700.0) -> GpuInfo:
    return GpuInfo(
        gpu=label,
        index=int(label),
        uuid=f"GPU-{label}",
        name="NVIDIA H100 80GB HBM3",
        vendor=Vendor.NVIDIA,
        sm_clock_max_mhz=1980.0,
        power_limit_w=power_limit_w,
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
    assert cells(text, "limited_ns") == ["answers", "-", "-"]
    assert cells(text, "energy_j") == ["-", "-", "-"]
    assert text.endswith("GPU 2: GPU is lost\n")


def test_a_gpu_is_listed_with_its_limits_and_what_is_unknown_of_them() -> None:
    text = page_text(render_inventory(INVENTORY))
    assert text.startswith("GPUS  nvml, driver 560.35.03\n")
    assert cells(text, "0 ")[-4:] == ["GPU-0", "1980", "-", "700"]
    assert cells(text, "1 ")[-4:] == ["GPU-1", "1980", "-", "-"]


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
