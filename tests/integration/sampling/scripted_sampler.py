"""A sampler process over GPUs that do what files in a folder say: the tests' hand on the driver.

`hang-G` in the folder: calls on GPU G do not return while it is there; `lost-G`: it is gone;
`idle-G`: it has nothing to do; `flaky-G`: its calls fail; `broken-G`: they raise what no adaptor
knows; `hang-open`, `fail-open`: opening the driver does; `hang-one-open`: the first process to open
it makes that `hanging-open`, and hangs while that is there.
"""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chopperd.devices.base import Choice
from chopperd.errors import BackendUnavailableError, DeviceLostError, TransientDeviceError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.model.kinds import Cause
from chopperd.sampling.process import main
from chopperd.sampling.settings import SamplerSettings


class ScriptedBackend:
    """GPU n runs at 1500 + n MHz and draws 500 W."""

    name = "scripted"
    driver = "1.0"
    simulated = True

    def __init__(self, gpu_count: int, folder: Path | None, call_s: float = 0.0) -> None:
        self._gpus = tuple(
            GpuInfo(
                gpu=str(n),
                index=n,
                uuid=f"GPU-{n}",
                name="Scripted",
                vendor=Vendor.NVIDIA,
                sm_clock_max_mhz=2000.0,
            )
            for n in range(gpu_count)
        )
        self._folder = folder
        self._call_s = call_s

    def devices(self) -> tuple[GpuInfo, ...]:
        return self._gpus

    def close(self) -> None:
        pass

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        if self._folder is not None:
            self._obey(self._folder, device)
        if self._call_s:
            time.sleep(self._call_s)
        now_ns = time.monotonic_ns()
        limited_ns = {
            Cause.POWER_CAP: now_ns // 2,
            Cause.SYNC_BOOST: 0,
            Cause.THERMAL: 0,
            Cause.HW_THERMAL: 0,
            Cause.POWER_BRAKE: 0,
        }
        clock_mhz = 1500.0 + device.index
        is_idle = self._folder is not None and (self._folder / f"idle-{device.index}").exists()
        causes = frozenset({Cause.LOW_UTILIZATION if is_idle else Cause.POWER_CAP})
        if scope is ReadScope.FAST:
            return DeviceReading(sm_clock_mhz=clock_mhz, causes=causes, limited_ns=limited_ns)
        return DeviceReading(
            sm_clock_mhz=clock_mhz,
            causes=causes,
            limited_ns=limited_ns,
            power_w=500.0,
            energy_j=now_ns * 500e-9,
            temperature_c=60.0,
            memory_used_bytes=1 << 30,
            activity_ratio=0.0 if is_idle else 1.0,
        )

    @staticmethod
    def _obey(folder: Path, device: GpuInfo) -> None:
        wait_while(folder / f"hang-{device.index}")
        errors: dict[str, Callable[[], Exception]] = {
            "lost": lambda: DeviceLostError("fell off the bus", operation="read"),
            "flaky": lambda: TransientDeviceError("timed out", operation="read"),
            "broken": lambda: KeyError("a fault of the vendor's library"),
        }
        for word, error in errors.items():
            if (folder / f"{word}-{device.index}").exists():
                raise error()


def wait_while(path: Path) -> None:
    while path.exists():
        time.sleep(0.005)


def open_scripted(gpu_count: int, folder: Path | None, call_s: float) -> ScriptedBackend:
    if folder is not None:
        wait_while(folder / "hang-open")
        with suppress(FileNotFoundError):
            (folder / "hang-one-open").rename(folder / "hanging-open")
            wait_while(folder / "hanging-open")
        if (folder / "fail-open").exists():
            raise BackendUnavailableError("no driver is loaded")
    return ScriptedBackend(gpu_count, folder, call_s)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--call-s", type=float, default=0.0)
    parser.add_argument("--ring-fd", type=int, required=True)
    parser.add_argument("--settings", required=True)
    options = parser.parse_args()
    sys.exit(
        main(
            options.ring_fd,
            lambda: Choice(open_scripted(options.gpus, options.folder, options.call_s)),
            SamplerSettings.from_json(options.settings),
        )
    )
