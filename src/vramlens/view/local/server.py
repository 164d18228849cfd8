"""The local page: served to one user of this machine, to whoever has the token, while its
terminal is there.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from vramlens.view.local.opening import OpeningCode, OpeningFile, same
from vramlens.view.local.peer import End, is_own_connection, tells_users
from vramlens.view.page import empty_page, policy_of

HOST = "127.0.0.1"
_HOST_IPV6 = "::1"
MOST_CONNECTIONS = 32
"""More at a time are closed at once: a browser opens six."""
_HEAD_WITHIN_S = 10.0
"""A whole request must have come by then, and the next one on a connection that stays open."""
_ANSWER_WITHIN_S = 600.0
"""A large page takes minutes through a slow tunnel."""
_MOST_PORTS_TRIED = 20
_OWN_NAME = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?", re.ASCII)
"""What a request may call this server: any port, since ``ssh -L`` has its own."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_TEXT = "text/plain; charset=utf-8"
_REFUSED = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Length: 14\r\nConnection: close\r\n\r\nnot from here\n"
)
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\nConnection: close\r\n\r\nbusy\n"


class _Listener(ThreadingHTTPServer):
    """A socket on a loopback address: it knows whose process asks, and serves no more at a time
    than it can.

    Attributes:
        page: what answers the requests.
    """

    daemon_threads = True
    block_on_close = False
    # Elsewhere it would let others listen on the same port.
    allow_reuse_address = os.name == "posix"
    page: LocalPage

    def server_bind(self) -> None:
        """Binds, without asking anybody for the name of the address."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether a connection is served: it is this user's, and there are not too many."""
        if not self.page.admits(End(*client_address[:2]), End(*request.getsockname()[:2])):
            return _turned_away(request, _REFUSED)
        if not self.page.free_places.acquire(blocking=False):
            return _turned_away(request, _BUSY)
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection that has a place."""
        try:
            super().process_request(request, client_address)
        except BaseException:  # the system gives no thread
            self.page.free_places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection, and gives its place free."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.page.free_places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is not an error, and nothing else here is the user's business."""


class _ListenerIPv6(_Listener):
    address_family = socket.AF_INET6


class LocalPage(_Listener):
    """A server for one page and its data.

    It binds to the loopback addresses, both of them with one port: were ``::1`` left to others,
    whoever asks for ``localhost`` would bring them the token. A request must name a loopback
    address as its host (a page elsewhere whose name was made to point here does not), must not come
    from another origin, and must hold the token. On Linux its connection must be one of this very
    user's, be it through ``ssh -L``.

    The command that opens a browser is seen by everyone on the machine (``ps``), so it does not get
    the token but a code that works once, within a minute, and for this user only; where the system
    does not say whose process asks, the path of a private file.
    """

    def __init__(self, data: bytes, title: str, port: int = 0) -> None:
        """Listens.

        Args:
            data: what ``vramlens.view.page.data_of`` gives.
            title: of the page.
            port: 0 is any that is free.

        Raises:
            OSError: the port is taken.
        """
        self.page = self
        self.free_places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._knows_users = tells_users()
        self._opening_code = OpeningCode()
        self._opening_file: OpeningFile | None = None
        self.token = secrets.token_urlsafe(24)
        page = empty_page(title).encode("utf-8", "replace")
        self.answers = {
            "/": ("text/html; charset=utf-8", page),
            "/data": ("application/octet-stream", data),
        }
        self.policy = policy_of("'self'") + "; frame-ancestors 'none'"
        self._sibling: _Listener | None = None
        self._sibling = self._listen_on_both(port)

    def _listen_on_both(self, port: int) -> _Listener | None:
        """Binds this server to 127.0.0.1, and returns one on ::1; None where there is no IPv6."""
        for attempts_left in reversed(range(_MOST_PORTS_TRIED)):
            super().__init__((HOST, port), _Handler)
            try:
                sibling = _ListenerIPv6((_HOST_IPV6, self.server_port), _Handler)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    return None
                super().server_close()
                if port or not attempts_left:
                    raise
            else:
                sibling.page = self
                return sibling
        raise AssertionError("the last attempt returns or raises")

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Serves until ``shutdown``."""
        if self._sibling is not None:
            serve = self._sibling.serve_forever
            threading.Thread(target=serve, args=(poll_interval,), daemon=True).start()
        super().serve_forever(poll_interval)

    def shutdown(self) -> None:
        """Ends ``serve_forever``."""
        if self._sibling is not None:
            self._sibling.shutdown()
        super().shutdown()

    def server_close(self) -> None:
        """Listens no more, and takes the file away that a browser was started with."""
        if self._sibling is not None:
            self._sibling.server_close()
        if self._opening_file is not None:
            self._opening_file.remove()
        super().server_close()

    @property
    def own_host(self) -> str:
        """The ``Host`` of its address."""
        return f"{HOST}:{self.server_port}"

    @property
    def url(self) -> str:
        """Where the page is, token included."""
        return f"http://{self.own_host}/?token={self.token}"

    def opening_url(self) -> str:
        """Where a browser that is started by a command finds the page; of no use to other users.

        Raises:
            OSError: it would be a file, which cannot be written.
        """
        if self._knows_users:
            return f"http://{self.own_host}/open?code={self._opening_code.code}"
        if self._opening_file is None:
            self._opening_file = OpeningFile(self.url)
        return self._opening_file.url

    def redeem(self, code: str) -> bool:
        """Whether a code leads to the page, now."""
        return self._knows_users and self._opening_code.redeem(code)

    def admits(self, client: End, server: End) -> bool:
        """Whether whoever holds a connection's other end may ask."""
        return not self._knows_users or is_own_connection(client, server)


