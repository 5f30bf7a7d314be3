"""Refusals as `application/problem+json` (RFC 9457): raised anywhere, answered in one place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

MEDIA_TYPE: Final = "application/problem+json"


class ParameterProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one parameter of a request."""

    parameter: str
    detail: str


class StepCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A job and run that an ambiguous step number may be of."""

    job: str | None
    run: str | None


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was refused.

    `title` and `status` are always there; `errors` and `candidates` where they help to ask again.
    """

    title: str
    status: int
    detail: str | None = None
    errors: tuple[ParameterProblem, ...] = ()
    candidates: tuple[StepCandidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a refusal carries beside its text."""

    errors: Sequence[ParameterProblem] = ()
    candidates: Sequence[StepCandidate] = ()


_NO_EXTRAS: Final = Extras()


class ProblemError(Exception):
    """A request is refused.

    Args:
        status: The HTTP status.
        detail: What is wrong and what to do, for people.
        headers: To be sent along.
        extras: What a program can ask again with.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        extras: Extras = _NO_EXTRAS,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.extras = extras

    def body(self) -> bytes:
        """The problem as JSON."""
        problem = Problem(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            errors=tuple(self.extras.errors),
            candidates=tuple(self.extras.candidates),
        )
        return msgspec.json.encode(problem)

    def response(self) -> Response:
        """The answer to the request."""
        return Response(
            self.body(), status_code=self.status, headers=self.headers, media_type=MEDIA_TYPE
        )


def bad_parameters(*problems: ParameterProblem) -> ProblemError:
    """The refusal of a request with these parameters, all at once."""
    detail = "; ".join(f"{each.parameter}: {each.detail}" for each in problems)
    return ProblemError(HTTPStatus.BAD_REQUEST, detail, extras=Extras(errors=problems))


def retry_later(detail: str, *, after_s: int) -> ProblemError:
    """The refusal of a request that may succeed later."""
    headers = {"Retry-After": str(after_s)}
    return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers=headers)
