"""The taking in of traces put together from what the configuration says."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from chopperd.clock import Clock
from chopperd.config.sections import Config
from chopperd.ingest.analyses import Analyses, AnalysisSettings
from chopperd.ingest.inbox import Inbox
from chopperd.ingest.ingest import IngestPolicy, IngestService
from chopperd.ingest.queue import Spool, SpoolLimits
from chopperd.ingest.trace_store import TraceStore
from chopperd.ingest.worker_process import AnalysisWorker
from chopperd.pipeline.configured import configured_options

#: Of one trace: as JSON each takes 1-2 KiB, and a worker's reply may have 16 MiB.
_MOST_STEP_ROWS: Final = 8192


def new_ingest(
    config: Config,
    state: Path,
    store: TraceStore,
    clock: Clock,
    *,
    command: Sequence[str] | None = None,
    note_fault: Callable[[], None] = lambda: None,
) -> IngestService:
    """What takes in traces, not started yet; nothing on disk is touched before it is.

    Args:
        config: All settings.
        state: The state folder: `inbox`, `traces`, `rejected` and `recorder` are in it.
        store: Where results go.
        clock: Tells the time.
        command: Starts the analysis worker; None for this program's own.
        note_fault: Told of each fault that its thread outlived.
    """
    spool = Spool(state, _limits(config))
    settings = AnalysisSettings(
        recorder=state / "recorder",
        options=replace(configured_options(config, in_agent=True), most_rows=_MOST_STEP_ROWS),
        timeout_s=config.analysis.timeout_s,
        keep_traces=config.analysis.keep_traces,
    )
    worker = AnalysisWorker(
        command or worker_command(config.analysis.memory_max_bytes),
        idle_s=config.analysis.idle_s,
        clock=clock,
    )
    roots = tuple(Path(root) for root in config.ingest.roots)
    return IngestService(
        inbox=Inbox(state / "inbox", config.ingest.settle_s, clock),
        spool=spool,
        analyses=Analyses(spool, store, worker, settings, clock),
        store=store,
        policy=IngestPolicy(mode=config.analysis.mode, roots=roots),
        clock=clock,
        note_fault=note_fault,
    )


def worker_command(memory_max_bytes: int) -> list[str]:
    """What starts the analysis worker."""
    # -P: no module in the working directory may shadow one of ours.
    start = [sys.executable, "-P", "-m", "chopperd", "_analysis"]
    return [*start, "--memory-max-bytes", str(memory_max_bytes)]


def _limits(config: Config) -> SpoolLimits:
    return SpoolLimits(
        file_bytes=config.ingest.max_stored_bytes,
        all_bytes=config.analysis.spool_max_bytes,
        failed_count=config.ingest.keep_failed,
        min_free_ratio=config.store.min_free_ratio,
    )
