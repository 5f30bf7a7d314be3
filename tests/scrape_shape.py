"""Names, types and labels of a whole scrape, as tests/e2e/golden/metrics.txt holds them.

`python -m tests.scrape_shape` writes that file anew; what changes in it changes for everyone who
has a dashboard.
"""

from pathlib import Path

from tests.exposition import families, rendered
from tests.fakes.snapshots import full_snapshot

GOLDEN = Path(__file__).parent / "e2e" / "golden" / "metrics.txt"


def shape(text: str) -> list[str]:
    """A line for each name in a text: name, type, label names."""
    lines = set()
    for family in families(text):
        for sample in family.samples:
            labels = ",".join(sorted(sample.labels))
            lines.add(f"{sample.name} {family.type} {{{labels}}}")
    return sorted(lines)


def whole_shape() -> list[str]:
    """The shape of a scrape in which everything is known, and one GPU hangs."""
    return shape(rendered(full_snapshot(hung=True)))


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(whole_shape()) + "\n")
