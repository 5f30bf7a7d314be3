"""Records as a sampler leaves them in its ring, made from samples."""

from collections.abc import Sequence

import numpy as np

from chopperd.model.causes import CAUSES
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples
from chopperd.model.timebase import TimeTriple
from chopperd.sampling.layout import RECORD, Records
from chopperd.units import NS_PER_S


def records_of(samples: GpuSamples, unix_less_mono_ns: int) -> Records:
    """The samples as records."""
    records = np.zeros(len(samples), RECORD)
    records["t_mono_ns"] = samples.t_unix_ns - unix_less_mono_ns
    records["span_ns"] = samples.read_span_ns
    records["causes"] = samples.causes
    for name in VALUE_COLUMNS:
        records[name] = getattr(samples, name)
    for cause in CAUSES:
        records["limited_ns"][:, cause] = samples.limited_ns.get(cause, np.nan)
    return records


def cut(records: Records, begin_mono_ns: int, end_mono_ns: int) -> Records:
    """The records of a time."""
    t_ns = records["t_mono_ns"]
    part: Records = records[(t_ns >= begin_mono_ns) & (t_ns < end_mono_ns)]
    return part


def triples_every_second(
    begin_mono_ns: int, end_mono_ns: int, unix_less_mono_ns: int
) -> Sequence[TimeTriple]:
    """Clock triples of a machine whose wall clock runs evenly."""
    return [
        TimeTriple(unix_ns=mono_ns + unix_less_mono_ns, mono_ns=mono_ns, boot_ns=mono_ns)
        for mono_ns in range(begin_mono_ns, end_mono_ns, NS_PER_S)
    ]
