"""`chopperd selftest`, its findings as text and data, and its samples."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from bench.gpu.part import Options, kept_packed, main
from chopperd.report.text import page_text
from chopperd.selftest.findings import Findings
from chopperd.selftest.page import render_findings


class SelftestFailedError(Exception):
    """The self-test gave no findings."""


def measure(options: Options) -> tuple[str, object]:
    """Run it; that clock and time disagree is a finding too."""
    dry = ("--device", "cpu", "--seconds", "0.5", "--warm-up", "0.1")
    how = dry if options.is_dry else ("--seconds", "5")
    with TemporaryDirectory(prefix="chopperd-selftest-") as folder:
        samples = Path(folder) / "selftest.csv"
        command = [sys.executable, "-P", "-m", "chopperd", "selftest", "--backend", "nvml"]
        form = ["--format", "json", "-o", str(samples)]
        done = subprocess.run(
            [*command, *how, *form], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode not in {0, 1} or not done.stdout:
            raise SelftestFailedError(f"exit status {done.returncode}")
        kept = kept_packed(samples, options.out)
    found = msgspec.json.decode(done.stdout, type=Findings)
    return f"```\n{page_text(render_findings(found))}```\n\nKept: {kept}.", found


if __name__ == "__main__":
    main(measure)
