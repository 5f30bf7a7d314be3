"""Formats of log lines: text, or one JSON object per line; only the command line sets them up."""

import logging
import sys
from datetime import UTC, datetime

import msgspec

from chopperd.model.safe_text import visible, visible_lines

_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """A record as a line of text and those of its exception, with control characters visible."""

    def __init__(self) -> None:
        super().__init__(_TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line; line feeds in the message do not end it."""
        return visible(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """The line and its exception."""
        return visible_lines(super().format(record))


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time (RFC 3339, UTC), level, logger, message, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return visible_lines(msgspec.json.encode(line).decode())


def configure_logging(level: str, *, as_json: bool) -> None:
    """Send records of `level` ("info", "warning", ...) and above to stderr, replacing handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
