"""All checks of `chopperd doctor`, in the order of its output; defines those of agent and node."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from chopperd.diagnosis import amd_checks, driver_checks
from chopperd.diagnosis.facts import AMD_BACKENDS, Facts, Finding, ok, problem, unknown
from chopperd.report.text.inventory import process_words
from chopperd.units import NS_PER_MS, NS_PER_S

#: Largest rate of a slew, and allowance for interrupted reads; more is a step.
#: Source: adjtimex(2), the kernel's largest correction of frequency.
_SLEW_RATIO: Final = 500e-6
_UNEVEN_NS: Final = NS_PER_MS


def configuration(facts: Facts) -> Iterator[Finding]:
    """Check whether the configuration is valid."""
    if not facts.problems:
        yield ok("configuration", "in order")
    for each in facts.problems:
        yield problem("configuration", each, "correct it; `chopperd check-config` checks it again")


def folders(facts: Facts) -> Iterator[Finding]:
    """Check whether the agent's folders can be written to, and have free space."""
    for each in facts.folders:
        check, free = f"{each.what} folder", each.free_ratio
        if each.problem is not None:
            fix = f"let this user write there, or set {each.key}"
            yield problem(check, f"{each.path}: {each.problem}", fix)
        elif free is not None and free < each.least_free_ratio:
            text = f"{each.path}: {100 * free:.1f} % of its disk is free"
            fix = f"free some, or set {each.key}; nothing is stored below store.min_free_ratio"
            yield problem(check, text, fix)
        else:
            room = "" if free is None else f", {100 * free:.0f} % of its disk free"
            yield ok(check, f"{each.path} can be written to{room}")


def listeners(facts: Facts) -> Iterator[Finding]:
    """Check whether the agent's addresses are free, or used by a running agent."""
    for each in facts.listeners:
        if not each.is_taken:
            yield ok(each.key, f"{each.address} is free")
        elif facts.agent.version is not None:
            text = f"{each.address} is in use, and an agent runs; `ss -ltnp` names the program"
            yield ok(each.key, text)
        else:
            fix = f"stop it (`ss -ltnp` names it), or set {each.key}"
            yield problem(each.key, f"another program listens at {each.address}", fix)


def agent(facts: Facts) -> Iterator[Finding]:
    """Check whether a healthy agent of this version runs here."""
    check, found = "agent", facts.agent
    if found.refusal is not None:
        fix = "see `journalctl -u chopperd`, or try as another user"
        yield problem(check, f"something listens but gives no answer: {found.refusal}", fix)
    elif found.version is None:
        yield ok(check, "none runs; `chopperd run` starts one")
    elif found.problem is not None:
        text = f"{found.version} runs and is not healthy: {found.problem}"
        yield problem(check, text, "see `chopperd status` and its log")
    elif found.version != found.own_version:
        text = f"{found.version} runs, and this is {found.own_version}"
        yield problem(check, text, "restart the agent")
    else:
        yield ok(check, f"{found.version} runs and is healthy")


def pause(facts: Facts) -> Iterator[Finding]:
    """Check whether the agent is paused; no finding if not."""
    if facts.pause is not None:
        fix = "remove the file `pause` in the runtime folder"
        yield problem("pause", f"nothing is sampled or analysed: {facts.pause.reason}", fix)


def clocks(facts: Facts) -> Iterator[Finding]:
    """Check whether the wall clock, which traces are aligned by, runs evenly."""
    check, now = "clock", facts.clocks
    if abs(now.step_ns) > _UNEVEN_NS + _SLEW_RATIO * now.watched_ns:
        step = f"{now.step_ns / NS_PER_MS:.1f} ms in {now.watched_ns / NS_PER_S:.1f} s"
        fix = "let NTP slew it and not step it; reports on this time are flagged"
        yield problem(check, f"the wall clock moved by {step} against the monotonic clock", fix)
        return
    source = f"; clock source {now.source}" if now.source else ""
    text = f"the wall clock runs evenly{source}"
    if now.synchronised:
        yield ok(check, f"{text}, synchronised by NTP or PTP")
    else:
        is_known = now.synchronised is not None
        why = "by the kernel it is not synchronised" if is_known else "its NTP state is not known"
        fix = "fine on one node; across nodes run NTP or PTP (chrony: rtcsync)"
        yield unknown(check, f"{text}; {why}", fix)


