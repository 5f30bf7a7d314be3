"""The agent's services for the API: narrow protocols, no implementation.

All methods may be called from any thread and may block on disk; none waits for the sampler or
the worker.
"""

from collections.abc import Sequence
from typing import Protocol

from chopperd.model.captures import (
    DeviceKernels,
    DropQuery,
    GpuDrop,
    JobEntry,
    StepPage,
    StepQuery,
    TraceEntry,
    Viewer,
)
from chopperd.model.live import NodeSnapshot, Pause
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.model.samples import SampleSet


class SnapshotSource(Protocol):
    """The node as it is now."""

    def latest(self) -> NodeSnapshot:
        """The newest snapshot; its own time says how old it is."""


class StepSource(Protocol):
    """Steps, captures and traces, as far as the viewer may see them."""

    def jobs(self, viewer: Viewer) -> tuple[JobEntry, ...]:
        """Jobs, newest first."""

    def steps(
        self, query: StepQuery, viewer: Viewer, *, limit: int, cursor: str | None
    ) -> StepPage:
        """Step rows that match, newest first.

        Raises:
            ValueError: The cursor is none that a page gave.
        """

    def step(self, step: int, query: StepQuery, viewer: Viewer) -> tuple[Row, ...]:
        """The rows of a step number on all devices, in all jobs and runs."""

    def kernels(self, step: int, query: StepQuery, viewer: Viewer) -> tuple[DeviceKernels, ...]:
        """Kernels of the captures that hold a step."""

    def latest_document(self, job: str | None, viewer: Viewer) -> ReportDocument | None:
        """The report on the newest capture (of a job); None if there is none to be seen."""

    def traces(self, viewer: Viewer, *, limit: int) -> tuple[TraceEntry, ...]:
        """Traces, newest first."""

    def trace(self, trace_id: str, viewer: Viewer) -> TraceEntry | None:
        """One trace; None if there is none to be seen."""


class DropSource(Protocol):
    """Drops of the busy clock; they name no job and are for everyone."""

    def drops(self, query: DropQuery, *, limit: int) -> tuple[GpuDrop, ...]:
        """Drops that match, newest first."""


class Upload(Protocol):
    """A trace on its way in. Exactly one of `finish` and `abort` ends it."""

    def write(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            IngestError: It grows too large, or there is no room; `abort` it.
        """

    def finish(self) -> tuple[TraceEntry, bool]:
        """Store the trace; return its entry, and False if the same bytes were known, else True.

        Raises:
            IngestError: It can't be stored.
        """

    def abort(self) -> None:
        """Forget what came so far."""


class Ingest(Protocol):
    """Taking in traces."""

    def open_upload(
        self,
        *,
        name: str,
        job: str | None,
        owner_uid: int | None,
        expected_bytes: int | None,
        device_map: str | None = None,
    ) -> Upload:
        """Begin to take a trace.

        Raises:
            IngestError: Traces are not taken in now, or it is too large.
        """

    def take_file(
        self, path: str, *, job: str | None, owner_uid: int | None, device_map: str | None = None
    ) -> tuple[TraceEntry, bool]:
        """Take a copy of a file under `ingest.roots`; as `Upload.finish`.

        Raises:
            IngestError: It is not under a root, not a plain file, or not to be read by its owner.
        """


class SampleSource(Protocol):
    """Samples of the past, from the flight recorder."""

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> SampleSet | None:
        """All samples of a time, of all GPUs or those of the labels; None without any."""


class Bursts(Protocol):
    """Sampling faster for a while, so that a capture has enough samples."""

    def burst(self, seconds: float) -> None:
        """Sample at the burst rate from now on; it ends by itself."""


class PauseControl(Protocol):
    """Pausing the agent: sampling, captures and analysis stop at once and stay stopped."""

    def pause(self, reason: str, for_s: float | None) -> Pause:
        """Pause, for a time or until `resume`."""

    def resume(self) -> None:
        """Go on."""


class Health(Protocol):
    """Whether the agent itself is well."""

    def trouble(self) -> str | None:
        """Why it is not, for people; None if it is."""
