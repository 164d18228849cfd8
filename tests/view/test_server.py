"""The local page: this machine only, with its token only, asked by its own page only."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import psutil
import pytest

from vramlens.view.local import server as module
from vramlens.view.local.opening import OpeningCode
from vramlens.view.local.peer import End, is_own_connection, tells_users, user_of
from vramlens.view.local.server import LocalPage

needs_user_lists = pytest.mark.skipif(not tells_users(), reason="no lists of sockets here")


@pytest.fixture(scope="module")
def server():
    with LocalPage(b"some data", "a title") as page:
        thread = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield page
        page.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=300)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()


def test_it_answers_its_own_page(server):
    status, headers, body = ask(server, f"/?token={server.token}")
    assert status == 200
    assert b"<title>a title</title>" in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert (
        ask(server, f"/data?token={server.token}", Sec_Fetch_Site="same-origin")[2] == b"some data"
    )
    assert ask(server, f"/data?token={server.token}", "HEAD")[2] == b""


@pytest.mark.parametrize(
    "path", ["/", "/data", "/data?token=", "/data?token=x", "/?token=%C3%A9", "/?token=%00&token="]
)
def test_without_the_token_there_is_nothing(server, path):
    status, _, body = ask(server, path)
    assert status == 403
    assert b"data" not in body


def path_in(server, url):
    return url.partition(server.own_host)[2]


@needs_user_lists
def test_the_address_that_a_browser_is_started_with_leads_to_the_page_once(server, monkeypatch):
    monkeypatch.setattr(server, "_opening_code", OpeningCode())
    assert (
        server.token not in server.opening_url()
    )  # everyone on the machine sees a command's arguments
    path = path_in(server, server.opening_url())
    code = path.partition("code=")[2]
    for other in ("/open", "/open?code=", f"/open?code={code[:-1]}", f"/open?token={server.token}"):
        assert ask(server, other)[0] == 403
    assert ask(server, f"/data?token={code}")[0] == 403
    status, headers, body = ask(server, path)
    assert (status, headers["Location"], body) == (303, f"/?token={server.token}", b"")
    assert headers["Cache-Control"] == "no-store"
    status, headers, body = ask(server, path)
    assert status == 403
    assert "Location" not in headers
    assert server.token.encode() not in body


@needs_user_lists
def test_the_address_that_a_browser_is_started_with_ends_after_a_minute(server, monkeypatch):
    monkeypatch.setattr(server, "_opening_code", OpeningCode())
    now = time.monotonic()
    monkeypatch.setattr("vramlens.view.local.opening.time.monotonic", lambda: now + 61)
    assert ask(server, path_in(server, server.opening_url()))[0] == 403


def test_where_the_system_names_no_users_a_private_file_leads_to_the_page(monkeypatch):
    monkeypatch.setattr(module, "tells_users", lambda: False)
    with LocalPage(b"", "a title") as page:
        url = page.opening_url()
        assert page.token not in url
        path = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert page.url in path.read_text()
        assert not page.redeem(
            page._opening_code.code
        )  # which anybody could have read in the list of processes
    assert not path.parent.exists()


def socket_row(client, server, user):
    """A row as Linux prints it on a little-endian machine."""
    return f"  1: {client} {server} 01 00000000:00000000 00:00000000 00000000 {user:5} 0 21 1 0 20 4 30 10 -1"


HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
CLIENT, SERVER = End("127.0.0.1", 40001), End("127.0.0.1", 8080)
V4 = ("0100007F:9C41", "0100007F:1F90")
MAPPED = ("0000000000000000FFFF00000100007F:9C41", "0000000000000000FFFF00000100007F:1F90")


@pytest.fixture
def lists(tmp_path, monkeypatch):
    """Writes lists of sockets, and says whether a connection is this user's by them."""
    monkeypatch.setattr("vramlens.view.local.peer.sys.byteorder", "little")

    def is_own(tcp=(), tcp6=(), ends=(CLIENT, SERVER)):
        (tmp_path / "tcp").write_text("\n".join([HEADER, *(socket_row(*row) for row in tcp)]))
        (tmp_path / "tcp6").write_text("\n".join([HEADER, *(socket_row(*row) for row in tcp6)]))
        return is_own_connection(*ends, folder=str(tmp_path))

    return is_own