#: Programs that read GPUs continuously, and the names of their processes.
#: Source: each project's packaging.
_READERS: Final[Mapping[str, frozenset[str]]] = {
    "DCGM": frozenset({"nv-hostengine"}),
    "dcgm-exporter": frozenset({"dcgm-exporter"}),
    "nvidia_gpu_exporter": frozenset({"nvidia_gpu_exporter"}),
    "omnistat": frozenset({"omnistat-monitor", "omnistat-standalone"}),
    "AMD device-metrics-exporter": frozenset({"gpuagent", "amd-metrics-exporter"}),
    "AMD SMI exporter": frozenset({"amd_smi_exporter"}),
    "RDC": frozenset({"rdcd"}),
    "gpud": frozenset({"gpud"}),
    "node-problem-detector": frozenset({"node-problem-detector"}),
    "dynolog": frozenset({"dynolog"}),
    "Zeus": frozenset({"zeusd"}),
    "nvidia-smi": frozenset({"nvidia-smi"}),
    "nvtop": frozenset({"nvtop"}),
    "nvitop": frozenset({"nvitop"}),
    "amd-smi": frozenset({"amd-smi", "amdsmi_cli.py"}),
    "rocm-smi": frozenset({"rocm-smi", "rocm_smi.py"}),
    "amdgpu_top": frozenset({"amdgpu_top"}),
}
_DCGM: Final = ("DCGM", "dcgm-exporter")
#: Those that can be configured to read counters of AMD's profiler.
#: Source: `ProfilerMetrics` in ROCm/device-metrics-exporter pull request 516; what RDC asks of
#: rocprofiler, in ROCm/rocm-systems pull request 1592.
_AMD_PROFILING: Final = ("AMD device-metrics-exporter", "RDC")
#: Those that call ROCm SMI or its successor AMD SMI: it holds a lock in /dev/shm during calls for
#: a GPU, and a program that ends during one leaves it locked.
#: Source: ROCm/rocm_smi_lib pull request 33, issue 88.
_AMD_SMI_READERS: Final = (
    *_AMD_PROFILING,
    "omnistat",
    "AMD SMI exporter",
    "amd-smi",
    "rocm-smi",
    "Zeus",
)
#: From Hopper on DCGM and the profiler use different hardware counters.
#: Source: NVIDIA/DCGM issues 56 and 62.
_SINCE_HOPPER: Final = re.compile(r"\b(?:G?H100|G?H200|GH\d+|H20|H800|G?B\d{3}|RTX PRO \d+)\b")
#: Linux truncates a process's name to this length.
_COMM_LENGTH: Final = 15


def container(facts: Facts) -> Iterator[Finding]:
    """Report whether this is a container: permissions are then the container's."""
    inside = facts.container
    if inside.evidence is None:
        yield ok("container", "none: this is the host")
        return
    given = [
        f"{name}={value}"
        for name, value in (
            ("NVIDIA_VISIBLE_DEVICES", inside.visible_devices),
            ("NVIDIA_DRIVER_CAPABILITIES", inside.driver_capabilities),
        )
        if value is not None
    ]
    yield ok("container", ", ".join([f"inside one ({inside.evidence})", *given]))


def job_processes(facts: Facts) -> Iterator[Finding]:
    """Check whether traces can be mapped to GPUs by the processes of their jobs."""
    seen = facts.driver.inventory
    if seen is None or seen.processes is None or seen.simulated:
        return
    view, text = seen.processes, process_words(seen.processes)
    is_hidden = view.seen_count < (view.listed_count or 0)
    if not (is_hidden or view.own_namespace or view.listed_count is None):
        yield ok("processes", text)
        return
    fix = (
        "run it in the host's pid namespace (`--pid=host`, hostPID) to map traces by process; else "
        "they are mapped by the hook, a UUID or MIG device in the trace, the signal or a device map"
    )
    yield unknown("processes", text, fix)


