"""Efficiency of a whole report's rows and its table, from a trace whose figures are round."""

import csv
from io import StringIO

import pytest
from msgspec.structs import replace

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Efficiency, Family, Part
from chopperd.model.samples import SampleSet
from chopperd.model.trace import Shapes, SpanKind, TraceDevice
from chopperd.pipeline.reports import FileReport, composed
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.trace_report import report_trace
from chopperd.report.forms.columns import render_csv
from chopperd.report.text.report import render_text
from chopperd.traces.timeline.layout import lay_out
from tests.fakes.clock import ScriptedClock
from tests.trace_building import TraceBuilder
from tests.unit.report.traced import H100, MS, T0_NS, sample_set, sampled

#: 2 x 16384 x 16384 x 18432 = 9.896e12 operations: 10.001 ms at 989.4 TFLOP/s.
FLOPS = 2 * 16384 * 16384 * 18432
SHAPES = Shapes(
    dims="[[16384,16384],[16384,18432]]",
    types='["c10::BFloat16","c10::BFloat16"]',
    values='["",""]',
)
MI300X = "AMD Instinct MI300X"


def document(
    samples: SampleSet | None = None,
    *,
    name: str = H100,
    units: int | None = 132,
    shapes: Shapes | None = SHAPES,
) -> ReportDocument:
    """Two steps of 100 ms: a product of 40 ms in the first, another kernel in the second."""
    made = TraceBuilder()
    for step in (1, 2):
        start_ns = T0_NS + (step - 1) * 100 * MS
        made.span(f"ProfilerStep#{step}", start_ns, 100 * MS)
        if step == 1:
            made.span("aten::mm", start_ns, MS, kind=SpanKind.OP, shapes=shapes)
        kernel = "nvjet_gemm" if step == 1 else "rms_norm"
        made.kernel(kernel, start_ns + 10, start_ns + MS, 40 * MS)
    trace = made.build()
    said = TraceDevice(device=0, name=name, units=units)
    trace = replace(trace, meta=replace(trace.meta, anchored=True, devices=(said,)))
    report = report_trace(trace, lay_out(trace), samples, JoinOptions())
    return composed([FileReport(report=report)], ScriptedClock())


def total(found: ReportDocument) -> Efficiency:
    (row,) = found.totals
    assert row.efficiency is not None
    return row.efficiency


def test_rows_have_the_chain_from_the_peak_to_what_the_kernels_took() -> None:
    found = document(sample_set(sampled(clock_mhz=1525.0)))
    of_step, of_file = found.steps[0].efficiency, total(found)
    assert of_step == of_file
    assert (of_file.flops, of_file.dtype, of_file.shaped_share) == (FLOPS, "bf16", 1.0)
    assert of_file.achieved_flops_per_s == pytest.approx(FLOPS / 0.040)
    assert (of_file.spec_mhz, of_file.rated_time_ns) == (1830.0, 40 * MS)
    assert of_file.theoretical_ns is not None
    assert of_file.theoretical_ns == pytest.approx(FLOPS / 989.4e12 * 1e9)
    assert of_file.utilization == pytest.approx(FLOPS / 989.4e12 / 0.040)
    assert of_file.overhead_frequency == pytest.approx(1830 / 1525)
    assert of_file.overhead_overlap == 1.0
    assert of_file.theoretical_ns is not None
    assert of_file.overhead_utilization is not None
    factors = of_file.overhead_utilization * (1830 / 1525)
    assert of_file.theoretical_ns * factors == pytest.approx(40 * MS)
    assert (of_file.reason, of_file.clock_share, of_file.overlap_share) == (None, 1.0, None)


def test_a_row_without_matrix_kernels_has_no_efficiency() -> None:
    assert document().steps[1].efficiency is None


def test_the_maximum_of_the_driver_is_no_part_of_the_chain() -> None:
    slow, fast = (
        total(document(sample_set(sampled(clock_mhz=1525.0, top_mhz=top)))) for top in (1600, 2600)
    )
    assert slow == fast


def test_without_samples_the_factors_of_the_clock_are_unknown_and_said_so() -> None:
    found = total(document())
    assert found.utilization is not None
    assert (found.overhead_frequency, found.overhead_utilization) == (None, None)
    assert found.reason == "frequency: clock samples cover none of the kernels' time"


def test_without_shapes_no_work_is_known() -> None:
    found = total(document(shapes=None))
    assert (found.flops, found.achieved_flops_per_s, found.dtype) == (None, None, None)
    assert (found.matrix_time_ns, found.shaped_time_ns) == (40 * MS, 0)
    assert found.reason is not None


