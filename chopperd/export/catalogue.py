"""The one table of all metrics: what is scraped, documented and drawn comes from here."""

from pathlib import Path
from typing import Final

from chopperd.export.agent_metrics import AGENT_METRICS, EXPORT_METRICS
from chopperd.export.gpu_metrics import GPU_METRICS, TRACED_METRICS
from chopperd.export.metric import Metric, Profile

#: In the order in which they are exported; the exporter's own come last.
CATALOGUE: Final = (*GPU_METRICS, *TRACED_METRICS, *AGENT_METRICS, *EXPORT_METRICS)

_PROFILES: Final = {profile.label: profile for profile in Profile}


def profile_named(name: str) -> Profile:
    """The profile with a name of the configuration."""
    return _PROFILES[name]


def metrics_of(profile: Profile) -> tuple[Metric, ...]:
    """The metrics that a profile holds, in their order."""
    return tuple(metric for metric in CATALOGUE if metric.profile <= profile)


# The table of metrics in the README, from the catalogue: `python -m chopperd.export.catalogue`.

_README: Final = Path("README.md")
_BEGIN: Final = "<!-- metrics -->\n"
_END: Final = "<!-- /metrics -->\n"


def metrics_table() -> str:
    """Markdown: a line a metric, then the values of each closed label."""
    lines = [
        "| metric | type | labels | profile | what it says |",
        "|---|---|---|---|---|",
        *map(_line, CATALOGUE),
        "",
        "| label | values |",
        "|---|---|",
        *(f"| `{name}` | {_values(values)} |" for name, values in _closed_labels().items()),
    ]
    return "\n".join(lines) + "\n"


def with_table(readme: str) -> str:
    """The README with the table of now between its marks.

    Raises:
        ValueError: The marks are not there.
    """
    head, begin, rest = readme.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the marks {_BEGIN.strip()} and {_END.strip()} are not there")
    return f"{head}{begin}{metrics_table()}{end}{tail}"


def _line(metric: Metric) -> str:
    labels = ", ".join(f"`{label.name}`" for label in metric.labels)
    cells = (f"`{metric.name}`", metric.kind.value, labels, metric.profile.label, metric.help)
    return f"| {' | '.join(cells)} |"


def _values(values: tuple[str, ...]) -> str:
    return ", ".join(f"`{value}`" for value in values if value)


def _closed_labels() -> dict[str, tuple[str, ...]]:
    """The values of each closed label, of its largest set where metrics use several."""
    found: dict[str, tuple[str, ...]] = {}
    for label in (label for metric in CATALOGUE for label in metric.labels):
        if label.values is not None and len(label.values) > len(found.get(label.name, ())):
            found[label.name] = label.values
    return found


if __name__ == "__main__":
    _README.write_text(with_table(_README.read_text()))
