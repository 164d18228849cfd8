"""The variables that a program ends with are there for the last look, and no others are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from vramlens.live.growth import last_frames

pytest.importorskip("torch")


def _stack_of(tmp_path: Path, source: str) -> list[str]:
    """The functions whose frames are kept where a program calls ``look()``."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(source))
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r});"
         f"import kept_frames; kept_frames.run({str(path)!r})"],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": PYTHON_PATH},
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def main():\n    for n in range(1):\n        look()\nmain()\n", "main"),
        ("def main():\n    look()\nif __name__ == '__main__':\n    main()\n", "main"),
        (
            "def train():\n    for n in range(1):\n        look()\ndef main():\n    train()\nmain()\n",
            "train main",
        ),
        (
            "def train():\n    look()\ndef main():\n    with open('/dev/null'):\n        return train()\nmain()",
            "train main",
        ),
        ("def train():\n    look()\ndef main():\n    train()\n    print(end='')\nmain()\n", "main"),
        ("def main():\n    look()\nmain()\nmain\n", ""),
        ("def main():\n    look()\nfor n in range(1):\n    main()\n", ""),
        ("import asyncio\nasync def main():\n    look()\nasyncio.run(main())\n", "main"),
        (
            "import asyncio\nasync def task():\n    look()\n"
            "async def main():\n    await asyncio.create_task(task())\nasyncio.run(main())\n",
            "main",
        ),
        ("import torch\n@torch.no_grad()\ndef main():\n    look()\nmain()\n", "main"),
        (
            "import torch\n@torch.no_grad()\ndef inner():\n    look()\n"
            "@torch.inference_mode()\ndef main():\n    inner()\nmain()\n",
            "inner main",
        ),
        (
            "from concurrent.futures import Future\ndef main():\n"
            "    future = Future()\n    future.add_done_callback(lambda _: look())\n"
            "    future.set_result(1)\nmain()\n",
            "main",
        ),
        ("look()\n", ""),
        (
            "import threading\ndef main():\n    worker = threading.Thread(target=look)\n"
            "    worker.start()\n    worker.join()\nmain()\n",
            "main",
        ),
    ],
)
def test_kept(tmp_path: Path, source: str, names: str) -> None:
    lines = _stack_of(tmp_path, source)
    assert lines == [names, names]


@pytest.mark.parametrize(
    ("source", "is_all"),
    [
        ("def main():\n    asks()\nmain()\n", "True"),
        (
            "def train():\n    asks()\ndef main():\n    train()\n    print(end='')\nmain()\n",
            "False",
        ),
        ("def main():\n    asks()\nmain()\nmain\n", "False"),
        (  # main() waits for a task: as many functions, but not the same
            "import asyncio\nasync def task():\n    asks()\n"
            "async def main():\n    await asyncio.create_task(task())\nasyncio.run(main())\n",
            "False",
        ),
        (  # what the stack holds goes before main() ends
            "from contextlib import ExitStack\ndef main():\n    with ExitStack() as scope:\n"
            "        asks()\nmain()\n",
            "False",
        ),
        ("import torch\ndef main():\n    with torch.no_grad():\n        asks()\nmain()\n", "True"),
    ],
)
def test_whether_the_last_look_will_see_all(tmp_path: Path, source: str, is_all: str) -> None:
    assert _stack_of(tmp_path, source)[0] == is_all


def test_let_go() -> None:
    last_frames.kept_frames.append(sys._getframe())
    last_frames.let_go()
    assert not last_frames.ended_frames()
