"""The simulated job that shows what chopperd does."""

from chopperd.cli import options
from chopperd.cli.output import print_report
from chopperd.cli.recording import recording
from chopperd.clock import SystemClock
from chopperd.config.load import DEFAULT_PATH, load_config


def demo(
    seconds: options.Seconds = 5.0,
    preset: options.Preset = "fsdp2-h100",
    seed: options.Seed = 0,
    form: options.Form = "text",
) -> None:
    """Report on a simulated training job; needs no GPU."""
    from chopperd.pipeline.simulated import report_simulation
    from chopperd.simulation.spec import SimulationSpec

    clock = SystemClock()
    spec = SimulationSpec(seed=seed, preset=preset, start_unix_ns=clock.unix_ns())
    with recording(load_config(DEFAULT_PATH), "simulated", None, spec) as finish:
        document = report_simulation(spec, seconds, finish, clock)
    print_report(document, form)
