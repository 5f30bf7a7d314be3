"""The kernel's tables of TCP sockets: whose a connection is, and who listens on a port."""

import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

Address: TypeAlias = tuple[str, int]

_PROC: Final = Path("/proc")
_TABLES: Final = ("net/tcp", "net/tcp6")
_ESTABLISHED: Final = "01"
_LISTENING: Final = "0A"
_MAPPED_PREFIX: Final = "::ffff:"


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One line of a table.

    Attributes:
        local, remote: Address and port as the table writes them.
        state: Two hex digits.
        uid: Of whoever made the socket; 0 also where no process holds it any more.
        inode: Of the socket; 0 where no process holds it (closing, or not accepted yet).
    """

    local: str
    remote: str
    state: str
    uid: int
    inode: int


def uid_of_client(client: Address, server: Address, proc: Path = _PROC) -> int | None:
    """The uid of the process of this machine that holds the client's end of a connection.

    None if there is none: the client is elsewhere, in another network namespace, or gone. Only
    sockets that a process still holds count, as the kernel shows the others as root's.

    Source: Linux, proc(5) `/proc/net/tcp`; `net/ipv4/tcp_ipv4.c` (uid and inode of orphans are 0).
    """
    local, remote = _written(client), _written(server)
    for each in _sockets(proc):
        ends_match = each.local in local and each.remote in remote
        if ends_match and each.state == _ESTABLISHED and each.inode:
            return each.uid
    return None


def uids_listening_on(port: int, proc: Path = _PROC) -> frozenset[int]:
    """Whose sockets listen on a port of this machine, at whichever address."""
    return frozenset(each.uid for each in _listening_on(port, proc))


def listener_on(port: int, proc: Path = _PROC) -> str | None:
    """Who listens on a port, for people: "pid 12 (name)"; None if that can't be told."""
    return holder_of((each.inode for each in _listening_on(port, proc)), proc)


def holder_of(inodes: Iterable[int], proc: Path = _PROC) -> str | None:
    """Who holds one of these sockets, for people: "pid 12 (name)"; None if that can't be told."""
    links = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.glob("[0-9]*") if links else ():
        if _holds(process, links):
            return f"pid {process.name} ({program_name(int(process.name), proc)})"
    return None


def program_name(pid: int, proc: Path = _PROC) -> str:
    """The name of a process, for people."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"


def _holds(process: Path, links: set[str]) -> bool:
    """Whether a process that we may look into holds one of the files."""
    try:
        return any(str(each.readlink()) in links for each in (process / "fd").iterdir())
    except OSError:
        return False


def _listening_on(port: int, proc: Path) -> Iterator[TcpSocket]:
    for each in _sockets(proc):
        if each.state == _LISTENING and int(each.local.rpartition(":")[2], 16) == port:
            yield each


def _sockets(proc: Path) -> Iterator[TcpSocket]:
    for table in _TABLES:
        try:
            with (proc / table).open(encoding="ascii") as lines:
                yield from map(_socket, islice(lines, 1, None))
        except OSError:
            continue


def _socket(line: str) -> TcpSocket:
    fields = line.split()
    return TcpSocket(fields[1], fields[2], fields[3], int(fields[7]), int(fields[9]))


def _written(address: Address) -> frozenset[str]:
    """How the tables may write an address: that of IPv4 stands in either of them."""
    host, port = address[0].removeprefix(_MAPPED_PREFIX), address[1]
    if ":" in host:
        return frozenset({_hexadecimal(socket.AF_INET6, host, port)})
    return frozenset(
        {
            _hexadecimal(socket.AF_INET, host, port),
            _hexadecimal(socket.AF_INET6, _MAPPED_PREFIX + host, port),
        }
    )


def _hexadecimal(family: socket.AddressFamily, host: str, port: int) -> str:
    """Words of 32 bits in the machine's order, each as 8 hex digits."""
    packed = socket.inet_pton(family, host.partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
