"""The dies of one GPU as they run now."""

import numpy as np

from chopperd.correlate.clock.governing import are_gated, are_running
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.live import DiesLive
from chopperd.sampling.governing import WINDOW_NS
from chopperd.sampling.memory.layout import Records
from chopperd.sampling.recording import die_clocks_mhz


class DieClocks:
    """The clocks of a GPU's dies over the last two seconds that it was sampled.

    Means are over those two seconds, as that is by which the sampler tells the governing die.
    """

    def __init__(self) -> None:
        self._t_ns: Int64s = np.zeros(0, np.int64)
        self._dies_mhz: Float64s | None = None

    def add(self, records: Records) -> None:
        """Take over new records, (n,) of `RECORD`, rising in time."""
        added_mhz = die_clocks_mhz(records)
        is_reported = ~np.isnan(added_mhz).all(axis=1)
        if not is_reported.any():
            return
        t_ns, dies_mhz = records["t_mono_ns"][is_reported], added_mhz[is_reported]
        if self._dies_mhz is not None:
            t_ns = np.concatenate([self._t_ns, t_ns])
            dies_mhz = np.concatenate([self._dies_mhz, dies_mhz])
        kept = t_ns > t_ns[-1] - WINDOW_NS
        self._t_ns, self._dies_mhz = t_ns[kept], dies_mhz[kept]

    def live(self, since_mono_ns: int) -> DiesLive | None:
        """The dies as the newest record has them; None where it is older than that, or has none."""
        if self._dies_mhz is None or self._t_ns[-1] < since_mono_ns:
            return None
        now_mhz = self._dies_mhz[-1]
        ran = are_running(self._dies_mhz)
        runs = ran[-1]
        clocks_mhz = np.where(ran, self._dies_mhz, np.nan)[:, runs]
        means_mhz = np.nanmean(clocks_mhz, axis=0)
        some = len(means_mhz) > 0
        return DiesLive(
            clocks_mhz=tuple(None if np.isnan(mhz) else mhz for mhz in now_mhz.tolist()),
            running=len(means_mhz),
            gated=int(are_gated(self._dies_mhz[-1:]).sum()),
            mean_mhz=float(means_mhz.mean()) if some else None,
            spread_mhz=float(np.ptp(means_mhz)) if len(means_mhz) > 1 else None,
            governing=int(np.flatnonzero(runs)[means_mhz.argmin()]) if some else None,
        )
