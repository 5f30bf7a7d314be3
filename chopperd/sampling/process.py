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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from chopperd.clock import Clock, RepeatLimiter, SystemClock
from chopperd.devices.base import DeviceBackend
from chopperd.errors import BackendUnavailableError, ChopperdError, ConfigError, StoreError
from chopperd.sampling.device_loop import DeviceLoop
from chopperd.sampling.layout import RingDescription, SamplerState
from chopperd.sampling.orders import OrderBook, OrderLines, decoded
from chopperd.sampling.ring import RingWriter
from chopperd.sampling.sensor_probe import ProbedGpu, SensorWatch
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

_LIFELINE_FD: Final = 0
_TRIPLE_EVERY_NS: Final = NS_PER_S
#: Most that is read of the lifeline at once, and the pause after that: a flood costs little.
_ORDERS_BYTES: Final = 4096
_ORDERS_PAUSE_S: Final = 0.05


def main(ring_fd: int, open_backend: Callable[[], DeviceBackend], settings: SamplerSettings) -> int:
    """Sample into the shared memory until SIGTERM or the parent's end; the exit status.

    A back end that can't be opened is reported through the shared memory. Standard input is the
    parent's lifeline and must be a pipe.

    Args:
        ring_fd: The memory file, inherited from the parent.
        open_backend: Opens the driver; called once, in the main thread.
        settings: How to sample.
    """
    with _wake_pipe() as (wake_fd, wake):
        stop = threading.Event()
        try:
            backend = open_backend()
            ring = _opened_ring(ring_fd, backend, settings)
        except ChopperdError as error:
            _report_failure(ring_fd, str(error))
            return error.exit_code
        failures: list[BaseException] = []
        clock, orders = SystemClock(), OrderBook()

        def sample() -> None:
            try:
                run_sampler(backend, ring, settings, clock, stop, orders)
            except BaseException as error:
                failures.append(error)
                raise
            finally:
                wake()

        sampler = threading.Thread(target=sample, name="chopperd-sampler")
        sampler.start()
        _obey_until_woken(wake_fd, orders, clock)
        ring.set_state(SamplerState.STOPPING)
        stop.set()
        sampler.join()
        backend.close()
        ring.set_state(SamplerState.STOPPED)
        ring.close()
        return 1 if failures else 0


def _obey_until_woken(wake_fd: int, orders: OrderBook, clock: Clock) -> None:
    """Take the parent's orders until it ends, or this process is to.

    What is no order is passed over, and said.
    """
    lines, limiter = OrderLines(), RepeatLimiter(clock)
    while wake_fd not in select.select([wake_fd, _LIFELINE_FD], [], [])[0]:
        data = os.read(_LIFELINE_FD, _ORDERS_BYTES)
        if not data:
            return
        for line in lines.feed(data):
            try:
                orders.take(decoded(line), clock.mono_ns())
            except ConfigError as error:
                if limiter.is_due():
                    logger.warning("an order was not understood: %s", error)
        select.select([wake_fd], [], [], _ORDERS_PAUSE_S)


def run_sampler(
    backend: DeviceBackend,
    ring: RingWriter,
    settings: SamplerSettings,
    clock: Clock,
    stop: threading.Event,
    orders: OrderBook | None = None,
) -> None:
    """Sample all GPUs of a back end until told to stop, or until another sampler took over.

    The calling thread takes the clock triples, one a second and one at the end. Returns when all
    threads have ended; one that is inside a driver call ends when the call returns.
    """
    threads = [
        threading.Thread(target=loop.run, name=f"chopperd-gpu-{label}")
        for label, loop in _loops(backend, ring, settings, clock, stop, orders or OrderBook())
    ]
    sensors = SensorWatch(backend, _probed(backend, ring), clock, stop, settings)
    if sensors.has_work:
        threads.append(threading.Thread(target=sensors.run, name="chopperd-sensors"))
    ring.write_triple(clock.triple())
    for thread in threads:
        thread.start()
    ring.set_state(SamplerState.RUNNING)
    while not stop.wait(_TRIPLE_EVERY_NS / NS_PER_S) and ring.is_current():
        ring.write_triple(clock.triple())
    for thread in threads:
        thread.join()
    ring.write_triple(clock.triple())


def _loops(
    backend: DeviceBackend,
    ring: RingWriter,
    settings: SamplerSettings,
    clock: Clock,
    stop: threading.Event,
    orders: OrderBook,
) -> Iterator[tuple[str, DeviceLoop]]:
    """The loop of each GPU that has a slot, with the GPU's label."""
    devices = backend.devices()
    for position, device in enumerate(devices):
        slot = ring.slot_of(device)
        if slot is None:
            logger.error("GPU %s is new and has no room: start anew to sample it", device.uuid)
            continue
        loop = DeviceLoop(
            backend,
            device,
            ring.gpu(slot),
            settings,
            clock,
            stop,
            orders=orders,
            place=(position, len(devices)),
        )
        yield ring.gpus[slot].gpu, loop


def _probed(backend: DeviceBackend, ring: RingWriter) -> list[ProbedGpu]:
    """The GPUs that have a slot, for the probing of their sensors."""
    slots = {device: ring.slot_of(device) for device in backend.devices()}
    return [
        ProbedGpu(device=device, side=ring.side(slot), pace=partial(ring.pace, slot))
        for device, slot in slots.items()
        if slot is not None
    ]


def _opened_ring(ring_fd: int, backend: DeviceBackend, settings: SamplerSettings) -> RingWriter:
    devices = backend.devices()
    if not devices:
        raise BackendUnavailableError(f"the {backend.name} driver reports no GPU")
    description = RingDescription(
        gpus=devices,
        backend=backend.name,
        driver=backend.driver,
        simulated=backend.simulated,
    )
    return RingWriter(ring_fd, description, settings.capacity)


def _report_failure(ring_fd: int, message: str) -> None:
    """Leave word in the shared memory of why nothing is sampled."""
    try:
        ring = RingWriter(ring_fd, RingDescription(failure=message), 0)
    except StoreError:
        logger.exception("the shared memory can't be used")
        return
    ring.set_state(SamplerState.FAILED)
    ring.close()


@contextmanager
def _wake_pipe() -> Iterator[tuple[int, Callable[[], None]]]:
    """A descriptor that becomes readable at SIGTERM, or when the function beside it is called.

    The handler itself does nothing: setting an Event from it can deadlock with a wait on it.
    """
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
    signal.set_wakeup_fd(write_fd)
    try:
        yield read_fd, lambda: _send_byte(write_fd)
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read_fd)
        os.close(write_fd)


def _send_byte(fd: int) -> None:
    os.write(fd, b"\0")