def test_only_this_user_passes(lists):
    me = os.getuid()
    other = 4711 if me != 4711 else 4712
    swapped = (V4[1], V4[0])
    assert lists(tcp=[(*swapped, other), (*V4, me)])  # the server's own end is no matter
    assert lists(tcp6=[(*MAPPED, me)])
    for user in {other, 0, 65534} - {me}:
        assert not lists(tcp=[(*V4, user)])
        assert not lists(tcp6=[(*MAPPED, user)])
        assert not lists(tcp=[(*V4, me)], tcp6=[(*MAPPED, user)])
    assert not lists()  # not listed: nobody knows
    assert not lists(tcp=[("0200007F:9C41", V4[1], me)])


def test_an_ipv6_connection_is_found(lists):
    one = "00000000000000000000000001000000"
    ends = (End("::1", 40001), End("::1", 8080))
    assert lists(tcp6=[(f"{one}:9C41", f"{one}:1F90", os.getuid())], ends=ends)
    assert not lists(tcp=[(*V4, os.getuid())], ends=ends)


def test_lists_of_another_form_let_nobody_in(lists, tmp_path):
    lists()
    (tmp_path / "tcp").write_text("something\nelse 1 2\n" + "x " * 9)
    assert not is_own_connection(CLIENT, SERVER, folder=str(tmp_path))
    assert not is_own_connection(CLIENT, SERVER, folder=str(tmp_path / "none"))
    assert not tells_users(str(tmp_path))
    assert not tells_users(str(tmp_path / "none"))


def test_a_user_without_a_number_of_its_own_is_nobodys_peer(lists, monkeypatch):
    """In a container, 65534 is everybody who has no number there."""
    monkeypatch.setattr("vramlens.view.local.peer.os.getuid", lambda: 65534)
    monkeypatch.setattr("vramlens.view.local.peer._has_all_users", lambda: False)
    assert not lists(tcp=[(*V4, 65534)])
    monkeypatch.setattr("vramlens.view.local.peer._has_all_users", lambda: True)
    assert lists(tcp=[(*V4, 65534)])


STRANGER = """
import os, socket, sys
family, host, port, path, user = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
os.setgroups([])
os.setgid(user)
os.setuid(user)
with socket.socket(family, socket.SOCK_STREAM) as client:
    client.settimeout(5)
    client.connect((host, port))
    got = b""
    try:
        client.sendall(f"GET {path} HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n".encode())
        while piece := client.recv(65536):
            got += piece
    except ConnectionError:
        pass
sys.stdout.buffer.write(got)
"""
LOCAL_ENDS = [
    (socket.AF_INET, "127.0.0.1"),
    (socket.AF_INET6, "::ffff:127.0.0.1"),
    (socket.AF_INET6, "::1"),
]


@needs_user_lists
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="becomes other users")
@pytest.mark.parametrize("user", [1, 4711, 65534])
@pytest.mark.parametrize(("family", "host"), LOCAL_ENDS, ids=["IPv4", "mapped", "IPv6"])
def test_another_user_of_the_machine_gets_nothing(server, user, family, host):
    for path in (
        path_in(server, server.url),
        f"/data?token={server.token}",
        path_in(server, server.opening_url()),
    ):
        words = [str(int(family)), host, str(server.server_port), path, str(user)]
        got = subprocess.run(
            [sys.executable, "-I", "-S", "-c", STRANGER, *words], capture_output=True, timeout=20
        )
        assert got.returncode == 0, got.stderr
        assert server.token.encode() not in got.stdout
        assert got.stdout in (b"", module._REFUSED)


@pytest.mark.parametrize(("family", "host"), LOCAL_ENDS, ids=["IPv4", "mapped", "IPv6"])
def test_this_user_gets_the_page_at_every_local_address(server, family, host):
    name = "[::1]" if host == "::1" else "127.0.0.1"
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        client.connect((host, server.server_port))
        client.sendall(
            f"GET /data?token={server.token} HTTP/1.0\r\nHost: {name}:9\r\n\r\n".encode()
        )
        with client.makefile("rb") as answer:
            assert answer.read().endswith(b"some data")


@needs_user_lists
def test_the_systems_own_lists_name_this_user(server):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=300) as connection:
        assert (
            user_of(End(*connection.getsockname()), End(*connection.getpeername())) == os.getuid()
        )


