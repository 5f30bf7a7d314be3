"""GPU specifications that vendors state: dense peak rates by element type, and their clocks.

Facts of public documents only. A product that is not here has no spec, and so has a part of one
(MIG, partitions): its peak is not the whole's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_TERA: Final = 1e12

_A100: Final = "NVIDIA A100 Tensor Core GPU Architecture, whitepaper (2020)"
_H100: Final = "NVIDIA H100 Tensor Core GPU Architecture, whitepaper (2023), tables 2 and 3"
_H200: Final = (
    "NVIDIA H200 Tensor Core GPU, data sheet (2024); clocks of H100 SXM5, of the same rates"
)
_B200: Final = "NVIDIA HGX B200, data sheet (2025), an eighth of the board, without sparsity"
_MI210: Final = "AMD Instinct MI210 Accelerator, data sheet (2022)"
_MI250X: Final = "AMD Instinct MI250X Accelerator, data sheet (2021), half of the card"
_MI300X: Final = "AMD Instinct MI300X Accelerator, data sheet (2023), without sparsity"
_MI325X: Final = "AMD Instinct MI325X Accelerator, data sheet (2024), without sparsity"


class DType(IntEnum):
    """Element type that a matrix kernel multiplies; the value is its code in an int8 column.

    `FLOAT` is 32 bits wide and either of FP32 and TF32, which inputs have in common.
    """

    NONE = -1
    FP64 = 0
    FP32 = 1
    TF32 = 2
    FLOAT = 3
    FP16 = 4
    BF16 = 5
    FP8 = 6
    INT8 = 7
    FP4 = 8

    @property
    def label(self) -> str:
        """Return the published name: "fp32_or_tf32" for `FLOAT`, else the name in lower case."""
        return "fp32_or_tf32" if self is DType.FLOAT else self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A vendor's stated dense peak rate of matrix kernels."""

    flops_per_s: float  # the rate as stated
    flops_per_cycle: int  # of one SM or CU
    sm_clock_mhz: float | None  # the clock that the rate is stated at; None where no document says


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A vendor's statements about a product."""

    product: str  # what is meant by it
    units: int  # SMs or CUs of what the driver calls one GPU
    peaks: Mapping[DType, Peak]  # by element type
    source: str  # the document


def _peaks(
    sm_clock_mhz: float | None, *stated: tuple[float, int, tuple[DType, ...]]
) -> dict[DType, Peak]:
    """Return the peaks at one clock by element type.

    Each of `stated` is TFLOP/s, FLOP per cycle of a unit, and the types with that peak.
    """
    return {
        dtype: Peak(flops_per_s=tera * _TERA, flops_per_cycle=each, sm_clock_mhz=sm_clock_mhz)
        for tera, each, dtypes in stated
        for dtype in dtypes
    }


_SINGLE_DOUBLE: Final = (DType.FP64, DType.FP32)
_HALF: Final = (DType.FP16, DType.BF16)
_BYTE: Final = (DType.FP8, DType.INT8)
_TF32: Final = (DType.TF32,)

