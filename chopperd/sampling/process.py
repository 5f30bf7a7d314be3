"""The body of the sampler process: one thread a GPU, one for clock triples, a clean end.

The process that started it holds the other end of its standard input: when that closes, however
the parent died, the sampler stops. It ends only after each driver call in progress has returned,
since a process killed inside a driver can take the GPU with it.
"""

import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from msgspec.structs import replace

from chopperd.clock import Clock, RepeatLimiter, SystemClock
from chopperd.devices.base import Choice, DeviceBackend
from chopperd.errors import BackendUnavailableError, ChopperdError, StoreError
from chopperd.model.devices import GpuInfo
from chopperd.sampling.device_loop import DeviceLoop, LoopParts
from chopperd.sampling.memory.layout import RingDescription, SamplerState
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.native.library import native_library
from chopperd.sampling.native.ticks import Interrupt, with_native
from chopperd.sampling.sampler_health import Ending, SelfEnd, SilenceWatch
from chopperd.sampling.settings import LOWEST_HZ, ExitStatus, SamplerSettings
from chopperd.sampling.watch import DriverWatch, SensorWatch, WatchedGpu
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

_LIFELINE_FD: Final = 0
_TRIPLE_EVERY_NS: Final = NS_PER_S
#: A driver call of this age may never return.
_HUNG_NS: Final = NS_PER_S
#: How often it is checked whether any GPU answers at all.
_CHECK_EVERY_S: Final = 1.0


def main(ring_fd: int, choose: Callable[[], Choice], settings: SamplerSettings) -> int:
    """Sample into the shared memory until SIGTERM or the parent's end; return the exit status.

    A back end that can't be opened (`choose`, called once, in the main thread) is reported through
    the shared memory. Standard input is the parent's lifeline and must be a pipe.
    """
    with _wake_pipe() as (wake_fd, wake):
        try:
            choice = choose()
            backend = choice.backend
            if _is_readable(wake_fd):  # given up meanwhile: the memory may be a successor's
                backend.close()
                return 0
            ring = _opened_ring(ring_fd, choice, settings)
            if not _has_room(ring, backend.devices()):
                backend.close()
                return ExitStatus.NO_ROOM
        except ChopperdError as error:
            if not _is_readable(wake_fd):
                _report_failure(ring_fd, str(error))
            return error.exit_code
        end, has_failed = _sample_until_woken(backend, ring, settings, wake_fd, wake)
        backend.close()
        if end is None:
            ring.set_state(SamplerState.STOPPED)
        is_current = ring.is_current()
        ring.close()
        if end is not None and end.state is SamplerState.SILENT and is_current:
            _report_failure(ring_fd, end.reason)
        return end.status if end else int(has_failed)


def _sample_until_woken(
    backend: DeviceBackend,
    ring: RingWriter,
    settings: SamplerSettings,
    wake_fd: int,
    wake: Callable[[], object],
) -> tuple[SelfEnd | None, bool]:
    """Sample until this process must end; return its own decision to end, and whether it failed.

    The decision is None if the parent or a signal ended it; it failed if sampling raised.
    """
    stop = threading.Event()
    ending = Ending(stop)
    failures: list[BaseException] = []

    def sample() -> None:
        try:
            run_sampler(backend, ring, settings, SystemClock(), stop, ending)
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            wake()

    sampler = threading.Thread(target=sample, name="chopperd-sampler")
    sampler.start()
    try:
        # Nothing is written to the lifeline: it becomes readable when the parent ends.
        select.select([wake_fd, _LIFELINE_FD], [], [])
        end = ending.chosen
        ring.set_state(end.state if end else SamplerState.STOPPING)
    finally:  # also after a fault here: without it the threads sample on, deaf to every signal
        stop.set()
        sampler.join()
    return end, bool(failures)


def run_sampler(
    backend: DeviceBackend,
    ring: RingWriter,
    settings: SamplerSettings,
    clock: Clock,
    stop: threading.Event,
    ending: Ending | None = None,
) -> None:
    """Sample all GPUs of a back end until `stop` is set, or another sampler has taken over.

    The calling thread takes the clock triples, one a second and one at the end. Returns when all
    threads have ended; one that is inside a driver call ends when the call returns. A decision to
    end by itself is stored in `ending`.
    """
    ending, interrupt = ending or Ending(stop), Interrupt()
    gpus = _watched(backend, ring)
    silence = SilenceWatch([each.gpu for each in gpus], clock)
    threads = [
        threading.Thread(target=loop.run, name=f"chopperd-gpu-{label}")
        for label, loop in _loops(backend, gpus, settings, clock, stop, interrupt)
    ]
    sensors = SensorWatch(backend, gpus, settings, clock, stop)
    if sensors.has_work:
        threads.append(threading.Thread(target=sensors.run, name="chopperd-sensors"))
    follow = _change_follower(gpus, sensors, clock, ending)
    watch = DriverWatch(backend, gpus, settings, clock, stop, on_change=follow)
    if watch.has_work:
        threads.append(threading.Thread(target=watch.run, name="chopperd-watch"))
    ring.write_triple(clock.triple())
    try:
        for thread in threads:
            thread.start()
        ring.set_state(SamplerState.RUNNING)
        _stay(ring, silence, clock, stop, ending)
    finally:
        stop.set()
        interrupt.raise_()
        # Also after a fault: the caller then unmaps the memory that the threads write to.
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    ring.write_triple(clock.triple())


