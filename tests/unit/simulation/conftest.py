"""Simulated nodes that several test modules read; nobody may change them."""

import pytest

from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec

START_NS = 1_790_857_026_123_456_789


def simulated(preset: str, seed: int = 0) -> SimulatedNode:
    return SimulatedNode(SimulationSpec(preset=preset, seed=seed, start_unix_ns=START_NS))


@pytest.fixture(scope="session")
def fsdp2() -> SimulatedNode:
    return simulated("fsdp2-h100")


@pytest.fixture(scope="session")
def fsdp1() -> SimulatedNode:
    return simulated("fsdp1-h100")


@pytest.fixture(scope="session")
def amd() -> SimulatedNode:
    return simulated("fsdp2-mi300x")
