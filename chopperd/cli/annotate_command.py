"""`annotate`: a trace with the clocks of its GPUs beside its streams."""

import sys
from pathlib import Path

import click

from chopperd.cli import options
from chopperd.cli.options import parsed_zone, report_options
from chopperd.cli.output import complain, write
from chopperd.cli.samples import samples_to_join
from chopperd.config.load import DEFAULT_PATH, load_config


@click.command()
@options.trace
@options.copy_to
@options.samples
@options.device_map
@options.reference
@options.zone
@options.config_path
def annotate(
    trace: Path,
    output: Path,
    samples: Path | None,
    device_map: str | None,
    reference_mhz: float | None,
    tz: str | None,
    config: Path | None,
) -> None:
    """Write TRACE again with counter tracks: clock, power, temperature, causes, loss."""
    settings = load_config(config or DEFAULT_PATH)
    how = report_options(settings, device_map=device_map, reference_mhz=reference_mhz)
    clocks = samples_to_join(settings, samples, parsed_zone(tz))
    from chopperd.cli.progress import reading_progress
    from chopperd.pipeline.annotation import annotate_file

    with reading_progress(sys.stderr) as progress:
        done = annotate_file(trace, output, samples=clocks, options=how, progress=progress)
    complain(*(f"{trace}: {remark}" for remark in done.remarks))
    if how.names != "full":
        complain(
            f"{output} has the names of kernels and modules in full, as the trace has:"
            f" privacy.names = {how.names!r} is of reports"
        )
    gpus = ", ".join(f"device {device} is GPU {gpu}" for device, gpu in done.gpus.items())
    write(f"{output}: {done.event_count} counter events ({gpus}); open it in ui.perfetto.dev\n")
