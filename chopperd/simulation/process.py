"""How one rank's process appears in its trace: ids of process, threads, device and streams."""

from collections.abc import Sequence
from dataclasses import dataclass

from chopperd.simulation.presets import Runtime
from chopperd.simulation.program import Stream, Thread
from chopperd.simulation.template import Row

_FIRST_PID = 41_216
_PIDS_APART = 137
_AUTOGRAD_TID_ABOVE = 411
#: Under ROCm the device number is that of the driver's node list, which has the CPUs first.
_CPU_NODES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """One rank's process, which sees one GPU.

    Attributes:
        device: The trace's number of that GPU.
        streams: The trace's number of each stream.
    """

    rank: int
    runtime: Runtime
    pid: int
    device: int
    streams: dict[Stream, int]

    def host(self, thread: Thread) -> Row:
        """The row of a host thread."""
        above = _AUTOGRAD_TID_ABOVE if thread is Thread.AUTOGRAD else 0
        return Row(pid=self.pid, tid=self.pid + above)

    def on_device(self, stream: Stream) -> Row:
        """The row of a stream."""
        return Row(pid=self.device, tid=self.streams[stream])


def rank_process(rank: int, runtime: Runtime, pids: Sequence[int] = ()) -> RankProcess:
    """The process of a rank; `pids` are those of real ones, by rank."""
    cuda = runtime == "cuda"
    numbers = (7, 24, 28) if cuda else (0, 3, 4)
    return RankProcess(
        rank=rank,
        runtime=runtime,
        pid=pids[rank] if pids else _FIRST_PID + _PIDS_APART * rank,
        device=0 if cuda else _CPU_NODES + rank,
        streams=dict(zip(Stream, numbers, strict=True)),
    )
