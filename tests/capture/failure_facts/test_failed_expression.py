"""What the program was computing when its request failed, as its file has it."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramlens.capture.failure_facts.failed_expression import failed_expression, failed_node
from vramlens.capture.failure_facts.source_lines import source_at_failure

HAS_POSITIONS = sys.version_info >= (3, 11)


def asked_by(tmp_path: Path, source: str, *, encoding: str = "utf-8") -> str | None:
    """What is told where a program of this source calls ``ask``."""
    path = tmp_path / "train.py"
    path.write_bytes(source.encode(encoding))
    told: list[str | None] = []

    def ask(*_: Any, **__: Any) -> int:
        told.append(failed_expression())
        return 1

    program: dict[str, Callable[..., int]] = {"ask": ask}
    exec(compile(path.read_bytes(), str(path), "exec"), program)
    return told[0]


@pytest.fixture(autouse=True)
def _tests_are_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames of this file stand for a package's."""
    from vramlens.capture.triggers import ending_line as module

    monkeypatch.setattr(module, "is_users", lambda file: file.endswith("train.py"))


@pytest.mark.skipif(not HAS_POSITIONS, reason="Python 3.10 knows lines only")
@pytest.mark.parametrize(
    ("source", "expression"),
    [
        ("x = 1 + ask(2)[0:1] if False else ask(3)\n", "ask(3)"),
        ("y = [\n    ask(\n        1,\n        2,\n    )\n]\n", "ask( 1, 2, )"),
        ("s = 'größer'; z = ask('ä')  # why\n", "ask('ä')"),
        ("def f(n):\n    return ask(n) + 1\nf(4)\n", "ask(n)"),
    ],
)
def test_the_call_itself_is_told(tmp_path: Path, source: str, expression: str) -> None:
    assert asked_by(tmp_path, source) == expression


@pytest.mark.skipif(HAS_POSITIONS, reason="newer Pythons know columns")
def test_before_python_3_11_the_whole_line_is_told(tmp_path: Path) -> None:
    assert asked_by(tmp_path, "x = 1 + ask(2)  # why\n") == "x = 1 + ask(2) # why"


def test_the_encoding_of_the_file_counts(tmp_path: Path) -> None:
    source = "# -*- coding: latin-1 -*-\nx = ask('\xe9')\n"
    assert "ask('\xe9')" in (asked_by(tmp_path, source, encoding="latin-1") or "")


def test_a_long_expression_is_cut(tmp_path: Path) -> None:
    told = asked_by(tmp_path, f"ask({'1, ' * 500})\n")
    assert told is not None
    assert told.startswith("ask(1, 1")
    assert len(told) == 300


def test_a_cell_of_a_notebook_has_a_text(tmp_path: Path) -> None:
    """IPython leaves the source of each cell where tracebacks look for it."""
    told: list[str | None] = []
    cell = str(tmp_path / "cell-train.py")
    source = "ask()\n"
    linecache.cache[cell] = (len(source), None, [source], cell)
    exec(compile(source, cell, "exec"), {"ask": lambda: told.append(failed_expression())})
    assert told == ["ask()"]


def test_a_file_that_is_gone_or_changed_costs_the_expression(tmp_path: Path) -> None:
    told: list[str | None] = []

    def ask() -> None:
        told.append(failed_expression())

    path = tmp_path / "train.py"
    exec(compile("\n\n\nask()\n", str(path), "exec"), {"ask": ask})
    path.write_text("one = 1\n")
    exec(compile("\n\n\nask()\n", str(path), "exec"), {"ask": ask})
    assert told == [None, None]


def test_what_goes_wrong_costs_the_expression_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_name: str) -> list[str]:
        raise RuntimeError("a finder that fails")

    monkeypatch.setattr(linecache, "getlines", broken)
    assert asked_by(tmp_path, "ask()\n") is None


