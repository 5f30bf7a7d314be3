"""Back end "simulated": reads a simulated node's GPUs at the present time."""

from dataclasses import replace
from threading import Lock
from typing import Final

from chopperd.clock import Clock, SystemClock
from chopperd.devices.base import BackendOptions, DeviceBackend
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, GpuProcess, ReadScope
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec

#: Share of a GPU's memory that the process of its rank uses.
_RANK_SHARE: Final = 0.8


class SimulatedBackend:
    """Reads the GPUs of a simulated node, at the clock's Unix time."""

    name = "simulated"
    driver: str | None = None
    simulated = True

    def __init__(self, spec: SimulationSpec, clock: Clock) -> None:
        self._clock = clock
        self._node = SimulatedNode(spec)
        self._lock = Lock()
        self._open = True

    def devices(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs of the simulated node."""
        return self._node.gpus

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """Return the GPU's simulated sensors now; a fast read gives clock and limits only."""
        self._check(device)
        with self._lock:
            return self._node.reading(device.index, self._clock.unix_ns(), scope)

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """Return the one process on a GPU, with most of its memory; None if there are no pids."""
        self._check(device)
        pids = self._node.spec.pids
        if not pids:
            return None
        used_bytes = round(_RANK_SHARE * (device.memory_size_bytes or 0))
        return (GpuProcess(pid=pids[device.index], memory_used_bytes=used_bytes),)

    def close(self) -> None:
        """Close the simulation; a second call does nothing."""
        self._open = False

    def _check(self, device: GpuInfo) -> None:
        if not self._open or device not in self._node.gpus:
            text = f"has no GPU {device.uuid}" if self._open else "is closed"
            raise DeviceLostError(
                f"the simulated node {text}", operation="read", device_index=device.index
            )


def open_backend(options: BackendOptions, clock: Clock | None = None) -> DeviceBackend:
    """Open a simulation of `options.simulation`, or else of the default preset.

    A spec without a start time starts now, by `clock` or else the machine's clock.

    Raises:
        ConfigError: The preset is unknown.
    """
    now = clock or SystemClock()
    spec = options.simulation or SimulationSpec()
    if spec.start_unix_ns == 0:
        spec = replace(spec, start_unix_ns=now.unix_ns())
    return SimulatedBackend(spec, now)
