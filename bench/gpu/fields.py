"""`chopperd devices` as text and as data."""

import subprocess
import sys

import msgspec

from bench.gpu.part import Options, main


def measure(_options: Options) -> tuple[str, object]:
    """Ask twice, once in each form."""
    text, data = (_listed(form) for form in ("text", "json"))
    return f"```\n{text.rstrip()}\n```", msgspec.json.decode(data)


def _listed(form: str) -> str:
    command = [sys.executable, "-P", "-m", "chopperd", "devices", "--backend", "nvml"]
    done = subprocess.run(
        [*command, "--format", form], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    main(measure)
