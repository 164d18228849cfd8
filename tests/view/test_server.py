"""The local page: this machine only, with its token only, asked by its own page only."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading

import pytest

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
