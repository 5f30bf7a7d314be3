"""Collectives of small jobs, written as a person would; times in us."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chopperd.correlate.intervals import union
from chopperd.correlate.ranks.collectives import CollectiveKind, RankCollectives
from chopperd.model.timeline import Intervals

US = 1000
ALL_REDUCE = CollectiveKind(name="allreduce", group=1, group_size=2, shape=1)
BROADCAST = CollectiveKind(name="broadcast", group=1, group_size=2, shape=1)
SEND = CollectiveKind(name="send", group=1, group_size=2)


@dataclass(frozen=True, slots=True)
class Coll:
    """One communication kernel of a rank; `kind` None: unknown."""

    start: float
    end: float
    kind: CollectiveKind | None = ALL_REDUCE
    step: int = 1
    seq: int = -1
    comms_id: int = -1


def rank(
    collectives: Sequence[Coll], exposed: Intervals | None = None, until: float | None = None
) -> RankCollectives:
    """A rank's columns; exposed: all of its communication unless given."""
    kinds = list(dict.fromkeys(each.kind for each in collectives if each.kind is not None))
    start_ns = np.array([round(each.start * US) for each in collectives], np.int64)
    end_ns = np.array([round(each.end * US) for each in collectives], np.int64)
    return RankCollectives(
        kinds=tuple(kinds),
        kind=np.array([-1 if c.kind is None else kinds.index(c.kind) for c in collectives], int),
        step=np.array([each.step for each in collectives], np.int64),
        seq=np.array([each.seq for each in collectives], np.int64),
        comms_id=np.array([each.comms_id for each in collectives], np.int64),
        start_ns=start_ns,
        end_ns=end_ns,
        exposed=union(start_ns, end_ns) if exposed is None else exposed,
        until_ns=np.iinfo(np.int64).max if until is None else round(until * US),
    )
