"""The thread that takes what is sampled to the flight recorder, and waits for the disk alone."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from chopperd.agent.context import Surroundings
from chopperd.clock import Clock
from chopperd.config.paths import node_name
from chopperd.errors import StoreError
from chopperd.live.drops import DropQueue
from chopperd.model.live import ArchiveLive, GuardedPart
from chopperd.sampling.memory.layout import Records, RingDescription
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.memory.slow_state import GpuAside, with_findings
from chopperd.sampling.process_table import ProcessTable
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.captures.retention import StoreLimits
from chopperd.store.recorder.chunk import Origin
from chopperd.store.recorder.files import RecorderLimits
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
#: A disk that has not answered for so long is said to be in trouble.
_SLOW_NS: Final = 5 * NS_PER_S
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(slots=True)
class _Positions:
    """How far a ring was read."""

    by_slot: dict[int, int] = field(default_factory=dict)
    triples: int = 0


class ArchiveThread:
    """Keeps a flight recorder supplied from the sampler's ring, once a second.

    Args:
        recorder: From now on this thread's own.
        reader: Gives the ring that is written now; None while there is none. A ring must stay
            mapped until the next one is given and a second has passed, or `stop` returned.
        node: Name of the node.
        asked_hz: Rate that the sampler was asked for.
        clock: Tells the time.
        damaged_count: How many damaged chunks were met by who reads them; for `live`.
        note_fault: Told of each fault that the thread outlived, to count it.
    """

    def __init__(
        self,
        recorder: FlightRecorder,
        reader: Callable[[], RingReader | None],
        *,
        node: str,
        asked_hz: float,
        clock: Clock,
        damaged_count: Callable[[], int] = lambda: 0,
        note_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self._recorder, self._reader, self._clock = recorder, reader, clock
        self._node, self._asked_hz, self._damaged_count = node, asked_hz, damaged_count
        self._note_fault = note_fault
        #: By the ring's identity: the same memory in a larger file goes on where it stood.
        self._positions: dict[int, _Positions] = {}
        self._busy_since_mono_ns: int | None = None
        self._processes = ProcessTable(clock)
        self._failure: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chopperd-archive", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Take what is left in the ring, and end; whether it ended in time.

        Where it did not the disk hangs: the thread is left alone, and ends with the process.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("the disk of %s does not answer: left alone", self._recorder.folder)
        return not self._thread.is_alive()

    def live(self) -> ArchiveLive:
        """How the flight recorder stands; never waits for the disk."""
        live = self._recorder.live
        trouble, since_ns = self._failure or live.trouble, self._busy_since_mono_ns
        if since_ns is not None and (busy_ns := self._clock.mono_ns() - since_ns) > _SLOW_NS:
            trouble = f"the disk has not answered for {busy_ns // NS_PER_S} s"
        damaged_count = live.damaged_chunks + self._damaged_count()
        return replace(live, trouble=trouble, damaged_chunks=damaged_count)

    def _run(self) -> None:
        self._guarded(self._recorder.tend)
        while not self._stop.wait(_EVERY_S):
            self._guarded(self._take_over)
        self._guarded(self._take_over)
        self._guarded(self._recorder.close)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do one piece of work; what goes wrong is said, and tried again the next time."""
        self._busy_since_mono_ns = self._clock.mono_ns()
        try:
            work()
            self._failure = None
        except Exception as error:
            self._note_fault()
            if self._failure is None:
                logger.exception("samples could not be taken to the flight recorder")
            self._failure = repr(error)
        finally:
            self._busy_since_mono_ns = None

    def _take_over(self) -> None:
        """Take what is new in the ring to the recorder."""
        reader = self._reader()
        description = _described(reader)
        if reader is None or description is None:
            self._recorder.tend()
            return
        positions = self._positions.setdefault(reader.identity, _Positions())
        records: dict[int, Records] = {}
        lost_count = 0
        for slot in range(len(description.gpus)):
            drained = reader.drain(slot, positions.by_slot.get(slot, 0))
            positions.by_slot[slot] = drained.position
            lost_count += drained.overwritten_count
            records[slot] = drained.records
        triples, positions.triples = reader.triples(positions.triples)
        asides = [reader.aside(slot) for slot in range(len(description.gpus))]
        self._recorder.append(
            self._origin(description, asides),
            records,
            triples,
            lost_count=lost_count,
            processes=self._processes.follow(description.gpus, asides),
        )

    def _origin(self, description: RingDescription, asides: Sequence[GpuAside]) -> Origin:
        return Origin(
            gpus=tuple(map(with_findings, description.gpus, asides)),
            backend=description.backend,
            driver=description.driver,
            simulated=description.simulated,
            node=self._node,
            asked_hz=self._asked_hz,
            boot_id=boot_id(),
        )


def boot_id() -> str:
    """Which start of the machine this is; empty where the system does not say.

    Source: /proc/sys/kernel/random/boot_id, drawn anew at each start.
    """
    try:
        return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _described(reader: RingReader | None) -> RingDescription | None:
    """What the ring holds; None if there is no ring, or its description is being written."""
    try:
        return None if reader is None else reader.description()
    except StoreError:
        return None


# The thread that keeps the store within its bounds, and tries a disk that refused again.
#
# It also writes drops of the busy clock: they are rare, and the main loop never waits for a disk.

_KEEPING_EVERY_S: Final = 2.0
_PRUNED_NS: Final = 60 * NS_PER_S


class StoreKeeper:
    """Prunes a store once a minute, and puts into it the drops that wait.

    Args:
        store: From now on this object's own to close.
        drops: What waits to be kept.
        clock: Tells the time.
        note_fault: Told of each fault that the thread outlived, to count it.
    """

    def __init__(
        self,
        store: CaptureStore,
        drops: DropQueue,
        clock: Clock,
        note_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self._note_fault = note_fault
        self._drops = drops
        self._clock = clock
        self._pruned_ns = clock.mono_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chopperd-store", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, with the last drops kept, and close the store."""
        self._stop.set()
        self._thread.join()
        self._keep_drops()
        self.store.close()

    def _run(self) -> None:
        while not self._stop.wait(_KEEPING_EVERY_S):
            self._keep_drops()
            if self._clock.mono_ns() - self._pruned_ns >= _PRUNED_NS:
                self._pruned_ns = self._clock.mono_ns()
                self._prune()

    def _keep_drops(self) -> None:
        drops = self._drops.take()
        if not drops:
            return
        try:
            self.store.put_drops(drops)
        except Exception:  # the store must be closed, and bounded, all the same
            self._note_fault()
            logger.exception("%d clock drops could not be kept", len(drops))

    def _prune(self) -> None:
        try:
            self.store.prune()
        except Exception:  # a store that can't be pruned now is still to be used
            self._note_fault()
            logger.exception("the store could not be kept within its bounds")


# What the agent keeps on disk: the flight recorder and the store, by the configured bounds.

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
