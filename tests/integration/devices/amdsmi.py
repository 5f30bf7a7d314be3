"""Opens the back end "amdsmi" over a fake library, away from this machine's own sysfs."""

from pathlib import Path

from chopperd.clock import Clock, SystemClock
from chopperd.devices.amdsmi.backend import AmdSmiBackend, Places
from chopperd.devices.amdsmi.library import open_library
from chopperd.model.devices import DeviceReading, ReadScope
from tests.waiting import wait_for

#: How long the energy check and the timing of cycles take, with room for a slow machine.
SETTLED_S = 30


def open_amdsmi(folder: Path, clock: Clock | None = None) -> AmdSmiBackend:
    """The back end; `folder` stands for / and may hold `sys` and `kfd`."""
    places = Places(sysfs=folder / "sys", kfd=folder / "kfd")
    return AmdSmiBackend(open_library(), clock or SystemClock(), places)


def settled(backend: AmdSmiBackend, index: int = 0) -> DeviceReading:
    """A full look once all that takes several is known."""
    device = backend.devices()[index]

    def plans() -> bool:
        backend.read(device, ReadScope.FULL)
        return backend.read_plan(device, ReadScope.FAST) is not None

    wait_for(plans, timeout_s=SETTLED_S)
    return backend.read(device, ReadScope.FULL)