def _change_follower(
    gpus: Sequence[WatchedGpu], sensors: SensorWatch, clock: Clock, ending: Ending
) -> Callable[[str], None]:
    """Make the callback that hands over to a new process when GPUs come or go.

    While a driver call hangs it only warns: this process could not end and the new one would hang
    too, whereas now all other GPUs are sampled. The change is reported again later.
    """
    limiter = RepeatLimiter(clock)

    def follow(why: str) -> None:
        now_ns = clock.mono_ns()
        started = (each.gpu.call_started_mono_ns for each in gpus)
        hangs = any(at_ns is not None and now_ns - at_ns > _HUNG_NS for at_ns in started)
        if not hangs and not sensors.hangs(now_ns):
            ending.choose(SelfEnd(SamplerState.CHANGED, why))
        elif limiter.is_due():
            logger.warning("%s, which has to wait for a driver call that does not return", why)

    return follow


def _stay(
    ring: RingWriter, silence: SilenceWatch, clock: Clock, stop: threading.Event, ending: Ending
) -> None:
    """Write clock triples and watch whether any GPU answers, until sampling must end."""
    parent_pid = os.getppid()
    triple_at_ns = clock.mono_ns() + _TRIPLE_EVERY_NS
    while not stop.wait(_CHECK_EVERY_S) and ring.is_current():
        if silence.update():
            answers = silence.reason is None
            ring.set_state(SamplerState.RUNNING if answers else SamplerState.SILENT)
            text = "GPUs answer again" if answers else f"no GPU answers: {silence.reason}"
            logger.warning("%s", text)
        if silence.is_final:
            ending.choose(SelfEnd(SamplerState.SILENT, f"no GPU answers: {silence.reason}"))
        if os.getppid() != parent_pid:  # a fork of the parent may still hold our lifeline
            return
        if clock.mono_ns() >= triple_at_ns:
            triple_at_ns += _TRIPLE_EVERY_NS
            ring.write_triple(clock.triple())


def _watched(backend: DeviceBackend, ring: RingWriter) -> list[WatchedGpu]:
    """List every GPU of the back end that has a slot, with its part of the shared memory."""
    devices = backend.devices()
    return [
        WatchedGpu(
            device=device,
            label=ring.gpus[slot].gpu,
            gpu=ring.gpu(slot),
            slow_state=ring.slow_state(slot),
        )
        for device, slot in zip(devices, ring.slots_of(devices), strict=True)
        if slot is not None
    ]


def _loops(
    backend: DeviceBackend,
    gpus: Sequence[WatchedGpu],
    settings: SamplerSettings,
    clock: Clock,
    stop: threading.Event,
    interrupt: Interrupt,
) -> Iterator[tuple[str, DeviceLoop]]:
    """Yield each GPU's label and loop; partitions are read at the slow rate only."""
    library = native_library()
    for position, each in enumerate(gpus):
        device, gpu, own = each.device, each.gpu, settings
        if device.parent is not None:
            own = replace(settings, hz=max(settings.slow_hz, LOWEST_HZ))
        parts = LoopParts(place=(position, len(gpus)), slow_state=each.slow_state)
        if library is not None:
            parts = with_native(parts, library, backend, device, gpu, clock, interrupt)
        yield each.label, DeviceLoop(backend, device, gpu, own, clock, stop, parts)


def _has_room(ring: RingWriter, devices: Sequence[GpuInfo]) -> bool:
    """Whether the shared memory has room for all GPUs; else publish the need and close the ring."""
    if None not in ring.slots_of(devices):
        return True
    ring.ask_for_room(devices)
    ring.set_state(SamplerState.CHANGED)
    ring.close()
    return False


def _opened_ring(ring_fd: int, choice: Choice, settings: SamplerSettings) -> RingWriter:
    backend = choice.backend
    devices = backend.devices()
    if not devices:
        raise BackendUnavailableError(f"the {backend.name} driver reports no GPU")
    description = RingDescription(
        gpus=devices,
        backend=backend.name,
        driver=backend.driver,
        simulated=backend.simulated,
        chosen=choice.reason,
    )
    return RingWriter(ring_fd, description, settings.capacity)


def _report_failure(ring_fd: int, message: str) -> None:
    """Write the reason why nothing is sampled into the shared memory."""
    try:
        ring = RingWriter(ring_fd, RingDescription(failure=message), 0)
    except StoreError:
        logger.exception("the shared memory can't be used")
        return
    ring.set_state(SamplerState.FAILED)
    ring.close()


@contextmanager
def _wake_pipe() -> Iterator[tuple[int, Callable[[], object]]]:
    """Yield a descriptor that becomes readable at SIGTERM, and a function that makes it so.

    Sets the signal handlers (SIGINT is ignored). The handler itself does nothing: setting an Event
    from it can deadlock with a wait on it.
    """
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
    signal.set_wakeup_fd(write_fd)
    try:
        yield read_fd, partial(os.write, write_fd, b"\0")
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read_fd)
        os.close(write_fd)


def _is_readable(fd: int) -> bool:
    """Whether there are data to read from a descriptor now."""
    return bool(select.select([fd], [], [], 0)[0])