def test_the_source_of_the_lines_that_hold_the_most(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("k = repeat(\n    k,\n    2,\n)\nv = 1  # ok\n")

    def block(line: int, size: int, *, state: str = "active_allocated") -> dict[str, Any]:
        inner = {"filename": "/venv/site-packages/torch/x.py", "line": 7, "name": "f"}
        own = {"filename": str(path), "line": line, "name": "g"}
        return {"size": size, "state": state, "frames": [inner, own]}

    blocks = [block(5, 10), block(1, 8), block(1, 8), block(9, 5), block(2, 99, state="inactive")]
    gone = {"size": 50, "state": "active_allocated", "frames": []}
    assert source_at_failure({"segments": [{"blocks": [*blocks, gone]}]}) == [
        {"file": str(path), "line": 1, "text": "k = repeat( k, 2, )"},
        {"file": str(path), "line": 5, "text": "v = 1 # ok"},
    ]
    assert source_at_failure({"segments": [{"blocks": [{"state": "active_allocated"}]}]}) == []
    assert source_at_failure({"segments": [None]}) == []


def test_the_source_of_what_freezes_parameters(tmp_path: Path) -> None:
    """Of files that have lines in a stack; of a file that is no Python only these are told."""
    path = tmp_path / "tune.py"
    loop = "for name, p in m.named_parameters():\n  if 'a' in name:\n    p.requires_grad = False\n"
    for source, count in ((loop, 3), (f"{loop}x = = 1\n", 1)):
        path.write_text(source)
        linecache.checkcache(str(path))
        block = {"size": 1, "state": "active_allocated"}
        frames = [{"filename": str(path), "line": 1, "name": "g"}]
        told = source_at_failure({"segments": [{"blocks": [{**block, "frames": frames}]}]})
        assert sorted(entry["line"] for entry in told) == list(range(1, count + 1))


def test_the_source_of_the_lines_that_called_those_and_that_asked_for_derivatives(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.py"
    path.write_text("y = cube(x)\ng = grad(y, x, create_graph=True)\nparts = list(batches())\n")

    def frame(line: int, file: str = str(path)) -> dict[str, Any]:
        return {"filename": file, "line": line, "name": "f"}

    autograd = frame(9, "/venv/site-packages/torch/autograd/__init__.py")
    stacks = [([frame(1), frame(3)], 1 << 20), ([autograd, frame(2)], 4)]
    blocks = [
        {"size": size, "state": "active_allocated", "frames": frames} for frames, size in stacks
    ]
    many = [
        {"size": 1 << 10, "state": "active_allocated", "frames": [frame(1, f"/x{number}.py")]}
        for number in range(20)
    ]
    told = source_at_failure({"segments": [{"blocks": [*blocks, *many]}]})
    assert [entry["line"] for entry in told] == [1, 3, 2]
    assert told[2]["text"] == "g = grad(y, x, create_graph=True)"


def test_the_source_of_the_lines_that_led_to_the_last_request_that_failed(tmp_path: Path) -> None:
    """With those around them: what the result is made of, and what becomes of it."""
    path = tmp_path / "rank.py"
    lines = ["first()", *(f"before({number})" for number in range(6)), "y = hidden @ weight"]
    path.write_text(
        "\n".join([*lines, *(f"after({number})" for number in range(9)), "z = score(y)"])
    )

    def failed(*numbers: int) -> dict[str, Any]:
        library = {"filename": "/venv/site-packages/torch/x.py", "line": 7, "name": "f"}
        own = [{"filename": str(path), "line": number, "name": "g"} for number in numbers]
        return {"action": "oom", "frames": [library, *own]}

    events = [failed(1), {"action": "alloc", "frames": []}, failed(8, 18), {"action": "free"}]
    told = source_at_failure({"segments": [], "device_traces": [[], events]})
    assert [entry["line"] for entry in told] == [8, 9, 10, 11, 18, 7, 6, 5, 4, 3, 2]
    assert told[0]["text"] == "y = hidden @ weight"
    assert told[4]["text"] == "z = score(y)"


def test_the_operation_whose_gradient_is_being_computed() -> None:
    torch = pytest.importorskip("torch")
    told: list[str | None] = []
    rows = torch.randn(4, 5, requires_grad=True).unsqueeze(1).expand(4, 3, 5)
    rows.register_hook(lambda _: told.append(failed_node()))
    rows.gather(2, torch.zeros(4, 3, 2, dtype=torch.long)).sum().backward()
    assert told == ["ExpandBackward0"]
    assert failed_node() is None


def test_without_pytorch_no_operation_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert failed_node() is None
