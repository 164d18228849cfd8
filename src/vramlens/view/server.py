"""The local page: served to this machine only, to whoever has the token, for as long as its terminal is there."""

from __future__ import annotations

import hmac
import secrets
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from vramlens.view.page import empty_page, policy_of
from vramlens.view.peer import is_of_another_user

HOST = "127.0.0.1"
_SLOWEST_S = 20
_OPENING_S = 60
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LocalPage(ThreadingHTTPServer):
    """A server for one page and its data.

    It binds to the loopback address. A request must name that address as its host (a page elsewhere whose name was made
    to point here does not), must not come from another origin, nor, on Linux, from another user, and must hold the
    token.

    The command that opens a browser is seen by everyone on the machine (``ps``), so it does not get the token: its
    address holds a code that leads to the page within the first minute, and nowhere after it. (A file that redirects,
    as Jupyter writes one, would not do: browsers installed as snaps cannot read it.)
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, data: bytes, title: str, port: int = 0) -> None:
        """Listens.

        Args:
            data: what ``vramlens.view.page.data_of`` gives.
            title: of the page.
            port: 0 is any that is free.

        Raises:
            OSError: the port is taken.
        """
        super().__init__((HOST, port), _Handler)
        self.token = secrets.token_urlsafe(24)
        self._code = secrets.token_urlsafe(24)
        self._code_until = time.monotonic() + _OPENING_S
        page = empty_page(title).encode("utf-8", "replace")
        self.answers = {
            "/": ("text/html; charset=utf-8", page),
            "/data": ("application/octet-stream", data),
        }
        self.policy = policy_of("'self'") + "; frame-ancestors 'none'"

    @property
    def own_host(self) -> str:
        """The only ``Host`` that it answers to."""
        return f"{HOST}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """Where the page is, token included."""
        return f"http://{self.own_host}/?token={self.token}"

    @property
    def opening_url(self) -> str:
        """Where a browser that is started by a command finds the page; for a minute, and then no more."""
        return f"http://{self.own_host}/open?code={self._code}"

    def opens(self, code: str) -> bool:
        """Whether a code leads to the page, now."""
        return same(code, self._code) and time.monotonic() < self._code_until

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error, and nothing else here is the user's business."""


def same(given: str, secret: str) -> bool:
    """Whether a secret was given; in constant time: how long the answer takes tells nothing about it."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode("ascii"))


class _Handler(BaseHTTPRequestHandler):
    server: LocalPage
    timeout = _SLOWEST_S
    protocol_version = "HTTP/1.1"
    server_version = "vramlens"
    sys_version = ""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if not self._is_ours():
            return self._send(403, "text/plain; charset=utf-8", b"not from here\n")
        query = parse_qs(parts.query)
        if parts.path == "/open":
            if self.server.opens(query.get("code", [""])[0]):
                return self._send(303, "text/plain; charset=utf-8", b"", location=f"/?token={self.server.token}")
            return self._send(403, "text/plain; charset=utf-8", b"too late: the terminal shows the page's address\n")
        if not same(query.get("token", [""])[0], self.server.token):
            return self._send(403, "text/plain; charset=utf-8", b"the token is missing or wrong\n")
        answer = self.server.answers.get(parts.path)
        if answer is None:
            return self._send(404, "text/plain; charset=utf-8", b"there is no such page\n")
        return self._send(200, *answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _is_ours(self) -> bool:
        own = self.server.own_host
        if self.headers.get_all("Host", []) != [own]:
            return False
        if any(origin != f"http://{own}" for origin in self.headers.get_all("Origin", [])):
            return False
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return False
        return not is_of_another_user(self.client_address, (HOST, self.server.server_address[1]))

    def _send(self, status: int, kind: str, body: bytes, location: str | None = None) -> None:
        self.send_response(status)
        if location is not None:
            self.send_header("Location", location)
        for name, value in {**_HEADERS, "Content-Security-Policy": self.server.policy}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (its name in http.server)
        """Says nothing: the terminal shows the address, and the token in requests is no one's business."""
