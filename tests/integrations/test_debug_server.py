"""The page of PyTorch's debug server, against the real server where this version has one."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from vramlens.errors import UsageError
from vramlens.integrations import debug_server
from vramlens.units import GIB

PROGRAM = """
import os, socket, time, urllib.request
def port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port()), "RANK": "0", "WORLD_SIZE": "1"}
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 1, is_master=True, wait_for_workers=False)
from torch.distributed.debug import start_debug_server, stop_debug_server
from vramlens.integrations.debug_server import handlers
web = port()
socket.gethostname = lambda: "localhost"
start_debug_server(port=web, handlers=handlers())
for attempt in range(100):
    try:
        print(urllib.request.urlopen(f"http://127.0.0.1:{web}/memory", timeout=300).read().decode())
        break
    except OSError:
        time.sleep(0.1)
stop_debug_server()
"""


def needs_server() -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("torch.distributed.debug._debug_handlers")


def test_the_real_server_shows_the_page() -> None:
    needs_server()
    pytest.importorskip("aiohttp")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=dict(os.environ),
    )
    assert "Memory of every rank" in done.stdout, done.stderr[-2000:]
    assert done.returncode == 0, done.stderr[-2000:]  # it ends as it would have without
    assert "=== rank 0 ===" in done.stdout
    assert "host" in done.stdout.lower()


def test_it_is_a_handler_of_torchs_own_kind() -> None:
    needs_server()
    from torch.distributed.debug._frontend import DebugHandler

    handler = debug_server.MemoryHandler()
    assert isinstance(handler, DebugHandler)
    assert [route.path for route in handler.routes()] == ["/memory"]
    assert isinstance(pickle.loads(pickle.dumps(handler)), DebugHandler)


def test_without_a_server_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.debug._debug_handlers", None)
    with pytest.raises(UsageError, match="does not accept handlers"):
        debug_server.handlers()


def answer(size: int) -> str:
    rows = [{"kind": "pytorch_allocated", "bytes": size}, {"kind": "free", "bytes": GIB}]
    return json.dumps({"text": f"has {size}", "figures": {"gpus": [{"rows": rows}]}})


def test_the_page_begins_with_who_differs() -> None:
    text = debug_server.page_text([answer(4 * GIB), answer(4 * GIB), None, answer(6 * GIB)])
    first, second, *_ = text.splitlines()
    assert (
        first
        == "rank 3 uses 2.00 GiB more than a typical rank (4.00 GiB in use by PyTorch); 1 of 3 ranks use more."
    )
    assert second == "No answer from rank 2."
    assert debug_server.page_text([answer(GIB)] * 2).startswith("2 ranks, each with about 1.00 GiB")


@pytest.mark.parametrize(
    "bad", ["", "[]", "{", '{"figures": 3}', '{"figures": {"gpus": [3, {"rows": [4]}]}}']
)
def test_a_bad_answer_costs_its_rank(bad: str) -> None:
    assert "has 1073741824" in debug_server.page_text([answer(GIB), bad])


def test_a_rank_answers_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    class Response:
        def set_content(self, content: bytes, kind: str) -> None:
            found.update(json.loads(content), kind=kind)

        def set_status(self, status: int) -> None:
            found["status"] = status

    debug_server._answer(None, Response())
    assert (found["status"], found["kind"]) == (200, "application/json")
    monkeypatch.setattr("vramlens.capture.memory.memory_now.memory", lambda: 1 / 0)
    debug_server._answer(None, Response())
    assert (found["status"], found["text"]) == (500, "ZeroDivisionError: division by zero")
