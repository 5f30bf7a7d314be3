"""The threads that write to disk: samples to the flight recorder, drops to the store.

The main loop and the API never wait for a disk.
"""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopperd.agent.lifecycle import guarded
from chopperd.clock import Clock
from chopperd.errors import StoreError
from chopperd.live.drops import DropQueue
from chopperd.model.live import ArchiveLive
from chopperd.sampling.memory.layout import Records, RingDescription
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.memory.slow_state import with_findings
from chopperd.sampling.process_table import ProcessTable
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.recorder.chunk import Origin
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

_ARCHIVE_EVERY_S: Final = 1.0
#: A disk that has not answered for this long is reported.
_SLOW_NS: Final = 5 * NS_PER_S
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_STORE_EVERY_S: Final = 2.0
_PRUNE_EVERY_NS: Final = 60 * NS_PER_S


class ArchiveThread:
    """Copies new samples from the sampler's ring to the flight recorder, once a second.

    `reader` gives the current ring, or None; a ring must stay mapped until the next one was given
    and a second has passed, or `stop` returned. `damaged_count` counts what readers found damaged.
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
        #: Positions up to which a ring was read, by slot (None: its clock triples), by the ring's
        #: identity, which it keeps when it moves into a larger file.
        self._positions: defaultdict[int, Counter[int | None]] = defaultdict(Counter)
        self._busy_since_mono_ns: int | None = None
        self._processes = ProcessTable(clock)
        self._failure: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chopperd-archive", daemon=True)

    def start(self) -> None:
        """Start the thread that copies samples."""
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Record what is left in the ring, and end the thread; return whether it ended in time.

        If the disk hangs the thread is abandoned, and ends with the process.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("the disk of %s does not answer: left alone", self._recorder.folder)
        return not self._thread.is_alive()

    def live(self) -> ArchiveLive:
        """Return the flight recorder's state; never waits for the disk."""
        live = self._recorder.live
        problem, since_ns = self._failure or live.trouble, self._busy_since_mono_ns
        if since_ns is not None and (busy_ns := self._clock.mono_ns() - since_ns) > _SLOW_NS:
            problem = f"the disk has not answered for {busy_ns // NS_PER_S} s"
        damaged_count = live.damaged_chunks + self._damaged_count()
        return replace(live, trouble=problem, damaged_chunks=damaged_count)

    def _run(self) -> None:
        self._guarded(self._recorder.tend)
        while not self._stop.wait(_ARCHIVE_EVERY_S):
            self._guarded(self._record_new)
        self._guarded(self._record_new)
        self._guarded(self._recorder.close)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Call `work`; log and count a failure, after which the next turn tries again."""
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

    def _record_new(self) -> None:
        reader = self._reader()
        description = _described(reader)
        if reader is None or description is None:
            self._recorder.tend()
            return
        slots, positions = range(len(description.gpus)), self._positions[reader.identity]
        records: dict[int, Records] = {}
        lost_count = 0
        for slot in slots:
            drained = reader.drain(slot, positions[slot])
            positions[slot] = drained.position
            lost_count += drained.overwritten_count
            records[slot] = drained.records
        triples, positions[None] = reader.triples(positions[None])
        slow_states = [reader.slow_state(slot) for slot in slots]
        processes = self._processes.follow(description.gpus, slow_states)
        origin = Origin(
            gpus=tuple(map(with_findings, description.gpus, slow_states)),
            backend=description.backend,
            driver=description.driver,
            simulated=description.simulated,
            node=self._node,
            asked_hz=self._asked_hz,
            boot_id=boot_id(),
        )
        self._recorder.append(origin, records, triples, lost_count=lost_count, processes=processes)


def boot_id() -> str:
    """Read the id of the machine's current boot; empty where the system has none.

    Source: /proc/sys/kernel/random/boot_id, drawn at each boot.
    """
    try:
        return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _described(reader: RingReader | None) -> RingDescription | None:
    """Read the ring's description; None if there is no ring, or it is being written."""
    try:
        return None if reader is None else reader.description()
    except StoreError:
        return None


class StoreKeeper:
    """Prunes a store once a minute, and writes waiting drops of the busy clock into it."""

    def __init__(
        self,
        store: CaptureStore,
        drops: DropQueue,
        clock: Clock,
        note_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self.store, self._drops, self._clock = store, drops, clock
        self._note_fault = note_fault
        self._pruned_ns = clock.mono_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chopperd-store", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, store the last drops, and close the store."""
        self._stop.set()
        self._thread.join()
        self._store_drops()
        self.store.close()

    def _run(self) -> None:
        while not self._stop.wait(_STORE_EVERY_S):
            self._store_drops()
            if self._clock.mono_ns() - self._pruned_ns >= _PRUNE_EVERY_NS:
                self._pruned_ns = self._clock.mono_ns()
                problem = "the store could not be kept within its bounds"
                with guarded(problem, note_fault=self._note_fault):
                    self.store.prune()

    def _store_drops(self) -> None:
        if drops := self._drops.take():
            problem = "%d clock drops could not be stored"
            with guarded(problem, len(drops), note_fault=self._note_fault):
                self.store.put_drops(drops)