_A100_PEAKS: Final = _peaks(
    1410.0,
    (19.5, 128, _SINGLE_DOUBLE),
    (156.0, 1024, _TF32),
    (312.0, 2048, _HALF),
    (624.0, 4096, (DType.INT8,)),
)
#: Matrix rates of the low precisions are stated at a lower clock than the others.
_H100_SXM_PEAKS: Final = _peaks(1980.0, (66.9, 256, _SINGLE_DOUBLE)) | _peaks(
    1830.0, (494.7, 2048, _TF32), (989.4, 4096, _HALF), (1978.9, 8192, _BYTE)
)
_H100_PCIE_PEAKS: Final = _peaks(1755.0, (51.2, 256, _SINGLE_DOUBLE)) | _peaks(
    1620.0, (378.0, 2048, _TF32), (756.0, 4096, _HALF), (1513.0, 8192, _BYTE)
)
#: No document gives the clock of these.
_B200_PEAKS: Final = _peaks(
    None,
    (1125.0, 4096, _TF32),
    (2250.0, 8192, _HALF),
    (4500.0, 16384, _BYTE),
    (9000.0, 32768, (DType.FP4,)),
)
_MI210_PEAKS: Final = _peaks(
    1700.0, (45.3, 256, _SINGLE_DOUBLE), (181.0, 1024, (*_HALF, DType.INT8))
)
#: Half of the card's, as each of its two dies is a GPU.
_MI250X_PEAKS: Final = _peaks(
    1700.0, (47.85, 256, _SINGLE_DOUBLE), (191.5, 1024, (*_HALF, DType.INT8))
)
_MI300X_PEAKS: Final = _peaks(
    2100.0,
    (163.4, 256, _SINGLE_DOUBLE),
    (653.7, 1024, _TF32),
    (1307.4, 2048, _HALF),
    (2614.9, 4096, _BYTE),
)


def _spec(product: str, units: int, peaks: Mapping[DType, Peak], source: str) -> GpuSpec:
    return GpuSpec(product=product, units=units, peaks=peaks, source=source)


A100: Final = _spec("A100", 108, _A100_PEAKS, _A100)
H100_SXM: Final = _spec("H100 SXM5", 132, _H100_SXM_PEAKS, _H100)
H100_PCIE: Final = _spec("H100 PCIe", 114, _H100_PCIE_PEAKS, _H100)
H200: Final = _spec("H200 SXM", 132, _H100_SXM_PEAKS, _H200)
B200: Final = _spec("B200", 148, _B200_PEAKS, _B200)
MI210: Final = _spec("MI210", 104, _MI210_PEAKS, _MI210)
MI250X: Final = _spec("MI250X, one die", 110, _MI250X_PEAKS, _MI250X)
MI300X: Final = _spec("MI300X", 304, _MI300X_PEAKS, _MI300X)
MI325X: Final = _spec("MI325X", 304, _MI300X_PEAKS, _MI325X)

#: By whole product names, as drivers report them.
SPECS: Final = (
    (r"(NVIDIA )?A100-(SXM4|PCIE)-(40|80)GB", A100),
    (r"NVIDIA A100 80GB PCIe", A100),
    (r"NVIDIA H100 80GB HBM3", H100_SXM),
    (r"NVIDIA H100 PCIe", H100_PCIE),
    (r"NVIDIA H200", H200),
    (r"NVIDIA B200", B200),
    (r"(AMD )?Instinct MI210", MI210),
    (r"(AMD )?Instinct MI250X", MI250X),
    (r"(AMD )?Instinct MI300X( OAM| VF)?", MI300X),
    (r"(AMD )?Instinct MI325X( OAM| VF)?", MI325X),
)


def spec_of(name: str | None, *, units: int | None, is_part: bool) -> tuple[GpuSpec | None, str]:
    """Return the spec of a GPU, and the reason where there is none ("" where there is).

    `name`: product name as the driver or a trace reports it; None if not known. `units`: its SMs or
    CUs as a trace reports them; None if it does not. `is_part`: whether it is known to be a
    partition or a MIG instance.
    """
    if not name:
        return None, "the GPU's product name is not known"
    if is_part or re.search(r"\bMIG\b", name):
        return None, "a part of a GPU has no stated peak"
    found = next((spec for pattern, spec in SPECS if re.fullmatch(pattern, name, re.I)), None)
    if found is None:
        return None, f"no stated peak is known of {name}"
    if units is not None and units != found.units:
        return None, f"{units} of the {found.units} units of {found.product} are no whole GPU"
    return found, ""


def peak_of(spec: GpuSpec, dtype: DType) -> Peak | None:
    """Return the stated peak of an element type; `FLOAT` is FP32 where the GPU has no TF32."""
    if dtype is DType.FLOAT and DType.TF32 not in spec.peaks:
        return spec.peaks.get(DType.FP32)
    return spec.peaks.get(dtype)
