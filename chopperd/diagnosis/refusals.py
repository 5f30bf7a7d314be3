"""Device files that are closed to this user: what keeps him out, and the fix."""

import errno
from collections.abc import Iterable, Iterator
from typing import Final

from chopperd.diagnosis.diagnosis import Finding, problem, unknown
from chopperd.diagnosis.facts import DeviceNode, Facts

_GROUP_READ_WRITE: Final = 0o060
_MOST_NAMED: Final = 4


def refusals(
    check: str, facts: Facts, nodes: Iterable[DeviceNode], *, is_needed: bool, open_by: str
) -> Iterator[Finding]:
    """A finding for all files that one fix opens.

    Args:
        check: What is looked at.
        facts: All facts.
        nodes: The files, each closed to this user.
        is_needed: Whether anything is missing without them; else they are others' GPUs.
        open_by: What opens files that not even their group may use.
    """
    for group in _by_reason(nodes):
        text, fix = _refusal(facts, group[0], named([node.path for node in group]), open_by)
        if fix is None or not is_needed:
            yield unknown(check, text, fix)
        else:
            yield problem(check, text, fix)


def named(names: list[str]) -> str:
    """The first few of many names."""
    more = len(names) - _MOST_NAMED
    shown = ", ".join(names[:_MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown


def _by_reason(nodes: Iterable[DeviceNode]) -> list[list[DeviceNode]]:
    groups: dict[tuple[int, str, int], list[DeviceNode]] = {}
    for node in nodes:
        groups.setdefault((node.errno, node.group, node.mode), []).append(node)
    return list(groups.values())


def _refusal(facts: Facts, node: DeviceNode, paths: str, open_by: str) -> tuple[str, str | None]:
    """What keeps the user out, and the fix."""
    if node.errno == errno.EPERM:
        fix = "DeviceAllow=char-* rw in its unit"
        if facts.container.evidence is not None:
            fix = "recreate the container (a daemon-reload takes its GPUs away), or --device them"
        return f"the device cgroup denies {paths}", fix
    if node.errno != errno.EACCES:
        return f"{paths} can't be used: {errno.errorcode.get(node.errno, str(node.errno))}", None
    is_group_s = node.mode & _GROUP_READ_WRITE == _GROUP_READ_WRITE
    fix = f"usermod -a -G {node.group} USER, and log in anew" if is_group_s else open_by
    return f"{paths}: mode {node.mode:04o} keeps this user out", fix
