"""Compare the ranks of a job: split exposed communication, and name the rank that is late.

Only ranks of one host, whose times are on one clock. Source: DESIGN.md section 2, "Ranks".
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from statistics import fmean, median
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from chopperd.correlate.ranks.collectives import RankCollectives, joined, unpack
from chopperd.correlate.ranks.comparing import (
    Lateness,
    RankWaits,
    caused_ns,
    judged,
    late_ns,
    split_ns,
    waits,
    with_cause,
)
from chopperd.correlate.ranks.matching import Matches, match
from chopperd.model.answers import RankLine, RanksSummary
from chopperd.model.report import Note
from chopperd.model.report_rows import ExposedComm, Row
from chopperd.report.build.processes import rank_conflicts
from chopperd.report.build.rows import DraftRow
from chopperd.report.build.summary import is_complete
from chopperd.report.build.trace_notes import noted
from chopperd.report.build.trace_report import TraceReport

#: A rank's process and device, as `DraftRow` numbers them.
Place: TypeAlias = tuple[int, int]


class _Compared(Struct, frozen=True, kw_only=True):
    """The ranks of one job and host, their collectives matched, and when each waited."""

    places: tuple[Place, ...]
    ranks: tuple[RankCollectives, ...]
    matches: Matches
    waits: tuple[RankWaits, ...]
    world_size: int


class RankComparison(Struct, frozen=True, kw_only=True):
    """The comparison of a document's ranks, or `why_not` there is none; neither for one rank."""

    compared: _Compared | None = None
    why_not: str | None = None
    missing: int = 0

    @staticmethod
    def of(reports: Sequence[TraceReport], numbers: Sequence[int]) -> "RankComparison":
        """Compare the ranks of traces, of which `numbers` are the processes."""
        traced = len(set(numbers))
        world_size = max(traced, *(each.trace.world_size or 1 for each in reports))
        missing = world_size - traced
        if world_size == 1:
            return RankComparison()
        why_not = _why_not(reports, numbers, world_size)
        if why_not is not None:
            return RankComparison(why_not=why_not, missing=missing)
        parts: defaultdict[Place, list[RankCollectives]] = defaultdict(list)
        for report, number in zip(reports, numbers, strict=True):
            for each in report.collectives:
                parts[number, each.device].append(unpack(each))
        places = sorted(parts)
        ranks = [joined(parts[place]) for place in places]
        matches = match(ranks, world_size)
        if not len(matches):
            why_not = "no collective was found on all ranks of its group"
            return RankComparison(why_not=why_not, missing=missing)
        compared = _Compared(
            places=tuple(places),
            ranks=tuple(ranks),
            matches=matches,
            waits=tuple(waits(rank, matches, nth) for nth, rank in enumerate(ranks)),
            world_size=world_size,
        )
        return RankComparison(compared=compared, missing=missing)

    def split(self, drafts: Sequence[DraftRow]) -> list[DraftRow]:
        """Return the rows with exposed communication split into wait and transfer where known."""
        rows = list(drafts)
        for place, indices in _by_place(rows).items():
            for index, parts in zip(indices, self._parts(place, rows, indices), strict=True):
                row = replace(rows[index].row, exposed_comm_ns=parts)
                rows[index] = replace(rows[index], row=row)
        return rows

    def _parts(
        self, place: Place, rows: Sequence[DraftRow], indices: Sequence[int]
    ) -> list[ExposedComm]:
        if self.compared is None or place not in self.compared.places:
            return [ExposedComm()] * len(indices)
        nth = self.compared.places.index(place)
        rank, found = self.compared.ranks[nth], self.compared.waits[nth]
        start_ns = np.array([rows[i].row.start_unix_ns or 0 for i in indices], np.int64)
        length_ns = np.array([rows[i].row.window_ns or 0 for i in indices], np.int64)
        wait_ns, known = split_ns(rank, found, start_ns, start_ns + length_ns)
        return [
            ExposedComm(wait=int(wait), transfer=_exposed_ns(rows[i].row) - int(wait))
            if is_known
            else ExposedComm()
            for i, wait, is_known in zip(indices, wait_ns, known, strict=True)
        ]

    def summary(self, steps: Sequence[DraftRow]) -> RanksSummary | None:
        """Return the ranks compared over the steps that all completed; None for one rank."""
        if self.why_not is not None:
            return RanksSummary(lines=(), missing_ranks=self.missing, why_not=self.why_not)
        if self.compared is None:
            return None
        matches = self.compared.matches
        rows = _common_rows(steps, self.compared.places)
        critical = [row for each in rows.values() for row in each if row.is_critical]
        lost_ns = [row.dvfs.lost_ns for row in critical if row.dvfs.lost_ns is not None]
        return RanksSummary(
            lines=tuple(_lines(self.compared, rows, steps)),
            collectives=matches.total,
            matched=len(matches),
            matched_by=matches.matched_by,
            missing_ranks=self.missing,
            waits_are_bounds=bool(matches.lacks_ranks.any()),
            job_lost_ns=round(fmean(lost_ns)) if lost_ns else None,
        )

    def notes(self) -> list[Note]:
        """Return notes on ranks that are missing, and collectives that were left out."""
        if self.compared is None:
            return []
        matches = self.compared.matches
        unmatched = matches.total - len(matches)
        left_out = sum(each.left_out for each in self.compared.ranks)
        return noted(
            ranks_missing=matches.lacks_ranks.any()
            and f"{self.missing} of {self.compared.world_size} ranks have no trace here: waits for "
            "other ranks are at least what is shown",
            collectives_unmatched=unmatched > 0
            and f"{unmatched} of {matches.total} collectives were not matched over the ranks (not "
            "on all of them, between two ranks only, or with ends that disagree): steps with them "
            "have no split into wait and transfer",
            collectives_left_out=left_out
            and f"{left_out} collectives beyond the first of their file were not compared",
        )


