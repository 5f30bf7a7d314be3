"""A small FSDP2 job recorded at 100 Hz and reported: the report, the lag found, the recording."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.gpu.part import Options, kept_packed, main, output_of
from chopperd.config.load import load_config
from chopperd.pipeline.reports import configured_options, report_files
from chopperd.store.samples.files import read_samples

_JOB: Final = Path(__file__).with_name("fsdp_job.py")


class RecordFailedError(Exception):
    """`chopperd record` ended with another status than 0."""


def measure(options: Options) -> tuple[str, object]:
    """Record, report, keep."""
    with TemporaryDirectory(prefix="chopperd-fsdp-") as temporary:
        folder = Path(temporary)
        text = _recorded(folder, options.device)
        traces = sorted(folder.glob("traces/*.json"))
        samples = read_samples(folder / "samples.csv")
        document = report_files(
            traces, samples=samples, options=configured_options(load_config(None))
        )
        kept = [kept_packed(path, options.out) for path in (folder / "samples.csv", *traces)]
    lines = [f"Kept: {', '.join(kept)}.", f"```\n{text.strip()}\n```"]
    return "\n\n".join(lines), document


def _recorded(folder: Path, device: str) -> str:
    """What `record` printed, the job's own words first."""
    chopperd = ("-P", "-m", "chopperd", "record", "--backend", "nvml")
    how = ("--hz", "100", "-o", "samples.csv", "--traces", "traces")
    job = (sys.executable, "-P", str(_JOB), device, "traces")
    (folder / "traces").mkdir()
    status, printed = output_of([*chopperd, *how, "--", *job], cwd=folder)
    if status:
        raise RecordFailedError(f"exit status {status}")
    return printed


if __name__ == "__main__":
    main(measure)
