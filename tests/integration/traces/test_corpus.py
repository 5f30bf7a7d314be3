"""Every real trace against a reading by the standard library's JSON and exact decimals."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pytest
from msgspec import structs

from chopperd.model.trace import Damage, Trace
from chopperd.traces.read.reader import read_trace
from chopperd.traces.read.source import ReadLimits
from tests.integration.reference_reader import read_json

pytestmark = pytest.mark.corpus

Row: TypeAlias = tuple[object, ...]
Event: TypeAlias = dict[str, object]
KIB: Final = 1 << 10
NAMES: Final = (
    "cpu_ddp_rank0.pt.trace",
    "cpu_ddp_rank1.pt.trace",
    "cpu_fsdp1_rank0.pt.trace",
    "cpu_fsdp1_rank1.pt.trace",
    "cpu_fsdp2_rank0.pt.trace",
    "cpu_fsdp2_rank1.pt.trace",
    "cpu_ondemand_5_iterations",
    "hta_a100_cuda_sync_multistream",
    "hta_a100_nccl_ddp",
    "hta_mi250_rocm62_minitoy",
    "hta_mtia_inference",
    "hta_v100_ddp_memory",
    "hta_v100_ns_absolute_ts",
    "kineto2021_v100_resnet50.pt.trace",
    "tracelens_b200_vllm_eager",
    "tracelens_h100_qwen15_05b",
    "tracelens_mi300x_compile_triton",
    "tracelens_mi300x_qwen15_05b",
    "tracelens_mi300x_resnet_act_checkpoint",
)
KINDS: Final = {
    "kernel": 0, "Kernel": 0, "gpu_memcpy": 1, "Memcpy": 1, "gpu_memset": 2, "Memset": 2,
}  # fmt: skip
CALLS: Final = {"cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime"}
SPANS: Final = {"cpu_op": 0, "Operator": 0, "user_annotation": 1, "python_function": 2}
SHAPED: Final = (
    *("mm", "matmul", "linear", "conv", "attention", "attn", "flash", "einsum", "sdpa", "mha"),
)


def corpus_path(shared: Path, name: str) -> Path:
    return shared / "traces" / f"{name}.json.gz"


@cache
def loaded(path: Path) -> dict[str, object]:
    """The document by the standard library, numbers with a point as decimals."""
    return read_json(path)


def events_of(path: Path) -> list[Event]:
    events = loaded(path)["traceEvents"]
    assert isinstance(events, list)
    return events


def ns(us: object) -> int:
    """Microseconds as written to the nearest ns."""
    assert isinstance(us, int | Decimal)
    return int((Decimal(us) * 1000).to_integral_value(ROUND_HALF_EVEN))


def number(value: object) -> int:
    """An integer in whatever form the file has it."""
    if isinstance(value, str):
        return int(value.removeprefix("stream "), 0)
    assert isinstance(value, int)
    return value


def args_of(event: Event) -> dict[str, object]:
    args = event.get("args") or {}
    assert isinstance(args, dict)
    return args


def times(event: Event, base_ns: int) -> tuple[int, int]:
    start = ns(event["ts"]) + base_ns
    return start, start + ns(event["dur"])


def place(event: Event) -> tuple[int, int]:
    args = args_of(event)
    return number(args.get("device", event["pid"])), number(args.get("stream", event["tid"]))


def record_row(event: Event, base_ns: int) -> Row:
    args, kind = args_of(event), KINDS[str(event["cat"])]
    copied = number(args.get("bytes", -1)) if kind else -1
    return (
        *times(event, base_ns),
        *place(event),
        kind,
        event["name"],
        number(args.get("correlation", 0)) or -1,
        external_id(args),
        copied if copied > 0 else -1,
        collective(args),
    )


def external_id(args: dict[str, object]) -> int:
    return number(args.get("External id", args.get("external id", 0))) or -1


def collective(args: dict[str, object]) -> Row | None:
    """What the event says of its collective, by the keys that torch writes."""
    keys = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "Process Group Name")
    more = ("Process Group Description", "Group size", "Process Group Ranks")
    return tuple(args.get(key) for key in (*keys, *more)) if "Collective name" in args else None


def compact_json(args: dict[str, object], key: str) -> str:
    return json.dumps(args[key], separators=(",", ":"), ensure_ascii=False) if key in args else ""


def shapes(event: Event) -> Row | None:
    args, name = args_of(event), str(event["name"])
    known = any(part in name for part in SHAPED) and event["cat"] in ("cpu_op", "Operator")
    if not known or "Input Dims" not in args:
        return None
    return tuple(compact_json(args, key) for key in ("Input Dims", "Input type", "Concrete Inputs"))


def call_row(event: Event, base_ns: int) -> Row:
    args, thread = args_of(event), (event["pid"], event["tid"])
    correlation = number(args.get("correlation", 0)) or -1
    size = number(args.get("bytes", args.get("size", 0))) or -1
    ids = (correlation, external_id(args), size)
    return (*times(event, base_ns), thread, event["name"], *ids)


def span_row(event: Event, base_ns: int) -> Row:
    name = str(event["name"])
    marks = name.startswith(("ProfilerStep#", "Iteration<", "Optimizer."))
    kind = 1 if marks else SPANS[str(event["cat"])]
    args, thread = args_of(event), (event["pid"], event["tid"])
    sequence, forward = args.get("Sequence number", -1), args.get("Fwd thread id", -1)
    details = (external_id(args), sequence, forward, shapes(event), collective(args))
    return (*times(event, base_ns), thread, name, kind, *details)


def device_span_row(event: Event, base_ns: int) -> Row:
    return (*times(event, base_ns), *place(event), event["name"])


def is_span(event: Event) -> bool:
    if event.get("cat") == "python_function":
        return str(event["name"]).startswith("nn.Module: ")
    return event.get("cat") in SPANS


def expected_flows(path: Path) -> Counter[Row]:
    base = loaded(path).get("baseTimeNanoseconds", 0)
    assert isinstance(base, int)
    return Counter(
        (number(e["id"]), int(e["ph"] == "f"), (e["pid"], e["tid"]), ns(e["ts"]) + base)
        for e in events_of(path)
        if e.get("cat") == "fwdbwd" and e.get("ph") in ("s", "f")
    )


def expected_frames(path: Path) -> Counter[Row]:
    """Python functions that are no modules, on threads that make runtime calls."""
    base = loaded(path).get("baseTimeNanoseconds", 0)
    assert isinstance(base, int)
    complete = [event for event in events_of(path) if event.get("ph") == "X"]
    launching = {(e["pid"], e["tid"]) for e in complete if e.get("cat") in CALLS}
    return Counter(
        (*times(e, base), (e["pid"], e["tid"]), e["name"])
        for e in complete
        if e.get("cat") == "python_function"
        and not is_span(e)
        and (e["pid"], e["tid"]) in launching
    )


def found_frames(trace: Trace) -> Counter[Row]:
    frames = trace.frames
    return Counter(
        zip(
            frames.start_ns.tolist(),
            frames.end_ns.tolist(),
            [trace.threads[thread] for thread in frames.thread],
            [trace.functions[function] for function in frames.function],
            strict=True,
        )
    )


def expected_rows(path: Path) -> dict[str, Counter[Row]]:
    base = loaded(path).get("baseTimeNanoseconds", 0)
    assert isinstance(base, int)
    complete = [event for event in events_of(path) if event.get("ph") == "X"]
    return {
        "records": Counter(record_row(e, base) for e in complete if e.get("cat") in KINDS),
        "calls": Counter(call_row(e, base) for e in complete if e.get("cat") in CALLS),
        "spans": Counter(span_row(e, base) for e in complete if is_span(e)),
        "device_spans": Counter(
            device_span_row(e, base) for e in complete if e.get("cat") == "gpu_user_annotation"
        ),
    }


def found_rows(trace: Trace) -> dict[str, Counter[Row]]:
    records, calls, spans, device_spans = (
        trace.records, trace.calls, trace.spans, trace.device_spans,
    )  # fmt: skip
    return {
        "records": Counter(
            zip(
                records.start_ns.tolist(),
                records.end_ns.tolist(),
                records.device.tolist(),
                records.stream.tolist(),
                records.kind.tolist(),
                named(trace, records.name),
                records.correlation.tolist(),
                records.external_id.tolist(),
                records.copied_bytes.tolist(),
                told(trace, records.collective),
                strict=True,
            )
        ),
        "calls": Counter(
            zip(
                calls.start_ns.tolist(),
                calls.end_ns.tolist(),
                [trace.threads[thread] for thread in calls.thread],
                named(trace, calls.name),
                calls.correlation.tolist(),
                calls.external_id.tolist(),
                calls.size_bytes.tolist(),
                strict=True,
            )
        ),
        "spans": Counter(
            zip(
                spans.start_ns.tolist(),
                spans.end_ns.tolist(),
                [trace.threads[thread] for thread in spans.thread],
                named(trace, spans.name),
                spans.kind.tolist(),
                spans.external_id.tolist(),
                spans.sequence.tolist(),
                spans.forward_thread.tolist(),
                [
                    None if at < 0 else structs.astuple(trace.shapes[at])
                    for at in spans.shapes.tolist()
                ],
                told(trace, spans.collective),
                strict=True,
            )
        ),
        "device_spans": Counter(
            zip(
                device_spans.start_ns.tolist(),
                device_spans.end_ns.tolist(),
                device_spans.device.tolist(),
                device_spans.stream.tolist(),
                named(trace, device_spans.name),
                strict=True,
            )
        ),
    }


def told(trace: Trace, column: np.ndarray[tuple[int], np.dtype[np.int32]]) -> list[Row | None]:
    return [None if at < 0 else structs.astuple(trace.collectives[at]) for at in column.tolist()]


def found_flows(trace: Trace) -> Counter[Row]:
    flows = trace.flows
    threads = [trace.threads[thread] for thread in flows.thread]
    return Counter(
        zip(flows.flow.tolist(), flows.is_end.tolist(), threads, flows.t_ns.tolist(), strict=True)
    )


def overruns(trace: Trace) -> int:
    """Records that end after the next of their stream starts, one by one."""
    columns = ("device", "stream", "start_ns", "end_ns")
    rows = zip(*(getattr(trace.records, name).tolist() for name in columns), strict=True)
    by_stream = defaultdict(list)
    for device, stream, start_ns, end_ns in rows:
        by_stream[device, stream].append((start_ns, end_ns))
    return sum(one[1] > next_[0] for rows in by_stream.values() for one, next_ in pairwise(rows))


def named(trace: Trace, column: np.ndarray[tuple[int], np.dtype[np.int32]]) -> list[str]:
    return [trace.names[one] for one in column]


def assert_same(one: Trace, other: Trace) -> None:
    """All tables, names and threads are identical, to the order of rows."""
    assert (one.names, one.threads, one.span_ns) == (other.names, other.threads, other.span_ns)
    assert (one.collectives, one.shapes) == (other.collectives, other.shapes)
    assert one.meta.event_counts == other.meta.event_counts
    assert one.damage == other.damage
    assert one.functions == other.functions
    for table in ("records", "calls", "spans", "device_spans", "flows", "frames", "memory"):
        first, second = getattr(one, table), getattr(other, table)
        for name in first.__struct_fields__:
            columns = getattr(first, name), getattr(second, name)
            assert columns[0].dtype == columns[1].dtype
            assert np.array_equal(*columns), (table, name)


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest, shared: Path) -> Iterator[Path]:
    yield corpus_path(shared, str(request.param))
    loaded.cache_clear()


@pytest.fixture
def usual(path: Path, real_trace: Callable[[str], Trace]) -> Trace:
    """The file of `path`, read as usual."""
    return real_trace(path.name.removesuffix(".json.gz"))


def test_every_file_of_the_corpus_is_tested(shared: Path) -> None:
    found = {one.name.removesuffix(".json.gz") for one in (shared / "traces").glob("*.gz")}
    assert found == set(NAMES)


def test_all_rows_equal_those_of_the_standard_library(path: Path, usual: Trace) -> None:
    found, expected = found_rows(usual), expected_rows(path)
    for table, rows in expected.items():
        assert found[table] == rows, table
    assert found_flows(usual) == expected_flows(path)
    assert found_frames(usual) == expected_frames(path)
    assert usual.damage == Damage(overrun_records=overruns(usual))
    assert usual.meta.event_count == len(events_of(path))
    categories = Counter(str(event.get("cat") or "") for event in events_of(path))
    assert usual.meta.event_counts == categories


def test_tables_are_sorted_as_the_model_says(usual: Trace) -> None:
    records, spans = usual.records, usual.spans
    for order in ((records.start_ns, records.end_ns), (spans.start_ns, -spans.end_ns)):
        pairs = list(zip(*(column.tolist() for column in order), strict=True))
        assert pairs == sorted(pairs)
    assert bool(np.all(np.diff(usual.calls.start_ns) >= 0))
    assert bool(np.all(np.diff(usual.device_spans.start_ns) >= 0))


def test_the_size_of_blocks_changes_nothing(path: Path, usual: Trace) -> None:
    for block_bytes in (64 * KIB, 8 << 20):
        assert_same(usual, read_trace(path, limits=ReadLimits(block_bytes=block_bytes)))


def test_another_layout_changes_nothing(path: Path, usual: Trace, tmp_path: Path) -> None:
    text = gzip.decompress(path.read_bytes())
    for indent in (-1, 0, 4):
        other = tmp_path / path.name
        other.write_bytes(msgspec.json.format(text, indent=indent))
        assert_same(usual, read_trace(other, limits=ReadLimits(block_bytes=512 * KIB)))


@pytest.mark.parametrize(
    ("name", "rank", "world_size", "anchored", "runtime", "devices"),
    [
        ("hta_a100_nccl_ddp", 0, 2, True, "cuda", 8),
        ("hta_v100_ddp_memory", 1, 2, True, "cuda", 2),
        ("hta_mi250_rocm62_minitoy", None, None, True, "rocm", 4),
        ("kineto2021_v100_resnet50.pt.trace", None, None, True, "cuda", 4),
        ("cpu_fsdp2_rank1.pt.trace", 1, 2, True, None, 0),
        ("cpu_ondemand_5_iterations", None, None, True, None, 0),
        ("hta_mtia_inference", None, None, True, None, 1),
        ("tracelens_mi300x_resnet_act_checkpoint", 0, 8, True, "rocm", 8),
    ],
)
def test_what_a_file_says_of_itself_is_reported(
    real_trace: Callable[[str], Trace],
    name: str,
    rank: int,
    world_size: int,
    anchored: bool,
    runtime: str,
    devices: int,
) -> None:
    """Read off the files' own keys."""
    meta = real_trace(name).meta
    assert (meta.rank, meta.world_size, meta.anchored) == (rank, world_size, anchored)
    assert (meta.runtime, len(meta.devices)) == (runtime, devices)
