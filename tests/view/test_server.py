"""The local page: this machine only, with its token only, asked by its own page only."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading

import pytest

from vramlens.view import server as module
from vramlens.view.peer import is_of_another_user, user_of
from vramlens.view.server import LocalPage


@pytest.fixture(scope="module")
def server():
    with LocalPage(b"some data", "a title") as page:
        thread = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield page
        page.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
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
    assert ask(server, f"/data?token={server.token}", Sec_Fetch_Site="same-origin")[2] == b"some data"
    assert ask(server, f"/data?token={server.token}", "HEAD")[2] == b""


@pytest.mark.parametrize(
    "path", ["/", "/data", "/data?token=", "/data?token=x", "/?token=%C3%A9", "/?token=%00&token="]
)
def test_without_the_token_there_is_nothing(server, path):
    status, _, body = ask(server, path)
    assert status == 403
    assert b"data" not in body


def test_the_address_that_a_browser_is_started_with_leads_to_the_page_for_a_minute(server, monkeypatch):
    assert server.token not in server.opening_url  # everyone on the machine sees a command's arguments
    path = server.opening_url.partition(server.own_host)[2]
    status, headers, body = ask(server, path)
    assert (status, headers["Location"], body) == (303, f"/?token={server.token}", b"")
    assert headers["Cache-Control"] == "no-store"
    code = path.partition("code=")[2]
    for other in ("/open", "/open?code=", f"/open?code={code[:-1]}", f"/open?token={server.token}"):
        assert ask(server, other)[0] == 403
    assert ask(server, f"/data?token={code}")[0] == 403
    now = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 61)
    status, headers, body = ask(server, path)
    assert status == 403
    assert "Location" not in headers
    assert server.token.encode() not in body


def test_another_user_of_the_machine_is_refused(server, monkeypatch, tmp_path):
    table = tmp_path / "tcp"
    # As Linux prints it on a little-endian machine; the listening socket and other connections are no matter.
    row = (
        "  {n}: 0100007F:{port:04X} {to}:1F90 01 00000000:00000000 00:00000000 00000000 {user:5} 0 21 1 0 20 4 30 10 -1"
    )
    monkeypatch.setattr("vramlens.view.peer.sys.byteorder", "little")

    def refused(*users, to="0100007F"):
        rows = [row.format(n=n, port=40000 + n, to=to, user=user) for n, user in enumerate(users)]
        table.write_text("\n".join(["  sl  local_address rem_address   st ...", *rows]))
        return is_of_another_user(("127.0.0.1", 40001), ("127.0.0.1", 8080), str(table))

    me = os.getuid()
    other = 4711 if me != 4711 else 4712
    assert refused(other, other)
    assert not refused(other, me)
    assert not refused(other, 0)
    assert not refused(other, 65534)
    assert not refused(other)  # not listed: the token alone must do
    assert not refused(other, other, to="0200007F")
    table.write_text("something\nelse 1 2\n")
    assert not is_of_another_user(("127.0.0.1", 1), ("127.0.0.1", 2), str(table))
    assert not is_of_another_user(("127.0.0.1", 1), ("127.0.0.1", 2), str(tmp_path / "none"))
    monkeypatch.setattr(module, "is_of_another_user", lambda *ends: True)
    assert ask(server, f"/data?token={server.token}")[0] == 403
    assert ask(server, server.opening_url.partition(server.own_host)[2])[0] == 403


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="no list of sockets here")
def test_the_systems_own_list_names_this_user(server):
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=5) as connection:
        assert user_of(connection.getsockname(), connection.getpeername()) == os.getuid()


def test_a_token_that_begins_well_is_wrong(server):
    assert ask(server, f"/data?token={server.token[:-1]}")[0] == 403
    assert ask(server, f"/data?token={server.token}x")[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "localhost", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}", ""])
def test_foreign_hosts_are_refused(server, host):
    port = server.server_address[1]
    assert ask(server, f"/data?token={server.token}", Host=host.format(port=port))[0] == 403


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://localhost:80", "http://127.0.0.1"])
def test_foreign_origins_are_refused(server, origin):
    assert ask(server, f"/data?token={server.token}", Origin=origin)[0] == 403
    assert ask(server, f"/data?token={server.token}", Origin=f"http://{server.own_host}")[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_elsewhere_may_not_ask(server, site):
    assert ask(server, f"/data?token={server.token}", Sec_Fetch_Site=site)[0] == 403


@pytest.mark.parametrize("path", ["/../etc/passwd", "/data/", "/static/viewer.js"])
def test_there_are_no_other_pages(server, path):
    assert ask(server, f"{path}?token={server.token}")[0] == 404


def test_nothing_can_be_sent(server):
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, f"/?token={server.token}", method)[0] == 501


def test_it_listens_on_the_loopback_address_only(server):
    assert server.server_address[0] == "127.0.0.1"
    own = next((a[4][0] for a in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)), "127.0.0.1")
    if not own.startswith("127."):
        with pytest.raises(OSError):
            socket.create_connection((own, server.server_address[1]), timeout=1).close()


def test_tokens_differ():
    with LocalPage(b"", "a") as one, LocalPage(b"", "b") as other:
        assert one.token != other.token
        assert len(one.token) >= 32


def test_one_who_says_nothing_holds_no_one_up(server):
    with socket.create_connection(server.server_address, timeout=5):
        assert ask(server, f"/data?token={server.token}")[0] == 200
