"""How a page on a remote machine is reached: the command to run at one's own desk."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

_USER = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


def tunnel_command(environment: Mapping[str, str], port: int) -> str | None:
    """The ``ssh -L`` command that brings a page's port to the machine that one came from; None
    where this is no SSH session.

    sshd sets SSH_CONNECTION to "client port server port" (sshd(8)); the port stays the same, so
    that the page's address does, too.
    """
    parts = environment.get("SSH_CONNECTION", "").split()
    if len(parts) != 4:
        return None
    try:
        server = ipaddress.ip_address(parts[2].split("%")[0])
    except ValueError:
        return None
    user = environment.get("USER", "")
    login = f"{user}@{server}" if _USER.fullmatch(user) else str(server)
    ssh_port = "" if parts[3] == "22" or not parts[3].isdigit() else f" -p {int(parts[3])}"
    return f"ssh -N -L {port}:localhost:{port}{ssh_port} {login}"
