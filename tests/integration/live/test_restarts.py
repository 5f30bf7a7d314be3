"""Counters over real sampler processes that are killed, and over rings: none ever falls."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chopperd.clock import SystemClock
from chopperd.export.metric import Profile
from chopperd.export.rendering import MetricsText
from chopperd.live.node import LiveNode
from chopperd.model.live import SamplerCondition, SamplerLive
from chopperd.sampling.settings import RestartPolicy, SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.exposition import Series, series, values_of
from tests.fakes.snapshots import OneSnapshot

CLOCK: Final = SystemClock()
SCRIPT: Final = Path(__file__).parents[1] / "sampling" / "scripted_sampler.py"
RUNNING: Final = SamplerLive(condition=SamplerCondition.RUNNING)


class Scraper:
    """Scrapes again and again and holds every counter against what it was."""

    def __init__(self) -> None:
        self.node = LiveNode(CLOCK, version="1", node="here", backend="auto", slow_hz=1.0)
        self._source = OneSnapshot(self.node.snapshot(RUNNING))
        self._metrics = MetricsText(self._source, Profile.FULL, CLOCK)
        self._highest: dict[Series, float] = {}

    def scrape(self) -> str:
        self._source.snapshot = self.node.snapshot(RUNNING)
        text = self._metrics.exposition()[0].decode()
        for key, value in series(text).items():
            if key[0].endswith("_total"):
                assert value >= self._highest.get(key, 0.0), key
                self._highest[key] = value
        return text

    def until(self, condition: Callable[[str], bool], *, poll: Callable[[], object]) -> str:
        """Scrape 100 times a second until the condition holds of a scrape."""
        limit_ns = CLOCK.mono_ns() + 20 * NS_PER_S
        while True:
            poll()
            text = self.scrape()
            if condition(text):
                return text
            assert CLOCK.mono_ns() < limit_ns
            CLOCK.sleep_until(CLOCK.mono_ns() + 10 * NS_PER_MS)


def sampled_s(text: str) -> float:
    return values_of(text, "chopperd_gpu_sampled_seconds_total").get("1", 0.0)


def test_counters_never_fall_over_kills_and_over_a_new_ring() -> None:
    supervisor = SamplerSupervisor(
        [sys.executable, str(SCRIPT), "--gpus", "2"],
        SamplerSettings(hz=100.0, budget_ratio=1.0),
        CLOCK,
        RestartPolicy(longest_pause_s=0.05),
    )
    scraper = Scraper()
    for _ in range(2):  # rings
        supervisor.start()
        scraper.node.follow(supervisor.reader)
        try:
            for _ in range(2):  # processes
                begun = sampled_s(scraper.scrape())
                scraper.until(lambda text: sampled_s(text) > begun + 0.2, poll=supervisor.poll)  # noqa: B023
                assert supervisor.pid is not None
                os.kill(supervisor.pid, signal.SIGKILL)
                scraper.until(
                    lambda _: supervisor.poll() is SupervisorState.STARTING, poll=lambda: None
                )
                scraper.until(
                    lambda _: supervisor.poll() is SupervisorState.RUNNING, poll=lambda: None
                )
            scraper.until(lambda text: sampled_s(text) > 0.4, poll=supervisor.poll)
        finally:
            supervisor.stop(5.0)
            scraper.scrape()
            scraper.node.follow(None)
            supervisor.close()
    text = scraper.scrape()
    assert values_of(text, "chopperd_gpu_up") == {"0": 0.0, "1": 0.0}
