"""Fixtures of the fake sysfs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.fakes.amd.cards import Card
from tests.fakes.amd.sysfs.tree import SysfsTree

MakeSysfs = Callable[..., SysfsTree]


@pytest.fixture
def make_sysfs(tmp_path: Path) -> MakeSysfs:
    """Makes fake trees, each in a folder of its own."""
    made: list[SysfsTree] = []

    def make(cards: Sequence[Card] = (), *, with_display: bool = False) -> SysfsTree:
        made.append(SysfsTree(tmp_path / f"sys{len(made)}", cards, with_display=with_display))
        return made[-1]

    return make


@pytest.fixture
def sysfs(make_sysfs: MakeSysfs) -> SysfsTree:
    """A tree with one healthy MI300X."""
    return make_sysfs()
