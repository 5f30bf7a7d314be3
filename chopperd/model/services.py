"""Protocols of the agent's services for the API: no implementation.

All methods may be called from any thread and may block on disk; none waits for the sampler or the
worker.
"""

from collections.abc import Sequence
from typing import Protocol

from chopperd.model import captures
from chopperd.model.live import NodeSnapshot, Pause
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.model.samples import SampleSet


class SnapshotSource(Protocol):
    """Source of the node's current state."""

    def latest(self) -> NodeSnapshot:
        """Return the newest snapshot; its `taken_unix_ns` says how old it is."""


class StepSource(Protocol):
    """Source of steps, captures and traces, limited to what the viewer may see."""

    def jobs(self, viewer: captures.Viewer) -> tuple[captures.JobEntry, ...]:
        """Return the jobs, newest first."""

    def steps(
        self, query: captures.StepQuery, viewer: captures.Viewer, *, limit: int, cursor: str | None
    ) -> captures.StepPage:
        """Return a page of the step rows that match, newest first.

        Raises:
            ValueError: The cursor did not come from an earlier page.
        """

    def step(
        self, step: int, query: captures.StepQuery, viewer: captures.Viewer
    ) -> tuple[Row, ...]:
        """Return the rows of a step number on all devices, in all jobs and runs."""

    def kernels(
        self, step: int, query: captures.StepQuery, viewer: captures.Viewer
    ) -> tuple[captures.DeviceKernels, ...]:
        """Return the kernels that a step launched on each device."""

    def latest_document(
        self, job: str | None, viewer: captures.Viewer, capture: int | None = None
    ) -> ReportDocument | None:
        """Return the report on the newest capture (of `job`, if given), or on this `capture`.

        None if there is none that the viewer may see.
        """

    def traces(self, viewer: captures.Viewer, *, limit: int) -> tuple[captures.TraceEntry, ...]:
        """Return at most `limit` traces, newest first."""

    def trace(self, trace_id: str, viewer: captures.Viewer) -> captures.TraceEntry | None:
        """Return one trace; None if there is none of this id that the viewer may see."""


class DropSource(Protocol):
    """Source of drops of the busy clock; they name no job, so everyone may see them."""

    def drops(self, query: captures.DropQuery, *, limit: int) -> tuple[captures.GpuDrop, ...]:
        """Return at most `limit` drops that match, newest first."""


class Upload(Protocol):
    """A trace that is being received. Exactly one of `finish` and `abort` ends it."""

    def write(self, data: bytes) -> None:
        """Append the next bytes.

        Raises:
            IngestError: The trace grows too large, or there is no room; call `abort`.
        """

    def finish(self) -> tuple[captures.TraceEntry, bool]:
        """Store the trace; return its entry, and False if the same bytes were known, else True.

        Raises:
            IngestError: The trace can't be stored.
        """

    def abort(self) -> None:
        """Discard the bytes received so far."""


class Ingest(Protocol):
    """Receives traces, as uploads or from files."""

    def open_upload(
        self,
        *,
        name: str,
        job: str | None,
        owner_uid: int | None,
        expected_bytes: int | None,
        device_map: str | None = None,
    ) -> Upload:
        """Start to receive a trace.

        Raises:
            IngestError: Traces are not accepted now, or this one is too large.
        """

    def take_file(
        self, path: str, *, job: str | None, owner_uid: int | None, device_map: str | None = None
    ) -> tuple[captures.TraceEntry, bool]:
        """Store a copy of a file under `ingest.roots`; returns the same as `Upload.finish`.

        Raises:
            IngestError: The file is not under a root, not plain, or not readable by its owner.
        """


class SampleSource(Protocol):
    """Source of past samples, from the flight recorder."""

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> SampleSet | None:
        """Return the samples between two times, of all GPUs or of those with the labels in `gpus`.

        None if there are none.
        """


class PauseControl(Protocol):
    """Pauses the agent: sampling, captures and analysis stop at once until the pause ends."""

    def pause(self, reason: str, for_s: float | None) -> Pause:
        """Pause the agent for `for_s` seconds, or until `resume` if None; return the pause."""

    def resume(self) -> None:
        """End the pause."""


class Health(Protocol):
    """Health of the agent itself."""

    def trouble(self) -> str | None:
        """Return what is wrong with the agent, for people; None if nothing is."""
