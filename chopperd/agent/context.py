"""What the agent's parts are made from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chopperd.agent.health import Health
from chopperd.agent.pause import PauseFile
from chopperd.agent.sockets import Sockets
from chopperd.clock import Clock
from chopperd.config.sections import Config

if TYPE_CHECKING:  # loaded by whoever makes the parts, after the sampler has started
    from chopperd.api.access import AccessPolicy
    from chopperd.live.drops import DropQueue
    from chopperd.model.services import SnapshotSource
    from chopperd.sampling.memory.ring_reader import RingReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What each part takes what it needs from.

    Attributes:
        config: All settings.
        state: The state folder.
        sockets: Where to listen.
        access: Who may ask for what.
        snapshots, pause, health: What the main loop offers.
        drops: Drops of the busy clock that are to be kept.
        ring: The samples.
        clock: Tells the time.
    """

    config: Config
    state: Path
    sockets: Sockets
    access: "AccessPolicy"
    snapshots: "SnapshotSource"
    pause: PauseFile
    health: Health
    drops: "DropQueue"
    ring: "Callable[[], RingReader | None]"
    clock: Clock

    @property
    def recorder_folder(self) -> Path:
        """Where the flight recorder keeps its files."""
        return self.state / "recorder"
