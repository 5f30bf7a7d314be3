"""What the API is given to answer from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from chopperd.api.access import AccessPolicy
from chopperd.clock import Clock
from chopperd.model.report import ReportDocument
from chopperd.model.services import (
    DropSource,
    Health,
    Ingest,
    PauseControl,
    SampleSource,
    SnapshotSource,
    StepSource,
)

DocumentForm: TypeAlias = Literal["json", "text", "csv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """All that the listeners answer from.

    Attributes:
        snapshots, steps, drops, samples, ingest, pause, health: The agent's parts.
        render_document: A report in one of its forms.
        metrics: The metrics as the client's `Accept` header wants them, and their media type;
            must not block.
        clock: Tells how old a snapshot is.
        access: Who may do what.
        failed: Told the path of the route in which an unexpected error occurred, to count it.
    """

    snapshots: SnapshotSource
    steps: StepSource
    drops: DropSource
    samples: SampleSource
    ingest: Ingest
    pause: PauseControl
    health: Health
    render_document: Callable[[ReportDocument, DocumentForm], str]
    metrics: Callable[[str | None], tuple[bytes, str]]
    clock: Clock
    access: AccessPolicy
    failed: Callable[[str], None] = lambda _path: None
