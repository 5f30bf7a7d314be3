"""The taking in of traces as the API has it: before it is there, and where it never will be."""

from chopperd.errors import IngestError, IngestReason
from chopperd.model.captures import TraceEntry
from chopperd.model.services import Ingest, Upload


class DeferredIngest:
    """Refuses traces (`model.services.Ingest`) until it is given what takes them in."""

    def __init__(self) -> None:
        self._ingest: Ingest | None = None
        self._trouble = "the agent has just started"

    def give(self, ingest: Ingest) -> None:
        """Take traces in from now on."""
        self._ingest = ingest

    def give_up(self, trouble: str) -> None:
        """Say why there will be none."""
        self._trouble = trouble

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
        return self._there().open_upload(
            name=name,
            job=job,
            owner_uid=owner_uid,
            expected_bytes=expected_bytes,
            device_map=device_map,
        )

    def take_file(
        self,
        path: str,
        *,
        job: str | None,
        owner_uid: int | None,
        device_map: str | None = None,
    ) -> tuple[TraceEntry, bool]:
        """Take a copy of a file under `ingest.roots`.

        Raises:
            IngestError: Traces are not taken in now, or this file can't be.
        """
        return self._there().take_file(path, job=job, owner_uid=owner_uid, device_map=device_map)

    def _there(self) -> Ingest:
        if self._ingest is None:
            text = f"traces are not taken in: {self._trouble}"
            raise IngestError(text, reason=IngestReason.BUSY)
        return self._ingest
