"""Runs sampling ticks in the C library, without Python between two ticks."""

import logging
from ctypes import addressof
from dataclasses import replace
from enum import IntEnum
from typing import Final

import numpy as np

from chopperd.clock import Clock, RepeatLimiter, SystemClock
from chopperd.devices.base import DeviceBackend, PlansReads
from chopperd.errors import DeviceError
from chopperd.model.arrays import Int64s
from chopperd.model.devices import GpuInfo, ReadScope
from chopperd.sampling.device_loop import DueRead, LoopParts
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import SCOPES
from chopperd.sampling.native.library import Loop, Memory, NativeLibrary
from chopperd.sampling.native.plans import NativePlan, PlanMismatchError
from chopperd.sampling.orders import Interrupt
from chopperd.sampling.schedule import Schedule
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: How often the back end reads everything itself and gives its plans again: fields come and go.
_OWN_READ_EVERY_NS: Final = 60 * NS_PER_S
#: After this many reads in a row that were not as planned, the plan rests until then.
_MOST_MISFITS: Final = 3
#: Ticks are handed to the library for this time, unless they are too many.
_BLOCK_NS: Final = 60 * NS_PER_S
_MOST_TICKS: Final = 4096


class _Why(IntEnum):
    """`enum why` of native.h."""

    ENDED = 0
    DUE = 1
    INTERRUPTED = 2
    HANDED = 3


class _ScopePlan:
    """The plan for one scope, and how often reads did not fit it."""

    def __init__(self) -> None:
        self._native: NativePlan | None = None
        self._misfits = 0

    @property
    def address(self) -> int:
        """Address of the plan to carry out; 0: none."""
        if self._native is None or self._misfits >= _MOST_MISFITS:
            return 0
        return self._native.address

    def renew(
        self, backend: PlansReads, device: GpuInfo, scope: ReadScope, *, try_again: bool
    ) -> None:
        """Get the back end's current plan; `try_again`: also use a plan that rests after misfits.

        Raises:
            DeviceError: The back end failed.
            PlanMismatchError: The plan is not sound.
        """
        before, self._native = self._native, None
        plan = backend.read_plan(device, scope)
        if before is not None and before.source is plan:
            self._native = before
            self._misfits = 0 if try_again else self._misfits
        elif plan is not None:
            self._native = NativePlan(plan)
            self._misfits = 0

    def note_reads(self, carried_count: int, *, misfit: bool) -> None:
        """Count reads that did not fit the plan in a row: a fitting read resets the count."""
        if carried_count:
            self._misfits = 0
        self._misfits += misfit


class NativeTicks:
    """Ticks in C: the library waits and makes the reads that a plan covers.

    The loop makes the others: the first read of a schedule, one full read a minute (so that a field
    that begins to answer is found), and each tick at which a read did not go as planned.

    Attributes:
        own_read_every_ns: How often the back end makes a full read itself.
    """

    def __init__(
        self,
        library: NativeLibrary,
        backend: PlansReads,
        device: GpuInfo,
        memory: Memory,
        interrupt: Interrupt,
        clock: Clock,
    ) -> None:
        self._library = library
        self._backend = backend
        self._device = device
        self._memory = memory
        self._interrupt = interrupt
        self._clock = clock
        self.own_read_every_ns = _OWN_READ_EVERY_NS
        self._logging = RepeatLimiter(clock)
        self._plans = {scope: _ScopePlan() for scope in SCOPES}
        self._asks_for_plans = False
        self._is_own_read = False
        self._schedule: Schedule | None = None
        self._first = 0
        self._columns: tuple[Int64s, ...] = ()
        self._loop = Loop(
            memory=addressof(memory), interrupt_word=interrupt.address, interrupt=interrupt.count
        )

    def begin(self, schedule: Schedule) -> None:
        """Follow this schedule from now on; its first full read is left to the loop."""
        self._schedule = schedule
        self._first = 0
        self._loop.next = self._loop.count = 0
        self._loop.hand_full_mono_ns = 0
        self._asks_for_plans = False

    def next(self, until_mono_ns: int, until_driver_ns: int) -> DueRead | None:
        """Wait for the next read that the loop must make, while the C library makes the others.

        None if there is something else to do (see `TickRunner.next`).
        """
        if self._asks_for_plans:
            self._ask_for_plans()
        loop = self._loop
        if loop.next >= loop.count:
            self._load_ticks()
        loop.return_mono_ns, loop.return_driver_ns = until_mono_ns, until_driver_ns
        for place, scope in enumerate(SCOPES):
            loop.plans[place] = self._plans[scope].address
        why = self._library.carry_out(loop)
        # An interruption from here on cuts the next wait short; the loop sees an earlier one now.
        loop.interrupt = self._interrupt.count
        handed = SCOPES[loop.handed_full] if why == _Why.HANDED else None
        self._note_reads(handed)
        return None if handed is None else DueRead(loop.handed_deadline_mono_ns, handed)

    def _note_reads(self, handed: ReadScope | None) -> None:
        """Update the misfit counts and whether to get new plans, before the loop makes its read."""
        loop = self._loop
        is_full = handed is ReadScope.FULL
        self._is_own_read = is_full and loop.handed_deadline_mono_ns >= loop.hand_full_mono_ns
        was_planned = handed is not None and loop.plans[loop.handed_full] != 0
        is_misfit = was_planned and not self._is_own_read
        for place, scope in enumerate(SCOPES):
            misfit = is_misfit and scope is handed
            self._plans[scope].note_reads(loop.carried_count[place], misfit=misfit)
        self._asks_for_plans = is_full or is_misfit

    def _ask_for_plans(self) -> None:
        """Get new plans from the back end, after its own read."""
        self._asks_for_plans = False
        if self._is_own_read:
            self._loop.hand_full_mono_ns = self._clock.mono_ns() + self.own_read_every_ns
        for scope, plan in self._plans.items():
            try:
                plan.renew(self._backend, self._device, scope, try_again=self._is_own_read)
            except (DeviceError, PlanMismatchError) as error:
                if self._logging.is_due():
                    logger.warning("GPU %s is read without a plan: %s", self._device.gpu, error)

    def _load_ticks(self) -> None:
        """Compute the next block of ticks and pass it to the loop."""
        schedule = self._schedule
        if schedule is None:
            raise RuntimeError("there is no schedule to follow")
        count = min(_MOST_TICKS, max(1, _BLOCK_NS // schedule.period_ns))
        columns = schedule.columns(self._first, count)
        self._first += count
        self._columns = tuple(np.ascontiguousarray(column, np.int64) for column in columns)
        loop = self._loop
        loop.deadlines_mono_ns, loop.ends_mono_ns, loop.are_full = (
            column.__array_interface__["data"][0] for column in self._columns
        )
        loop.next, loop.count = 0, count


def with_native(
    parts: LoopParts,
    library: NativeLibrary,
    backend: DeviceBackend,
    device: GpuInfo,
    gpu: GpuWriter,
    clock: Clock,
    interrupt: Interrupt,
) -> LoopParts:
    """Return the parts with ticks in C, if the back end gives plans and `clock` is real."""
    if not (isinstance(backend, PlansReads) and isinstance(clock, SystemClock)):
        return parts
    memory = Memory(*gpu.addresses())
    return replace(parts, ticks=NativeTicks(library, backend, device, memory, interrupt, clock))
