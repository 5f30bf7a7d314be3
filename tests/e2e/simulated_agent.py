"""The whole agent on a simulation of which the test knows the truth: its argument is the spec.

Without one it reads the GPUs that its configuration says.

It is started as a process by `tests.e2e.agents`.
"""

import logging
import sys
from pathlib import Path

from chopperd.agent.service import Agent
from chopperd.config.load import load_config
from chopperd.logs import configure_logging
from chopperd.simulation.presets import SimulationSpec


def main(spec: str | None) -> int:
    """Run until told to end; the addresses are written to `addresses` where it is started."""
    configure_logging("info", as_json=False)
    simulation = None if spec is None else SimulationSpec.from_json(spec)
    agent = Agent(load_config(None), simulation=simulation, on_ready=_ready)
    return agent.run()


def _ready(agent: Agent) -> None:
    metrics, socket = agent.addresses.metrics, agent.addresses.api_socket
    assert metrics is not None
    assert socket is not None
    part = Path("addresses.part")
    part.write_text(f"{metrics[0]}:{metrics[1]}\n{socket}")
    part.replace("addresses")
    logging.getLogger(__name__).info("the test's agent is ready")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
