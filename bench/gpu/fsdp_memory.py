"""FSDPv1 and v2 alone on one GPU (`fsdp_fake_job.py`): memory, clocks, and the evidence of both."""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec.structs import replace

from bench.gpu.part import Options, kept_packed, main, output_of
from chopperd import __version__
from chopperd.config.load import load_config
from chopperd.correlate.compared_reports import compare
from chopperd.errors import IncomparableError
from chopperd.model.report import ReportDocument
from chopperd.pipeline.reports import configured_options, report_files
from chopperd.report.text.comparison import comparison_page
from chopperd.report.text.page import page_text
from chopperd.report.text.report import render_text
from chopperd.store.samples.files import read_samples

_JOB: Final = Path(__file__).with_name("fsdp_fake_job.py")
_HOW: Final = ("-P", "-m", "chopperd", "record", "--backend", "nvml", "--hz", "100")


class RecordFailedError(Exception):
    """`chopperd record` ended with another status than 0."""


def measure(options: Options) -> tuple[str, object]:
    """Record both versions, report with their snapshots, compare, keep."""
    with TemporaryDirectory(prefix="chopperd-fsdp-") as temporary:
        folder = Path(temporary)
        documents = {version: _report(folder, version, options.device) for version in ("1", "2")}
        paths = sorted(each for each in folder.iterdir() if each.is_file())
        paths += sorted(each for each in folder.glob("traces/*"))
        kept = [kept_packed(path, options.out) for path in paths]
    shown = "\n\n".join(_shown(documents))
    return f"Kept: {', '.join(kept)}.\n\n{shown}", documents


def _report(folder: Path, version: str, device: str) -> ReportDocument:
    """Record one job and report on it, with its snapshot where it left one."""
    (folder / "traces").mkdir(exist_ok=True)
    samples = f"fake-fsdp{version}.csv"
    job = (sys.executable, "-P", str(_JOB), device, version, "traces")
    recording = (*_HOW, "-o", samples, "--traces", "traces", "--", *job)
    status, _ = output_of(recording, cwd=folder)
    if status:
        raise RecordFailedError(f"FSDPv{version}: exit status {status}")
    trace = folder / "traces" / f"fake-fsdp{version}.pt.trace.json"
    snapshot = trace.with_name(f"fake-fsdp{version}.pickle")
    options = configured_options(load_config(None))
    if snapshot.exists():
        options = replace(options, memory={str(trace): str(snapshot)})
    return report_files([trace], samples=read_samples(folder / samples), options=options)


def _shown(documents: dict[str, ReportDocument]) -> Iterator[str]:
    """Yield each report's memory, and what the two say of one another."""
    for version, document in documents.items():
        text = render_text(document, by="memory")
        blocks = [block for block in text.split("\n\n") if "MEMORY" in block.partition("\n")[0]]
        yield f"FSDPv{version}:\n\n```\n" + "\n\n".join(blocks).strip() + "\n```"
    try:
        found = compare([[each] for each in documents.values()], version=__version__)
    except IncomparableError as error:  # a dry run has no step on a device
        yield f"Not compared: {error}."
    else:
        yield f"```\n{page_text(comparison_page(found)).strip()}\n```"


if __name__ == "__main__":
    main(measure)