def _exposed_ns(row: Row) -> int:
    return row.waterfall_ns.exposed_comm if row.waterfall_ns else 0


def _by_place(rows: Sequence[DraftRow]) -> dict[Place, list[int]]:
    places: defaultdict[Place, list[int]] = defaultdict(list)
    for index, draft in enumerate(rows):
        if draft.row.device is not None:
            places[draft.process, draft.row.device].append(index)
    return places


# Whether ranks can be compared.


def _why_not(reports: Sequence[TraceReport], numbers: Sequence[int], world_size: int) -> str | None:
    traced = len(set(numbers))
    if traced < 2:
        return f"1 of {world_size} ranks has a trace here"
    if len({(each.trace.job, each.trace.run) for each in reports}) > 1:
        return "the traces are of several runs"
    if conflicts := rank_conflicts(reports):
        return f"rank {reports[conflicts[0][0]].trace.rank} is there twice"
    hosts = {each.said.host_name for each in reports if each.said.host_name is not None}
    apart = any(note.code == "clocks_differ" for each in reports for note in each.notes)
    if len(hosts) > 1 or apart:
        return "the ranks are of several hosts, whose clocks differ"
    return _why_no_collectives(reports, numbers)


def _why_no_collectives(reports: Sequence[TraceReport], numbers: Sequence[int]) -> str | None:
    if not any(each.devices for each in reports):
        return "the traces have no device work: collectives on CPUs leave no kernels"
    if any(row.row.start_unix_ns is None for each in reports for row in each.totals):
        return "a trace has no time base"
    pairs = {
        (number, device.device)
        for each, number in zip(reports, numbers, strict=True)
        for device in each.collectives
    }
    if len(pairs) > len({number for number, _ in pairs}):
        return "a process communicates on several devices"
    if len(pairs) < 2:
        return "fewer than two of the traces have collectives"
    return None


# The lines of the ranks.


def _common_rows(steps: Sequence[DraftRow], places: Sequence[Place]) -> dict[Place, list[Row]]:
    """Return each rank's rows for the steps that all completed, in order; no number twice."""
    by_step: dict[Place, dict[int, Row]] = {place: {} for place in places}
    unusable = set()
    for draft in steps:
        row, place = draft.row, (draft.process, draft.row.device)
        if row.device is None or place not in by_step or row.step is None:
            continue
        of_place = by_step[place[0], row.device]
        if not is_complete(row) or row.step in of_place:
            unusable.add(row.step)
        of_place[row.step] = row
    every = [set(each) for each in by_step.values()]
    common = sorted(set.intersection(*every) - unusable) if every else []
    return {place: [rows[step] for step in common] for place, rows in by_step.items()}


def _lines(
    compared: _Compared, rows: Mapping[Place, Sequence[Row]], steps: Sequence[DraftRow]
) -> Iterable[RankLine]:
    every = [rows[place] for place in compared.places]
    count = len(every[0])
    numbers = np.array([row.step for row in every[0]], np.int64)
    late = _lateness(every) if count else None
    caused = caused_ns(compared.ranks, compared.matches, compared.waits, numbers)
    known = {(each.process, each.row.device): each.row for each in steps}
    lines = []
    for nth, place in enumerate(compared.places):
        row = known.get(place)
        line = RankLine(
            rank=row.rank if row else None,
            device=place[1],
            gpu=row.gpu if row else None,
            steps=count,
        )
        if count:
            parts = [each.exposed_comm_ns or ExposedComm() for each in every[nth]]
            line = replace(
                line,
                window_ns=_mean([each.window_ns for each in every[nth]]),
                wait_ns=_mean([each.wait for each in parts]),
                transfer_ns=_mean([each.transfer for each in parts]),
                wait_caused_ns=round(int(caused[nth]) / count),
                critical_steps=sum(bool(each.is_critical) for each in every[nth]),
            )
        if late is not None:
            line = _with_lateness(line, late[nth], every, nth)
        lines.append(line)
    return sorted(lines, key=lambda each: (each.rank is None, each.rank or 0, each.device))


def _lateness(every: Sequence[Sequence[Row]]) -> list[Lateness]:
    window_ns = np.array([[row.window_ns or 0 for row in rows] for rows in every], np.float64).T
    exposed_ns = np.array([[_exposed_ns(row) for row in rows] for rows in every], np.float64).T
    return judged(late_ns(window_ns, exposed_ns), np.median(window_ns, axis=1))


def _with_lateness(
    line: RankLine, found: Lateness, every: Sequence[Sequence[Row]], nth: int
) -> RankLine:
    falls = [_median_waterfall(list(compress(rows, found.is_late))) for rows in every]
    judgement = with_cause(found, falls, nth)
    return replace(
        line,
        late_ns=round(found.mean_ns),
        late_steps=int(found.is_late.sum()),
        pause_ns=found.pause_ns,
        verdict=judgement.verdict,
        cause=judgement.cause,
        cause_ns=None if judgement.cause_ns is None else round(judgement.cause_ns),
    )


def _mean(values: Sequence[int | None]) -> int | None:
    """Return the mean; None where one is unknown."""
    known = [each for each in values if each is not None]
    return round(fmean(known)) if known and len(known) == len(values) else None


def _median_waterfall(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the median of each row of the waterfall; None where one is unknown."""
    falls = [asdict(row.waterfall_ns) for row in rows if row.waterfall_ns is not None]
    columns = {name: [each[name] for each in falls] for name in (falls[0] if falls else {})}
    return {name: None if None in values else median(values) for name, values in columns.items()}
