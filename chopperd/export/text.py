"""Metric families as text, byte for byte as the client library writes them, but sooner.

The library checks and escapes each name of each series anew, which took most of a scrape's time;
here names are those of the catalogue, which its tests hold to the rules.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from chopperd.export.negotiation import TextFormat

_number: Final[Callable[[float], str]] = floatToGoString
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
#: What the text format, which knows neither, makes of a counter's and an info's name and type.
_PLAIN_HEADS: Final = {"counter": ("_total", "counter"), "info": ("_info", "gauge")}


def exposition_text(families: Iterable[Family], wanted: TextFormat) -> str:
    """The families in a format.

    Args:
        families: With valid names, and documentation that needs no escape.
        wanted: The format.
    """
    head = _openmetrics_head if wanted is TextFormat.OPENMETRICS else _plain_head
    lines: list[str] = []
    for family in families:
        lines += head(family)
        lines += map(_sample_line, family.samples)
    if wanted is TextFormat.OPENMETRICS:
        lines.append("# EOF")
    return "\n".join([*lines, ""])


def _plain_head(family: Family) -> Iterator[str]:
    suffix, kind = _PLAIN_HEADS.get(family.type, ("", family.type))
    yield f"# HELP {family.name}{suffix} {family.documentation}"
    yield f"# TYPE {family.name}{suffix} {kind}"


def _openmetrics_head(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.documentation}"
    yield f"# TYPE {family.name} {family.type}"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"


def _sample_line(sample: Sample) -> str:
    if not sample.labels:
        return f"{sample.name} {_number(sample.value)}"
    labels = ",".join(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(sample.labels.items())
    )
    return f"{sample.name}{{{labels}}} {_number(sample.value)}"