def test_a_taken_port_is_taken_at_both_addresses():
    """Else ``localhost`` could lead to whoever listens at the other one."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as other:
        other.bind(("::1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            LocalPage(b"", "a title", other.getsockname()[1])


def test_a_token_that_begins_well_is_wrong(server):
    assert ask(server, f"/data?token={server.token[:-1]}")[0] == 403
    assert ask(server, f"/data?token={server.token}x")[0] == 403


FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example",
    "localhost:{port}@evil.example",
    "",
]


@pytest.mark.parametrize(
    "host", [*FOREIGN_HOSTS, "127.0.0.2:{port}", "::1", "localhost:", "localhost:123456"]
)
def test_foreign_hosts_are_refused(server, host):
    port = server.server_port
    assert ask(server, f"/data?token={server.token}", Host=host.format(port=port))[0] == 403


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]"])
@pytest.mark.parametrize("port", ["", ":9000"])
def test_a_tunnel_may_have_another_name_and_port(server, name, port):
    """As ``ssh -L 9000:localhost:PORT`` has."""
    host = f"{name}{port}"
    path = f"/data?token={server.token}"
    assert ask(server, path, Host=host)[0] == 200
    assert ask(server, path, Host=host, Origin=f"http://{host}")[0] == 200
    assert ask(server, path, Host=host, Origin=f"http://{name}:9001")[0] == 403
    assert ask(server, "/data", Host=host)[0] == 403


@pytest.mark.parametrize(
    "origin", ["null", "https://evil.example", "http://localhost:80", "http://127.0.0.1"]
)
def test_foreign_origins_are_refused(server, origin):
    assert ask(server, f"/data?token={server.token}", Origin=origin)[0] == 403
    assert ask(server, f"/data?token={server.token}", Origin=f"http://{server.own_host}")[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_elsewhere_may_lead_here_but_not_ask(server, site):
    path = f"?token={server.token}"
    for destination in ("empty", "iframe", "script", "image"):
        assert ask(server, f"/{path}", Sec_Fetch_Site=site, Sec_Fetch_Dest=destination)[0] == 403
    assert ask(server, f"/data{path}", Sec_Fetch_Site=site, Sec_Fetch_Dest="document")[0] == 403
    assert ask(server, f"/{path}", Sec_Fetch_Site=site, Sec_Fetch_Dest="document")[0] == 200


@pytest.mark.parametrize("path", ["/../etc/passwd", "/data/", "/static/viewer.js"])
def test_there_are_no_other_pages(server, path):
    assert ask(server, f"{path}?token={server.token}")[0] == 404


def test_nothing_can_be_sent(server):
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, f"/?token={server.token}", method)[0] == 501


def test_it_listens_on_the_loopback_address_only(server):
    assert server.server_address[0] == "127.0.0.1"
    of_this_machine = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    }
    for own in of_this_machine:
        with pytest.raises(OSError):
            socket.create_connection((own, server.server_address[1]), timeout=1).close()


def test_tokens_differ():
    with LocalPage(b"", "a") as one, LocalPage(b"", "b") as other:
        assert one.token != other.token
        assert len(one.token) >= 32


def test_one_who_says_nothing_holds_no_one_up(server):
    with socket.create_connection(server.server_address, timeout=300):
        assert ask(server, f"/data?token={server.token}")[0] == 200


def connection_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "process_request_thread" in thread.name}


def test_connections_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(module, "_HEAD_WITHIN_S", 600.0)
    with LocalPage(b"some data", "a title") as page, contextlib.ExitStack() as held_open:
        thread = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        before = connection_threads()
        silent = [
            held_open.enter_context(socket.create_connection(page.server_address)) for _ in range(3)
        ]
        for client in silent:
            client.sendall(b"GET ")
        with socket.create_connection(page.server_address, timeout=300) as one_more:
            assert b" 503 " in one_more.recv(100)
        assert len(connection_threads() - before) <= 3
        silent[0].close()
        until = time.monotonic() + 60
        answer = ask(page, f"/data?token={page.token}")
        while answer[0] == 503 and time.monotonic() < until:
            time.sleep(0.01)  # until its place is free
            answer = ask(page, f"/data?token={page.token}")
        assert answer[2] == b"some data"
        page.shutdown()
        thread.join()


def test_one_who_sends_byte_by_byte_is_cut_off(monkeypatch):
    monkeypatch.setattr(module, "_HEAD_WITHIN_S", 0.2)
    sent = 0
    with LocalPage(b"some data", "a title") as page:
        thread = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        with (
            socket.create_connection(page.server_address) as slow,
            contextlib.suppress(ConnectionError),
        ):
            for _ in range(1000):
                slow.sendall(b"G")
                sent += 1
                time.sleep(0.02)
        page.shutdown()
        thread.join()
    assert sent < 1000
