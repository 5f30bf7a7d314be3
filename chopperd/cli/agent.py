"""Start the agent and its processes without importing the libraries of other commands."""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from msgspec import Struct

COMMAND: Final = "run"
_CONFIG, _BACKEND = "--config", "--backend"


class AgentOptions(Struct, frozen=True, kw_only=True):
    """Options of `chopperd run`; None: use the configuration's value."""

    config: Path | None = None
    backend: str | None = None


def run_agent(options: AgentOptions) -> int:
    """Run the agent until it is stopped; return its exit status."""
    from chopperd.agent.service import Agent
    from chopperd.config.load import DEFAULT_PATH, load_config

    return Agent(load_config(options.config or DEFAULT_PATH), backend=options.backend).run()


def leave(status: int) -> NoReturn:
    """End this process without the interpreter's shutdown.

    Shutdown takes twice the CPU time of stopping the agent and a sixth of a small report's, and
    waits for threads that hang, for example on a disk.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def plain_options(arguments: Sequence[str]) -> AgentOptions | None:
    """Parse `run` with plain options only; None for others, which need the full parser."""
    if not arguments or arguments[0] != COMMAND or not len(arguments) % 2:
        return None
    given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    if len(given) != len(arguments) // 2 or not given.keys() <= {_CONFIG, _BACKEND}:
        return None
    config = Path(given[_CONFIG]) if _CONFIG in given else None
    return AgentOptions(config=config, backend=given.get(_BACKEND))
