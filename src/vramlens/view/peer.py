"""Who is at the other end of a connection on this machine, where the system tells."""

from __future__ import annotations

import os
import socket
import sys

_TABLE = "/proc/net/tcp"
_NOBODY = 65534
"""What a container shows of users outside of it (/proc/sys/kernel/overflowuid)."""


def is_of_another_user(client: tuple[str, int], server: tuple[str, int], table: str = _TABLE) -> bool:
    """Whether a loopback connection surely comes from another user's process; root may connect.

    Args:
        client, server: IPv4 addresses and ports of the connection's ends.
        table: the system's list of sockets.
    """
    user = user_of(client, server, table)
    return user is not None and user not in (os.getuid(), 0, _NOBODY)


def user_of(client: tuple[str, int], server: tuple[str, int], table: str = _TABLE) -> int | None:
    """The user id behind a connection's client end; None where nobody can tell.

    Linux lists every TCP socket with its owner (Documentation/networking/proc_net_tcp.rst).
    """
    wanted = [_named(*client), _named(*server)]
    try:
        with open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[1:3] == wanted:
                    return int(fields[7])
    except (OSError, ValueError, IndexError):  # another system, or another form of the list
        return None
    return None


def _named(host: str, port: int) -> str:
    """An end as the list has it: the address's bytes read as one number of the machine's own order."""
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