@pytest.mark.parametrize(
    ("name", "units", "reason"),
    [
        ("NVIDIA H100 NVL", None, "no stated peak is known of NVIDIA H100 NVL"),
        (MI300X, 38, "38 of the 304 units of MI300X are no whole GPU"),
    ],
)
def test_a_gpu_without_a_stated_peak_has_work_and_a_reason(
    name: str, units: int | None, reason: str
) -> None:
    found = total(document(name=name, units=units))
    assert (found.flops, found.reason) == (FLOPS, reason)
    assert (found.spec_flops_per_s, found.utilization, found.theoretical_ns) == (None, None, None)


def test_a_partition_that_is_sampled_has_no_stated_peak() -> None:
    part = sampled(name=MI300X)
    part = replace(part, gpu=replace(part.gpu, parent="0", gpu="0.1"))
    found = total(document(sample_set(part), name=MI300X, units=None))
    assert found.reason == "a part of a GPU has no stated peak"


def test_floats_that_may_be_tf32_have_no_peak() -> None:
    shapes = replace(SHAPES, types='["float","float"]')
    found = total(document(shapes=shapes))
    assert (found.dtype, found.utilization) == ("fp32_or_tf32", None)
    assert "TF32 is not recorded" in (found.reason or "")


def test_the_table_has_a_line_a_device() -> None:
    text = render_text(document(sample_set(sampled(clock_mhz=1525.0))))
    (line,) = (
        following
        for before, following in zip(text.splitlines(), text.splitlines()[1:], strict=False)
        if before.startswith("gpu") and "TFLOP/s" in before
    )
    assert line.split() == [  # the rank is unknown on all lines and has no column
        "0",
        "bf16",
        "247.4",
        "25.0",
        "10.0",
        "3.333",
        "1.000",
        "1.200",
        "40.0",
        "100.0",
    ]


def test_without_known_work_there_is_no_table() -> None:
    assert "EFFICIENCY" not in render_text(document(shapes=None))


def test_the_share_of_compute_time_by_type_is_said() -> None:
    """A product of 40 ms in bf16; the other kernel's time is of no known type."""
    found = document()
    (row,) = found.totals
    assert row.dtype_ratio is not None
    other_ns = sum(each.time_ns for each in row.families) - 40 * MS
    assert row.dtype_ratio == {"bf16": pytest.approx(40 * MS / (40 * MS + other_ns))}
    percent = 100 * row.dtype_ratio["bf16"]
    assert f"compute time: bf16 {percent:.1f} %, of no known type {100 - percent:.1f} %" in (
        render_text(found)
    )
    first, second = found.steps
    assert (first.dtype_ratio, second.dtype_ratio) == ({"bf16": 1.0}, None)
    lines = csv.DictReader(StringIO(render_csv(found)))
    assert [line["dtype_ratio"] for line in lines][:2] == ["bf16:1.0", ""]


def test_devices_without_known_types_count_in_all_compute_time() -> None:
    """Beside the one that is known, another with as much compute of no known type: half."""
    found = document()
    (row,) = found.totals
    both = replace(found, totals=(row, replace(row, dtype_ratio=None)))
    assert row.dtype_ratio is not None
    half = 50 * row.dtype_ratio["bf16"]
    assert f"compute time: bf16 {half:.1f} %, of no known type {100 - half:.1f} %" in (
        render_text(both)
    )


def test_parts_and_families_have_their_own_share_of_the_peak() -> None:
    found = document()
    (row,) = found.totals
    for each in (*row.by_operation, *row.families):
        assert isinstance(each, Part | Family)
        is_product = each.name in {"aten::mm", "nvjet_gemm"}
        assert (each.efficiency is not None) == is_product
        if each.efficiency is not None:
            assert each.efficiency.dtype == "bf16"
            assert each.efficiency.utilization == pytest.approx(0.25, rel=1e-3)
            assert each.efficiency.flops == total(found).flops
            assert each.efficiency.overhead_frequency is None
    text = render_text(found, by="operation")
    (header,) = [line for line in text.splitlines() if line.startswith("operation")]
    assert header.rstrip().endswith("launch ms  of peak %")


def test_parts_whose_work_is_not_known_have_no_efficiency() -> None:
    (row,) = document(shapes=None).totals
    assert all(each.efficiency is None for each in row.by_operation)
    assert all(each.efficiency is None for each in row.families)
    assert row.dtype_ratio is None


def test_work_without_a_stated_peak_has_flops_alone() -> None:
    (row,) = document(name="No Such GPU").totals
    (product,) = [each for each in row.by_operation if each.efficiency is not None]
    assert product.efficiency is not None
    assert product.efficiency.flops > 0
    assert product.efficiency.utilization is None
