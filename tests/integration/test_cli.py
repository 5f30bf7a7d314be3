"""The command line in this process, and as a process where signals and pipes matter.

Reports are hand-built documents put in at the seams; the pipeline has tests of its own.
"""

import csv
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import pytest

from chopperd import __version__, cli
from chopperd.cli import report_commands
from chopperd.cli.recording import run_command
from chopperd.errors import BackendUnavailableError, ConfigError, StoreError, TraceFormatError
from chopperd.model.report import ReportDocument
from tests.unit.report.documents import eight_gpus, host_timed

PYTHON = sys.executable
RUN = (
    PYTHON,
    "-c",
    "import sys; from chopperd.cli.recording import run_command as r; sys.exit(r(sys.argv[1:]))",
)
#: Says it is ready, then leaves with 7 at SIGTERM and with 8 at SIGINT.
TRAPS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.signal(signal.SIGINT, lambda *_: sys.exit(8))
print("ready", flush=True)
time.sleep(30)
"""


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command line configures logging for its process; here that is the tests'."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every report is the hand-built one of eight GPUs."""
    monkeypatch.setattr(report_commands, "report_options", lambda *_, **__: None)
    monkeypatch.setattr(report_commands, "_document", lambda *_: eight_gpus())


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """`record` samples nothing and finds these trace files."""
    found: list[Path] = []
    monkeypatch.setattr(report_commands, "recording", lambda *_: nullcontext(None))
    monkeypatch.setattr(
        "chopperd.traces.read.sniff.kineto_files", lambda *_, **__: list(found), raising=False
    )
    return found


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(report_commands, "report_options", lambda *_, **__: None)
    monkeypatch.setattr(report_commands, "_document", fail)


def complaints(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err.splitlines()


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_no_command_prints_the_help_and_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run([]) == 2
    assert "Usage: chopperd " in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nope"],
        ["nope"],
        ["report", "x.json", "--job", "llama"],
        ["report", "--tz", "UTC"],
        ["report", "x.json", "--last", "0"],
        ["report", "x.json", "--format", "xml"],
        ["report", "x.json", "--reference-mhz", "-5"],
        ["record"],
        ["demo", "--seconds", "0"],
    ],
)
def test_a_usage_error_is_one_line_and_exits_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    (line,) = complaints(capsys)
    assert line.startswith("chopperd: ")


@pytest.mark.parametrize("text", ["0", "x=GPU-1", "0=GPU-1,1=", ""])
def test_a_device_map_that_is_none_says_which_part(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["report", "x.json", "--device-map", text]) == 2
    (line,) = complaints(capsys)
    assert line.startswith("chopperd: --device-map: ")


def test_a_device_map_reaches_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(
        report_commands, "report_options", lambda _, **options: given.update(options)
    )
    monkeypatch.setattr(report_commands, "_document", lambda *_: eight_gpus())
    arguments = ["--device-map", "0=GPU-a, 1 =GPU-b", "--reference-mhz", "1755", "--last", "3"]
    assert cli.run(["report", "x.json", *arguments]) == 0
    assert given == {
        "device_map": "0=GPU-a, 1 =GPU-b",
        "reference_mhz": 1755.0,
        "step": None,
        "step_marker": None,
        "last": 3,
        "merge": False,
        "hashes": False,
        "memory": {},
    }


def test_ranks_of_files_reach_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def document(*arguments: object) -> ReportDocument:
        given.append(arguments[-1])
        return eight_gpus()

    monkeypatch.setattr(report_commands, "report_options", lambda *_, **__: None)
    monkeypatch.setattr(report_commands, "_document", document)
    named = ["--rank-of", "a/x=1.json=3", "--rank-of", "y.json=0"]
    assert cli.run(["report", "a/x=1.json", "b/y.json", *named]) == 0
    assert given == [{Path("a/x=1.json"): 3, Path("b/y.json"): 0}]


@pytest.mark.usefixtures("document")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x.json", "'x.json' is not FILE=N"),
        ("x.json=a", "'x.json=a' is not FILE=N"),
        ("z.json=1", "'z.json': no trace has that name; give its whole path"),
        ("x.json=1", "'x.json': several traces have that name; give its whole path"),
    ],
)
def test_a_rank_of_no_trace_is_a_usage_error(
    text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["report", "a/x.json", "b/x.json", "--rank-of", text]) == 2
    assert complaints(capsys) == [f"chopperd: --rank-of: {says}"]


@pytest.mark.usefixtures("document")
def test_an_unknown_time_zone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "x.json", "--tz", "Mars/Olympus"]) == 2
    assert complaints(capsys) == [
        "chopperd: --tz: 'Mars/Olympus' is not a time zone such as Europe/Berlin"
    ]
    assert cli.run(["report", "x.json", "--tz", "utc"]) == 0


