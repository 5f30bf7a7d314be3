"""What tables of operations, layers and phases are called, and what they say if nothing is told."""

from collections.abc import Mapping
from typing import Final

from chopperd.model.report import ReportDocument
from chopperd.model.row_parts import By, PartsBy

#: Lines of a table.
SHOWN: Final = 20
TITLES: Final[Mapping[By, str]] = {
    "family": "FAMILIES",
    "operation": "OPERATIONS",
    "layer": "LAYERS",
    "phase": "PHASES",
}
#: With the word for what nothing is told of.
NOTHING_TOLD: Final[Mapping[PartsBy, str]] = {
    "operation": "the trace tells no operator of any {}",
    "layer": "the trace tells no module of any {} (with_stack=True does)",
    "phase": "the trace tells no phase of any {}: it holds no backward pass",
}


def why_none(document: ReportDocument) -> str:
    """Why a report has nothing of what was asked for."""
    if document.totals:
        return "not in this report: names are not shown (privacy.names), or it is an older one"
    return "no device work in the trace" + ("" if len(document.traces) < 2 else "s")