def readers(facts: Facts) -> Iterator[Finding]:
    """Report which other programs read the GPUs."""
    found = _found(facts)
    if not found and not facts.sees_host:
        yield unknown("other agents", "only processes of this container are visible")
        return
    if not found:
        yield ok("other agents", "none that reads GPUs")
        return
    named = ", ".join(f"{name} (pid {pids[0]})" for name, pids in found.items())
    yield ok("other agents", f"{named}: their driver calls and ours delay each other")


def dcgm_profiling(facts: Facts) -> Iterator[Finding]:
    """Check whether DCGM may block the GPU counters that a job's profiler needs."""
    running = [name for name in _DCGM if name in _found(facts)]
    seen = facts.driver.inventory
    if not running or seen is None or seen.backend != "nvml":
        return
    older = sorted({e.info.name for e in seen.gpus if not _SINCE_HOPPER.search(e.info.name)})
    check = "DCGM and profiler"
    if not older:
        yield ok(check, "no conflict: since Hopper they use different counters")
        return
    text = f"on {', '.join(older)} only one can use the counters; whether DCGM does is not known"
    fix = "remove DCGM_FI_PROF_* fields, or run `dcgmi profp --pause` while jobs are traced"
    yield unknown(check, text, fix)


def amd_profiling(facts: Facts) -> Iterator[Finding]:
    """Check whether an agent of AMD's may block counters that a job's profiler needs."""
    running = [name for name in _AMD_PROFILING if name in _found(facts)]
    seen = facts.driver.inventory
    if not running or seen is None or seen.backend not in AMD_BACKENDS:
        return
    text = f"{', '.join(running)} can read the profiler's counters; whether it does is not known"
    fix = "switch its profiler metrics off while jobs are traced with counters"
    yield unknown("AMD agents and profiler", text, fix)


def amd_smi_lock(facts: Facts) -> Iterator[Finding]:
    """Check whether other programs may delay our calls of AMD SMI."""
    others = [name for name in _AMD_SMI_READERS if name in _found(facts)]
    seen = facts.driver.inventory
    if others and seen is not None and seen.backend == "amdsmi":
        text = f"{', '.join(others)} and chopperd share one lock in /dev/shm"
        fix = "`--backend amdgpu` takes no lock: it reads the kernel's files"
        yield unknown("AMD SMI's lock", text, fix)


def kineto(facts: Facts) -> Iterator[Finding]:
    """Check whether another daemon holds the socket for trace requests to jobs."""
    if not facts.kineto_taken:
        return
    check, holder = "Kineto socket", facts.kineto_holder
    daemons = _found(facts).get("dynolog", [])
    if holder is None and len(daemons) == 1:
        holder = f"pid {daemons[0]} (dynolog)"
    text = f"{holder or 'a program of another user'} holds @dynolog, the socket for trace requests"
    waiting = [pid for pid in daemons if not (holder or "").startswith(f"pid {pid} ")]
    if waiting and holder is not None:
        text = f"{text}; pid {waiting[0]} (dynolog) can't open it"
        yield problem(check, text, "run one Kineto daemon per node")
        return
    yield unknown(check, text, "let its traces be written into the agent's inbox")


def _found(facts: Facts) -> dict[str, list[int]]:
    """Return the pids of running programs that read GPUs, by program."""
    found: dict[str, list[int]] = {}
    for process in facts.processes:
        for program, names in _READERS.items():
            if process.names & (names | {name[:_COMM_LENGTH] for name in names}):
                found.setdefault(program, []).append(process.pid)
    return found


CHECKS: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    container,
    driver_checks.hardware,
    driver_checks.kernel_module,
    driver_checks.device_files,
    driver_checks.library,
    driver_checks.binding,
    driver_checks.mig,
    amd_checks.kernel_module,
    amd_checks.device_files,
    amd_checks.metrics,
    amd_checks.virtual_functions,
    amd_checks.partitions,
    amd_checks.amd_smi,
    driver_checks.gpus,
    configuration,
    folders,
    listeners,
    agent,
    pause,
    clocks,
    job_processes,
    readers,
    dcgm_profiling,
    amd_profiling,
    amd_smi_lock,
    kineto,
)


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Run all checks; return their findings in order."""
    return tuple(finding for check in CHECKS for finding in check(facts))
