"""Times of samples on the load's clock."""

import numpy as np

from chopperd.selftest.findings import mono_from_unix
from chopperd.units import TimeTriple

NOW_UNIX_NS = 1_800_000_000_000_000_000


def test_samples_are_laid_on_the_load_s_clock_by_the_triples() -> None:
    # The wall clock gains 10 ns on the monotonic one over 1,000 ns.
    triples = [
        TimeTriple(unix_ns=NOW_UNIX_NS, mono_ns=500, boot_ns=0),
        TimeTriple(unix_ns=NOW_UNIX_NS + 1_000, mono_ns=1_490, boot_ns=0),
    ]
    t_unix_ns = NOW_UNIX_NS + np.array([0, 500, 1_000, 2_000], np.int64)
    # Half way half the gain; past the last triple its distance stays.
    assert mono_from_unix(t_unix_ns, triples).tolist() == [500, 995, 1_490, 2_490]


def test_no_samples_need_no_triples() -> None:
    assert mono_from_unix(np.zeros(0, np.int64), []).tolist() == []
