"""Runs every part in a process of its own, each with a time limit, and writes one folder.

`run.sh` starts it. A part that fails is said, and the next one goes on.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
_WHOLE_S: Final = 290.0
_ASK_S: Final = 20.0
_DRY: Final = "**DRY RUN on the CPU and an invented driver: no figure here is a measurement.**"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part.

    Attributes:
        name: Of its files.
        title: In the summary.
        command: What runs it, after the interpreter.
        limit_s: It is ended after so long.
    """

    name: str
    title: str
    command: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a part went.

    Attributes:
        name, title: Of the part.
        text: Markdown for the summary.
        data: Everything that it found, as JSON; null where it wrote none.
        took_s: How long it took.
        failure: Why there is nothing, or not all; None if all is there.
    """

    name: str
    title: str
    text: str
    data: msgspec.Raw
    took_s: float
    failure: str | None


def parts(out: Path, *, is_dry: bool) -> tuple[Part, ...]:
    """All parts, the shorter and surer ones first."""
    dry = ("--cpu",) if is_dry else ()

    def own(name: str, title: str, limit_s: float) -> Part:
        options = ("--name", name, "--out", str(out), *dry)
        return Part(
            name=name, title=title, command=("-m", f"bench.gpu.{name}", *options), limit_s=limit_s
        )

    pytest = ("-m", "pytest", "-m", "hardware", "-q", "-p", "no:cacheprovider")
    where = ("--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"))
    contract = (*pytest, *where, str(ROOT / "tests" / "integration" / "devices"))
    return (
        own("calls", "What a read costs, and how often values change", 20),
        Part(name="contract", title="Contract suite on the driver", command=contract, limit_s=40),
        own("sampling", "What sampling costs", 35),
        own("zeros_random", "Zeros against random data: chopperd selftest", 80),
        own("fsdp", "A small FSDP2 job, recorded and reported", 60),
        own("fsdp_memory", "Memory and clock of FSDPv1 and v2", 75),
        own("allocation", "Does polling slow cudaMalloc?", 45),
        own("step_time", "Step time with the agent and without", 70),
        own("fields", "Fields that answer: chopperd devices", 30),
    )


def run_part(part: Part, out: Path, limit_s: float) -> Ended:
    """Run one part; it never raises for what befalls the part."""
    print(f"== {part.title} (at most {max(0.0, limit_s):.0f} s)", flush=True)
    start_s = time.monotonic()
    log = out / f"{part.name}.log"
    with log.open("w") as file:
        failure = _status(part, file.fileno(), limit_s)
    printed = f"```\n{log.read_text(errors='replace')[-6000:].strip()}\n```"
    if failure is None:
        log.unlink()
    ended = Ended(
        name=part.name,
        title=part.title,
        text=_taken(out / f"{part.name}.md") or printed,
        data=msgspec.Raw((_taken(out / f"{part.name}.json") or "null").encode()),
        took_s=time.monotonic() - start_s,
        failure=failure,
    )
    print(f"   {failure or 'done'} after {ended.took_s:.0f} s", flush=True)
    return ended


def _taken(path: Path) -> str | None:
    """What a file held that is not needed any more; None if there is none."""
    if not path.exists():
        return None
    text = path.read_text()
    path.unlink()
    return text


def _status(part: Part, output: int, limit_s: float) -> str | None:
    """Why the part failed; None if it did not. Asked to end at its limit, it is then left alone.

    A process that hangs in a driver is never killed: that has frozen GPUs.
    """
    if limit_s <= 0:
        return "FAILED: no time was left"
    process = subprocess.Popen(
        [sys.executable, *part.command], stdout=output, stderr=output, stdin=subprocess.DEVNULL
    )
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        return f"FAILED: not done in {limit_s:.0f} s"
    return None if status == 0 else f"FAILED: exit status {status}"


def summary(about: dict[str, str], ended: Sequence[Ended], *, is_dry: bool) -> str:
    """Everything on one page."""
    lines = ["# chopperd on one GPU", *([_DRY] if is_dry else [])]
    lines.append("\n".join(f"- {name}: {value}" for name, value in about.items()))
    for each in ended:
        lines.append(f"## {each.title}")
        if each.failure:
            lines.append(f"**{each.failure}**")
        lines.append(each.text)
        lines.append(f"({each.took_s:.0f} s)")
    return "\n\n".join(lines) + "\n"


def about_machine(*, is_dry: bool) -> dict[str, str]:
    """What it ran on: of the GPU only what the driver says when asked by our own back end."""
    ask = (
        "from chopperd.devices.registry import open_backend as o; b = o('nvml'); "
        "g = next(iter(b.devices())); print(g.name); print(b.driver)"
    )
    process = subprocess.Popen([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True)
    try:
        printed, _ = process.communicate(timeout=_ASK_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        printed = "GPU that does not answer\n"
    name, driver = (*printed.splitlines(), *("no GPU", "-")[len(printed.splitlines()) :])[:2]
    return {
        "GPU": f"{name} (invented)" if is_dry else name,
        "driver": driver,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "Python": platform.python_version(),
        "cores": str(os.cpu_count()),
    }


def folder_name(gpu: str, date: str, *, is_dry: bool) -> str:
    """`nvidia-h100-80gb-hbm3-2026-11-28`; a dry run's can't be mistaken for another."""
    name = "".join(c if c.isalnum() else "-" for c in gpu.lower()).strip("-")
    return f"{'DRY-' if is_dry else ''}{name}-{date}"


@contextmanager
def invented_driver() -> Iterator[None]:
    """The tests' fake driver, an idle GPU, found by this process's children."""
    from tests.fakes.nvml.build import build  # noqa: PLC0415 - needs a compiler
    from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE  # noqa: PLC0415 - likewise
    from tests.fakes.nvml.scenario import Scenario, Segment  # noqa: PLC0415 - likewise

    with TemporaryDirectory(prefix="chopperd-fake-") as folder:
        library = build(Path(folder))
        scenario = Scenario(Path(folder) / "scenario.bin")
        scenario.gpus[0].plays(Segment(activity_percent=0))
        own = {"LD_LIBRARY_PATH": str(library.parent), SCENARIO_VARIABLE: str(scenario.path)}
        os.environ.update(own)
        yield


def run(out: Path, *, is_dry: bool) -> int:
    """Run all parts; 1 if any failed."""
    until_s = time.monotonic() + _WHOLE_S
    about = about_machine(is_dry=is_dry)
    folder = out / folder_name(
        about["GPU"].removesuffix(" (invented)"), about["date"][:10], is_dry=is_dry
    )
    folder.mkdir(parents=True, exist_ok=True)
    ended: list[Ended] = []
    for part in parts(folder, is_dry=is_dry):
        ended.append(run_part(part, folder, min(part.limit_s, until_s - time.monotonic())))
        # Written after each part: what ends this program early loses nothing.
        (folder / "summary.md").write_text(summary(about, ended, is_dry=is_dry))
    data = {"dry_run": is_dry, "about": about, "parts": ended}
    encoded = msgspec.json.format(msgspec.json.encode(data), indent=2)
    (folder / "summary.json").write_bytes(encoded + b"\n")
    print(f"{folder / 'summary.md'}")
    return int(any(each.failure for each in ended))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    if not given.cpu:
        return run(given.out.resolve(), is_dry=False)
    with invented_driver():
        return run(given.out.resolve(), is_dry=True)


if __name__ == "__main__":
    sys.exit(main())
