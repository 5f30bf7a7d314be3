"""One NVIDIA GPU's readings: what a look at each scope gives, and how a plan gives the same."""

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from chopperd.devices.channel import Channel, DeviceFaults
from chopperd.devices.energy_check import EnergyCheck, Verdict
from chopperd.devices.nvml import planning, table
from chopperd.devices.nvml.board import Board, SensorPlan
from chopperd.devices.nvml.codes import causes_of
from chopperd.devices.read_plan import ReadPlan
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.model.kinds import Cause

_NOTHING: Final = DeviceReading()


class NvmlSensors:
    """Reads one GPU, or the memory of an instance; used by one thread at a time.

    What a device lacks is asked for again each minute, by full looks only. A way that has once
    given a field is kept, also by sensors that are made for the same `faults` later.
    """

    def __init__(
        self,
        nvml: ModuleType,
        handle: object,
        plan: SensorPlan,
        faults: DeviceFaults,
        energy_check: EnergyCheck | None = None,
    ) -> None:
        self._board = Board(nvml, handle, plan, faults)
        self._faults = faults
        self._energy_check = energy_check or EnergyCheck("")
        self._last_causes = (0, causes_of(0))
        self._plans: dict[ReadScope, ReadPlan | None] = dict.fromkeys(ReadScope)
        self._last_plans: dict[ReadScope, ReadPlan] = {}
        self._planned_revision = -1

    @property
    def power_source(self) -> str | None:
        """Which power is read; None until one has answered."""
        return self._board.power.source

    @property
    def memory_source(self) -> str | None:
        """Which memory is read; None until one has answered."""
        return self._board.memory.source

    @property
    def is_settled(self) -> bool:
        """Whether it is known where power and memory come from, if from anywhere."""
        channels = (self._board.power, self._board.memory)
        return all(channel.source or channel.is_absent for channel in channels)

    @property
    def lacks_memory(self) -> bool:
        """Whether the device is known not to tell its memory."""
        return self._board.memory.is_absent

    def read(self, scope: ReadScope) -> DeviceReading:
        """One look; fields that are absent or failed are None.

        Raises:
            TransientDeviceError: Calls failed, and not one field was read.
            DeviceLostError: The driver says that the GPU is gone.
        """
        self._faults.begin_look()
        reading = self._full() if scope is ReadScope.FULL else self._fast()
        failure = self._faults.transient
        if failure is not None and reading == _NOTHING:
            raise failure
        return reading

    def read_plan(self, scope: ReadScope) -> ReadPlan | None:
        """How to read the same without this object; None while something is still to be found.

        The same object as before while nothing changed.
        """
        if scope is ReadScope.FULL and (self._board.is_probe_due() or self._awaits_check()):
            return None
        if self._planned_revision != self._faults.choices.revision:
            self._planned_revision = self._faults.choices.revision
            for each in ReadScope:
                self._plans[each] = self._planned(each)
        return self._plans[scope]

    def _planned(self, scope: ReadScope) -> ReadPlan | None:
        """The plan for what answers now; the last one if it still says that."""
        believes_energy = self._energy_check.verdict is Verdict.RIGHT
        plan = planning.read_plan(self._board, scope, with_energy=believes_energy)
        known = self._last_plans.get(scope)
        if plan is None:
            return None
        if known is not None and plan == known:
            return known
        self._last_plans[scope] = plan
        return plan

    def _fast(self) -> DeviceReading:
        board = self._board
        board.arrange()
        sm_clock_mhz = board.sm_clock.value()
        causes = self._causes()
        if not board.fast_request.is_empty:
            board.fields.look(board.fast_request)
        return DeviceReading(
            sm_clock_mhz=sm_clock_mhz, causes=causes, limited_ns=_limited_ns(board.fast_limits)
        )

    def _full(self) -> DeviceReading:
        board = self._board
        board.reopen()
        sm_clock_mhz = board.sm_clock.value()
        causes = self._causes()
        if not board.full_request.is_empty:
            board.fields.look(board.full_request)
        power_w = board.power.value()
        used_bytes = board.memory.value()
        average_w = self._average_w(power_w)
        slow = {channel.field: channel.value() for channel in board.slow}
        slow["energy_j"] = self._checked_j(slow["energy_j"], average_w or power_w)
        return DeviceReading(
            sm_clock_mhz=sm_clock_mhz,
            causes=causes,
            power_w=power_w,
            power_average_w=average_w,
            memory_used_bytes=None if used_bytes is None else int(used_bytes),
            memory_reserved_bytes=None if used_bytes is None else self._reserved_bytes(),
            limited_ns=_limited_ns(board.limits),
            **slow,  # type: ignore[arg-type]
        )

    def _awaits_check(self) -> bool:
        """Whether it takes further looks to tell if the counter of energy can be believed."""
        board = self._board
        is_open = self._energy_check.verdict is Verdict.OPEN
        return is_open and not (board.energy.is_absent or board.power.is_absent)

    def _checked_j(self, energy_j: float | None, power_w: float | None) -> float | None:
        """The counter of energy, once it agrees with the power."""
        before = self._energy_check.verdict
        verdict = self._energy_check.take(self._faults.clock.mono_ns(), energy_j, power_w)
        if verdict is not before:
            self._faults.choices.revision += 1
        return energy_j if verdict is Verdict.RIGHT else None

    def _causes(self) -> frozenset[Cause] | None:
        """The limits in force; the set of the look before is reused while the bits stay."""
        bits = self._board.reasons.value()
        if bits is None:
            return None
        if bits != self._last_causes[0]:
            self._last_causes = (int(bits), causes_of(int(bits)))
        return self._last_causes[1]

    def _average_w(self, power_w: float | None) -> float | None:
        """The mean of the last second of what `power_w` is the power of."""
        average = self._board.power_average
        value_w = None if average is None else average.value()
        is_average = self._board.power.source == table.POWER_AVERAGE_1S
        return power_w if is_average and value_w is None else value_w

    def _reserved_bytes(self) -> int | None:
        """What the driver keeps for itself, told by the call that gave the memory in use."""
        number = self._board.memory_v2
        if number is None:
            return None
        reserved_bytes = int(number.left_behind(table.MEMORY_RESERVED_WAY))
        if reserved_bytes in self._board.memory_bounds:
            return reserved_bytes
        self._faults.implausible_total[table.MEMORY_RESERVED.name] += 1
        return None


def _limited_ns(limits: Mapping[Cause, Channel]) -> dict[Cause, int]:
    """The driver's cumulative time under each limit that answers."""
    limited_ns = {}
    for cause, channel in limits.items():
        value = channel.value()
        if value is not None:
            limited_ns[cause] = int(value)
    return limited_ns
