"""Back end "replay": plays recorded samples, at the pace at which they were recorded."""

import math
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.clock import Clock, SystemClock
from chopperd.devices.base import BackendOptions
from chopperd.errors import BackendUnavailableError, DeviceLostError, TransientDeviceError
from chopperd.model.arrays import Float64s
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.model.kinds import causes_in
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.units import NS_PER_S

#: Fields of the slow loop are NaN between its ticks; a full read takes the last one within this.
_HOLD_NS: Final = 2 * NS_PER_S


def open_backend(options: BackendOptions) -> "ReplayBackend":
    """Open a replay of the recording `options.replay`, which starts now with its first sample.

    Raises:
        BackendUnavailableError: No recording was given, or it holds no sample.
    """
    if options.replay is None:
        raise BackendUnavailableError("no recording was given")
    return ReplayBackend(options.replay, SystemClock())


class ReplayBackend:
    """Replays a recording: each read gives the latest sample at that point of the recording."""

    name = "replay"

    def __init__(self, samples: SampleSet, clock: Clock) -> None:
        recorded = [track for track in samples.gpus if len(track)]
        if not recorded:
            raise BackendUnavailableError("the recording holds no sample")
        self.driver = samples.driver
        self.simulated = samples.simulated
        self._clock = clock
        self._tracks = {track.gpu.uuid: track for track in recorded}
        self._first_unix_ns = min(int(track.t_unix_ns[0]) for track in recorded)
        self._end_unix_ns = max(_end_unix_ns(track) for track in recorded)
        self._opened_mono_ns = clock.mono_ns()
        self._open = True

    def devices(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs that have samples in the recording."""
        return tuple(track.gpu for track in self._tracks.values())

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """Return the recorded values at this point of the recording."""
        track = self._tracks.get(device.uuid) if self._open else None
        if track is None:
            missing = "not in the recording" if self._open else "of a recording that is closed"
            raise DeviceLostError(
                f"GPU {device.gpu} ({device.uuid}) is {missing}",
                operation="replay",
                device_index=device.index,
            )
        return _reading(track, self._row(track), scope)

    def close(self) -> None:
        """Close the replay; a second call does nothing."""
        self._open = False

    def _row(self, track: GpuSamples) -> int:
        now_unix_ns = self._first_unix_ns + self._clock.mono_ns() - self._opened_mono_ns
        row = int(np.searchsorted(track.t_unix_ns, now_unix_ns, side="right")) - 1
        if row < 0 or now_unix_ns >= self._end_unix_ns:
            state = "has not begun" if row < 0 else "ended"
            raise TransientDeviceError(
                f"GPU {track.gpu.gpu}: the recording {state}",
                operation="replay",
                device_index=track.gpu.index,
            )
        return row


def _end_unix_ns(track: GpuSamples) -> int:
    """Return when a GPU's recording ends: its last sample holds for one median period."""
    period_ns = int(np.median(np.diff(track.t_unix_ns))) if len(track) > 1 else 1
    return int(track.t_unix_ns[-1]) + period_ns


def _reading(track: GpuSamples, row: int, scope: ReadScope) -> DeviceReading:
    limited_ns = {
        cause: int(column[row])
        for cause, column in track.limited_ns.items()
        if not math.isnan(column[row])
    }
    sm_clock_mhz = _number(track.sm_clock_mhz[row])
    causes = causes_in(int(track.causes[row]))
    dies_mhz = () if track.die_clocks_mhz is None else tuple(track.die_clocks_mhz[row].tolist())
    fast = DeviceReading(
        sm_clock_mhz=sm_clock_mhz,
        causes=causes,
        limited_ns=limited_ns,
        die_clocks_mhz=tuple(None if math.isnan(each) else each for each in dies_mhz),
    )
    if scope is ReadScope.FAST:
        return fast
    used_bytes = _held(track, track.memory_used_bytes, row)
    return replace(
        fast,
        mem_clock_mhz=_held(track, track.mem_clock_mhz, row),
        power_w=_held(track, track.power_w, row),
        energy_j=_held(track, track.energy_j, row),
        temperature_c=_held(track, track.temperature_c, row),
        memory_used_bytes=None if used_bytes is None else int(used_bytes),
        activity_ratio=_held(track, track.activity_ratio, row),
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _held(track: GpuSamples, column: Float64s, row: int) -> float | None:
    """Return a column's last reported value within `_HOLD_NS` before the row; None if none."""
    oldest_unix_ns = int(track.t_unix_ns[row]) - _HOLD_NS
    first = int(np.searchsorted(track.t_unix_ns, oldest_unix_ns, side="left"))
    recent = column[first : row + 1]
    reported = recent[~np.isnan(recent)]
    return float(reported[-1]) if len(reported) else None
