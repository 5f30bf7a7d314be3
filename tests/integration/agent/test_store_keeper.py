"""The thread that keeps the store, with a real store and real time."""

from contextlib import closing
from pathlib import Path

from chopperd.agent.storage import StoreKeeper
from chopperd.clock import SystemClock
from chopperd.live.drops import DropQueue
from chopperd.model.captures import DropQuery
from chopperd.store.captures.capture_store import CaptureStore
from tests.fakes.clock import ScriptedClock
from tests.fakes.drops import gpu_drop
from tests.fakes.samples import START_UNIX_NS
from tests.unit.store.captures.examples import LIMITS
from tests.waiting import wait_for

ALL = DropQuery()


def opened(path: Path) -> CaptureStore:
    return CaptureStore(path, limits=LIMITS, clock=ScriptedClock(unix_ns=START_UNIX_NS))


def test_drops_that_wait_are_written_soon_and_the_last_ones_at_the_end(tmp_path: Path) -> None:
    path, queue = tmp_path / "store.sqlite", DropQueue()
    keeper = StoreKeeper(opened(path), queue, SystemClock())
    keeper.start()
    queue.put([gpu_drop(10)])
    wait_for(lambda: keeper.store.drops(ALL, limit=10) == (gpu_drop(10),))
    queue.put([gpu_drop(20)])
    keeper.stop()
    with closing(opened(path)) as store:
        assert store.drops(ALL, limit=10) == (gpu_drop(20), gpu_drop(10))
