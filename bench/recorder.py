"""What the flight recorder takes: bytes a sample, CPU of keeping, and of reading ten minutes back.

`python -m bench.recorder` prints Markdown. Samples are those of the simulated node at 10 Hz with
the slow loop at 1 Hz; the samples of a few minutes are kept over and over, later each time.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from bench.markdown import Figure, figure_table, median_and_range
from chopperd.model.arrays import Float64s
from chopperd.sampling.memory.layout import Records
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.chunk import Origin
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.recorded import cut, records_of, triples_every_second
from tests.fakes.simulated_job import START_UNIX_NS, sampled

HZ: Final = 10.0
MAX_BYTES: Final = 512 * 2**20
#: 8 GPUs at 10 Hz for 7 days in 512 MiB.
MOST_BYTES_A_SAMPLE: Final = MAX_BYTES / (8 * 10 * 7 * 86_400)
MOST_READ_S: Final = 1.0
READ_NS: Final = 600 * NS_PER_S
BEGIN_MONO_NS: Final = 1_000 * NS_PER_S
OFFSET_NS: Final = START_UNIX_NS - BEGIN_MONO_NS
_UNLIMITED: Final = DiskLimits(max_bytes=2**40, max_days=3_650, min_free_ratio=0)


def simulated_records(node: SimulatedNode, seconds: int) -> dict[int, Records]:
    """What the ring would have held of each GPU over some seconds from the start on."""
    rng = np.random.default_rng(11)
    end_ns = START_UNIX_NS + seconds * NS_PER_S
    records = {}
    for slot in range(len(node.gpus)):
        rows = records_of(sampled(node, slot, START_UNIX_NS, end_ns, HZ), OFFSET_NS)
        # Driver calls take some 40 us, as long as they like.
        rows["span_ns"] = rng.gamma(8, 5_000, len(rows)).astype(np.int64)
        records[slot] = rows
    return records


def keep(
    folder: Path, node: SimulatedNode, records: Mapping[int, Records], minutes: int
) -> tuple[float, int]:
    """Keep the records again and again, second by second: CPU seconds, and samples kept."""
    clock = ScriptedClock(mono_ns=BEGIN_MONO_NS, unix_ns=START_UNIX_NS)
    recorder = FlightRecorder(folder, _UNLIMITED, clock)
    origin = Origin(
        gpus=node.gpus, backend="simulated", simulated=True, node="bench", asked_hz=HZ, boot_id="b"
    )
    span_s = 1 + max(int(rows["t_mono_ns"][-1]) - BEGIN_MONO_NS for rows in records.values()) // (
        NS_PER_S
    )
    used_s, count = 0.0, 0
    for second in range(minutes * 60):
        begin_ns = BEGIN_MONO_NS + second % span_s * NS_PER_S
        shift_ns = second // span_s * span_s * NS_PER_S
        part = {slot: cut(rows, begin_ns, begin_ns + NS_PER_S) for slot, rows in records.items()}
        for rows in part.values():
            rows["t_mono_ns"] += shift_ns
            count += len(rows)
        now_ns = clock.mono_ns()
        triples = triples_every_second(now_ns, now_ns + 1, OFFSET_NS)
        clock.advance(NS_PER_S)
        before_s = time.process_time()
        recorder.append(origin, part, triples)
        used_s += time.process_time() - before_s
    recorder.close()
    return used_s, count


def read_back(folder: Path, runs: int) -> Float64s:
    """CPU seconds of reading the last ten minutes, (runs,)."""
    newest_ns = START_UNIX_NS + 10 * 365 * 86_400 * NS_PER_S
    whole = RecordedSamples(folder).between(0, newest_ns, ["0"])
    assert whole is not None
    end_ns = int(whole.gpus[0].t_unix_ns[-1])
    taken = []
    for _ in range(runs):
        before_s = time.process_time()
        samples = RecordedSamples(folder).between(end_ns - READ_NS, end_ns)
        taken.append(time.process_time() - before_s)
        assert samples is not None
    return np.array(taken)


def results(*, minutes: int, simulated_s: int, runs: int) -> Sequence[str]:
    """The lines of the results page."""
    node = SimulatedNode(SimulationSpec(preset="fsdp2-h100", start_unix_ns=START_UNIX_NS))
    records = simulated_records(node, simulated_s)
    with TemporaryDirectory(prefix="chopperd-bench-") as place:
        folder = Path(place)
        used_s, count = keep(folder, node, records, minutes)
        kept_bytes = sum(path.stat().st_size for path in folder.glob("samples-*"))
        journal_rows = count - kept_count(folder)
        bytes_a_sample = kept_bytes / max(count - journal_rows, 1)
        reads_s = read_back(folder, runs)
    hour_s = used_s / minutes * 60
    figures = [
        Figure(
            what="bytes a sample",
            shown=f"{bytes_a_sample:.2f}",
            value=bytes_a_sample,
            must=round(MOST_BYTES_A_SAMPLE, 2),
        ),
        Figure(
            what="CPU for an hour of samples, s",
            shown=f"{hour_s:.1f} ({hour_s / 36:.2f} % of a core)",
            value=hour_s,
        ),
        Figure(
            what="CPU to read ten minutes of 8 GPUs, s",
            shown=median_and_range(reads_s.tolist()),
            value=float(np.median(reads_s)),
            must=MOST_READ_S,
        ),
    ]
    return [
        f"{count:,} samples of 8 simulated GPUs at {HZ:g} Hz, {minutes} minutes.",
        figure_table(figures),
    ]


def kept_count(folder: Path) -> int:
    """Samples in the compressed files, without those in the journal."""
    journal = folder / "journal.rec"
    aside = journal.rename(folder / "aside")
    samples = RecordedSamples(folder).between(0, 2**62)
    aside.rename(journal)
    return 0 if samples is None else sum(map(len, samples.gpus))


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--simulated-seconds", type=int, default=120)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args()
    lines = results(minutes=chosen.minutes, simulated_s=chosen.simulated_seconds, runs=chosen.runs)
    print("\n\n".join(lines))


if __name__ == "__main__":
    main()
