"""The agent's life: start in order, the main loop, and a quick shutdown.

Sampling starts first; modules that take long to import are imported while the sampler starts.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from chopperd import __version__
from chopperd.agent import lifecycle
from chopperd.agent.pause import PauseFile
from chopperd.agent.sampling import new_sampling
from chopperd.agent.sockets import Addresses, Sockets, access_policy, opened_sockets
from chopperd.clock import Clock, SystemClock
from chopperd.config.load import effective
from chopperd.config.paths import node_name, runtime_folder, service_manager, state_folder
from chopperd.config.sections import Config
from chopperd.model.live import GuardedPart, NodeSnapshot, SamplerCondition, SelfTestLive
from chopperd.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from chopperd.agent.parts import Parts, Snapshots
    from chopperd.api.access import AccessPolicy
    from chopperd.simulation.presets import SimulationSpec

logger = logging.getLogger(__name__)

_TURN_NS: Final = 200 * NS_PER_MS
#: Deadlines of the stages of the shutdown, from its begin; the budget for all is 2 s.
_SERVING_ENDS_NS: Final = 800 * NS_PER_MS
_SAMPLER_ENDS_NS: Final = 1300 * NS_PER_MS
_STORING_ENDS_NS: Final = 1800 * NS_PER_MS


class Agent:
    """One node's agent; `run` it once.

    `stopped_by` is the signal that ended `run`; None if `stop` did. `on_ready` is called in the
    main loop once the agent serves.
    """

    def __init__(
        self,
        config: Config,
        *,
        backend: str | None = None,
        simulation: "SimulationSpec | None" = None,
        on_ready: Callable[["Agent"], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._backend = backend or ("simulated" if simulation else config.sampling.backend)
        self._on_ready = on_ready
        self._wake = lifecycle.Wake()
        self._stopping = False
        self.stopped_by: int | None = None
        self._state = state_folder(config)
        self._runtime = runtime_folder(config)
        self._health = lifecycle.Health(self._clock)
        self._pause = PauseFile(self._runtime, self._clock, self._wake.call)
        self._sampling = new_sampling(config, self._backend, simulation, self._clock)
        self._notifier = lifecycle.Notifier(service_manager(), self._clock)
        self._sockets: Sockets | None = None
        self._snapshots: Snapshots | None = None
        self._parts: Parts | None = None
        self._starting: threading.Thread | None = None
        self._condition: SamplerCondition | None = None

    @property
    def addresses(self) -> Addresses:
        """Addresses of the agent's listeners; RuntimeError before they are open."""
        if self._sockets is None:
            raise RuntimeError("the agent has not started")
        return self._sockets.addresses

    def snapshot(self) -> NodeSnapshot:
        """Return the newest snapshot; RuntimeError before the agent takes any."""
        if self._snapshots is None:
            raise RuntimeError("the agent has not started")
        return self._snapshots.latest()

    def stop(self) -> None:
        """Make `run` return soon; for any thread or signal handler."""
        self._stopping = True
        self._wake.call()

    def _stop_by_signal(self, number: int) -> None:
        self.stopped_by = number
        self.stop()

    def run(self) -> int:
        """Sample, store and serve until `stop` or a signal; return the exit status, 0.

        Raises:
            ConfigError: It can't start as configured: an address is in use, another agent has the
                state folder, or there is no such back end.
        """
        with ExitStack() as stack:
            stack.callback(self._wake.close)
            stack.enter_context(lifecycle.stopped_by_signals(self._stop_by_signal))
            state_problem = stack.enter_context(lifecycle.claimed_state(self._state))
            runtime_problem = lifecycle.made_runtime(self._runtime)
            sockets = opened_sockets(
                self._config, self._runtime, with_local=runtime_problem is None
            )
            stack.callback(sockets.close)
            self._sockets = sockets
            stack.callback(self._sampling.close)
            try:
                self._sampling.poll(paused=self._pause.current() is not None)
                self._log_start(state_problem, runtime_problem)
                self._start_parts(sockets)
                self._loop()
            finally:
                self._end()
        return 0

    def _log_start(self, *problems: str | None) -> None:
        logger.info("chopperd %s starts; back end %s", __version__, self._backend)
        settings = (f"{each.key} = {value!r} ({at})" for each, value, at in effective(self._config))
        logger.info("configuration: %s", ", ".join(settings))
        for problem in filter(None, problems):
            logger.error("%s; the agent goes on without", problem)

    def _start_parts(self, sockets: Sockets) -> None:
        """Start all but sampling in another thread: this one supervises the sampler meanwhile."""
        access = access_policy(self._config)
        self._starting = threading.Thread(
            target=self._bring_up, args=(access, sockets), name="chopperd-start", daemon=True
        )
        self._starting.start()

    def _bring_up(self, access: "AccessPolicy", sockets: Sockets) -> None:
        try:
            from chopperd.agent.parts import AgentContext, Parts, Snapshots

            wanted = self._config.sampling
            # Nothing marks steps yet, so that the cost of sampling to them can't be measured.
            reason = "no steps are marked" if wanted.self_test_ratio else "switched off"
            self._snapshots = Snapshots(
                self._clock,
                node=node_name(self._config),
                backend=self._backend,
                slow_hz=wanted.slow_hz,
                faults=self._health.faults,
                self_test=SelfTestLive(reason=reason),
            )
            self._parts = Parts(
                AgentContext(
                    config=self._config,
                    state=self._state,
                    sockets=sockets,
                    access=access,
                    snapshots=self._snapshots,
                    pause=self._pause,
                    health=self._health,
                    ring=lambda: self._sampling.ring,
                    clock=self._clock,
                )
            )
            self._parts.start(lambda: self._stopping)
        except Exception:
            self._health.note_fault(GuardedPart.START)
            logger.exception("the agent samples, and can't do more")
        self._wake.call()

    def _loop(self) -> None:
        """Supervise everything five times a second, until stopped."""
        health = self._health
        supervision = lifecycle.Guard(GuardedPart.SUPERVISION, "the sampler's supervision", health)
        reporting = lifecycle.Guard(GuardedPart.SNAPSHOT, "the snapshot", health)
        while not self._stopping:
            turn_ns = self._clock.mono_ns()
            if self._starting is not None:
                self._notifier.starting()
            supervision.run(self._supervise)
            reporting.run(self._report)
            self._wake.wait_until(turn_ns + _TURN_NS, self._clock)

    def _supervise(self) -> None:
        paused = self._pause.current() is not None
        self._sampling.poll(paused=paused)
        if self._parts is not None:
            self._parts.set_paused(paused=paused)
        if self._config.health.fail_on_lost_driver:
            self._health.lost_driver = self._sampling.lost_driver()

    def _report(self) -> None:
        """Take a snapshot each second, and report readiness and health to systemd."""
        if self._snapshots is None:
            return
        taken = self._snapshots.take_if_due(self._sampling, self._pause.current(), self._parts)
        if taken is not None:
            self._note_condition(taken)
        if self._starting is not None and not self._starting.is_alive():
            self._starting = None
            logger.info("serving: %s", self.addresses)
            self._notifier.ready()
            if self._on_ready is not None:
                self._on_ready(self)
        if self._health.trouble() is None:
            self._notifier.alive()

    def _note_condition(self, taken: NodeSnapshot) -> None:
        """Report the state of sampling; log it where it has changed."""
        sampler, gpus = taken.sampler, taken.gpus
        up_count = sum(gpu.up for gpu in gpus)
        why = f" ({sampler.reason})" if sampler.reason else ""
        status = f"sampling {sampler.condition.value}{why}, {up_count} of {len(gpus)} GPUs up"
        self._notifier.status(status)
        if sampler.condition is self._condition:
            return
        self._condition = sampler.condition
        names = ", ".join(f"{gpu.info.gpu}: {gpu.info.name or 'unknown'}" for gpu in gpus) or "none"
        backend, driver = taken.backend or "none", taken.driver or "version unknown"
        logger.info("%s; back end %s, driver %s, GPUs %s", status, backend, driver, names)
        if sampler.condition is SamplerCondition.UNAVAILABLE and self._backend == "auto":
            logger.info("no GPU here? `chopperd run --backend simulated` simulates eight")

    def _end(self) -> None:
        """Shut down within 2 s; a part that hangs is abandoned and logged."""
        begin_ns = self._clock.mono_ns()

        def left_s(end_ns: int) -> float:
            return max(0.0, (begin_ns + end_ns - self._clock.mono_ns()) / NS_PER_S)

        unwell = "a part does not end well"
        with lifecycle.guarded(unwell):
            self._notifier.stopping()
            self._sampling.ask_to_end()
        with lifecycle.guarded(unwell):
            if self._starting is not None:
                self._starting.join(left_s(_SERVING_ENDS_NS))
        with lifecycle.guarded(unwell):
            if self._parts is not None:
                self._parts.stop_serving(left_s(_SERVING_ENDS_NS))
        with lifecycle.guarded(unwell):
            self._sampling.stop(left_s(_SAMPLER_ENDS_NS))
        with lifecycle.guarded(unwell):
            if self._parts is not None:
                self._parts.stop_storing(left_s(_STORING_ENDS_NS))
        logger.info("chopperd ends")
