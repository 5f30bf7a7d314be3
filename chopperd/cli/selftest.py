"""`selftest`: test whether the sampled clock explains the time of matrix products on a GPU."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chopperd.cli import options
from chopperd.cli.output import complain, print_page, write
from chopperd.errors import BackendUnavailableError, ConfigError, DeviceError

if TYPE_CHECKING:
    from chopperd.devices.base import DeviceBackend
    from chopperd.model.devices import GpuInfo
    from chopperd.selftest.findings import Findings
    from chopperd.selftest.protocol import Begin, LoadLog, LoadPlan, Said


_HZ: Final = 100.0
#: Rate of full reads, which include power and energy: enough to measure the lag of power.
_FULL_HZ: Final = 10.0
_LONGEST_PULSE_S: Final = 0.3
_BUSY_RATIO: Final = 0.05
_AUTO: Final = "auto"


@options.documented("chopperd selftest --gpu 0", "chopperd selftest -o samples.csv")
@click.option("--gpu", help="Label of the GPU; default: the only one.")
@click.option(
    "--seconds", type=click.FloatRange(0.5, 120), default=10.0, help="Timed length of each phase."
)
@click.option(
    "--warm-up", type=click.FloatRange(0, 60), default=2.0, help="Seconds of load before it."
)
@click.option("--hz", type=options.HZ, default=_HZ, help="Samples a second.")
@click.option("--anyway", is_flag=True, help="Test the GPU even if it is in use.")
@click.option("--python", default=sys.executable, help="A Python that has torch.")
@options.output
@options.list_form
@options.backend
@click.option("--device", default="cuda", hidden=True)
@click.option("--load", type=options.PATH, hidden=True)
def selftest(
    gpu: str | None,
    seconds: float,
    warm_up: float,
    hz: float,
    anyway: bool,
    python: str,
    output: Path | None,
    form: options.ListFormat,
    backend: str | None,
    device: str,
    load: Path | None,
) -> None:
    """Load an idle GPU with zeros, then random data; test whether its clock explains the times.

    Exit status: 0 if it does, 1 if not, 3 without a GPU or torch, or if the GPU is in use.
    """
    from chopperd.selftest.findings import Outcome, encode_findings, render_findings
    from chopperd.selftest.protocol import LOAD_SCRIPT, LoadPlan

    name = backend or _AUTO
    chosen = _idle_gpu(name, gpu, anyway=anyway)
    plan = LoadPlan(
        device=device,
        uuid=chosen.uuid,
        warm_up_s=warm_up,
        seconds=seconds,
        pulse_s=min(_LONGEST_PULSE_S, seconds / 10),
    )
    found = _tested(chosen, plan, plan.to_argv(python, load or LOAD_SCRIPT), name, hz, output)
    if form == "json":
        write(encode_findings(found).decode())
    else:
        print_page(render_findings(found))
    is_well = found.verdict.outcome in {Outcome.AGREES, Outcome.TRIVIAL}
    raise click.exceptions.Exit(0 if is_well else 1)


def _tested(
    gpu: "GpuInfo",
    plan: "LoadPlan",
    command: list[str],
    backend: str,
    hz: float,
    output: Path | None,
) -> "Findings":
    from chopperd.cli.recording import recorder_of, sampler_command
    from chopperd.sampling.settings import SamplerSettings
    from chopperd.selftest.findings import findings, phase_words

    # The GPU runs our load only: nobody else's driver calls would be delayed.
    settings = SamplerSettings(hz=hz, slow_hz=_FULL_HZ, budget_ratio=1.0)
    with closing(recorder_of(sampler_command(backend), settings)) as recorder:
        recorder.start()
        complain(f"selftest: GPU {gpu.gpu}, about {plan.lasts_s:.0f} s and the start of torch")
        log = run_load(
            command, lambda begin: complain(f"selftest: {phase_words(begin.operand, begin.round)}")
        )
        samples = recorder.finish()
    if output is not None:
        from chopperd.store.samples.files import write_samples

        write_samples(output, samples)
    return findings(log, samples, gpu.gpu)


def _idle_gpu(backend: str, label: str | None, *, anyway: bool) -> "GpuInfo":
    from chopperd.devices.registry import open_backend

    with closing(open_backend(backend)) as opened:
        gpu = _chosen(tuple(opened.devices()), label)
        reason = _use_of(opened, gpu)
    if reason is not None and not anyway:
        raise BackendUnavailableError(
            f"GPU {gpu.gpu} is in use: {reason}. Another load would slow that job down and spoil "
            "the test; --anyway tests it all the same"
        )
    return gpu


def _chosen(gpus: "tuple[GpuInfo, ...]", label: str | None) -> "GpuInfo":
    found = [gpu for gpu in gpus if label in {None, gpu.gpu}]
    if not gpus:
        raise BackendUnavailableError("the driver reports no GPU")
    if len(found) != 1:
        labels = ", ".join(gpu.gpu for gpu in gpus)
        raise ConfigError([f"--gpu: name one of {labels}"])
    return found[0]


def _use_of(backend: "DeviceBackend", gpu: "GpuInfo") -> str | None:
    from chopperd.devices.base import ListsProcesses
    from chopperd.model.devices import ReadScope

    try:
        activity_ratio = backend.read(gpu, ReadScope.FULL).activity_ratio
        listed = backend.processes(gpu) if isinstance(backend, ListsProcesses) else None
    except DeviceError as error:
        raise BackendUnavailableError(f"GPU {gpu.gpu} can't be read: {error}") from error
    if listed:
        return "processes " + ", ".join(str(process.pid) for process in listed)
    if activity_ratio is not None and activity_ratio > _BUSY_RATIO:
        return f"{100 * activity_ratio:.0f} % busy"
    return None


def run_load(command: Sequence[str], on_begin: Callable[["Begin"], object]) -> "LoadLog":
    """Run the load process and return its log, or raise `BackendUnavailableError`, which says why.

    `on_begin` is called at each phase.
    """
    from chopperd.selftest.protocol import Begin, decoded, log_of

    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise BackendUnavailableError(f"no load: can't run {command[0]}: {error}") from error
    with process:
        try:
            messages: list[Said] = []
            for line in process.stdout or ():
                messages.append(decoded(line))
                if isinstance(messages[-1], Begin):
                    on_begin(messages[-1])
            return log_of(messages)
        finally:
            process.terminate()
