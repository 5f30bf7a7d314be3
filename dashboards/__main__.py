"""Generate boards and rules into `dashboards/generated`, `deploy/` and the chart."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dashboards import agent, fleet, fsdp, job, node_and_gpu
from dashboards.checks import board_problems
from dashboards.document import Document, encoded
from dashboards.rules_file import rule_files

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = (ROOT / "dashboards/generated", ROOT / "helm/chopperd/dashboards")
RULE_FOLDERS: Final = (ROOT / "deploy/prometheus", ROOT / "helm/chopperd/rules")

BOARDS: Final[Mapping[str, Callable[[], Document]]] = {
    "fleet.json": fleet.board,
    "node-and-gpu.json": node_and_gpu.board,
    "job.json": job.board,
    "fsdp.json": fsdp.board,
    "agent.json": agent.board,
}


def board_files() -> Mapping[str, str]:
    """Return the text of each board's file, by file name.

    Raises:
        ValueError: A board has a problem that would leave it empty, or names an unknown series.
    """
    boards = {name: make() for name, make in BOARDS.items()}
    problems = [problem for board in boards.values() for problem in board_problems(board)]
    if problems:
        raise ValueError("\n".join(problems))
    return {name: encoded(board) for name, board in boards.items()}


def main() -> int:
    """Write the files; return the exit status."""
    for folders, files in ((FOLDERS, board_files()), (RULE_FOLDERS, rule_files())):
        for folder in folders:
            folder.mkdir(exist_ok=True)
            for name, text in files.items():
                (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
