"""The command that brings a page from a remote machine to one's own."""

from __future__ import annotations

import pytest

from vramlens.view.local.opening import tunnel_command


def session(server="192.0.2.7", port="22", **others):
    return {"SSH_CONNECTION": f"198.51.100.4 51515 {server} {port}", **others}


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        (session(USER="ada"), "ssh -N -L 4711:localhost:4711 ada@192.0.2.7"),
        (session(port="2222"), "ssh -N -L 4711:localhost:4711 -p 2222 192.0.2.7"),
        (session(server="2001:db8::1", USER="x; rm"), "ssh -N -L 4711:localhost:4711 2001:db8::1"),
        (session(server="fe80::1%eth0", USER="ada"), "ssh -N -L 4711:localhost:4711 ada@fe80::1"),
        (session(server="$(reboot)", USER="ada"), None),
        ({"SSH_CONNECTION": "nothing"}, None),
        ({}, None),
    ],
)
def test_the_command_of_a_session(environment, command):
    assert tunnel_command(environment, 4711) == command
