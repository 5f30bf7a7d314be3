"""Whether the package's outputs are what they were: `python -m tests.golden [--record | --keep]`.

Compares command lines, files, API and metrics with `expected.json`: exit 1 with what differs.
`--record` writes that file again; `--keep FOLDER` leaves all outputs there, so that those of two
checkouts can be compared by `diff -r`.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Final, NoReturn, TypeAlias

from tests.golden import doors, inputs, outputs
from tests.golden.inputs import Command, Inputs

EXPECTED: Final = Path(__file__).with_name("expected.json")
_ENVIRONMENT: Final = {
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "TERM": "dumb",
}
_KEPT_LINES: Final = {"metrics/shape": 1000}
_CRASHED: Final = 99
_Task: TypeAlias = "Command | Callable[[Path], Mapping[str, str]]"
#: Outputs are named `of what/which`; these are of inputs that not every checkout has.
_OF_SHARED: Final = ("traces/", "cases/")


def main() -> int:
    """Compare, or record."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument("--record", action="store_true", help="store what comes out now")
    parser.add_argument("--keep", type=Path, help="leave all outputs in this folder")
    asked = parser.parse_args()
    began = monotonic()
    if asked.keep:
        asked.keep = asked.keep.resolve()
        asked.keep.mkdir(parents=True, exist_ok=True)
    recorded = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {"inputs": {}}
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        work = Path(folder).resolve()
        _settle(work)
        doors.import_all()
        gc.freeze()
        given = _measured(work) if asked.record else recorded["inputs"]
        inputs.write_all(work, given)
        now = dict(_outputs(work, given, asked.keep))
    if asked.record:
        EXPECTED.write_text(
            json.dumps({"inputs": given, "outputs": dict(sorted(now.items()))}, indent=1) + "\n"
        )
        print(f"recorded {len(now)} outputs")
        return 0
    return _compare(recorded["outputs"], now, monotonic() - began)


def _compare(
    before: Mapping[str, outputs.Kept], now: Mapping[str, outputs.Kept], seconds: float
) -> int:
    if not inputs.SHARED.is_dir():
        print("the shared traces are not here: compared without them")
        before = {k: v for k, v in before.items() if not k.startswith(_OF_SHARED)}
    if found := outputs.differences(before, now):
        print(*found, sep="\n")
        print("all outputs: python -m tests.golden --keep FOLDER; if meant: --record")
        return 1
    print(f"golden: {len(now)} outputs as recorded, {seconds:.1f} s")
    return 0


def _settle(work: Path) -> None:
    """Give all commands the same surroundings."""
    for name in tuple(os.environ):
        if name.startswith(("CHOPPERD_", "XDG_", "FORCE_COLOR", "NOTIFY_", "SLURM")):
            del os.environ[name]
    sys.executable = "/usr/bin/python3"  # the help of `selftest` names it
    os.environ.update(_ENVIRONMENT, HOME=str(work / "home"))
    os.chdir(work)


def _measured(work: Path) -> Inputs:
    """The time ranges and devices of all traces."""
    inputs.write_all(work, {})
    found = {}
    for path in inputs.traces():
        arguments = ["report", "--config", "config.toml", f"traces/{path.name}"]
        printed = _printed(
            Command(name="measured", arguments=[*arguments, "--format", "json"]),
            work / "out" / "measured",
        )
        found[path.name.removesuffix(".json.gz")] = inputs.measured(path, json.loads(printed[0]))
    return found


def _outputs(work: Path, given: Inputs, keep: Path | None) -> Iterator[tuple[str, outputs.Kept]]:
    """Each output, what is stored of it; on all cores."""
    make = partial(_made, work=work, keep=keep)
    tasks: list[_Task] = [_samples, _stored, _served, *inputs.commands(given)]
    with get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        for found in pool.imap(make, enumerate(tasks)):
            yield from found.items()


def _made(task: tuple[int, _Task], work: Path, keep: Path | None) -> Mapping[str, outputs.Kept]:
    """What a task puts out, ready to be compared."""
    number, asked = task
    if isinstance(asked, Command):
        form, lines = asked.form, asked.kept_lines
        found: Mapping[str, str] = {asked.name: _text(asked, work / "out" / str(number))}
    else:
        found, form, lines = asked(work), "json", 0
    texts = {k: outputs.comparable(v, work, doors.version()) for k, v in found.items()}
    if keep is not None:
        for name, text in texts.items():
            (keep / name.strip("/").replace("/", "_")).write_text(text)
    return {
        name: outputs.kept(text, form, lines or _KEPT_LINES.get(name, 0))
        for name, text in texts.items()
    }


def _text(command: Command, path: Path) -> str:
    """All that a command line gives, as one text: what it prints or writes, then the rest."""
    out, error, status = _printed(command, path)
    written = path.parents[1] / command.written if command.written else path.with_suffix(".out")
    if status == 0 and command.form == "parquet":
        text = outputs.parquet_text(written)
    else:
        text = written.read_text() if command.written and written.exists() else out
    rest = "".join(f"stderr: {line}\n" for line in error.splitlines())
    return text + rest + (f"status: {status}\n" if status else "")


def _printed(command: Command, path: Path) -> tuple[str, str, int]:
    """The standard output, standard error and status of a command line, run in a child."""
    out, error = path.with_suffix(".out"), path.with_suffix(".err")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become(["chopperd", *command.arguments], out, error)
    _, status = os.waitpid(pid, 0)
    return (
        out.read_bytes().decode(errors="replace"),
        error.read_bytes().decode(errors="replace"),
        os.waitstatus_to_exitcode(status),
    )


def _become(arguments: Sequence[str], out: Path, error: Path) -> NoReturn:
    """Be a command line with its standard files in these places."""
    status = _CRASHED
    try:
        for fd, place in ((0, Path(os.devnull)), (1, out), (2, error)):
            flags = os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(place, flags), fd)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(fd, mode, encoding="utf-8", closefd=False)
            for fd, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        sys.argv = list(arguments)
        doors.main()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:  # noqa: BLE001 - a crash is an output too
        traceback.print_exc(limit=-1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _samples(work: Path) -> Mapping[str, str]:
    """Files of samples that the package writes."""
    made = doors.rewritten_samples(work / "plain.csv", work / "out")
    return {
        name: outputs.parquet_text(path) if path.suffix == ".parquet" else path.read_text()
        for name, path in made.items()
    }


def _stored(work: Path) -> Mapping[str, str]:
    """What the flight recorder and the store leave on disk."""
    return {
        "recorder": outputs.recorder_text(doors.recorder_folder(work / "out" / "recorder")),
        "store": outputs.store_text(doors.store_file(work / "out" / "store.sqlite")),
    }


def _served(_work: Path) -> Mapping[str, str]:
    """What the API and the scrape give, and the schema of reports."""
    return {**doors.metrics(), **doors.schemas(), **doors.api()}


if __name__ == "__main__":
    sys.exit(main())
