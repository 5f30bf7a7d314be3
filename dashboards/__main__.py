"""Generate all boards into `generated/`, and into the folder of the chart that installs them."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dashboards import node_and_gpu
from dashboards.checks import board_problems
from dashboards.document import encoded

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = (ROOT / "dashboards/generated", ROOT / "helm/chopperd/dashboards")


def board_files() -> Mapping[str, str]:
    """Return the text of each board's file, by file name.

    Raises:
        ValueError: A board has a problem that would leave it empty.
    """
    boards = {"node-and-gpu.json": node_and_gpu.board()}
    problems = [problem for board in boards.values() for problem in board_problems(board)]
    if problems:
        raise ValueError("\n".join(problems))
    return {name: encoded(board) for name, board in boards.items()}


def main() -> int:
    """Write the files; return the exit status."""
    for name, text in board_files().items():
        for folder in FOLDERS:
            (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