def _turned_away(request: socket.socket, answer: bytes) -> bool:
    """Sends a last word that waits for nobody; False, for whoever turns the request away."""
    with contextlib.suppress(OSError):
        request.setblocking(False)
        request.send(answer)
    return False


class _TimelyReader(io.RawIOBase):
    """A connection's bytes, up to a moment: whoever sends one now and then gets no more time for
    it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = 0.0

    def allow(self, seconds: float) -> None:
        """Begins the time within which the next request must have come."""
        self._until = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads what is there.

        Raises:
            TimeoutError: nothing came in time.
        """
        seconds_left = self._until - time.monotonic()
        if seconds_left <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds_left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "vramlens"
    sys_version = ""

    @property
    def page(self) -> LocalPage:
        return cast(_Listener, self.server).page

    def setup(self) -> None:
        super().setup()
        self._reader = _TimelyReader(self.connection)
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        self._reader.allow(_HEAD_WITHIN_S)
        super().handle_one_request()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if not self._is_from_here(parts.path):
            return self._send(403, _TEXT, b"not from here\n")
        if parts.path == "/open":
            return self._open(query.get("code", [""])[0])
        if not same(query.get("token", [""])[0], self.page.token):
            return self._send(403, _TEXT, b"the token is missing or wrong\n")
        answer = self.page.answers.get(parts.path)
        if answer is None:
            return self._send(404, _TEXT, b"there is no such page\n")
        return self._send(200, *answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _open(self, code: str) -> None:
        if self.page.redeem(code):
            return self._send(303, _TEXT, b"", location=f"/?token={self.page.token}")
        return self._send(
            403, _TEXT, b"this link works once: the terminal shows the page's address\n"
        )

    def _is_from_here(self, path: str) -> bool:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _OWN_NAME.fullmatch(hosts[0]):
            return False
        if any(origin != f"http://{hosts[0]}" for origin in self.headers.get_all("Origin", [])):
            return False
        if self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
            return True
        # A link that was followed, from a terminal in a browser for example: the token decides.
        return path == "/" and self.headers.get("Sec-Fetch-Dest") == "document"

    def _send(self, status: int, kind: str, body: bytes, location: str | None = None) -> None:
        self.connection.settimeout(_ANSWER_WITHIN_S)
        self.send_response(status)
        if location is not None:
            self.send_header("Location", location)
        for name, value in {**_HEADERS, "Content-Security-Policy": self.page.policy}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (its name in http.server)
        """Says nothing: the terminal shows the address, and the token in requests is no one's
        business.
        """
