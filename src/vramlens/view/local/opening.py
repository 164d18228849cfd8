"""How a browser is led to the page: without the token in its command, which everyone on the machine
can read; and from another machine, by a command to run at one's own desk.
"""

from __future__ import annotations

import contextlib
import hmac
import html
import ipaddress
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

_WITHIN_S = 60.0
_REDIRECT = """\
<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>vramlens</title>
<a href="{url}">the page</a>
"""
_USER = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class OpeningCode:
    """A code that leads to the page once, within a minute; for servers that know whose process
    asks.
    """

    def __init__(self) -> None:
        self.code = secrets.token_urlsafe(24)
        self._until = time.monotonic() + _WITHIN_S
        self._is_used = False
        self._lock = threading.Lock()

    def redeem(self, given: str) -> bool:
        """Whether this is the code, in time, and for the first time."""
        with self._lock:
            if not same(given, self.code) or time.monotonic() >= self._until or self._is_used:
                return False
            self._is_used = True
            return True


class OpeningFile:
    """A page that leads to an address, in a folder of a random name that only this user can enter.

    For systems that do not say whose process asks. (Not for Linux: browsers installed as snaps
    cannot read it.)
    """

    def __init__(self, url: str) -> None:
        """Writes the file.

        Raises:
            OSError: it cannot be written.
        """
        self._folder = tempfile.mkdtemp(prefix="vramlens-view-")  # 0700
        self._path = os.path.join(self._folder, f"{secrets.token_urlsafe(24)}.html")
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(_REDIRECT.format(url=html.escape(url)))

    @property
    def url(self) -> str:
        """The file as browsers name it."""
        return Path(self._path).as_uri()

    def remove(self) -> None:
        """Takes file and folder away."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)


def same(given: str, secret: str) -> bool:
    """Whether a secret was given; in constant time: how long the answer takes tells nothing
    about it.
    """
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode("ascii"))


def tunnel_command(environment: Mapping[str, str], port: int) -> str | None:
    """The ``ssh -L`` command that brings a page's port to the machine that one came from; None
    where this is not an SSH session.

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