@pytest.mark.usefixtures("document")
def test_report_prints_text_with_families_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "x.json"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(" COMMUNICATION   208 of each 1412 ms step")
    assert "FAMILIES" not in text
    assert "\x1b" not in text
    assert cli.run(["report", "x.json", "--by", "family"]) == 0
    assert "FAMILIES" in capsys.readouterr().out
    assert cli.run(["report", "x.json", "--by", "stream"]) == 2


@pytest.mark.usefixtures("document")
def test_a_csv_without_lines_says_why_beside_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_commands, "_document", lambda *_: host_timed())
    assert cli.run(["report", "x.json", "--format", "csv", "--by", "layer"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.run(["report", "x.json", "--format", "csv", "--by", "family"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1
    assert shown.err == "chopperd: --by family: no device work in the trace\n"


@pytest.mark.usefixtures("document")
def test_report_prints_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "x.json", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["steps"] == 10
    assert cli.run(["report", "x.json", "--format", "csv"]) == 0
    assert len(list(csv.reader(StringIO(capsys.readouterr().out)))) == 1 + 80 + 8


@pytest.mark.parametrize(
    ("error", "status", "lines"),
    [
        (TraceFormatError("x.json: is empty", path="x.json"), 4, ["x.json: is empty"]),
        (StoreError("s.csv: not a sample file"), 4, ["s.csv: not a sample file"]),
        (FileNotFoundError(2, "No such file", "x"), 4, ["[Errno 2] No such file: 'x'"]),
        (BackendUnavailableError("nvml: no driver"), 3, ["nvml: no driver"]),
        (ConfigError(["a is wrong", "b is wrong"]), 2, ["a is wrong", "b is wrong"]),
        (TraceFormatError("two\nlines", path="x"), 4, ["two lines"]),
        (KeyboardInterrupt(), 130, []),
    ],
)
def test_errors_are_one_line_each_with_their_exit_code(
    error: BaseException,
    status: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing(monkeypatch, error)
    assert cli.run(["report", "x.json"]) == status
    assert complaints(capsys) == [f"chopperd: {line}" for line in lines]


def test_check_config_lists_all_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[sampling]\nhz = 0\nherz = 5\n", encoding="utf-8")
    assert cli.run(["check-config", str(file)]) == 2
    assert complaints(capsys) == [
        f"chopperd: {file}: sampling.hz = 0 is not allowed: a number from 0.1 to 1000 Hz",
        f"chopperd: {file}: unknown key sampling.herz; did you mean sampling.hz?",
    ]


def test_check_config_shows_what_is_in_force_and_from_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[sampling]\nhz = 20\n", encoding="utf-8")
    monkeypatch.setenv("CHOPPERD_PRIVACY__NAMES", "classes")
    assert cli.run(["check-config", str(file)]) == 0
    text = capsys.readouterr().out
    assert "sampling.hz" in text
    assert "CHOPPERD_PRIVACY__NAMES" in text


@pytest.mark.usefixtures("recorded")
def test_record_gives_the_commands_status_and_says_that_no_trace_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["record", "--traces", str(tmp_path), "--", PYTHON, "-c", "raise SystemExit(5)"]
    assert cli.run(arguments) == 5
    (line,) = complaints(capsys)
    assert line == (
        f"chopperd: no Kineto trace written since the start under {tmp_path}; no report"
    )


@pytest.mark.usefixtures("document")
def test_record_reports_on_what_the_command_wrote(
    recorded: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.append(Path("x.json"))
    assert cli.run(["record", PYTHON, "-c", "pass", "--hz", "not ours"]) == 0
    assert capsys.readouterr().out.startswith(" COMMUNICATION   ")


@pytest.mark.usefixtures("recorded")
def test_record_says_that_it_saved_no_samples_where_no_gpu_was_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "samples.csv"
    arguments = ["record", "-o", str(output), "--traces", str(tmp_path), "--", PYTHON, "-c", "pass"]
    assert cli.run(arguments) == 0
    assert complaints(capsys)[0] == f"chopperd: {output} is not written: no GPU was sampled"
    assert not output.exists()


@pytest.mark.usefixtures("recorded")
def test_not_even_a_fault_of_ours_hides_the_commands_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(report_commands, "recording", lambda *_: nullcontext(broken))
    assert cli.run(["record", "--", PYTHON, "-c", "raise SystemExit(6)"]) == 6
    assert complaints(capsys) == ["chopperd: RuntimeError('a bug')"]
    with pytest.raises(RuntimeError, match="a bug"):
        cli.run(["record", "--", PYTHON, "-c", "pass"])


@pytest.mark.usefixtures("recorded")
def test_record_refuses_to_begin_where_the_samples_can_not_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, proof = tmp_path / "missing" / "samples.csv", tmp_path / "ran"
    assert cli.run(["record", "-o", str(output), "--", "touch", str(proof)]) == 2
    assert complaints(capsys) == [f"chopperd: -o: there is no folder {tmp_path / 'missing'}"]
    assert not proof.exists()


@pytest.mark.parametrize(("own", "status"), [(0, 4), (6, 6)])
def test_a_report_that_fails_never_hides_the_commands_status(
    own: int,
    status: int,
    recorded: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorded.append(Path("x.json"))
    failing(monkeypatch, TraceFormatError("x.json: damaged", path="x.json"))
    assert cli.run(["record", "--", PYTHON, "-c", f"raise SystemExit({own})"]) == status
    assert complaints(capsys) == ["chopperd: x.json: damaged"]


def test_a_command_that_can_not_run_has_the_shells_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([str(tmp_path / "missing")]) == 127
    plain = tmp_path / "plain"
    plain.write_text("", encoding="utf-8")
    assert run_command([str(plain)]) == 126
    assert complaints(capsys) == [
        f"chopperd: can't run {tmp_path / 'missing'}: No such file or directory",
        f"chopperd: can't run {plain}: Permission denied",
    ]


def test_a_command_killed_by_a_signal_has_the_shells_status() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_command([PYTHON, "-c", code]) == 128 + 9


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 7), (signal.SIGINT, 8)])
def test_a_signal_is_passed_on_to_the_command(number: signal.Signals, status: int) -> None:
    with subprocess.Popen(
        [*RUN, PYTHON, "-c", TRAPS], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(timeout=20) == status


#: A process that is told to end in the middle of a class of a module that it loads, where Python
#: makes another error of any that is raised.
TOLD_EARLY = """
import os, signal, sys
from chopperd import cli

class Told:
    def __set_name__(self, *_):
        os.kill(os.getpid(), signal.SIGTERM)

def begin(_):
    class Loaded:
        told = Told()
    return 7

cli._run_own = cli.run_agent = begin
sys.argv[0] = "chopperd"
cli.main()
"""


@pytest.mark.parametrize(("command", "status"), [("run", 0), ("_sampler", 128 + signal.SIGTERM)])
def test_what_is_told_to_end_while_it_loads_ends_without_a_word(command: str, status: int) -> None:
    done = subprocess.run(
        [PYTHON, "-c", TOLD_EARLY, command], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (status, "")


def test_our_handlers_are_gone_after_the_command() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run_command([PYTHON, "-c", "pass"]) == 0
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("arguments", [["check-config"], ["--help"], ["report", "--help"]])
def test_a_reader_that_has_gone_is_no_error_to_shout_about(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [PYTHON, "-m", "chopperd", *arguments],
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == b""


def test_names_that_the_terminal_can_not_show_do_not_stop_the_report() -> None:
    code = (
        "from chopperd import cli; from chopperd.cli import commands;"
        "commands.write = lambda t: print('±…', flush=True); cli.main()"
    )
    done = subprocess.run(
        [PYTHON, "-c", code, "version"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"??\n")


def test_starting_up_loads_neither_numpy_nor_rich() -> None:
    code = (
        "import sys; from chopperd.cli import run; run(['version']);"
        "print([m for m in ('numpy', 'rich', 'pandas', 'pynvml') if m in sys.modules])"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_report_loads_neither_other_commands_nor_the_agents_data() -> None:
    code = (
        "import sys; from chopperd.cli import run; run(['report', '--help']);"
        "import chopperd.pipeline.reports; print(*sys.modules)"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "chopperd.cli.report_commands" in loaded
    others = ("demo", "doctor", "selftest", "top", "annotate")
    unwanted = {f"chopperd.cli.{other}_command" for other in others}
    unwanted |= {"chopperd.model.live", "chopperd.agent", "rich"}
    assert unwanted & set(loaded) == set()


def test_the_help_of_all_commands_loads_no_library_that_only_their_work_needs() -> None:
    code = (
        "import sys; from chopperd.cli import run; run(['--help']);"
        "print([m for m in ('numpy', 'rich', 'pandas', 'http') if m in sys.modules])"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_agent_does_not_load_numpy_before_its_sampler_starts() -> None:
    code = (
        "import sys; import chopperd.cli, chopperd.agent.service;"
        "print([m for m in ('numpy', 'starlette', 'prometheus_client') if m in sys.modules])"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_process_that_was_started_without_standard_files_works(tmp_path: Path) -> None:
    """As some service managers do; the shell closes all three before it starts the command."""
    script = f"exec {PYTHON} -m chopperd check-config <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, check=False)
    assert done.returncode == 0
