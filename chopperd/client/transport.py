"""Requests to the agent: the first place that answers is asked; refusals become errors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final
from urllib.parse import urlencode

import msgspec

from chopperd.client.endpoints import Endpoint
from chopperd.client.token import Token
from chopperd.errors import AgentRefusedError, AgentUnreachableError

_FIRST_FAILURE: Final = 400
_PROBLEM_BYTES: Final = 64 * 1024
_START_ONE: Final = "start one with `chopperd run`"

Query = Mapping[str, str | int | None]


class _Problem(msgspec.Struct):
    """What is used of an RFC 9457 problem."""

    title: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Transport:
    """How the agent is reached.

    Attributes:
        endpoints: Where it may answer, best first.
        token: Makes its bearer an admin; None if there is none. Only sent to who knows it.
        timeout_s: Longest wait to connect, and for each part of an answer.
    """

    endpoints: Sequence[Endpoint]
    token: Token | None = None
    timeout_s: float = 5.0

    def fetch(
        self, path: str, query: Query | None = None, *, method: str = "GET", accept: str = "*/*"
    ) -> bytes:
        """The body of a successful answer.

        Raises:
            AgentUnreachableError: Nobody answers.
            AgentRefusedError: The agent says why not.
        """
        with self.opened(path, query, method=method, accept=accept) as response:
            try:
                return response.read()
            except (OSError, HTTPException) as error:
                raise AgentUnreachableError(f"the agent broke off: {_reason(error)}") from error

    @contextmanager
    def opened(
        self, path: str, query: Query | None = None, *, method: str = "GET", accept: str = "*/*"
    ) -> Iterator[HTTPResponse]:
        """A successful answer, whose body is still to be read; closed afterwards.

        Raises:
            AgentUnreachableError: Nobody answers.
            AgentRefusedError: The agent says why not.
        """
        endpoint, connection = self._connect()
        with closing(connection):
            try:
                connection.request(
                    method, _target(path, query), headers=self._headers(accept, endpoint)
                )
                response = connection.getresponse()
            except (OSError, HTTPException) as error:
                message = f"what listens at {endpoint} does not answer: {_reason(error)}"
                raise AgentUnreachableError(message) from error
            with response:
                if response.status >= _FIRST_FAILURE:
                    raise AgentRefusedError(_refusal(response), status=response.status)
                yield response

    def _connect(self) -> tuple[Endpoint, HTTPConnection]:
        tried: list[str] = []
        for endpoint in self.endpoints:
            try:
                return endpoint, endpoint.connect(self.timeout_s)
            except OSError as error:
                tried.append(f"{endpoint} ({_reason(error)})")
        where = f" at {', '.join(tried)}" if tried else ": no address is configured"
        raise AgentUnreachableError(f"no agent answers{where}; {_START_ONE}")

    def _headers(self, accept: str, endpoint: Endpoint) -> dict[str, str]:
        headers = {"Accept": accept, "Connection": "close"}
        if self.token is not None and self.token.is_known_to(endpoint.server_uids()):
            headers["Authorization"] = f"Bearer {self.token.text}"
        return headers


def _target(path: str, query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def _refusal(response: HTTPResponse) -> str:
    """Why the agent refuses, in its own words where it has any."""
    try:
        problem = msgspec.json.decode(response.read(_PROBLEM_BYTES), type=_Problem)
    except (msgspec.MsgspecError, OSError, HTTPException):
        problem = _Problem()
    said = problem.detail or problem.title or response.reason
    verdict = "has none" if response.status == HTTPStatus.NOT_FOUND else "refuses"
    return f"the agent {verdict}: {said} (HTTP {response.status})"
