"""Who is at the other end of a connection on this machine, where the system tells."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

_FOLDER = "/proc/net"
_TABLES = ("tcp", "tcp6")
"""A socket of the other family may have made an IPv4 connection: it is listed as
::ffff:127.0.0.1 in tcp6.
"""
_ALL_USERS = "0 0 4294967295"
"""What /proc/self/uid_map says where every user of the machine has a number of its own."""
_NOBODY = 65534
"""Stands for every user that this user namespace has no number for
(/proc/sys/kernel/overflowuid).
"""


class End(NamedTuple):
    """One end of a connection."""

    host: str
    port: int


def tells_users(folder: str = _FOLDER) -> bool:
    """Whether this system lists its sockets with their owners."""
    try:
        with open(os.path.join(folder, _TABLES[0]), encoding="ascii") as lines:
            return "uid" in lines.readline()
    except (OSError, ValueError):
        return False


def is_own_connection(client: End, server: End, folder: str = _FOLDER) -> bool:
    """Whether a process of this very user holds the client's end; False also where the lists do not
    say.

    A connection through ``ssh -L`` counts as the user's whose sshd process opens it. Not even
    root's counts as another user's own: what root forwards may come from anybody.
    """
    own_user = os.getuid()
    if own_user == _NOBODY and not _has_all_users():
        return False
    # Each list is read in pieces, between which rows may move: one more look before a browser is
    # refused.
    return any(user_of(client, server, folder) == own_user for _ in range(2))


def user_of(client: End, server: End, folder: str = _FOLDER) -> int | None:
    """The user id behind a connection's client end; None where the lists do not say, or say two
    different things.

    Linux lists every TCP socket with its owner (Documentation/networking/proc_net_tcp.rst).
    """
    users = set()
    for table in _TABLES:
        users |= set(_users_in(os.path.join(folder, table), client, server))
    return users.pop() if len(users) == 1 else None


def _users_in(table: str, client: End, server: End) -> Iterator[int]:
    connections = {(_named(client, as_ipv6), _named(server, as_ipv6)) for as_ipv6 in (False, True)}
    try:
        with open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 7 and (fields[1], fields[2]) in connections:
                    yield int(fields[7])
    except (OSError, ValueError):  # no IPv6 here, or another form of the list
        return


def _named(end: End, as_ipv6: bool) -> str:
    """An end as the lists have it: the address in words of 32 bits, each in the machine's own
    order.
    """
    address = ipaddress.ip_address(end.host)
    packed = address.packed
    if as_ipv6 and address.version == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    host = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{host}:{end.port:04X}"


def _has_all_users() -> bool:
    """Whether 65534 is one user here, and not everybody outside of a container."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as lines:
            return " ".join(lines.read().split()) == _ALL_USERS
    except OSError:
        return False
