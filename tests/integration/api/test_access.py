"""Whom a Unix socket tells apart, by real processes in namespaces of their own."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from chopperd.api.access import UnixPeer, _container, peer_of
from tests.tools import needed

ID = "0123456789abcdef" * 4
CLIENT = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces everywhere")


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o666)
        server.listen()
        server.settimeout(30)
        yield server


def owner(path: Path, *wrapper: str) -> int | None:
    """As whom a client appears that is started by a wrapper."""
    client = [*wrapper, sys.executable, "-c", CLIENT, str(path)]
    with listening(path) as server, subprocess.Popen(client):
        connection, _ = server.accept()
        with connection:
            peer = peer_of(connection)
            assert peer is not None
            return peer.uid


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.owner() == Path.home().owner() and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path / "api.sock"


def test_a_process_beside_us_is_its_user(path: Path) -> None:
    assert owner(path) == os.getuid()


@needs_root
@pytest.mark.parametrize(
    "flags", [("--pid", "--fork"), ("--pid", "--fork", "--mount-proc"), ("--cgroup",)]
)
def test_root_inside_a_container_is_not_root(path: Path, flags: Sequence[str]) -> None:
    found = owner(path, needed("unshare"), *flags)
    assert found is not None
    assert found < 0


@needs_root
def test_root_of_a_user_namespace_is_not_root(path: Path) -> None:
    found = owner(path, needed("unshare"), "--user", "--map-root-user")
    assert found is not None
    assert found < 0


@needs_root
def test_one_uid_in_two_containers_is_two_owners_and_in_one_the_same(path: Path) -> None:
    unshare, nsenter = needed("unshare"), needed("nsenter")
    as_user = (needed("setpriv"), "--reuid", "4001", "--clear-groups")
    held = [
        subprocess.Popen([unshare, "--pid", "--fork", "sleep", "60"], process_group=0)
        for _ in range(2)
    ]
    try:
        inside = [
            (nsenter, "--target", _child_of(each.pid), "--pid", "--", *as_user) for each in held
        ]
        first, second = (owner(path.with_name(f"{n}"), *each) for n, each in enumerate(inside))
        again = owner(path.with_name("again"), *inside[0])
    finally:
        for each in held:
            os.killpg(each.pid, 9)
            each.wait()
    assert first is not None
    assert second is not None
    assert len({first, second}) == 2
    assert max(first, second) < 0
    assert again == first
    assert owner(path, *as_user) == 4001


def _child_of(pid: int) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for _ in range(3000):
        found = children.read_text().split()
        if found:
            return found[0]
    raise AssertionError("no child")


def test_a_process_that_can_not_be_seen_is_nobody() -> None:
    """As the kernel gives pid 0 for one outside of our process id namespace."""
    assert UnixPeer(0, 0).uid is None
    assert UnixPeer(os.getpid(), 65_534).uid is None


@pytest.mark.parametrize(
    ("groups", "container"),
    [
        ("0::/user.slice/user-0.slice/session-3.scope", None),
        ("0::/system.slice/chopperd.service", None),
        ("0::/", None),
        (f"0::/system.slice/docker-{ID}.scope", f"docker-{ID}.scope"),
        (
            f"0::/kubepods.slice/kubepods-pod8.slice/cri-containerd-{ID}.scope/init",
            f"cri-containerd-{ID}.scope",
        ),
        (f"12:cpu:/docker/{ID}\n0::/x", ID),
        (f"0::/../../crio-{ID}.scope", f"crio-{ID}.scope"),
        (f"0::/machine.slice/libpod-{ID}.scope/container", f"libpod-{ID}.scope"),
        ("0::/lxc/build7/init.scope", "build7"),
    ],
)
def test_a_container_is_told_by_its_control_group(groups: str, container: str | None) -> None:
    """Paths as the documentation of each engine shows them."""
    assert _container(groups) == container
