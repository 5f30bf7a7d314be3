"""What is loaded before the first sample: everything else would delay it."""

import subprocess
import sys

import pytest

#: Each takes about as long as all that the agent needs before it starts the sampler.
SLOW = ("numpy", "click", "starlette", "uvicorn", "sqlite3", "chopperd.model.report")
WITHOUT_SLOW = ("click", "starlette", "sqlite3", "importlib.metadata", "chopperd.model.report")


@pytest.mark.parametrize(
    ("imports", "absent"),
    [
        ("chopperd.cli, chopperd.cli.agent, chopperd.config.load, chopperd.agent.service", SLOW),
        ("chopperd.cli.own, chopperd.sampling.process, chopperd.devices.registry", WITHOUT_SLOW),
    ],
    ids=["agent", "sampler"],
)
def test_nothing_slow_is_loaded_before_the_first_sample(
    imports: str, absent: tuple[str, ...]
) -> None:
    program = f"import sys, {imports}\nprint(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in absent if name in loaded] == []
