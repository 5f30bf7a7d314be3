"""The pages that the API serves, and their files: the live page of the node, and the API's own.

No page loads anything from other hosts, or runs a script that is not a file of ours. The live page
gets all its figures from `/api/v1`; words and colours of causes and rows are the palette's.
"""

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Final

import msgspec
from starlette.responses import Response

from chopperd import palette
from chopperd.api.parameters import in_path, one_of
from chopperd.api.routing import Call

_JAVASCRIPT: Final = "text/javascript"
_CSS: Final = "text/css"
_HTML: Final = "text/html"

_SCRIPTS: Final = (
    *("page.js", "agent.js", "history.js", "figures.js", "gpus.js", "captures.js", "elements.js"),
)
#: Files of the live page, with their media types.
_PAGE_FILES: Final[Mapping[str, str]] = {
    **dict.fromkeys(_SCRIPTS, _JAVASCRIPT),
    "page.css": _CSS,
    "icon.svg": "image/svg+xml",
}
_PALETTE_CSS: Final = "palette.css"
_PALETTE_JS: Final = "palette.js"
PAGE_MEDIA_TYPES: Final = tuple(dict.fromkeys(_PAGE_FILES.values()))
PAGE_FILE: Final = in_path(
    "asset", one_of(*_PAGE_FILES, _PALETTE_CSS, _PALETTE_JS), "name of a file"
)

_DOCS_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "docs.js": ("docs.js", _JAVASCRIPT),
    "swagger-ui-bundle.js": ("swagger-ui/swagger-ui-bundle.js", _JAVASCRIPT),
    "swagger-ui.css": ("swagger-ui/swagger-ui.css", _CSS),
    "LICENSE": ("swagger-ui/LICENSE", "text/plain"),
    "NOTICE": ("swagger-ui/NOTICE", "text/plain"),
}
DOCS_MEDIA_TYPES: Final = tuple(dict.fromkeys(kind for _, kind in _DOCS_FILES.values()))
DOCS_FILE: Final = in_path("file", one_of(*_DOCS_FILES), "name of a file")

_OWN_FILES_ONLY: Final = (
    "default-src 'none'; script-src 'self'; style-src {style}; img-src {images}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_POLICY: Final = _OWN_FILES_ONLY.format(style="'self'", images="'self'")
#: Swagger UI writes style attributes, and its style sheet includes pictures as `data:`.
_DOCS_POLICY: Final = _OWN_FILES_ONLY.format(style="'self' 'unsafe-inline'", images="'self' data:")
_DOCS_CACHE: Final = "max-age=3600"
#: A page never runs with the files of another version.
_PAGE_CACHE: Final = "no-cache"


def page(_call: Call) -> Response:
    """The node's live page."""
    return _page_response(_read("page/index.html"), _HTML)


def page_file(call: Call) -> Response:
    """A file of the live page."""
    name = call[PAGE_FILE]
    if name == _PALETTE_CSS:
        return _page_response(palette_css().encode(), _CSS)
    if name == _PALETTE_JS:
        return _page_response(palette_js(), _JAVASCRIPT)
    return _page_response(_read(f"page/{name}"), _PAGE_FILES[name])


def docs(_call: Call) -> Response:
    """The description of the API as a page."""
    return _docs_response("docs.html", _HTML)


def docs_file(call: Call) -> Response:
    """A file of that page."""
    return _docs_response(*_DOCS_FILES[call[DOCS_FILE]])


def palette_css() -> str:
    """Return the palette as custom properties of CSS, light and dark, by published name."""
    light = "".join(_properties(palette.COMPUTE_LIGHT, palette.UNKNOWN_LIGHT, palette.ALERT_LIGHT))
    dark = "".join(_properties(palette.COMPUTE_DARK, palette.UNKNOWN_DARK, palette.ALERT_DARK))
    simulated = f"--simulated:{palette.SIMULATED};--simulated-text:{palette.SIMULATED_TEXT}"
    return f":root{{{light}{simulated}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _properties(compute: str, unknown: str, alert: str) -> Iterator[str]:
    for key, mark in {**palette.ROWS, **palette.CAUSES}.items():
        colour = unknown if mark.texture == "hatch" else mark.colour
        yield f"--{key}:{compute if key == 'compute_at_ref' else colour};"
    yield f"--alert:{alert};"


def palette_js() -> bytes:
    """Return the words and textures of the palette, in its order, as a module of JavaScript."""
    marks = {"ROWS": palette.ROWS, "CAUSES": palette.CAUSES}
    lines = (
        b"export const " + name.encode() + b" = " + msgspec.json.encode(values) + b";\n"
        for name, values in marks.items()
    )
    return b"".join(lines)


def _page_response(body: bytes, media_type: str) -> Response:
    headers = {"content-security-policy": _PAGE_POLICY, "cache-control": _PAGE_CACHE}
    return Response(body, media_type=media_type, headers=headers)


def _docs_response(name: str, media_type: str) -> Response:
    headers = {"content-security-policy": _DOCS_POLICY, "cache-control": _DOCS_CACHE}
    return Response(_read(name), media_type=media_type, headers=headers)


def _read(name: str) -> bytes:
    return files("chopperd.api").joinpath("assets", *name.split("/")).read_bytes()
