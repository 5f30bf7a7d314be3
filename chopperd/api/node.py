"""Answers about the node as it is now: status, GPUs, samples, metrics, health."""

from http import HTTPStatus
from typing import Final

from isal import igzip
from starlette.responses import Response

from chopperd.api.accept import accepts_gzip
from chopperd.api.history import LONGEST_NS, MOST_POINTS, history
from chopperd.api.models import Well, gpu_of, gpus_of, status_of
from chopperd.api.parameters import (
    INSTANT,
    defaulted,
    in_path,
    line,
    optional,
    whole,
)
from chopperd.api.problems import ParameterProblem, ProblemError, bad_parameters, retry_later
from chopperd.api.routing import Call, json_response
from chopperd.api.services import ApiServices
from chopperd.model.live import GpuLive, NodeSnapshot
from chopperd.units import NS_PER_S

_READY_AGE_NS: Final = 5 * NS_PER_S
_METRICS_AGE_NS: Final = 10 * NS_PER_S
_DEFAULT_SPAN_NS: Final = 600 * NS_PER_S
_GZIP_LEVEL: Final = 1

GPU: Final = in_path("gpu", line(128), "label, UUID or PCI bus id of a GPU")
FROM: Final = optional("from", INSTANT, "start, inclusive")
TO: Final = optional("to", INSTANT, "end, exclusive")
POINTS: Final = defaulted("points", whole(1, MOST_POINTS), 600, "most points to give")


def status(call: Call) -> Response:
    """The agent and its node."""
    services = call.services
    snapshot = services.snapshots.latest()
    age_ns, trouble = snapshot_age_ns(services, snapshot), services.health.trouble()
    return json_response(status_of(snapshot, age_ns=age_ns, trouble=trouble))


def gpus(call: Call) -> Response:
    """All GPUs."""
    return json_response(gpus_of(call.services.snapshots.latest()))


def gpu(call: Call) -> Response:
    """One GPU."""
    return json_response(gpu_of(_found(call.services.snapshots.latest(), call[GPU])))


def samples(call: Call) -> Response:
    """Samples of one GPU over a time."""
    label = _found(call.services.snapshots.latest(), call[GPU]).info.gpu
    start, end, points = call[FROM], call[TO], call[POINTS]
    to_ns = end if end is not None else call.services.clock.unix_ns()
    from_ns = start if start is not None else max(to_ns - _DEFAULT_SPAN_NS, 0)
    if not 0 < to_ns - from_ns <= LONGEST_NS:
        longest = f"must be before 'to' by at most {LONGEST_NS // (86_400 * NS_PER_S)} days"
        raise bad_parameters(ParameterProblem(parameter="from", detail=longest))
    return json_response(history(call.services.samples, label, from_ns, to_ns, points))


def metrics(call: Call) -> Response:
    """The metrics, unless they are too old to stand for now."""
    services = call.services
    age_ns = snapshot_age_ns(services, services.snapshots.latest())
    if age_ns > _METRICS_AGE_NS:
        raise retry_later(f"the newest values are {age_ns / NS_PER_S:.0f} s old", after_s=5)
    body, media_type = services.metrics(call.request.headers.get("accept"))
    headers = {"content-type": media_type, "vary": "accept, accept-encoding"}
    if accepts_gzip(call.request.headers.get("accept-encoding")):
        body, headers["content-encoding"] = igzip.compress(body, _GZIP_LEVEL), "gzip"
    return Response(body, headers=headers)


def healthz(call: Call) -> Response:
    """Whether the agent itself is well."""
    trouble = call.services.health.trouble()
    if trouble is not None:
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, trouble)
    return json_response(Well())


def readyz(call: Call) -> Response:
    """Whether any GPU is sampled."""
    snapshot = call.services.snapshots.latest()
    age_ns = snapshot_age_ns(call.services, snapshot)
    if age_ns > _READY_AGE_NS:
        raise retry_later(f"the newest values are {age_ns / NS_PER_S:.0f} s old", after_s=1)
    if not snapshot.backend_up:
        reason = snapshot.sampler.reason or f"sampling is {snapshot.sampler.condition}"
        raise retry_later(f"no GPU has a fresh sample: {reason}", after_s=1)
    return json_response(Well())


def snapshot_age_ns(services: ApiServices, snapshot: NodeSnapshot) -> int:
    """How old a snapshot is, by a clock that is never set."""
    return max(services.clock.mono_ns() - snapshot.taken_mono_ns, 0)


def _found(snapshot: NodeSnapshot, key: str) -> GpuLive:
    """The GPU with this label, UUID or PCI bus id."""
    for each in snapshot.gpus:
        if key == each.info.gpu:
            return each
    wanted = key.lower()
    for each in snapshot.gpus:
        pci = (each.info.pci_bus_id or "").lower()
        # NVIDIA writes the PCI domain with 8 digits, the rest of the system with 4.
        if wanted in (each.info.uuid.lower(), pci) or (pci and wanted == pci[4:]):
            return each
    known = ", ".join(each.info.gpu for each in snapshot.gpus) or "none"
    raise ProblemError(HTTPStatus.NOT_FOUND, f"no such GPU; there are: {known}")
