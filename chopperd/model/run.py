"""What a trace says of the run that it is of; no more than the agent needs at its start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A process group that a rank is in, as torch names it in `distributedInfo.pg_config`.

    Attributes:
        name: `pg_name`: a count that all ranks of a job agree on, or a hash of the ranks.
        size: The number of its ranks.
        first: Its lowest rank.
        stride: From each rank to the next; None where they are not evenly spaced.
        digest: CRC-32 of all its ranks.
    """

    name: str
    size: int
    first: int
    stride: int | None
    digest: int

    def holds(self, rank: int) -> bool:
        """Whether a rank is certainly in the group."""
        if self.stride is None:
            return False
        nth, rest = divmod(rank - self.first, self.stride)
        return rest == 0 and 0 <= nth < self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What a trace says of the run that it is of; `correlate.runs` compares it with others.

    Attributes:
        run, rank, world_size, backend, groups, trace_id, host_name: As of `TraceMeta`.
        begin_unix_ns, end_unix_ns: First and last device record, else of its steps; None without
            an anchor.
        steps: (number, start in Unix ns) of some steps that the job numbers itself, in order, and
            the end of the last one as a further start; empty where there are none.
    """

    run: str | None = None
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: tuple[ProcessGroup, ...] | None = None
    trace_id: str | None = None
    host_name: str | None = None
    begin_unix_ns: int | None = None
    end_unix_ns: int | None = None
    steps: tuple[tuple[int, int], ...] = ()
