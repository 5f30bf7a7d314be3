"""The words and the fixed colours of waterfall rows and causes, alike in every output.

Colours are told apart by the colour-blind from their neighbours in the stack, and stand at 3:1 or
more on white and on a dark panel; where two do not suffice alone, a texture helps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mark:
    """How one row or cause is named and drawn; `texture` is "", "dashes", "dots" or "hatch"."""

    words: str
    colour: str
    texture: str = ""


#: Compute at the reference is the background of every waterfall, so it has a colour a scheme.
COMPUTE_LIGHT: Final = "#D9DDE3"
COMPUTE_DARK: Final = "#323B46"
COMPUTE_GRAFANA: Final = "#8B96A3"

#: What is not known is hatched, never a colour of its own.
UNKNOWN_LIGHT: Final = "#7C838C"
UNKNOWN_DARK: Final = "#77828E"

#: Drops, hung calls and errors: marks and text only.
ALERT_LIGHT: Final = "#D1242F"
ALERT_DARK: Final = "#FF5C66"

#: Panels of simulated data: a strip that nobody overlooks, and its text.
SIMULATED: Final = "#FFF3CF"
SIMULATED_TEXT: Final = "#5F4700"

#: Parts of a step's time in the order of the stack; clock loss is drawn by its causes.
ROWS: Final[Mapping[str, Mark]] = {
    "compute_at_ref": Mark("compute at the reference clock", COMPUTE_GRAFANA),
    "dvfs_loss": Mark("clock loss (ceiling)", "#C28B1E"),
    "compute_unsampled": Mark("compute, clock not sampled", UNKNOWN_LIGHT, "hatch"),
    "exposed_comm": Mark("exposed communication", "#2F66D0"),
    "exposed_copy": Mark("exposed copies", "#12A2C1"),
    "unknown": Mark("unknown (launches without record)", UNKNOWN_LIGHT, "hatch"),
    "idle_launch_call": Mark("idle, launch latency", "#69A02B"),
    "idle_allocator": Mark("idle, device malloc or free", "#4F7031"),
    "idle_data": Mark("idle, waiting for data", "#239889"),
    "idle_sync": Mark("idle, synchronise call", "#8E8F1C"),
    "idle_launch_prep": Mark("idle, host prepares a launch", "#3B8A4F"),
    "idle_other": Mark("idle, no next launch known", "#667A70"),
}

#: Why a clock is below its reference, in the order of the stack.
CAUSES: Final[Mapping[str, Mark]] = {
    "user_limit": Mark("user limit", "#7E6322", "dashes"),
    "power_cap": Mark("power cap", "#C28B1E"),
    "thermal": Mark("thermal", "#C43A0A"),
    "hw_thermal": Mark("hw thermal", "#E0607A"),
    "power_brake": Mark("power brake", "#A93FA0"),
    "hw_slowdown": Mark("hw slowdown", "#A67CF0"),
    "sync_boost": Mark("sync boost", "#B0796B"),
    "low_utilization": Mark("low utilization", "#7F8F63", "dots"),
    "unexplained": Mark("unexplained", "#77708A", "dots"),
    "unknown": Mark("unknown", UNKNOWN_LIGHT, "hatch"),
}


# The same for pages, as CSS and SVG.

_DRAWN: Final[Mapping[str, Mark]] = {**CAUSES, **ROWS}
_COMPUTE: Final = "compute_at_ref"
_SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    ":root": (COMPUTE_LIGHT, UNKNOWN_LIGHT, "#EFEFEB", ALERT_LIGHT, SIMULATED, SIMULATED_TEXT),
    "dark": (COMPUTE_DARK, UNKNOWN_DARK, "#1B212A", ALERT_DARK, "#2E2508", "#F4D98B"),
}
_NAMES: Final = ("compute", "hatch", "hatch-page", "alert", "simulated", "simulated-text")
#: What is drawn on a tile of 6 px, over the colour.
_TEXTURES: Final[Mapping[str, str]] = {
    "dashes": '<path d="M1 1.5h3M4 4.5h3M-2 4.5h3" stroke-width="1.2"/>',
    "dots": '<circle cx="1.5" cy="1.5" r=".9"/><circle cx="4.5" cy="4.5" r=".9"/>',
}


def stylesheet() -> str:
    """Return CSS: variables of all colours, and of each row and cause two classes of SVG shapes.

    `.f-KEY` is filled with the colour and its texture, `.p-KEY` pale with an outline. Expects the
    variables `--panel` and `--pale`, and `patterns` in the page.
    """
    colours = "".join(
        f"--{key}:{mark.colour};" for key, mark in _DRAWN.items() if mark.texture != "hatch"
    )
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in zip(_NAMES, scheme, strict=True))
        for scheme in _SCHEMES.values()
    )
    rules = "\n".join(_rules())
    in_dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f":root{{{colours}{light}}}\n{in_dark}\n{rules}\n"


def _rules() -> Iterator[str]:
    for key, mark in _DRAWN.items():
        if key == _COMPUTE:
            yield f".f-{key}{{fill:var(--compute)}}"
        elif mark.texture == "hatch":
            yield f".f-{key},.p-{key}{{fill:url(#hatch);stroke:var(--hatch);stroke-width:.8}}"
        else:
            pale = f"color-mix(in srgb,var(--{key}) var(--pale),var(--panel))"
            full = f"url(#t-{key})" if mark.texture else f"var(--{key})"
            yield f".f-{key}{{fill:{full}}}"
            yield f".p-{key}{{fill:{pale};stroke:var(--{key});stroke-width:.9}}"


def patterns() -> str:
    """Return an SVG, to be put into a page, with the textures that `stylesheet` names."""
    found = [
        '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" fill="var(--hatch-page)"/>'
        '<path d="M1 0v6" stroke="var(--hatch)" stroke-width="2"/></pattern>'
    ]
    found += [
        f'<pattern id="t-{key}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" fill="var(--{key})"/>'
        f'<g fill="var(--panel)" stroke="var(--panel)" stroke-width="0">{_TEXTURES[mark.texture]}'
        "</g></pattern>"
        for key, mark in _DRAWN.items()
        if mark.texture in _TEXTURES
    ]
    return f'<svg class="defs" aria-hidden="true"><defs>{"".join(found)}</defs></svg>'
