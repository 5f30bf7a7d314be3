"""`chopperd selftest`, its findings as text and data, and its samples."""

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from bench.gpu.part import Options, kept_packed, main, output_of
from chopperd.report.text.page import page_text
from chopperd.selftest.findings import Findings, render_findings


class SelftestFailedError(Exception):
    """The self-test gave no findings."""


def measure(options: Options) -> tuple[str, object]:
    """Run it; that clock and time disagree is a finding too."""
    dry = ("--device", "cpu", "--seconds", "0.5", "--warm-up", "0.1")
    how = dry if options.is_dry else ("--seconds", "5")
    with TemporaryDirectory(prefix="chopperd-selftest-") as folder:
        samples = Path(folder) / "selftest.csv"
        command = ("-P", "-m", "chopperd", "selftest", "--backend", "nvml")
        form = ("--format", "json", "-o", str(samples))
        status, printed = output_of([*command, *how, *form])
        if status not in {0, 1} or not printed:
            raise SelftestFailedError(f"exit status {status}")
        kept = kept_packed(samples, options.out)
    found = msgspec.json.decode(printed, type=Findings)
    return f"```\n{page_text(render_findings(found))}```\n\nKept: {kept}.", found


if __name__ == "__main__":
    main(measure)
