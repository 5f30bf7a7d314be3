"""What goes in: the shared traces, samples made for each, and the command lines."""

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from zlib import crc32

import numpy as np

ROOT: Final = Path(__file__).parents[2]
SHARED: Final = Path(os.environ.get("CHOPPERD_SHARED", ROOT.parent / "shared"))

#: For each trace: its first and last time in Unix ns, then its devices as (rank, device).
Inputs: TypeAlias = dict[str, list[Any]]

_FORMS: Final = ("text", "json", "csv", "parquet")
_BY: Final = ("family", "operation", "layer", "phase")
_BROKEN_DOWN: Final = (
    "hta_a100_nccl_ddp",
    "tracelens_mi300x_resnet_act_checkpoint",
    "cpu_fsdp2_rank0.pt.trace",
)
_ANNOTATED: Final = ("hta_mi250_rocm62_minitoy", "hta_a100_cuda_sync_multistream")
_MOST_SAMPLES: Final = 1500
_MARGIN_NS: Final = 50_000_000
#: Commands that the help lists; each must have a help of its own.
COMMANDS: Final = (
    *(
        "version",
        "run",
        "demo",
        "record",
        "report",
        "annotate",
        "compare",
        "top",
        "status",
        "steps",
    ),
    *("traces", "jobs", "drops", "metrics", "devices", "doctor", "selftest", "check-config"),
    *("explain", "completion"),
)
#: Of commands that would find an agent or samples of this machine: its places are empty.
_CONFIG: Final = """
[node]
name = "node-a"
[paths]
state = "{work}/state"
runtime = "{work}/run"
[api]
listen = "127.0.0.1:9"
"""
_OTHER_CONFIG: Final = """
[sampling]
hz = 25
backend = "simulated"
[privacy]
names = "hashed"
[reference.models]
"NVIDIA H100" = 1755.0
[[traces.classes]]
pattern = "^my_"
class = "gemm"
"""
_BAD_CONFIG: Final = "[sampling]\nhz = 0\nhurz = 3\n[store]\nmax_bytes = 'much'\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line of which stdout, stderr and status are compared.

    Attributes:
        name: Of its outputs.
        arguments: What follows `chopperd`.
        form: How stdout is compared: text, json, csv or parquet.
        kept_lines: So many lines of its text are stored to be shown.
        written: A file that it writes, compared in place of stdout.
    """

    name: str
    arguments: Sequence[str]
    form: str = "text"
    kept_lines: int = 0
    written: str | None = None


def traces() -> Sequence[Path]:
    """The shared traces; none without the shared folder."""
    return sorted((SHARED / "traces").glob("*.json.gz"))


def cases() -> Sequence[Path]:
    """Files of the shared cases that are traces by their name or kind."""
    kinds = (".json", ".gz", ".pftrace", ".nsys-rep", ".sqlite")
    others = {"expected.json", "answers.json"}
    found = sorted((SHARED / "cases").glob("*/**/*"))
    return [path for path in found if path.suffix in kinds and path.name not in others]


def measured(path: Path, report: Mapping[str, Any]) -> list[Any]:
    """Time range and devices of a trace by its report; by its events where it has no device."""
    totals = [row for row in report["totals"] if row["start_unix_ns"] is not None]
    if totals:
        begin = min(row["start_unix_ns"] for row in totals)
        end = max(row["start_unix_ns"] + row["window_ns"] for row in totals)
        return [begin, end, sorted({(row["rank"] or 0, row["device"]) for row in totals})]
    base = report["trace"]["base_time_unix_ns"] or 0
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    timed = [event for event in events if event.get("ph") == "X" and event["ts"] > 0]
    begin = base + round(min(event["ts"] for event in timed) * 1e3)
    end = base + round(max(event["ts"] + event.get("dur", 0) for event in timed) * 1e3)
    return [begin, end, [(0, 0)]]


def write_all(work: Path, inputs: Inputs) -> None:
    """Put what the commands read into their working folder."""
    (work / "out").mkdir(exist_ok=True)
    for name in ("traces", "cases"):
        if SHARED.is_dir() and not (work / name).exists():
            (work / name).symlink_to(SHARED / name)
    (work / "config.toml").write_text(_CONFIG.format(work=work))
    (work / "other.toml").write_text(_OTHER_CONFIG)
    (work / "bad.toml").write_text(_BAD_CONFIG)
    (work / "noise.json").write_text("no trace at all\n")
    (work / "empty.json").write_text("{}")
    write_samples(work / "plain.csv", "plain", (10**18, 10**18 + 2 * 10**9), 2)
    for name, (begin, end, devices) in inputs.items():
        write_samples(work / f"{name}.csv", name, (begin, end), len(devices))


def write_samples(path: Path, name: str, span_ns: tuple[int, int], gpus: int) -> None:
    """Samples of some GPUs over a time in our own form, the same for the same name and time.

    They are read at random times; clocks wander between 60 and 100 % of the highest, at a limit
    whenever below 90 %.
    """
    random = np.random.RandomState(crc32(name.encode()))
    begin, end = span_ns[0] - _MARGIN_NS, span_ns[1] + _MARGIN_NS
    period = max((end - begin) // _MOST_SAMPLES, 1_000_000)
    amd = "mi2" in name or "mi3" in name
    times = range(begin, end, period)
    triples = [(t, t - 10**9 * 1000, t - 10**9 * 1000) for t in times[:: max(len(times) // 4, 1)]]
    header = {
        "gpus": [_gpu(index, amd) for index in range(gpus)],
        "hz": 1e9 / period,
        "started_unix_ns": begin,
        "node": "node-a",
        "backend": "amdsmi" if amd else "nvml",
        "driver": "1.2.3",
        "triples": triples,
    }
    columns = (
        "t_unix_ns,gpu,sm_clock_mhz,mem_clock_mhz,power_w,energy_j,temperature_c,"
        "memory_used_bytes,activity_ratio,read_span_ns,cause,limited_power_cap_ns"
    )
    lines = [f"# chopperd-samples/1 {json.dumps(header)}", columns]
    for index in range(gpus):
        lines += _rows(random, index, times, period)
    path.write_text("\n".join(lines) + "\n")


def _gpu(index: int, amd: bool) -> dict[str, object]:
    return {
        "index": index,
        "gpu": str(index),
        "uuid": f"GPU-{index}",
        "name": "AMD Instinct MI300X" if amd else "NVIDIA H100 80GB HBM3",
        "vendor": "amd" if amd else "nvidia",
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "sm_clock_max_mhz": 2000,
        "mem_clock_max_mhz": 2600,
        "power_limit_w": 700,
        "memory_size_bytes": 80 << 30,
        "power_source": "instant",
    }


def _rows(random: np.random.RandomState, index: int, times: range, period: int) -> Iterator[str]:
    clock, energy, limited = 1800, 1000.0, 0
    for number, t in enumerate(times):
        clock = int(np.clip(clock + random.randint(-90, 91), 1200, 2000))
        power = 250 + clock // 5 + int(random.randint(0, 20))
        energy += power * period * 1e-9
        is_limited = clock < 1800
        limited += period if is_limited else 0
        at = t + int(random.randint(0, period))
        slow = f"2600,{power},{energy:.3f},{50 + clock // 100},{60 << 30},0.97"
        rest = slow if number % 3 == 0 else ",,,,,"
        cause = "power_cap" if is_limited else ""
        yield f"{at},{index},{clock},{rest},20000,{cause},{limited}"


def commands(inputs: Inputs) -> Iterator[Command]:
    """All command lines whose outputs are compared; those on traces only where there are any."""
    yield Command(name="help", arguments=["--help"], kept_lines=100)
    for name in COMMANDS[1:]:
        yield Command(name=f"help/{name}", arguments=[name, "--help"], kept_lines=100)
    yield Command(name="check-config/default", arguments=["check-config"], kept_lines=200)
    yield Command(
        name="check-config/file", arguments=["check-config", "other.toml"], kept_lines=200
    )
    yield Command(name="check-config/bad", arguments=["check-config", "bad.toml"], kept_lines=9)
    yield from _wrong()
    for path in traces():
        yield from _of_trace(path, inputs)
    if traces():
        yield from _of_several(inputs)
    for path in cases():
        name = str(path.relative_to(SHARED))
        yield _report(name, [name], kept_lines=12)
        for samples in _samples_of(path):
            joined = [name, "--samples", str(samples.relative_to(SHARED)), "--tz", "Europe/Berlin"]
            yield _report(f"{name} with {samples.name}", joined, kept_lines=12)


def _wrong() -> Iterator[Command]:
    lines = {
        "nothing": [],
        "unknown command": ["reprot"],
        "missing file": ["report", "missing.json"],
        "no trace": ["report", "noise.json"],
        "empty trace": ["report", "empty.json"],
        "no trace to annotate": ["annotate", "noise.json", "-o", "out/wrong.json"],
        "unknown option": ["report", "--hurz", "noise.json"],
        "bad step": ["report", "--step", "x", "noise.json"],
        "bad last": ["report", "--last", "0", "noise.json"],
        "bad form": ["report", "--format", "xml", "noise.json"],
        "bad suffix": ["report", "noise.json", "-o", "out/report.doc"],
        "bad map": ["report", "--device-map", "0:1", "noise.json"],
        "bad zone": ["report", "--tz", "Mars/Olympus", "noise.json"],
        "bad rank": ["report", "--rank-of", "noise.json", "noise.json"],
        "job of files": ["report", "--job", "x", "noise.json"],
        "missing samples": ["report", "--samples", "missing.csv", "noise.json"],
        "samples that are none": ["report", "--samples", "noise.json", "noise.json"],
        "missing configuration": ["report", "--config", "missing.toml", "noise.json"],
        "bad configuration": ["report", "--config", "bad.toml", "noise.json"],
        "options of files without any": ["report", "--merge", "--config", "config.toml"],
        "no agent for a report": ["report", "--config", "config.toml"],
        "no agent for its status": ["status", "--config", "config.toml"],
        "no agent for steps": ["steps", "--config", "config.toml"],
        "nothing to record": ["record"],
        "nothing to annotate": ["annotate", "noise.json"],
        "bad address": ["run", "--config", "bad.toml"],
    }
    for name, arguments in lines.items():
        yield Command(name=f"wrong/{name}", arguments=arguments, kept_lines=30)


def _of_trace(path: Path, inputs: Inputs) -> Iterator[Command]:
    file, name = f"traces/{path.name}", path.name.removesuffix(".json.gz")
    for form in _FORMS:
        kept = 12 if form == "text" else 0
        yield _report(f"traces/{name} {form}", [file], form, kept)
        clocked = f"traces/{name} with clocks {form}"
        yield _report(clocked, [file, *_clocks(name, inputs)], form, kept)
    if name in _BROKEN_DOWN:
        for by in _BY:
            for form in ("text", "csv"):
                arguments = [file, *_clocks(name, inputs), "--by", by]
                yield _report(f"traces/{name} by {by} {form}", arguments, form)
    if name in _ANNOTATED:
        written = f"out/{name}.annotated.json"
        arguments = ["annotate", file, "-o", written, *_clocks(name, inputs)]
        yield Command(
            name=f"traces/{name} annotated", arguments=arguments, form="json", written=written
        )


def _of_several(inputs: Inputs) -> Iterator[Command]:
    for kind in ("ddp", "fsdp1", "fsdp2"):
        files = [f"traces/cpu_{kind}_rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
        yield _report(f"traces/{kind} of both ranks text", files, kept_lines=12)
        yield _report(f"traces/{kind} of both ranks json", files, "json")
    a100 = ["traces/hta_a100_nccl_ddp.json.gz", *_clocks("hta_a100_nccl_ddp", inputs)]
    yield _report("traces/one step text", [*a100, "--step", "5"], kept_lines=12)
    yield _report("traces/last step json", [*a100, "--last", "1"], "json")
    yield _report("traces/reference text", [*a100, "--reference-mhz", "1500"], kept_lines=12)
    v100 = "traces/hta_v100_ns_absolute_ts.json.gz"
    yield _report("traces/two jobs text", [a100[0], v100], kept_lines=12)
    yield _report("traces/two jobs merged text", [a100[0], v100, "--merge"], kept_lines=12)


def _samples_of(trace: Path) -> Sequence[Path]:
    """The sample files of a case, for the first of its traces."""
    if trace.name not in {"trace.json", "rank0.json"}:
        return []
    near = trace.parent.iterdir()
    return sorted(path for path in near if path.suffix in {".csv", ".txt"} or "range" in path.name)


def _clocks(name: str, inputs: Inputs) -> Sequence[str]:
    """The options that join a trace with the samples made for it."""
    if name not in inputs:
        return []
    devices = inputs[name][2]
    of_devices = ",".join(f"{device}=GPU-{gpu}" for gpu, (_, device) in enumerate(devices))
    return ["--samples", f"{name}.csv", "--device-map", of_devices]


def _report(
    name: str, arguments: Sequence[str], form: str = "text", kept_lines: int = 0
) -> Command:
    told = [] if form == "text" else ["--format", form]
    return Command(
        name=name,
        arguments=["report", "--config", "config.toml", *arguments, *told],
        form=form,
        kept_lines=kept_lines,
    )
