"""What the newest captures say of each GPU, ready for the metrics; no database is asked."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from chopperd.model.kinds import CAUSE_BY_LABEL, Cause
from chopperd.model.live import TracedTotals
from chopperd.model.report import Row
from chopperd.units import NS_PER_S

#: Captures that ended longer ago are forgotten here.
KEPT_NS: Final = 3_600 * NS_PER_S


@dataclass(slots=True, kw_only=True)
class GpuSums:
    """What captures spent on one GPU, ns; integers, so that sums do not drift.

    Attributes:
        window_ns, lost_ns, kernel_ns, kernel_lost_ns: As in `TracedTotals`, by label.
        end_unix_ns: When the newest capture ended.
    """

    window_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lost_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    kernel_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    kernel_lost_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    end_unix_ns: int = 0

    def add(self, row: Row) -> None:
        """Take in the totals of a device; what they do not know is not counted as 0."""
        if row.waterfall_ns is not None:
            for part in fields(row.waterfall_ns):
                _add(self.window_ns, part.name, getattr(row.waterfall_ns, part.name))
        for cause, lost_ns in (row.dvfs.by_cause_ns or {}).items():
            _add(self.lost_ns, cause, lost_ns)
        for family in row.families:
            _add(self.kernel_ns, family.class_, family.time_ns)
        for each in row.classes:
            _add(self.kernel_lost_ns, each.class_, each.lost_ns)

    def merge(self, other: "GpuSums") -> None:
        """Take in what another says of the same GPU."""
        pairs = (
            (self.window_ns, other.window_ns),
            (self.lost_ns, other.lost_ns),
            (self.kernel_ns, other.kernel_ns),
            (self.kernel_lost_ns, other.kernel_lost_ns),
        )
        for mine, others in pairs:
            for name, value in others.items():
                mine[name] += value
        self.end_unix_ns = max(self.end_unix_ns, other.end_unix_ns)

    def totals(self) -> TracedTotals:
        """The sums as the snapshot has them, in s."""
        causes: dict[Cause, float] = {
            CAUSE_BY_LABEL.get(label, Cause.UNKNOWN): 0.0 for label in self.lost_ns
        }
        for label, lost_ns in self.lost_ns.items():
            causes[CAUSE_BY_LABEL.get(label, Cause.UNKNOWN)] += lost_ns / NS_PER_S
        return TracedTotals(
            window_s=_seconds(self.window_ns),
            lost_s=causes,
            kernel_s=_seconds(self.kernel_ns),
            kernel_lost_s=_seconds(self.kernel_lost_ns),
            last_capture_unix_ns=self.end_unix_ns,
        )


def _add(sums: dict[str, int], name: str, value: int | None) -> None:
    if value is not None:
        sums[name] += value


def _seconds(sums: Mapping[str, int]) -> dict[str, float]:
    return {name: value / NS_PER_S for name, value in sums.items()}


@dataclass(frozen=True, slots=True)
class _Answer:
    max_age_ns: int
    from_unix_ns: int
    until_unix_ns: int
    traced: Mapping[str, TracedTotals]


class RecentCaptures:
    """Sums a capture and GPU over the last hour; from any thread, and never waits for a disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures: dict[int, dict[str, GpuSums]] = {}
        self._ended_unix_ns: dict[int, int] = {}
        self._answer: _Answer | None = None

    def __len__(self) -> int:
        with self._lock:
            return len(self._captures)

    def put(self, capture_id: int, end_unix_ns: int | None, totals: Iterable[Row]) -> None:
        """Replace what is known of a capture; one without a time stands for no time at all."""
        sums: dict[str, GpuSums] = {}
        if end_unix_ns is not None:
            for row in totals:
                if row.gpu is not None:
                    sums.setdefault(row.gpu, GpuSums(end_unix_ns=end_unix_ns)).add(row)
        with self._lock:
            self._captures[capture_id] = sums
            self._ended_unix_ns[capture_id] = end_unix_ns or 0
            self._answer = None

    def absorb(self, others: Iterable[int], capture_id: int) -> None:
        """Count captures that became part of another with it, until it is put anew."""
        with self._lock:
            for other in others:
                for gpu, sums in self._captures.pop(other, {}).items():
                    mine = self._captures.setdefault(capture_id, {})
                    mine.setdefault(gpu, GpuSums()).merge(sums)
                ended_unix_ns = self._ended_unix_ns.pop(other, 0)
                known_unix_ns = self._ended_unix_ns.get(capture_id, 0)
                self._ended_unix_ns[capture_id] = max(known_unix_ns, ended_unix_ns)
            self._answer = None

    def forget(self, capture_ids: Iterable[int]) -> None:
        """Count these captures no more."""
        with self._lock:
            for capture_id in capture_ids:
                self._captures.pop(capture_id, None)
                self._ended_unix_ns.pop(capture_id, None)
            self._answer = None

    def traced(self, now_unix_ns: int, max_age_ns: int) -> Mapping[str, TracedTotals]:
        """Sums over the captures that ended in the last `max_age_ns`, by GPU label.

        Summed anew only when a capture came or grew too old.
        """
        with self._lock:
            answer = self._answer
            if (
                answer is None
                or answer.max_age_ns != max_age_ns
                or not answer.from_unix_ns <= now_unix_ns < answer.until_unix_ns
            ):
                answer = self._answer = self._summed(now_unix_ns, max_age_ns)
            return answer.traced

    def _summed(self, now_unix_ns: int, max_age_ns: int) -> _Answer:
        for capture_id, ended_unix_ns in list(self._ended_unix_ns.items()):
            if ended_unix_ns < now_unix_ns - KEPT_NS:
                del self._ended_unix_ns[capture_id], self._captures[capture_id]
        counted = {
            capture_id: ended_unix_ns
            for capture_id, ended_unix_ns in self._ended_unix_ns.items()
            if ended_unix_ns > now_unix_ns - max_age_ns
        }
        sums: dict[str, GpuSums] = {}
        for capture_id in counted:
            for gpu, each in self._captures[capture_id].items():
                sums.setdefault(gpu, GpuSums()).merge(each)
        return _Answer(
            max_age_ns=max_age_ns,
            from_unix_ns=now_unix_ns,
            until_unix_ns=min(counted.values(), default=now_unix_ns + KEPT_NS) + max_age_ns,
            traced={gpu: each.totals() for gpu, each in sums.items()},
        )
