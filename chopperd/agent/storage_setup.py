"""What the agent keeps on disk: the flight recorder and the store, by the configured bounds."""

from functools import partial
from typing import Final

from chopperd.agent.archiving import ArchiveThread
from chopperd.agent.context import Surroundings
from chopperd.agent.store_keeper import StoreKeeper
from chopperd.config.paths import node_name
from chopperd.model.live import GuardedPart
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.captures.retention import StoreLimits
from chopperd.store.recorder.files import RecorderLimits
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.store.recorder.writer import FlightRecorder

_STORE_NAME: Final = "store.sqlite"


def opened_store(around: Surroundings) -> StoreKeeper:
    """The store, and what looks after it, not started."""
    limits = StoreLimits(
        max_bytes=around.config.store.max_bytes,
        max_days=around.config.store.max_days,
        min_free_ratio=around.config.store.min_free_ratio,
    )
    path = around.state / _STORE_NAME
    return StoreKeeper(
        CaptureStore.open(path, limits=limits, clock=around.clock),
        around.drops,
        around.clock,
        note_fault=partial(around.health.note_fault, GuardedPart.STORE),
    )


def new_archive(around: Surroundings, recorded: RecordedSamples) -> ArchiveThread:
    """What writes the flight recorder, not started.

    Args:
        around: Where and how much.
        recorded: What reads it.
    """
    limits = RecorderLimits(
        max_bytes=around.config.recorder.max_bytes,
        max_days=around.config.recorder.max_days,
        min_free_ratio=around.config.store.min_free_ratio,
    )
    return ArchiveThread(
        FlightRecorder(recorded.folder, limits, around.clock),
        around.ring,
        node=node_name(around.config),
        asked_hz=around.config.sampling.hz,
        clock=around.clock,
        damaged_count=lambda: recorded.damaged_count,
        note_fault=partial(around.health.note_fault, GuardedPart.RECORDER),
    )
