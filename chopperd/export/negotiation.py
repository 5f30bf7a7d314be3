"""Which text format a scraper is given, by the `Accept` header that it sends."""

from enum import StrEnum
from typing import Final


class TextFormat(StrEnum):
    """A format; the value is its content type."""

    PLAIN = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


_OPENMETRICS_TYPE: Final = "application/openmetrics-text"
_OPENMETRICS_VERSIONS: Final = frozenset({"", "1.0.0", "0.0.1"})
_PLAIN_TYPES: Final = frozenset({"text/plain", "text/*", "*/*"})


def text_format(accept: str | None) -> TextFormat:
    """OpenMetrics if the header puts it before or beside plain text; plain text for all else."""
    best = {TextFormat.PLAIN: 0.0, TextFormat.OPENMETRICS: 0.0}
    for entry in (accept or "").split(","):
        media_type, *parameters = (part.strip().lower() for part in entry.split(";"))
        given = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        quality = _quality(given.get("q", "1"))
        version = given.get("version", "").strip('"')
        if media_type == _OPENMETRICS_TYPE and version in _OPENMETRICS_VERSIONS:
            best[TextFormat.OPENMETRICS] = max(best[TextFormat.OPENMETRICS], quality)
        elif media_type in _PLAIN_TYPES:
            best[TextFormat.PLAIN] = max(best[TextFormat.PLAIN], quality)
    wanted = best[TextFormat.OPENMETRICS]
    return TextFormat.OPENMETRICS if 0 < wanted >= best[TextFormat.PLAIN] else TextFormat.PLAIN


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
