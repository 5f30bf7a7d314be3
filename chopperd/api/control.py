"""Pausing the agent over HTTP."""

from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from chopperd.api.models import PauseState
from chopperd.api.parameters import duration, line, optional
from chopperd.api.routing import Call, json_response
from chopperd.model.live import Pause

_LONGEST_PAUSE_S: Final = 30 * 86_400.0

FOR: Final = optional("for", duration(_LONGEST_PAUSE_S), "how long; until it is ended if absent")
REASON: Final = optional("reason", line(200), "why, for people")


def pause_state(call: Call) -> Response:
    """Whether the agent is paused."""
    return json_response(_state(call.services.snapshots.latest().pause))


def pause(call: Call) -> Response:
    """Pause the agent."""
    reason = call[REASON] or _by_whom(call.viewer.uid)
    return json_response(_state(call.services.pause.pause(reason, call[FOR])))


def resume(call: Call) -> Response:
    """Go on."""
    call.services.pause.resume()
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _by_whom(uid: int | None) -> str:
    return "asked for over the API" + (f" by uid {uid}" if uid is not None else "")


def _state(pause: Pause | None) -> PauseState:
    if pause is None:
        return PauseState(paused=False)
    return PauseState(paused=True, reason=pause.reason, until_unix_ns=pause.until_unix_ns)
