"""Formats log lines as text or as one JSON object each; only the command line sets them up."""

import logging
import sys
from datetime import UTC, datetime

import msgspec

from chopperd.safe_text import visible, visible_lines

_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """Formats a record as a line of text, then its exception; control characters are visible."""

    def __init__(self) -> None:
        super().__init__(_TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Format the line without the exception; line feeds in the message are made visible."""
        return visible(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Format the line and the lines of its exception."""
        return visible_lines(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    Its keys: time (RFC 3339, UTC), level, logger, message, and exception if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as JSON, without the line's end."""
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
