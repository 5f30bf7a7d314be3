"""What the configuration says of files that are read."""

from chopperd.config.sections import Config
from chopperd.traces.source import ReadLimits


def read_limits(config: Config) -> ReadLimits:
    """What files to refuse."""
    return ReadLimits(
        stored_bytes=config.ingest.max_stored_bytes,
        expanded_bytes=config.ingest.max_decompressed_bytes,
    )
