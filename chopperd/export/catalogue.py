"""The one table of all metrics, for scrapes, documentation and dashboards."""

from typing import Final

from chopperd.export.agent_metrics import AGENT_METRICS, EXPORT_METRICS
from chopperd.export.gpu_metrics import GPU_METRICS, TRACED_METRICS
from chopperd.export.metric import Metric, Profile

#: In the order in which they are exported; the exporter's own come last.
CATALOGUE: Final = (*GPU_METRICS, *TRACED_METRICS, *AGENT_METRICS, *EXPORT_METRICS)

_PROFILES: Final = {profile.label: profile for profile in Profile}


def profile_named(name: str) -> Profile:
    """The profile with this name in the configuration."""
    return _PROFILES[name]


def metrics_of(profile: Profile) -> tuple[Metric, ...]:
    """The metrics of a profile, in their order."""
    return tuple(metric for metric in CATALOGUE if metric.profile <= profile)
