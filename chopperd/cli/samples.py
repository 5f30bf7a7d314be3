"""Which clock samples a report is made with: a file's, else the local flight recorder's."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from chopperd.config.places import RECORDER_FOLDER, readable_state_folders
from chopperd.config.sections import Config
from chopperd.errors import StoreError

if TYPE_CHECKING:
    from chopperd.model.samples import SampleSet
    from chopperd.model.services import SampleSource
    from chopperd.pipeline.reports import Samples

logger = logging.getLogger(__name__)


def samples_to_join(config: Config, file: Path | None, tz: tzinfo | None = None) -> "Samples":
    """The samples of a file or, where none is named, of a local recorder; None without either.

    Args:
        config: Says where the recorder's folder may be.
        file: As given; read as `store.samples.read_samples` does.
        tz: Zone of local times in the file.

    Raises:
        StoreError: The file can't be read.
    """
    if file is None:
        folders = (state / RECORDER_FOLDER for state in readable_state_folders(config))
        found = next((folder for folder in folders if os.access(folder, os.R_OK | os.X_OK)), None)
        return None if found is None else LocalSamples(found)
    from chopperd.store.samples.files import read_samples

    return read_samples(file, tz=tz)


class LocalSamples:
    """A local recorder's samples, marked as such; its trouble costs a report its clocks only.

    Args:
        folder: The recorder's.
    """

    def __init__(self, folder: Path) -> None:
        from chopperd.store.recorder.reader import RecordedSamples

        self._recorded: SampleSource = RecordedSamples(folder)
        self._folder = folder

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> "SampleSet | None":
        """As `SampleSource.between`, with a note that says where they come from."""
        try:
            samples = self._recorded.between(from_unix_ns, to_unix_ns, gpus)
        except StoreError as error:
            logger.warning("%s; reported without clocks", error)
            return None
        if samples is None:
            return None
        from chopperd.model.report import Note

        text = (
            f"clock samples are this machine's ({samples.node}), from {self._folder}: they are "
            "not of a trace that was written elsewhere"
        )
        note = Note(code="local_samples", text=text)
        return replace(samples, notes=(note, *samples.notes))
