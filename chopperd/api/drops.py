"""Answers about drops of GPUs' busy clocks."""

from typing import Final

from starlette.responses import Response

from chopperd.api.models import Drops
from chopperd.api.node import FROM, TO
from chopperd.api.parameters import line, optional
from chopperd.api.routing import Call, json_response
from chopperd.api.steps import LIMIT
from chopperd.model.captures import DropQuery

GPU: Final = optional("gpu", line(128), "only of the GPU with this label or UUID")


def drops(call: Call) -> Response:
    """Drops that overlap a time."""
    query = DropQuery(gpu=call[GPU], from_unix_ns=call[FROM], to_unix_ns=call[TO])
    return json_response(Drops(drops=call.services.drops.drops(query, limit=call[LIMIT])))
