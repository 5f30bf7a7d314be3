"""Control of the agent's sampler process: launch, pauses, end."""

from typing import TYPE_CHECKING, Final

from chopperd.clock import Clock
from chopperd.config.paths import own_command
from chopperd.config.sections import Config
from chopperd.errors import ConfigError
from chopperd.model.live import SamplerCondition, SamplerLive
from chopperd.sampling.settings import RestartPolicy, SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState

if TYPE_CHECKING:
    from chopperd.sampling.memory.ring_reader import RingReader
    from chopperd.simulation.presets import SimulationSpec

_HISTORY_S: Final = 60.0
#: A driver that had worked is lost after this many failed starts in a row.
_LOST_AFTER_COUNT: Final = 5

_CONDITIONS: Final = {
    SupervisorState.STARTING: SamplerCondition.STARTING,
    SupervisorState.RUNNING: SamplerCondition.RUNNING,
    SupervisorState.WAITING: SamplerCondition.RESTARTING,
    SupervisorState.DOWN: SamplerCondition.HUNG,
    SupervisorState.STOPPED: SamplerCondition.STOPPED,
}


class Sampling:
    """Runs a sampler process except during pauses; for one thread, except `ring`."""

    def __init__(self, supervisor: SamplerSupervisor) -> None:
        self._supervisor = supervisor
        self._is_paused: bool | None = None

    def poll(self, *, paused: bool) -> None:
        """Supervise the sampler; the first call, and the first one after a pause, start it.

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
        """Reader of the samples in shared memory; None before GPUs are found. For any thread."""
        ring = self._supervisor.ring
        return ring if ring is not None and ring.gpu_slots else None

    def live(self) -> SamplerLive:
        """Return the state of sampling."""
        supervisor, condition = self._supervisor, self._condition()
        return SamplerLive(
            condition=condition,
            reason=self._reason(condition),
            pid=supervisor.pid,
            restart_count=supervisor.restart_count,
            abandoned_pids=supervisor.left_pids,
        )

    def lost_driver(self) -> str | None:
        """Return why a driver that had worked stays lost, if no process hangs in it; else None."""
        failure = self._supervisor.failure
        is_lost = self._supervisor.has_run and not self._supervisor.left_pids
        if failure is None or failure.count < _LOST_AFTER_COUNT or not is_lost:
            return None
        return f"the driver is lost; {failure.count} starts of the sampler failed: {failure.reason}"

    def ask_to_end(self) -> None:
        """Ask the sampler process to end, without waiting."""
        self._supervisor.suspend()

    def stop(self, timeout_s: float) -> tuple[int, ...]:
        """Wait for the sampler's end; return pids of abandoned processes that hang in a driver."""
        return self._supervisor.stop(timeout_s)

    def close(self) -> None:
        """Unmap the shared memory of the samples."""
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
    config: Config, backend: str, simulation: "SimulationSpec | None", clock: Clock
) -> Sampling:
    """Make `Sampling` by the configuration, not started; `simulation` is for the simulated one."""
    wanted = config.sampling
    settings = SamplerSettings(
        hz=wanted.hz,
        slow_hz=wanted.slow_hz,
        # A simulation has no driver whose load must be limited.
        budget_ratio=1.0 if backend == "simulated" else wanted.driver_budget_ratio,
        idle_hz=wanted.idle_hz,
        history_s=_HISTORY_S,
    )
    command = own_command("_sampler", "--backend", backend)
    if simulation is not None:
        command += ["--simulation", simulation.to_json()]
    return Sampling(SamplerSupervisor(command, settings, clock, RestartPolicy()))
