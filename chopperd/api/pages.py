"""The API's description: as OpenAPI, and as a page that needs nothing from other hosts."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from starlette.responses import Response

from chopperd.api.parameters import in_path, one_of
from chopperd.api.routing import Call

_JAVASCRIPT: Final = "text/javascript"
_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "docs.js": ("docs.js", _JAVASCRIPT),
    "swagger-ui-bundle.js": ("swagger-ui/swagger-ui-bundle.js", _JAVASCRIPT),
    "swagger-ui.css": ("swagger-ui/swagger-ui.css", "text/css"),
    "LICENSE": ("swagger-ui/LICENSE", "text/plain"),
    "NOTICE": ("swagger-ui/NOTICE", "text/plain"),
}
FILE_MEDIA_TYPES: Final = tuple(dict.fromkeys(kind for _, kind in _FILES.values()))
FILE: Final = in_path("file", one_of(*_FILES), "name of a file")

#: The page runs only its own files, and talks only to us. Swagger UI writes style attributes, and
#: its style sheet holds pictures as `data:`.
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def openapi(call: Call) -> Response:
    """The description of all routes."""
    return Response(call.description.body(), media_type="application/json")


def docs(_call: Call) -> Response:
    """The page."""
    return _file("docs.html", "text/html")


def docs_file(call: Call) -> Response:
    """A file of the page."""
    return _file(*_FILES[call[FILE]])


def _file(name: str, media_type: str) -> Response:
    body = files("chopperd.api").joinpath("assets", *name.split("/")).read_bytes()
    headers = {
        "content-security-policy": _CONTENT_SECURITY_POLICY,
        "cache-control": "max-age=3600",
    }
    return Response(body, media_type=media_type, headers=headers)
