"""OpenAPI 3.1 document, generated from the table of routes."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from inspect import cleandoc
from typing import Final, TypeAlias

import msgspec
from starlette.responses import Response

from chopperd import __version__
from chopperd.api.access import Access
from chopperd.api.parameters import Json, Parameter
from chopperd.api.routing import PROBLEM_MEDIA_TYPE, Call, Problem, Reply, Route

_References: TypeAlias = Mapping[type, Json]

_SCHEME: Final = "token"
_REFERENCE: Final = "#/components/schemas/{name}"
_WHO: Final[Mapping[Access, str]] = {
    Access.ANYONE: "Open to anyone who can reach the agent.",
    Access.VIEWER: "Users see their own jobs; administrators see all.",
    Access.UPLOADER: "Users may upload traces for their own jobs, administrators for any job.",
    Access.ADMIN: "For administrators only.",
}
_COMMON_REFUSALS: Final[Mapping[int, str]] = {
    HTTPStatus.BAD_REQUEST: "A parameter is unknown or invalid; `errors` names all",
    HTTPStatus.MISDIRECTED_REQUEST: "The `Host` header names another host",
    HTTPStatus.INTERNAL_SERVER_ERROR: "An unexpected error in the agent, which was logged",
}
_ACCESS_REFUSALS: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "The caller can't be identified, or the token is wrong",
    HTTPStatus.FORBIDDEN: "The caller is not allowed to",
}
_ABOUT: Final = (
    "What the GPU clock costs each training step on this node. Times are ns since 1970 unless "
    "their name has another unit; ratios are 0 to 1; null is unknown, never 0."
)
_IN_OPERATION_ID: Final = str.maketrans("/.", "__", "{}")


def openapi_document(routes: Sequence[Route]) -> Json:
    """Build the OpenAPI document of these routes."""
    types = [reply.holds for route in routes for reply in route.replies if reply.holds is not None]
    references, schemas = _schemas([*dict.fromkeys(types), Problem])
    paths: dict[str, dict[str, Json]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "chopperd",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {_SCHEME: {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(types: Sequence[type]) -> tuple[_References, Mapping[str, Json]]:
    """Return the reference to each type's schema, and all schemas by name.

    Their docstrings are dedented, as Python versions indent them differently.
    """
    references, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    for schema in components.values():
        if isinstance(description := schema.get("description"), str):
            schema["description"] = cleandoc(description)
    return dict(zip(types, references, strict=True)), components


def _operation(route: Route, references: _References) -> Json:
    refusals = {**_COMMON_REFUSALS, **route.refusals}
    if route.access is not Access.ANYONE:
        refusals |= _ACCESS_REFUSALS
    problem: Json = {PROBLEM_MEDIA_TYPE: {"schema": references[Problem]}}
    responses = {str(each.status): _reply(each, references) for each in route.replies}
    for status, text in sorted(refusals.items()):
        responses[str(int(status))] = {"description": text, "content": problem}
    return {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "description": _WHO[route.access],
        "tags": [_tag(route)],
        "parameters": [_parameter(each) for each in route.parameters],
        **({"requestBody": _FILE_BODY} if route.takes_bytes else {}),
        "responses": responses,
        # A token is optional: the user at the other end of the connection may be enough.
        "security": [{}] if route.access is Access.ANYONE else [{}, {_SCHEME: []}],
    }


_FILE_BODY: Final[Json] = {
    "required": False,
    "description": "The bytes of the trace file; absent with `path`",
    "content": {"application/octet-stream": {"schema": {}}},
}


def _reply(reply: Reply, references: _References) -> Json:
    content = {each: _content(each, reply, references) for each in reply.media_types}
    return {"description": reply.help, **({"content": content} if content else {})}


def _content(media_type: str, reply: Reply, references: _References) -> Json:
    """Return the schema of a body; only JSON and events have the schema of the reply's type."""
    if media_type == "application/json" and reply.holds is not None:
        return {"schema": references[reply.holds]}
    if media_type == "text/event-stream" and reply.holds is not None:
        return {"schema": {"type": "string", "contentSchema": references[reply.holds]}}
    return {"schema": {} if media_type == "application/json" else {"type": "string"}}


def _parameter(parameter: Parameter[object]) -> Json:
    schema = parameter.kind.schema
    if parameter.default is not None:
        schema = {**schema, "default": parameter.default}  # type: ignore[dict-item]
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.help,
        "schema": schema,
    }


def _operation_id(route: Route) -> str:
    words = route.path.removeprefix("/api/v1").strip("/").translate(_IN_OPERATION_ID)
    return f"{route.method.lower()}_{words}"


def _tag(route: Route) -> str:
    first, _, rest = route.path.strip("/").partition("/")
    return rest.removeprefix("v1/").partition("/")[0] if first == "api" else "agent"


def openapi(call: Call) -> Response:
    """This description."""
    return Response(call.shared.description(), media_type="application/json")
