"""The listeners for metrics and API, and what they answer from."""

from chopperd.agent.context import Surroundings
from chopperd.api.app import build_api, build_metrics
from chopperd.api.listeners import Listener
from chopperd.api.services import ApiServices
from chopperd.export.catalogue import profile_named
from chopperd.export.rendering import MetricsText
from chopperd.model.live import GuardedPart
from chopperd.model.services import DropSource, Ingest, SampleSource, StepSource
from chopperd.report.forms.formats import formatted


def new_services(
    around: Surroundings,
    *,
    steps: StepSource,
    drops: DropSource,
    samples: SampleSource,
    ingest: Ingest,
) -> ApiServices:
    """What both listeners answer from."""
    profile = profile_named(around.config.metrics.profile)
    text = MetricsText(around.snapshots, profile, around.clock)

    def metrics(accept: str | None) -> tuple[bytes, str]:
        exposition = text.exposition(accept)
        return exposition.body, exposition.content_type

    return ApiServices(
        snapshots=around.snapshots,
        steps=steps,
        drops=drops,
        samples=samples,
        ingest=ingest,
        pause=around.pause,
        health=around.health,
        render_document=formatted,
        metrics=metrics,
        clock=around.clock,
        access=around.access,
        failed=lambda _path: around.health.note_fault(GuardedPart.REQUEST),
    )


def metrics_listener(around: Surroundings, services: ApiServices) -> Listener | None:
    """What serves metrics and health, not started; None where nothing is to."""
    listening = around.sockets.metrics
    if listening is None:
        return None
    return Listener(build_metrics(services), [listening], "metrics", blocking_threads=0)


def api_listener(around: Surroundings, services: ApiServices) -> Listener | None:
    """What serves the API, not started; None where nothing is to."""
    sockets = (around.sockets.api, around.sockets.api_local)
    listening = [each for each in sockets if each is not None]
    return Listener(build_api(services), listening, "api") if listening else None
