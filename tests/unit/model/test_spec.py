"""Stated peaks against what units, rates per cycle and clocks give; names against real ones."""

import pytest

from chopperd.model.devices import B200, MI250X, SPECS, GpuSpec, peak_of, spec_of
from chopperd.model.kinds import DType

STATED = [
    pytest.param(spec, dtype, id=f"{spec.product} {dtype.label}")
    for spec in {id(spec): spec for _, spec in SPECS}.values()
    for dtype, peak in spec.peaks.items()
    if peak.sm_clock_mhz is not None
]


@pytest.mark.parametrize(("spec", "dtype"), STATED)
def test_a_stated_peak_is_units_times_rate_times_clock(spec: GpuSpec, dtype: DType) -> None:
    peak = spec.peaks[dtype]
    assert peak.sm_clock_mhz is not None
    product = spec.units * peak.flops_per_cycle * peak.sm_clock_mhz * 1e6
    # Documents give three digits and more: 19.5 is anything from 19.45 to 19.55.
    assert product == pytest.approx(peak.flops_per_s, rel=0.003)


def test_all_rates_of_the_one_without_a_clock_give_the_same_one() -> None:
    clocks_hz = {
        peak.flops_per_s / (B200.units * peak.flops_per_cycle) for peak in B200.peaks.values()
    }
    assert max(clocks_hz) == pytest.approx(min(clocks_hz))
    assert max(clocks_hz) == pytest.approx(1.856e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "product", "bf16_tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", 312.0),
        ("A100-SXM4-40GB", "A100", 312.0),
        ("NVIDIA A100-PCIE-40GB", "A100", 312.0),
        ("NVIDIA A100 80GB PCIe", "A100", 312.0),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5", 989.4),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756.0),
        ("NVIDIA H200", "H200 SXM", 989.4),
        ("NVIDIA B200", "B200", 2250.0),
        ("AMD Instinct MI210", "MI210", 181.0),
        ("AMD Instinct MI250X", "MI250X, one die", 191.5),
        ("AMD Instinct MI300X", "MI300X", 1307.4),
        ("AMD Instinct MI300X VF", "MI300X", 1307.4),
        ("AMD Instinct MI325X", "MI325X", 1307.4),
    ],
)
def test_a_products_name_finds_its_peak(name: str, product: str, bf16_tflops: float) -> None:
    spec, reason = spec_of(name, units=None, is_part=False)
    assert spec is not None
    assert (spec.product, reason) == (product, "")
    assert spec.peaks[DType.BF16].flops_per_s == pytest.approx(bf16_tflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-PG509-200",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GB200",
        "Tesla V100-SXM2-32GB",
        "AMD Radeon Graphics",
        "AMD Instinct MI300A",
        "AMD Instinct MI250X / MI250",
    ],
)
def test_another_product_has_no_peak(name: str) -> None:
    spec, reason = spec_of(name, units=None, is_part=False)
    assert spec is None
    assert name in reason


def test_a_part_of_a_gpu_has_no_peak() -> None:
    partition, _ = spec_of("AMD Instinct MI300X", units=None, is_part=True)
    mig, _ = spec_of("NVIDIA A100-SXM4-80GB MIG 1g.10gb", units=None, is_part=False)
    few, reason = spec_of("AMD Instinct MI300X", units=38, is_part=False)
    assert (partition, mig, few) == (None, None, None)
    assert "38 of the 304 units" in reason


def test_without_a_name_there_is_no_peak() -> None:
    assert spec_of(None, units=304, is_part=False)[0] is None


def test_thirty_two_bits_are_fp32_where_there_is_no_tf32() -> None:
    assert peak_of(MI250X, DType.FLOAT) is MI250X.peaks[DType.FP32]
    assert peak_of(B200, DType.FLOAT) is None
