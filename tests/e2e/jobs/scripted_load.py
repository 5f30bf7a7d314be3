"""Stands in for the load of a self-test: drives the fake driver and says what it did.

Its zeros run at 1980 MHz and its random data at 1500 MHz, and its products take time in inverse
proportion, or, with the argument in `SCRIPTED_LOAD`, a twentieth longer. In the pulses the clock
follows the load 40 ms late.
"""

import argparse
import json
import os
import time
from pathlib import Path

from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import Scenario, Segment

MS = 1_000_000
LAG_NS = 40 * MS
BATCH_NS = 20 * MS
ZEROS = Segment(sm_clock_mhz=1980, power_mw=500_000)
RANDOM = Segment(sm_clock_mhz=1500, power_mw=700_000, reasons=0x4)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--device", "--uuid", "--pulse-s", "--warm-up-s"):
        parser.add_argument(name)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--pulses", type=int)
    given = parser.parse_args()
    gpu = Scenario.attached(Path(os.environ[SCENARIO_VARIABLE])).gpus[0]
    slower = float(os.environ.get("SCRIPTED_LOAD", "1"))
    say(event="ready", device="scripted", torch="none", dtype="none", size=1)
    for number in range(given.rounds):
        for operand, segment in (("zeros", ZEROS), ("random", RANDOM)):
            say(event="begin", operand=operand, round=number)
            gpu.plays(segment)
            time.sleep(0.2)
            start_ns = time.monotonic_ns()
            edges = [start_ns + i * BATCH_NS for i in range(int(given.seconds * 1e9) // BATCH_NS)]
            time.sleep(given.seconds)
            # So many products a batch: time a product is in inverse proportion to the clock.
            products = round(segment.sm_clock_mhz / (slower if operand == "random" else 1))
            say(
                event="phase",
                operand=operand,
                round=number,
                products_a_batch=products,
                edge_mono_ns=edges,
            )
    pulses(gpu.plays, given.pulses)
    say(event="done")


def pulses(plays: object, count: int) -> None:
    """On for 150, 210 or 270 ms, off for as long."""
    say(event="begin", operand="pulses", round=0)
    assert callable(plays)
    lengths = [(150 + 60 * (number % 3)) * MS for number in range(count)]
    begin_mono_ns, begin_unix_ns = time.monotonic_ns() + 100 * MS, time.time_ns() + 100 * MS
    course = [Segment(length_ns=100 * MS + LAG_NS, sm_clock_mhz=1980, power_mw=500_000)]
    starts, ends, at_ns = [], [], begin_mono_ns
    for length in lengths:
        course.append(Segment(length_ns=length, sm_clock_mhz=1500, power_mw=700_000))
        course.append(Segment(length_ns=length, sm_clock_mhz=1980, power_mw=500_000))
        starts.append(at_ns)
        ends.append(at_ns + length)
        at_ns += 2 * length
    plays(*course, origin_unix_ns=begin_unix_ns - 100 * MS)
    time.sleep((at_ns - time.monotonic_ns()) / 1e9)
    say(event="pulses", start_mono_ns=starts, end_mono_ns=ends)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
