"""What the flight recorder takes on disk, of samples as simulated drivers give them."""

from pathlib import Path

import numpy as np

from bench.recorder import keep, kept_count, simulated_records
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from tests.fakes.simulated_job import START_UNIX_NS


def test_eight_gpus_at_10_hz_for_seven_days_fit_into_512_mib(tmp_path: Path) -> None:
    node = SimulatedNode(SimulationSpec(preset="fsdp2-h100", start_unix_ns=START_UNIX_NS))
    records = simulated_records(node, 62)
    assert len(records) == 8
    # The reads fall at random points of their periods: nothing of that can be compressed away.
    within_ns = records[0]["t_mono_ns"] % 100_000_000
    assert np.ptp(within_ns) > 80_000_000
    keep(tmp_path, node, records, 2)
    kept_bytes = sum(path.stat().st_size for path in tmp_path.glob("samples-*"))
    # 7 days x 86,400 s x 80 samples/s = 48,384,000 samples in 536,870,912 bytes: 11.09 each.
    assert 2 < kept_bytes / kept_count(tmp_path) <= 11.09
