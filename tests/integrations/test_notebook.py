"""The cell magic: a cell runs as it would, and its verdict and picture stand below it."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

pytest.importorskip("IPython")

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from vramlens import program

RECORDING = Path(__file__).parents[1] / "data" / "captured" / "oom_forward.vram"


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "vramlens")
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def recorded(monkeypatch):
    """A GPU that leaves a recording for every block."""

    @contextlib.contextmanager
    def record(path):
        try:
            yield
        finally:
            shutil.copy(RECORDING, path)

    monkeypatch.setattr(program, "record", record)


def run(shell, line, cell):
    with capture_output() as captured:
        shell.run_cell_magic("vramlens", line, cell)
    return captured


def test_a_cell_shows_its_verdict_and_its_picture(shell, recorded):
    captured = run(shell, "", "answer = 6 * 7\nprint('ran')")
    assert shell.user_ns["answer"] == 42
    assert "ran" in captured.stdout
    verdict, picture = captured.outputs
    assert "Out of memory" in verdict.data["text/html"]
    assert "Out of memory" in verdict.data["text/plain"]
    assert picture.data["text/html"].startswith("<iframe sandbox")


def test_a_failing_cell_fails_as_ever_and_is_explained(shell, recorded, tmp_path):
    path = tmp_path / "cell.vram"
    captured = run(shell, f"-o '{path}' --no-picture", "raise ValueError('mine')")
    assert "ValueError" in captured.stdout + captured.stderr
    assert len(captured.outputs) == 1
    assert path.exists()


def test_without_gpu_memory_one_line_says_so(shell):
    captured = run(shell, "", "x = 1")
    assert "requested no GPU memory" in captured.stdout
    assert not captured.outputs


def test_a_line_that_makes_no_sense_runs_nothing(shell):
    shell.user_ns.pop("never", None)
    with pytest.raises(UsageError, match="takes -o FILE"):
        shell.run_cell_magic("vramlens", "--output", "never = 1")
    assert "never" not in shell.user_ns
