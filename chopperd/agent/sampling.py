"""Sampling as the agent keeps it going: from its first launch over pauses to its end."""

import sys
from typing import TYPE_CHECKING, Final

from chopperd.clock import Clock
from chopperd.config.sections import Config
from chopperd.errors import ConfigError
from chopperd.model.live import SamplerCondition, SamplerLive
from chopperd.sampling.restarts import RestartPolicy
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.simulation.spec import SimulationSpec

if TYPE_CHECKING:
    from chopperd.sampling.ring_reader import RingReader

_HISTORY_S: Final = 60.0
_SIMULATED: Final = "simulated"
#: A driver that had worked and fails so often in a row stays lost.
_LOST_AFTER_COUNT: Final = 5

_CONDITIONS: Final = {
    SupervisorState.STARTING: SamplerCondition.STARTING,
    SupervisorState.RUNNING: SamplerCondition.RUNNING,
    SupervisorState.WAITING: SamplerCondition.RESTARTING,
    SupervisorState.DOWN: SamplerCondition.HUNG,
    SupervisorState.STOPPED: SamplerCondition.STOPPED,
}


class Sampling:
    """One sampler process kept going, but for pauses.

    To be used by one thread, apart from `ring`.

    Args:
        supervisor: Not yet started; from now on this object's own.
    """

    def __init__(self, supervisor: SamplerSupervisor) -> None:
        self._supervisor = supervisor
        self._is_paused: bool | None = None

    def poll(self, *, paused: bool) -> None:
        """Look after it. It starts with the first call, or when the agent is not paused any more.

        Raises:
            ConfigError: The configuration names a back end that does not exist.
        """
        if paused != self._is_paused:
            self._is_paused = paused
            if paused:
                self._supervisor.suspend()
            else:
                self._supervisor.launch()
        self._supervisor.poll()
        failure = self._supervisor.failure
        is_config = failure is not None and failure.exit_status == ConfigError.exit_code
        if failure and is_config and not self._supervisor.has_run:
            raise ConfigError([failure.reason])

    @property
    def ring(self) -> "RingReader | None":
        """The samples, from when GPUs are found until `close`; None before. For any thread."""
        ring = self._supervisor.ring
        return ring if ring is not None and ring.gpu_slots else None

    @property
    def pid(self) -> int | None:
        """The sampler process."""
        return self._supervisor.pid

    @property
    def abandoned_pids(self) -> tuple[int, ...]:
        """Processes that did not end and were left alone, and still exist."""
        return self._supervisor.left_pids

    def live(self) -> SamplerLive:
        """How sampling stands."""
        supervisor = self._supervisor
        condition = self._condition()
        return SamplerLive(
            condition=condition,
            reason=self._reason(condition),
            pid=supervisor.pid,
            restart_count=supervisor.restart_count,
            abandoned_pids=supervisor.left_pids,
        )

    def lost_driver(self) -> str | None:
        """Why a driver that had worked stays lost, with nothing stuck in it; None if none does."""
        failure = self._supervisor.failure
        if (
            failure is None
            or failure.count < _LOST_AFTER_COUNT
            or not self._supervisor.has_run
            or self._supervisor.left_pids
        ):
            return None
        return f"the driver is lost; {failure.count} starts of the sampler failed: {failure.reason}"

    def ask_to_end(self) -> None:
        """Ask the sampler process to end; does not wait."""
        self._supervisor.suspend()

    def stop(self, timeout_s: float) -> tuple[int, ...]:
        """Wait for its end; the pids of processes that hang in a driver and were left alone."""
        return self._supervisor.stop(timeout_s)

    def close(self) -> None:
        """Let go of the samples."""
        self._supervisor.close()

    def _condition(self) -> SamplerCondition:
        if self._is_paused:
            return SamplerCondition.PAUSED
        supervisor = self._supervisor
        if supervisor.failure is not None and supervisor.state is not SupervisorState.DOWN:
            return SamplerCondition.UNAVAILABLE
        if supervisor.state is SupervisorState.STARTING and supervisor.restart_count:
            return SamplerCondition.RESTARTING
        return _CONDITIONS[supervisor.state]

    def _reason(self, condition: SamplerCondition) -> str | None:
        if condition is SamplerCondition.UNAVAILABLE and self._supervisor.failure:
            return self._supervisor.failure.reason
        if condition is SamplerCondition.HUNG:
            return f"the driver does not return{self._supervisor.calls()}"
        if condition is SamplerCondition.RESTARTING:
            return "the sampler process ended; another one starts"
        return None


def new_sampling(
    config: Config, backend: str, simulation: SimulationSpec | None, clock: Clock
) -> Sampling:
    """Sampling as the configuration wants it, not yet started.

    Args:
        config: Says the rates.
        backend: Name of the back end.
        simulation: What the back end "simulated" shows.
        clock: Tells the time.
    """
    settings = SamplerSettings(
        hz=config.sampling.hz,
        slow_hz=config.sampling.slow_hz,
        # There is no driver to spare in a simulation.
        budget_ratio=1.0 if backend == _SIMULATED else config.sampling.driver_budget_ratio,
        history_s=_HISTORY_S,
    )
    # -P: the working directory must not shadow a module of ours.
    command = [sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend", backend]
    if simulation is not None:
        command += ["--simulation", simulation.to_json()]
    return Sampling(SamplerSupervisor(command, settings, clock, RestartPolicy()))
