import pytest

from chopperd.model.captures import DropQuery, GpuDrop
from chopperd.model.services import DropSource
from chopperd.store.captures.database import Database
from chopperd.store.captures.schema import found_drops, prune_drops, put_drops
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.drops import gpu_drop
from tests.fakes.samples import START_UNIX_NS
from tests.unit.store.captures.examples import opened

ALL = DropQuery()


def begins(drops: tuple[GpuDrop, ...]) -> list[float]:
    return [(drop.begin_unix_ns - START_UNIX_NS) / NS_PER_S for drop in drops]


def test_drops_come_back_whole_and_newest_first() -> None:
    store = opened()
    source: DropSource = store
    assert source.drops(ALL, limit=10) == ()
    early, late = gpu_drop(10), gpu_drop(20, gpu="1")
    store.put_drops([early, late])
    assert source.drops(ALL, limit=10) == (late, early)
    assert source.drops(ALL, limit=1) == (late,)


def test_a_drop_is_kept_once_in_its_newest_version() -> None:
    store = opened()
    store.put_drops([gpu_drop(10, None)])
    store.put_drops([gpu_drop(10, None, seen_s=35.0)])
    store.put_drops([gpu_drop(10, 42.0)])
    assert store.drops(ALL, limit=10) == (gpu_drop(10, 42.0),)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (DropQuery(gpu="1"), [30]),
        (DropQuery(gpu="GPU-1"), [30]),
        (DropQuery(gpu="2"), []),
        # Drops over [10, 15), [20, 25), [30, ...): those that overlap the time.
        (DropQuery(from_unix_ns=START_UNIX_NS + 15 * NS_PER_S), [30, 20]),
        (DropQuery(from_unix_ns=START_UNIX_NS + 90 * NS_PER_S), [30]),
        (DropQuery(to_unix_ns=START_UNIX_NS + 20 * NS_PER_S), [10]),
        (DropQuery(gpu="0", from_unix_ns=START_UNIX_NS, to_unix_ns=START_UNIX_NS), []),
    ],
)
def test_drops_are_found_by_gpu_and_time(query: DropQuery, expected: list[float]) -> None:
    store = opened()
    store.put_drops([gpu_drop(10), gpu_drop(20), gpu_drop(30, None, gpu="1")])
    assert begins(store.drops(query, limit=10)) == expected


def test_old_drops_and_those_beyond_a_count_are_given_up() -> None:
    database = Database(None, clock=ScriptedClock())
    database.write(lambda db: put_drops(db, [gpu_drop(second) for second in range(10)]))

    def left() -> list[float]:
        return begins(database.read(lambda db: found_drops(db, ALL, 100)))

    oldest_unix_ns = START_UNIX_NS + 3 * NS_PER_S
    assert database.write(lambda db: prune_drops(db, oldest_unix_ns)) == 3
    assert left() == [9, 8, 7, 6, 5, 4, 3]
    assert database.write(lambda db: prune_drops(db, oldest_unix_ns, most=4)) == 3
    assert left() == [9, 8, 7, 6]
    assert database.write(lambda db: prune_drops(db, oldest_unix_ns, most=4)) == 0


def test_pruning_the_store_takes_drops_older_than_its_days() -> None:
    clock = ScriptedClock(unix_ns=START_UNIX_NS)
    store = opened(clock=clock)
    store.put_drops([gpu_drop(0), gpu_drop(86_400)])
    clock.advance(15 * 86_400 * NS_PER_S - NS_PER_S)
    store.prune()
    assert begins(store.drops(ALL, limit=10)) == [86_400]
