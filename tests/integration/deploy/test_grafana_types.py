"""Boards against Grafana's own types (@grafana/schema), by TypeScript's compiler: `make compat`."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest

from dashboards.__main__ import board_files

#: Where `make compat` installs it.
INSTALLED: Final = Path(sys.prefix) / "grafana/node_modules"
_SCHEMA: Final = "@grafana/schema/dist/esm/raw"
_OPTIONS: Final = (
    *("--noEmit", "--strict", "--skipLibCheck", "--target", "es2022"),
    *("--module", "esnext", "--moduleResolution", "bundler"),
)
#: Enumerations by their texts, as JSON has them.
_HEAD: Final = """
type Loose<T> = T extends string ? `${T}` : T extends number ? number
  : T extends (infer U)[] ? Loose<U>[] : T extends object ? {[K in keyof T]: Loose<T[K]>} : T;
"""
Json = dict[str, object]

pytestmark = pytest.mark.compat


def _panels(panels: object) -> Iterator[Json]:
    assert isinstance(panels, list)
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


def _of_panel(panel: Json, name: str) -> Iterator[str]:
    if panel["type"] == "row":
        yield _typed(name, "Board.RowPanel", {**panel, "panels": []})
        return
    kind = str(panel["type"]).replace("-", "")
    yield _typed(name, "Board.Panel", {k: v for k, v in panel.items() if k != "options"})
    yield _typed(f"{name}_options", f"Partial<{kind}.Options>", panel["options"])
    config = panel["fieldConfig"]
    assert isinstance(config, dict)
    if "custom" in config["defaults"]:
        yield _typed(f"{name}_custom", f"Partial<{kind}.FieldConfig>", config["defaults"]["custom"])


def _typed(name: str, kind: str, value: object) -> str:
    return f"export const {name}: Loose<{kind}> = {json.dumps(value)};"


def _kinds(boards: Mapping[str, Json]) -> set[str]:
    found = {str(p["type"]) for board in boards.values() for p in _panels(board["panels"])}
    return {kind.replace("-", "") for kind in found - {"row"}}


def _program(boards: Mapping[str, Json]) -> Iterator[str]:
    dashboard = f"{_SCHEMA}/dashboard/x/dashboard_types.gen"
    yield f'import type * as Board from "{INSTALLED}/{dashboard}";'
    for kind in sorted(_kinds(boards)):
        folder = INSTALLED / _SCHEMA / "composable" / kind / "panelcfg/x"
        (file,) = folder.glob("*types.gen.d.ts")
        yield f'import type * as {kind} from "{str(file).removesuffix(".d.ts")}";'
    yield _HEAD
    for number, board in enumerate(boards.values()):
        # Queries of annotations are the data source's own.
        yield _typed(f"b{number}", "Board.Dashboard", {**board, "panels": [], "annotations": {}})
        for panel in _panels(board["panels"]):
            yield from _of_panel(panel, f"b{number}_p{panel['id']}")


def _complaints(boards: Mapping[str, Json], folder: Path) -> str:
    if not INSTALLED.is_dir():
        pytest.skip("needs `make compat`")
    file = folder / "boards.ts"
    file.write_text("\n".join(_program(boards)), encoding="utf-8")
    command = ("node", str(INSTALLED / "typescript/bin/tsc"), *_OPTIONS, str(file))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def _boards() -> dict[str, Json]:
    return {name: msgspec.json.decode(text, type=Json) for name, text in board_files().items()}


def test_boards_are_of_grafanas_own_types(tmp_path: Path) -> None:
    assert _complaints(_boards(), tmp_path) == ""


def test_a_wrong_board_is_refused(tmp_path: Path) -> None:
    boards = _boards()
    first = next(_panels(boards["agent.json"]["panels"]))
    first["options"] = {"graphMode": "graph"}
    assert '"graph"' in _complaints(boards, tmp_path)
