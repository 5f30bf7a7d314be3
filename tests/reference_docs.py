"""The generated parts of docs/: commands, configuration keys, metrics, kinds of lost events.

`python -m tests.reference_docs` writes them between their marks (`<!-- NAME -->` and
`<!-- /NAME -->`); a test compares the pages with what is generated now.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import click

from chopperd.cli.commands import app
from chopperd.config.table import SETTINGS
from chopperd.export.metric import Metric
from chopperd.export.rendering import CATALOGUE
from chopperd.model.report import LostKind

DOCS = Path(__file__).parent.parent / "docs"


def commands() -> str:
    """Each command: its purpose, usage, and a table of its options."""
    context = click.Context(app, info_name="chopperd")
    return "\n".join(
        _command(name, command)
        for name in app.list_commands(context)
        if (command := app.get_command(context, name)) is not None and not command.hidden
    )


def settings() -> str:
    """A line for each configuration key: default and purpose."""
    return _table(
        ("key", "default", "purpose"),
        (
            (
                f"`{each.key}`",
                "not set" if each.default is None else f"`{json.dumps(each.default)}`",
                each.help,
            )
            for each in SETTINGS
        ),
    )


def metrics() -> str:
    """A line for each metric, then the values of each closed label."""
    return "\n".join(
        (
            _table(("metric", "type", "labels", "profile", "meaning"), map(_metric, CATALOGUE)),
            _table(
                ("label", "values"),
                (
                    (f"`{name}`", ", ".join(f"`{value}`" for value in values if value))
                    for name, values in _closed_labels().items()
                ),
            ),
        )
    )


def lost() -> str:
    """A line for each kind of event that a trace may lack."""
    return _table(("kind", "meaning"), ((f"`{kind.value}`", kind.meaning) for kind in LostKind))


#: For each page of docs/, the generated parts by the name of their marks.
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "cli.md": {"commands": commands},
    "configuration.md": {"settings": settings},
    "metrics.md": {"metrics": metrics},
    "reading-a-report.md": {"lost": lost},
}


def generated(page: str, text: str) -> str:
    """A page's text with its parts generated again.

    Raises:
        ValueError: A mark is missing.
    """
    for name, part in PARTS[page].items():
        head, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition(f"<!-- /{name} -->\n")
        if not begin or not end:
            raise ValueError(f"{page}: the marks of {name} are missing")
        text = f"{head}{begin}\n{part()}\n{end}{tail}"
    return text


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"chopperd {name}")
    pieces = " ".join(command.collect_usage_pieces(context))
    records = [
        record
        for each in command.params
        if isinstance(each, click.Option) and (record := each.get_help_record(context)) is not None
    ]
    table = _table(("option", "meaning"), ((f"`{key}`", what) for key, what in records))
    help_text = " ".join((command.help or "").split())
    examples = "\n".join(line.strip() for line in (command.epilog or "").splitlines()[2:])
    usage = f"```\nchopperd {name} {pieces}\n```\n\nExamples:\n\n```\n{examples}\n```"
    return f"## {name}\n\n{help_text}\n\n{usage}\n\n{table}"


def _metric(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{label.name}`" for label in metric.labels)
    return f"`{metric.name}`", metric.kind.value, labels, metric.profile.name.lower(), metric.help


def _closed_labels() -> dict[str, tuple[str, ...]]:
    """The values of each closed label, of its largest set where metrics use several."""
    found: dict[str, tuple[str, ...]] = {}
    for label in (label for metric in CATALOGUE for label in metric.labels):
        if label.values is not None and len(label.values) > len(found.get(label.name, ())):
            found[label.name] = label.values
    return found


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


if __name__ == "__main__":
    for each in PARTS:
        path = DOCS / each
        path.write_text(generated(each, path.read_text(encoding="utf-8")), encoding="utf-8")
