"""Scraped text read back by the strict parsers of the Prometheus client library."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as plain_families

from chopperd.clock import Clock
from chopperd.export.metric import Profile
from chopperd.export.rendering import MetricsText
from chopperd.model.live import NodeSnapshot
from tests.fakes.clock import ScriptedClock
from tests.fakes.snapshots import OneSnapshot

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

#: A series: the name and its labels.
Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]


def rendered(
    snapshot: NodeSnapshot, profile: Profile = Profile.FULL, accept: str | None = None
) -> str:
    """The text of a snapshot, scraped when it was taken."""
    clock: Clock = ScriptedClock(mono_ns=snapshot.taken_mono_ns)
    return MetricsText(OneSnapshot(snapshot), profile, clock).exposition(accept)[0].decode()


def families(text: str) -> list[Family]:
    """The families of a text in either format."""
    parse = openmetrics_families if text.endswith("# EOF\n") else plain_families
    return list(parse(text))


@lru_cache(maxsize=4)
def series(text: str) -> Mapping[Series, float]:
    """The value of each series; none may occur twice."""
    found: dict[Series, float] = {}
    for family in families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = float(sample.value)
    return found


def values_of(text: str, name: str, label: str | None = None) -> Mapping[str, float]:
    """The values of one metric by a label (the GPU, or the whole node under "")."""
    return {
        dict(labels).get(label or "gpu", ""): value
        for (found, labels), value in series(text).items()
        if found == name
    }
