"""What a scrape costs: the text of a snapshot of eight GPUs, beside the client library's own way.

`python -m bench.metrics` prints Markdown. The peer holds the same series as label children of the
library's gauges and counters, sets each anew and renders them, as an exporter does that keeps no
snapshot.
"""

import argparse
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from bench.markdown import Figure, figure_table, table
from chopperd.clock import SystemClock
from chopperd.export.agent_metrics import EXPORT_METRICS
from chopperd.export.metric import Kind, Profile, View
from chopperd.export.rendering import MetricsText, metrics_of
from chopperd.model.arrays import Float64s
from chopperd.model.live import NodeSnapshot
from tests.fakes.snapshots import OneSnapshot, full_snapshot

GPUS: Final = 8
#: 99th percentile of a scrape, at most.
MOST_SCRAPE_MS: Final = 20.0
AIM_SCRAPE_MS: Final = 5.0
_FORMATS: Final = {"text": "text/plain", "OpenMetrics": "application/openmetrics-text"}


class Peer:
    """The client library's own metrics, one a row of the catalogue."""

    def __init__(self, profile: Profile) -> None:
        self.registry = CollectorRegistry()
        self._rows = [row for row in metrics_of(profile) if row not in EXPORT_METRICS]
        self._metrics = {
            row.name: (Counter if row.kind is Kind.COUNTER else Gauge)(
                row.name,
                row.documentation,
                [label.name for label in row.labels],
                registry=self.registry,
            )
            for row in self._rows
        }

    def update(self, snapshot: NodeSnapshot) -> None:
        """Set every child anew."""
        view = View(snapshot)
        for row in self._rows:
            metric = self._metrics[row.name]
            for key, value in row.read(view):
                child = metric.labels(*key) if key else metric
                if isinstance(child, Gauge):
                    child.set(value or 0.0)
                else:
                    child.reset()
                    child.inc(value or 0.0)


def taken_ms(repeats: int, work: Callable[[], object]) -> Float64s:
    """(repeats,) CPU time of each run in ms."""
    times_ns = []
    for _ in range(repeats):
        began_ns = time.process_time_ns()
        work()
        times_ns.append(time.process_time_ns() - began_ns)
    return np.array(times_ns) / 1e6


def report(repeats: int) -> str:
    """Everything as Markdown."""
    rows = [
        _row(profile, name, accept, repeats)
        for profile in Profile
        for name, accept in _FORMATS.items()
    ]
    header = ("profile", "format", "series", "KiB", "rendering ms p50/p99", "peer", "cached p99")
    worst_ms = max(float(np.quantile(times, 0.99)) for _, times in rows)
    worst = Figure(
        what="a scrape that renders, worst row, p99 ms",
        shown=f"{worst_ms:.1f}",
        value=worst_ms,
        must=MOST_SCRAPE_MS,
        aim=AIM_SCRAPE_MS,
    )
    lines = [
        f"{GPUS} GPUs of which everything is known, {repeats} times each, CPU "
        "time. Once a snapshot (a second) the first scrape renders; all others get the same bytes.",
        table(header, [cells for cells, _ in rows]),
        figure_table([worst]),
    ]
    return "\n\n".join(lines)


def _row(profile: Profile, name: str, accept: str, repeats: int) -> tuple[list[str], Float64s]:
    snapshot = full_snapshot(GPUS)
    clock = SystemClock()
    source = OneSnapshot(snapshot)
    metrics = MetricsText(source, profile, clock)
    peer = Peer(profile)
    generate = generate_latest if name == "text" else generate_openmetrics

    def scrape_anew() -> None:
        source.snapshot = replace(snapshot, taken_mono_ns=clock.mono_ns())
        metrics.exposition(accept)

    def scrape_peer() -> None:
        peer.update(snapshot)
        generate(peer.registry)

    ours_ms, theirs_ms = taken_ms(repeats, scrape_anew), taken_ms(repeats, scrape_peer)
    cached_ms = taken_ms(repeats, lambda: metrics.exposition(accept))
    scrape_anew()
    body = metrics.exposition(accept)[0]
    series_count = sum(not line.startswith(b"#") for line in body.splitlines())
    cells = [
        *(profile.name.lower(), name, f"{series_count}", f"{len(body) / 1024:.0f}"),
        *(f"{np.median(ms):.2f}/{np.quantile(ms, 0.99):.2f}" for ms in (ours_ms, theirs_ms)),
        f"{np.quantile(cached_ms, 0.99):.3f}",
    ]
    return cells, ours_ms


def main(argv: list[str] | None = None) -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    print(report(parser.parse_args(argv).repeats))


if __name__ == "__main__":
    main()
