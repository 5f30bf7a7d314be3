"""What the agent needs on this node besides GPUs: settings, folders, addresses, a true clock."""

from collections.abc import Iterator
from typing import Final

from chopperd.diagnosis.diagnosis import Finding, ok, problem, unknown
from chopperd.diagnosis.facts import Facts, Folder, Listener
from chopperd.units import NS_PER_MS, NS_PER_S

#: What a slew may do, and reads that were interrupted; more is a step.
#: Source: adjtimex(2), the kernel's largest correction of frequency.
_SLEW_RATIO: Final = 500e-6
_UNEVEN_NS: Final = NS_PER_MS


def configuration(facts: Facts) -> Iterator[Finding]:
    """Whether the settings can be used."""
    if not facts.problems:
        yield ok("configuration", "in order")
    for each in facts.problems:
        yield problem("configuration", each, "correct it; `chopperd check-config` checks it again")


def folders(facts: Facts) -> Iterator[Finding]:
    """Whether the agent's folders can be written to, and have room."""
    return map(_folder, facts.folders)


def _folder(folder: Folder) -> Finding:
    check = f"{folder.what} folder"
    if folder.trouble is not None:
        fix = f"let this user write there, or set {folder.key}"
        return problem(check, f"{folder.path}: {folder.trouble}", fix)
    free = folder.free_ratio
    if free is not None and free < folder.least_free_ratio:
        text = f"{folder.path}: {100 * free:.1f} % of its disk is free"
        fix = f"make room, or set {folder.key}; nothing is kept below store.min_free_ratio"
        return problem(check, text, fix)
    room = "" if free is None else f", {100 * free:.0f} % of its disk free"
    return ok(check, f"{folder.path} can be written to{room}")


def listeners(facts: Facts) -> Iterator[Finding]:
    """Whether the agent's addresses are free, or the agent's."""
    return (_listener(each, facts) for each in facts.listeners)


def _listener(listener: Listener, facts: Facts) -> Finding:
    check, address = listener.key, listener.address
    if not listener.is_taken:
        return ok(check, f"{address} is free")
    if facts.agent.version is not None:
        return ok(check, f"{address} is in use, and an agent runs; `ss -ltnp` names the program")
    fix = f"stop it (`ss -ltnp` names it), or set {listener.key}"
    return problem(check, f"another program listens at {address}", fix)


def agent(facts: Facts) -> Iterator[Finding]:
    """Whether an agent runs here, of this version, and is well."""
    check, found = "agent", facts.agent
    if found.refusal is not None:
        fix = "see `journalctl -u chopperd`, or ask as another user"
        yield problem(check, f"something is there but gives no answer: {found.refusal}", fix)
    elif found.version is None:
        yield ok(check, "none runs; `chopperd run` starts one")
    elif found.trouble is not None:
        text = f"{found.version} runs and is not well: {found.trouble}"
        yield problem(check, text, "see `chopperd status` and its log")
    elif found.version != found.own_version:
        text = f"{found.version} runs, and this is {found.own_version}"
        yield problem(check, text, "restart the agent")
    else:
        yield ok(check, f"{found.version} runs and is well")


def pause(facts: Facts) -> Iterator[Finding]:
    """Whether somebody has paused the agent."""
    if facts.pause is not None:
        fix = "remove the file `pause` in the runtime folder"
        yield problem("pause", f"nothing is sampled or analysed: {facts.pause.reason}", fix)


def clocks(facts: Facts) -> Iterator[Finding]:
    """Whether the wall clock runs evenly: traces are laid on it."""
    check, now = "clock", facts.clocks
    if abs(now.step_ns) > _UNEVEN_NS + _SLEW_RATIO * now.watched_ns:
        step = f"{now.step_ns / NS_PER_MS:.1f} ms in {now.watched_ns / NS_PER_S:.1f} s"
        fix = "let NTP slew it and not step it; reports of this time are flagged"
        yield problem(check, f"the wall clock moved by {step} against the steady one", fix)
        return
    source = f"; clock source {now.source}" if now.source else ""
    text = f"the wall clock runs evenly{source}"
    if now.synchronised:
        yield ok(check, f"{text}, kept by NTP or its like")
    else:
        why = "its NTP state is not known"
        if now.synchronised is False:
            why = "the kernel is not told that NTP keeps it"
        fix = "fine on one node; across nodes run NTP or PTP (chrony: rtcsync)"
        yield unknown(check, f"{text}; {why}", fix)
