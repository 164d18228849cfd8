"""Code in the page: only the program's own files below one folder, and only where they still say
what was recorded.
"""

from __future__ import annotations

import os

import pytest

from vramlens.trace import Frame
from vramlens.view.sources import Sources

CODE = "import torch\n\n\ndef train():\n    for x in data:\n        loss = model(x)\n        kept.append(loss)\n\n\ntrain()\n"


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "project"
    (inside / "src").mkdir(parents=True)
    (inside / "src" / "train.py").write_text(CODE)
    (inside / ".secrets.py").write_text("def f():\n    KEY = 1\n")
    (inside / ".hidden").mkdir()
    (inside / ".hidden" / "a.py").write_text("def f():\n    KEY = 1\n")
    (inside / "key.txt").write_text("KEY\n")
    (tmp_path / "outside.py").write_text("def f():\n    KEY = 1\n")
    os.symlink(tmp_path / "outside.py", inside / "link.py")
    return inside


def around(folder, file, line, function):
    return Sources(str(folder)).around([Frame(file, line, function)])


@pytest.mark.parametrize(
    "file", ["src/train.py", "/workspace/src/train.py", "C:\\work\\src\\train.py", "./src/train.py"]
)
def test_a_file_of_the_program_is_found_by_the_end_of_its_path(folder, file):
    found = around(folder, file, 7, "train")
    (key,) = found
    assert key.endswith(":7")
    assert found[key]["first"] == 3
    assert found[key]["lines"][4] == "        kept.append(loss)"


@pytest.mark.parametrize(
    "file",
    [
        "../outside.py",
        "/etc/passwd",
        "key.txt",
        ".secrets.py",
        ".hidden/a.py",
        "link.py",
        "src/../../outside.py",
        "a\0.py",
        "",
    ],
)
def test_nothing_else_is_read(folder, file):
    assert around(folder, file, 2, "f") == {}
    assert around(folder, str(folder.parent / "outside.py"), 2, "f") == {}


@pytest.mark.parametrize(
    ("line", "function"),
    [(7, "evaluate"), (7, "<module>"), (10, "train"), (99, "train"), (0, "train")],
)
def test_a_line_that_lies_in_another_function_now_is_not_shown(folder, line, function):
    assert around(folder, "src/train.py", line, function) == {}


def test_a_file_that_is_no_python_shows_nothing(folder):
    (folder / "broken.py").write_text("def f(:\n    x\n")
    (folder / "binary.py").write_bytes(b"\0\xff" * 100)
    assert around(folder, "broken.py", 2, "f") == {}
    assert around(folder, "binary.py", 1, "f") == {}


def test_lines_are_counted_as_python_counts_them(folder):
    code = "X = '\u2028'\r\n\x0c\r\ndef f():\r\n    a = 1\r    return a\n"
    (folder / "old.py").write_bytes(code.encode())
    found = around(folder, "old.py", 5, "f")
    assert found["old.py:5"]["lines"][4] == "    return a"
