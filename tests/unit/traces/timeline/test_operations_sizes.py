"""Bytes of copies, by their records or their calls."""

from chopperd.model.trace import RecordKind
from chopperd.traces.timeline.layout import lay_out
from tests.trace_building import TraceBuilder

COPY, FILL = RecordKind.MEMCPY, RecordKind.MEMSET


def bytes_of_each(made: TraceBuilder) -> list[int]:
    (device,) = lay_out(made.build()).devices
    sizes: list[int] = device.copied_bytes.tolist()
    return sizes


def test_a_record_s_own_size_goes_before_its_call_s() -> None:
    made = TraceBuilder()
    made.call("hipMemcpyAsync", 0, correlation=1, size_bytes=64)
    made.record("Memcpy HtoD", 10, 5, correlation=1, kind=COPY, copied_bytes=60)
    made.call("hipMemcpyAsync", 20, correlation=2, size_bytes=128)
    made.record("Memcpy HtoD", 30, 5, correlation=2, kind=COPY)
    made.call("cudaMemcpyAsync", 40, correlation=3)
    made.record("Memcpy HtoD", 50, 5, correlation=3, kind=COPY)
    made.record("Memcpy HtoD", 60, 5, kind=COPY)
    assert bytes_of_each(made) == [60, 128, -1, -1]


def test_a_call_of_several_records_sizes_none_of_them() -> None:
    made = TraceBuilder()
    made.call("hipMemcpyAsync", 0, correlation=1, size_bytes=128)
    made.record("Memcpy HtoD", 10, 5, correlation=1, kind=COPY)
    made.record("Memcpy HtoD", 20, 5, correlation=1, kind=COPY)
    assert bytes_of_each(made) == [-1, -1]


def test_what_computes_has_no_size_and_fills_and_kernels_that_copy_may_have_one() -> None:
    made = TraceBuilder()
    made.call("hipMemsetAsync", 0, correlation=1, size_bytes=16)
    made.record("Memset (Device)", 10, 5, correlation=1, kind=FILL)
    made.call("hipMemcpyAsync", 20, correlation=2, size_bytes=32)
    made.record("__amd_rocclr_copyBuffer", 30, 5, correlation=2)
    made.call("hipMemcpyAsync", 40, correlation=3, size_bytes=32)
    made.record("gemm", 50, 5, correlation=3)
    assert bytes_of_each(made) == [16, 32, -1]
