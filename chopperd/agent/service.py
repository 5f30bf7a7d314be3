"""The agent: what starts in which order, the main loop, and the way to a quick end."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from chopperd import __version__
from chopperd.agent.folders import StateFolder, claimed_state, made_runtime
from chopperd.agent.health import Guard, Health
from chopperd.agent.notify import Notifier
from chopperd.agent.pause import PauseFile
from chopperd.agent.sampling import new_sampling
from chopperd.agent.sockets import Addresses, Sockets, opened_sockets
from chopperd.agent.wake import Wake, stopped_by_signals
from chopperd.clock import Clock, SystemClock
from chopperd.config.load import effective
from chopperd.config.places import runtime_folder, state_folder
from chopperd.config.sections import Config
from chopperd.config.service_manager import service_manager
from chopperd.simulation.spec import SimulationSpec
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

_TURN_NS: Final = 200 * NS_PER_MS
_SNAPSHOT_NS: Final = NS_PER_S
#: How long the end may take in all; the budget is 2 s.
_END_NS: Final = 1500 * NS_PER_MS


class Agent:
    """One node's agent, from `run` to its end.

    Args:
        config: All settings.
        backend: Name of the back end, instead of the configured one.
        simulation: What the back end "simulated" shows.
        on_ready: Called in the main loop once the agent serves.
        clock: Tells the time.
    """

    def __init__(
        self,
        config: Config,
        *,
        backend: str | None = None,
        simulation: SimulationSpec | None = None,
        on_ready: Callable[["Agent"], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._backend = backend or ("simulated" if simulation else config.sampling.backend)
        self._on_ready = on_ready
        self._wake = Wake()
        self._stopping = False
        self._health = Health(self._clock)
        self._runtime = runtime_folder(config)
        self._pause = PauseFile(self._runtime, self._clock, self._wake.call)
        self._sampling = new_sampling(config, self._backend, simulation, self._clock)
        self._notifier = Notifier(service_manager(), self._clock)
        self._sockets: Sockets | None = None

    @property
    def addresses(self) -> Addresses:
        """Where it answers, once it is ready."""
        if self._sockets is None:
            raise RuntimeError("the agent has not started")
        return self._sockets.addresses

    def stop(self) -> None:
        """Have `run` return soon; from any thread."""
        self._stopping = True
        self._wake.call()

    def run(self) -> int:
        """Sample, serve and keep until told to stop, by `stop` or by SIGTERM or SIGINT; gives 0.

        Raises:
            ConfigError: It can't start as configured: an address is in use, another agent has the
                state folder, or there is no such back end.
        """
        with ExitStack() as stack:
            stack.callback(self._wake.close)
            stack.enter_context(stopped_by_signals(self.stop))
            state = claimed_state(state_folder(self._config))
            stack.callback(state.close)
            runtime_trouble = made_runtime(self._runtime)
            self._sockets = opened_sockets(
                self._config, self._runtime, with_local=runtime_trouble is None
            )
            stack.callback(self._sockets.close)
            stack.callback(self._sampling.close)
            self._sampling.launch()
            try:
                self._log_start(state, runtime_trouble)
                self._loop()
            finally:
                self._end()
        return 0

    def _log_start(self, state: StateFolder, runtime_trouble: str | None) -> None:
        logger.info("chopperd %s starts with back end %s", __version__, self._backend)
        for setting, value, origin in effective(self._config):
            logger.info("%s = %r (%s)", setting.key, value, origin)
        for trouble in filter(None, (state.trouble, runtime_trouble)):
            logger.error("%s", trouble)

    def _loop(self) -> None:
        supervise = Guard("the sampler's supervisor", self._clock, self._health)
        while not self._stopping:
            turn_ns = self._clock.mono_ns()
            supervise.run(self._supervise)
            self._wake.wait_until(turn_ns + _TURN_NS, self._clock)

    def _supervise(self) -> None:
        self._sampling.poll(paused=self._pause.current() is not None)
        self._health.note_lost_driver(
            self._sampling.lost_driver() if self._config.health.fail_on_lost_driver else None
        )

    def _end(self) -> None:
        self._notifier.stopping()
        self._sampling.ask_to_end()
        for pid in self._sampling.stop(1.0):
            logger.warning("sampler process %d is left alone", pid)
        logger.info("chopperd ends")
