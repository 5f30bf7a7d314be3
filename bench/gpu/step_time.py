"""What the agent costs a training step: the same job with the agent and without, in turns."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.gpu.looping import in_turns, looping, process_of
from bench.gpu.paired import medians, paired_ratio, shown
from bench.gpu.part import Options, main


def measure(options: Options) -> tuple[str, object]:
    """Pairs of stretches of steps, with the agent at its defaults and without it."""
    pairs, seconds, settle_s = (2, 0.3, 1.5) if options.is_dry else (5, 2.0, 1.5)
    with (
        TemporaryDirectory(prefix="chopperd-agent-") as folder,
        looping("step", options.device) as done,
    ):
        conditions = {"off": _nothing, "on": lambda: _agent(Path(folder))}
        stretches = in_turns(conditions, pairs, seconds, settle_s, seed=2)
    found = medians(done, stretches)
    ratio = paired_ratio(found, "on", "off")
    steps = len(done)
    text = (
        f"Median step time with the agent over without: {shown(ratio)}; {steps} steps, "
        "stretches in drawn order, the agent at its defaults (10 Hz)."
    )
    flat = {f"{condition}, pair {pair}": value for (condition, pair), value in found.items()}
    return text, {"ratio": ratio, "medians_ns": flat, "steps": steps}


def _nothing() -> AbstractContextManager[object]:
    return nullcontext()


def _agent(folder: Path) -> AbstractContextManager[object]:
    """`chopperd run` with folders of its own and ports that are free."""
    own = {
        "CHOPPERD_PATHS__STATE": str(folder / "state"),
        "CHOPPERD_PATHS__RUNTIME": str(folder / "runtime"),
        "CHOPPERD_METRICS__LISTEN": "127.0.0.1:0",
        "CHOPPERD_API__LISTEN": "127.0.0.1:0",
        "CHOPPERD_SAMPLING__BACKEND": "nvml",
    }
    command = [sys.executable, "-P", "-m", "chopperd", "--log-level", "error", "run"]
    return process_of(command, {**os.environ, **own})


if __name__ == "__main__":
    main(measure)
