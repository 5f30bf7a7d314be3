"""What merely waking costs on this machine: threads that sleep to deadlines and do nothing else.

`python -m bench.floor HZ SECONDS THREADS` prints JSON. It imports as little as it can.
"""

import json
import sys
import threading
import time

from chopperd.clock import SystemClock
from chopperd.units import NS_PER_S


def sleeps_late_ns(clock: SystemClock, hz: float, seconds: float, late_ns: list[int]) -> None:
    """Sleep to each deadline of a rate; add how late each sleep ended."""
    period_ns, start_ns = round(NS_PER_S / hz), clock.mono_ns()
    for tick in range(round(hz * seconds)):
        deadline_ns = start_ns + (tick + 1) * period_ns
        clock.sleep_until(deadline_ns)
        late_ns.append(clock.mono_ns() - deadline_ns)


def main(argv: list[str]) -> None:
    """Print the share of a core that it took, and how late each sleep ended."""
    hz, seconds, threads = float(argv[0]), float(argv[1]), int(argv[2])
    clock = SystemClock()
    late_ns: list[int] = []
    cpu_ns, began_ns = time.process_time_ns(), clock.mono_ns()
    sleepers = [
        threading.Thread(target=sleeps_late_ns, args=(clock, hz, seconds, late_ns))
        for _ in range(threads)
    ]
    for sleeper in sleepers:
        sleeper.start()
    for sleeper in sleepers:
        sleeper.join()
    core_ratio = (time.process_time_ns() - cpu_ns) / (clock.mono_ns() - began_ns)
    print(json.dumps({"core_ratio": core_ratio, "late_ns": late_ns}))


if __name__ == "__main__":
    main(sys.argv[1:])
