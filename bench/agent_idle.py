"""What an agent takes while nothing happens: CPU and memory, and whether memory grows.

`python -m bench.agent_idle` prints Markdown. First the agent runs at 10 Hz and is scraped each
15 s; then eight ranks' traces are analysed and the worker ends; then another agent lives fast: it
samples ten times as often and takes in capture after capture.
"""

import argparse
from dataclasses import dataclass
from typing import Final

from bench.agents import CLOCK, GPUS, BenchAgent, good_agent, print_report, pss_mib, wait_until
from bench.markdown import Figure, figure_table, table
from bench.processes import cpu_ns
from chopperd.cli.demo import finish_trace, write_traces
from chopperd.units import NS_PER_S

MOST_MIB: Final = 120.0
AIM_MIB: Final = 80.0
#: Of the sampler alone, % of a core at 10 Hz.
MOST_SAMPLER_PERCENT: Final = 0.5
AIM_SAMPLER_PERCENT: Final = 0.2
FAST_HZ: Final = 100.0
_SCRAPE_EVERY_S: Final = 15.0
_TRACED_NS: Final = NS_PER_S
_WORKER_ENDS_S: Final = "2"
#: By then the sampler has found how often sensors update (a second of CPU, once).
_PROBED_NS: Final = 20 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Proportional set sizes in MiB."""

    agent_mib: float
    sampler_mib: float

    @property
    def both_mib(self) -> float:
        """Of both."""
        return self.agent_mib + self.sampler_mib


def memory(under: BenchAgent) -> Memory:
    """What both take now."""
    return Memory(agent_mib=pss_mib(under.pid), sampler_mib=pss_mib(under.sampler_pid()))


def idle_cpu_percent(under: BenchAgent, seconds: float) -> dict[str, float]:
    """% of a core that each process takes at rest, scraped each 15 s."""
    CLOCK.sleep_until(CLOCK.mono_ns() + _PROBED_NS)
    pids = {"agent": under.pid, "sampler": under.sampler_pid()}
    begin_ns, before_ns = CLOCK.mono_ns(), {name: cpu_ns(pid) for name, pid in pids.items()}
    end_ns = begin_ns + round(seconds * NS_PER_S)
    while CLOCK.mono_ns() < end_ns:
        under.is_good()
        CLOCK.sleep_until(min(end_ns, CLOCK.mono_ns() + round(_SCRAPE_EVERY_S * NS_PER_S)))
    lasted_ns = CLOCK.mono_ns() - begin_ns
    return {name: 100 * (cpu_ns(pid) - before_ns[name]) / lasted_ns for name, pid in pids.items()}


def analyse_capture(under: BenchAgent) -> None:
    """Have a trace of each of eight ranks analysed, and the worker end."""
    before, now_ns = under.finished_count(), CLOCK.unix_ns()
    paths = list(
        write_traces(under.node, now_ns - 2 * _TRACED_NS, now_ns - _TRACED_NS, under.inbox)
    )
    for path in paths:
        finish_trace(path)
    wait_until("the capture", lambda: under.finished_count() == before + GPUS)
    wait_until("the worker to end", lambda: under.worker_pid() is None)


def at_rest(seconds: float) -> tuple[dict[str, float], dict[str, Memory]]:
    """CPU at rest, and memory by when it was looked at."""
    with good_agent(ANALYSIS__IDLE_S=_WORKER_ENDS_S) as under:
        cpu_percent = idle_cpu_percent(under, seconds)
        seen = {f"after {seconds:g} s at 10 Hz": memory(under)}
        analyse_capture(under)
        seen["after a capture of 8 ranks, the worker gone"] = memory(under)
    return cpu_percent, seen


def fast_life(captures: int, seconds: float) -> tuple[float, list[Memory]]:
    """Hours at 10 Hz whose samples were taken, and the memory after each capture."""
    seen = []
    begin_ns = CLOCK.mono_ns()
    with good_agent(
        ANALYSIS__IDLE_S=_WORKER_ENDS_S,
        SAMPLING__HZ=f"{FAST_HZ:g}",
        SAMPLING__DRIVER_BUDGET_RATIO="0.5",
    ) as under:
        for number in range(captures):
            analyse_capture(under)
            due_ns = begin_ns + round((number + 1) * seconds / captures * NS_PER_S)
            CLOCK.sleep_until(due_ns)
            seen.append(memory(under))
        lived_s = (CLOCK.mono_ns() - begin_ns) / NS_PER_S
    return lived_s * FAST_HZ / 10 / 3600, seen


def report(seconds: float, captures: int, fast_seconds: float) -> str:
    """Everything as Markdown."""
    cpu_percent, seen = at_rest(seconds)
    hours, fast = fast_life(captures, fast_seconds)
    most_mib = max(each.both_mib for each in seen.values())
    most_fast_mib = max(each.both_mib for each in fast)
    figures = [
        _cpu("agent", cpu_percent["agent"], None, None),
        _cpu("sampler", cpu_percent["sampler"], MOST_SAMPLER_PERCENT, AIM_SAMPLER_PERCENT),
        _memory("10 Hz", most_mib, AIM_MIB),
        _memory(f"{FAST_HZ:g} Hz and {captures} captures", most_fast_mib, None),
    ]
    rows = [
        *(_row(when, each) for when, each in seen.items()),
        *(_row(f"{FAST_HZ:g} Hz, capture {n + 1}", each) for n, each in enumerate(fast)),
    ]
    halfway = fast[len(fast) // 2]
    lines = [
        f"{GPUS} GPUs, standard profile, a scrape each {_SCRAPE_EVERY_S:g} s over {seconds:g} s, "
        f"after the {_PROBED_NS / NS_PER_S:g} s in which the timing of sensors is found.",
        figure_table(figures),
        "Memory as it was seen:",
        table(("when", "agent MiB", "sampler MiB", "both MiB"), rows),
        f"The lines at {FAST_HZ:g} Hz hold the samples of {hours:.1f} hours at 10 Hz and "
        f"{captures * GPUS} traces in {fast_seconds:g} s. Rings and the recorder's minute fill "
        "first (ten times as large as at 10 Hz); from halfway on the memory of both went by "
        f"{fast[-1].both_mib - halfway.both_mib:+.1f} MiB.",
    ]
    return "\n\n".join(lines)


def _cpu(name: str, percent: float, must: float | None, aim: float | None) -> Figure:
    what = f"{name} at rest, 10 Hz, % of a core"
    return Figure(what=what, shown=f"{percent:.2f}", value=percent, must=must, aim=aim)


def _memory(when: str, mib: float, aim: float | None) -> Figure:
    what = f"memory, agent + sampler, {when}, PSS MiB"
    return Figure(what=what, shown=f"{mib:.0f}", value=mib, must=MOST_MIB, aim=aim)


def _row(when: str, seen: Memory) -> list[str]:
    figures = (seen.agent_mib, seen.sampler_mib, seen.both_mib)
    return [when, *(f"{figure:.1f}" for figure in figures)]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="at rest")
    parser.add_argument("--captures", type=int, default=8, help="of the fast life")
    parser.add_argument("--fast-seconds", type=float, default=120.0)
    chosen = parser.parse_args(argv)
    print_report(lambda: report(chosen.seconds, chosen.captures, chosen.fast_seconds))


if __name__ == "__main__":
    main()
