"""How many traces find their GPU by samples alone, and whether any finds a wrong one.

`python -m bench.assignment` draws nodes of eight equal GPUs under one job (`tests.fakes`), with
captures of 5-30 s, steps of 0.3-2 s, 10 and 100 samples a second, power averaged over a second or
not at all, and sensors that are up to 250 ms late or early. No rank says which GPU it had.
"""

import argparse
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from bench.markdown import table
from chopperd.correlate.identity.by_signal import agreement, assigned
from tests.fakes.lockstep_node import Node, drawn

KINDS: Final = {
    "independent pauses": {"pause_share": 0.7, "straggler": True},
    "the same, power and activity at 1 Hz": {"pause_share": 0.7, "slow_hz": 1.0},
    "rare pauses (one step in ten)": {"pause_share": 0.1},
    "lock-step, one straggler": {"pause_share": 0.0, "straggler": True},
    "lock-step": {"pause_share": 0.0, "straggler": False},
}


class Outcome(Struct, frozen=True, kw_only=True):
    """Of the ranks of some nodes how many were given a GPU, how many a wrong one, of how many."""

    mapped: int
    wrong: int
    ranks: int


def nodes(kind: str, count: int, first: int = 0) -> Iterator[Node]:
    """Nodes of one kind, each with a seed of its own."""
    for seed in range(first, first + count):
        rng = np.random.default_rng((seed, 7))
        node = Node(
            seed=seed,
            seconds=float(rng.uniform(5, 30)),
            step_s=float(rng.uniform(0.3, 2.0)),
            hz=float(rng.choice([10, 100])),
            power_window_s=float(rng.choice([0.0, 1.0])),
            lag_s=float(rng.uniform(-0.25, 0.25)),
            activity=bool(rng.random() < 0.7),
        )
        yield replace(node, **KINDS[kind])


def outcome(drawn_nodes: Iterator[Node]) -> Outcome:
    """What the assignment makes of nodes."""
    mapped = wrong = ranks = 0
    for node in drawn_nodes:
        traced, samples, order = drawn(node)
        told = assigned([agreement(each, samples) for each in traced])
        ranks += len(told)
        mapped += sum(gpu is not None for gpu in told)
        wrong += sum(
            gpu is not None and int(gpu) != true for gpu, true in zip(told, order, strict=True)
        )
    return Outcome(mapped=mapped, wrong=wrong, ranks=ranks)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=100, help="of each kind")
    parser.add_argument("--first", type=int, default=1_000, help="seed of the first")
    parser.add_argument("--kind", action="append", choices=tuple(KINDS), help="these alone")
    arguments = parser.parse_args()
    rows = []
    for kind in arguments.kind or KINDS:
        found = outcome(nodes(kind, arguments.nodes, arguments.first))
        share = found.mapped / found.ranks
        rows.append([kind, f"{arguments.nodes}", f"{share:.0%}", f"{found.wrong}"])
    print(table(["nodes of 8 GPUs", "count", "ranks mapped", "wrong"], rows))


if __name__ == "__main__":
    main()
