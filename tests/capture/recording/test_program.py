"""What a program calls: install, record, snapshot, step; together, twice, inside of one another,
without a GPU.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import vramlens
from support.programs import PLUG_IN, meta_of, python, recordings

pytest.importorskip("torch")

HEAD = PLUG_IN + "import torch, vramlens\n"


def outcome(folder: Path, text: str) -> tuple[str, str]:
    """Standard output and error of a program."""
    (folder / "train.py").write_text(HEAD + text)
    answer = python(folder, "train.py")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout, answer.stderr


def test_a_block_is_recorded(tmp_path: Path) -> None:
    out, errors = outcome(
        tmp_path,
        "print(gpu.history)\n"
        "with vramlens.record('a.vram'):\n    gpu.use(); print(gpu.history)\n"
        "print(gpu.history)\n"
        "with vramlens.record('b.vram'):\n    print(gpu.history)\n",
    )
    assert out.split() == ["False", "True", "False", "True"]
    assert recordings(tmp_path) == ["a.vram", "b.vram"]
    assert errors.count("wrote") == 2
    assert vramlens.load(tmp_path / "a.vram").peak().requested_bytes


def test_a_block_that_fails_is_written_and_the_error_passes(tmp_path: Path) -> None:
    out, _ = outcome(
        tmp_path,
        "gpu.use()\n"
        "try:\n    with vramlens.record('a.vram'): raise KeyError('mine')\n"
        "except KeyError as error: print(error)\n"
        "try:\n    with vramlens.record('b.vram'): gpu.fail()\n"
        "except torch.OutOfMemoryError as error: print(getattr(error, '__vramlens_path__'))\n"
        "try: gpu.fail()\n"
        "except torch.OutOfMemoryError as error: print(hasattr(error, '__vramlens_path__'))\n",
    )
    assert out.splitlines() == ["'mine'", str(tmp_path / "b.vram"), "False"]
    assert recordings(tmp_path) == ["a.vram", "b.vram"]
    assert meta_of(tmp_path / "b.vram")["trigger"] == "oom"


def test_blocks_inside_of_each_other_and_of_install(tmp_path: Path) -> None:
    out, _ = outcome(
        tmp_path,
        "vramlens.install(); vramlens.install()\ngpu.use()\n"
        "with vramlens.record('a.vram'):\n"
        "    with vramlens.record('b.vram'): pass\n"
        "    print(gpu.history)\n"
        "print(gpu.history, gpu.calls.count('start'), len(gpu.observers))\n",
    )
    assert out.split() == ["True", "True", "1", "1"]
    assert recordings(tmp_path) == ["a.vram", "b.vram"]  # install writes nothing at a normal end


def test_install_after_a_block_takes_over(tmp_path: Path) -> None:
    out, _ = outcome(
        tmp_path,
        "gpu.use()\nwith vramlens.record('a.vram'): pass\n"
        "vramlens.install('late.vram'); print(gpu.history)\n"
        "try: gpu.fail()\nexcept torch.OutOfMemoryError: pass\n",
    )
    assert out.split() == ["True"]
    assert recordings(tmp_path) == ["a.vram", "late.vram"]


def test_what_keeps_it_from_beginning_is_not_the_programs_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_plan: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr("vramlens.program.begin_watch", refuse)
    ran = []
    vramlens.install(tmp_path / "run.vram")
    with vramlens.record(tmp_path / "run.vram"):
        ran.append(1)
    assert ran == [1]
    assert capsys.readouterr().err == (
        "vramlens: beginning to watch failed (OSError: too many open files); the program continues\n"
    )


def test_a_snapshot_needs_no_set_up(tmp_path: Path) -> None:
    out, errors = outcome(
        tmp_path,
        "print(vramlens.snapshot('early.vram'))\n"
        "gpu.use(); print(vramlens.snapshot('now.vram'))\n"
        "print(vramlens.snapshot('train.py/x.vram'))\n",
    )
    assert out.splitlines() == ["None", str(tmp_path / "now.vram"), "None"]
    assert "vramlens: no early.vram: the program has not used a GPU yet\n" in errors
    assert "vramlens: no train.py/x.vram: " in errors
    assert recordings(tmp_path) == ["now.vram"]


def test_steps_by_hand_win_over_optimizers(tmp_path: Path) -> None:
    outcome(
        tmp_path,
        "vramlens.step(); vramlens.install(); gpu.use()\n"
        "p = torch.nn.Parameter(torch.ones(1)); p.grad = torch.ones(1)\n"
        "optimizer, other = torch.optim.SGD([p]), torch.optim.SGD([p])\n"
        "for _ in range(3): optimizer.step(); other.step()\n"
        "vramlens.snapshot('a.vram')\n"
        "for _ in range(2): optimizer.step(); vramlens.step()\n"
        "vramlens.snapshot('b.vram')\n",
    )
    a, b = meta_of(tmp_path / "a.vram"), meta_of(tmp_path / "b.vram")
    assert (a["step"], a["step_source"]) == (
        3,
        "optimizer",
    )  # two optimizers that take turns: one step
    assert (b["step"], b["step_source"]) == (2, "vramlens.step")


def test_memory_names_the_lines_that_hold_most_while_recording(tmp_path: Path) -> None:
    out, _ = outcome(
        tmp_path,
        "gpu.recording = 'recordings/oom_leak.pickle.xz'\n"
        "gpu.use(); print(vramlens.memory().top_lines)\n"
        "vramlens.install(); print(*vramlens.memory().top_lines, sep='\\n')\n",
    )
    before, *lines = out.splitlines()
    assert before == "()"
    assert lines[0] == "  800.62 MiB  GPU 0: train/workloads.py:39 in forward"


def test_names_are_in_the_recording(tmp_path: Path) -> None:
    outcome(
        tmp_path,
        "gpu.use()\nfrom vramlens.capture.recording import recorder\nvramlens.snapshot('a.vram')\n",
    )
    with zipfile.ZipFile(tmp_path / "a.vram") as archive:
        assert archive.read("names.json") == b'{"tensors": []}'


def test_without_a_gpu_everything_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import vramlens\nvramlens.install(); vramlens.step()\nimport torch\n"
        "with vramlens.record('a.vram'): print(torch.ones(2).sum().item())\n"
        "vramlens.step(); print(vramlens.distributed_state().initialized)\n"
        "print(str(vramlens.memory()).splitlines()[0])\n"
    )
    answer = python(tmp_path, "train.py")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("2.0\nFalse\n")
    assert recordings(tmp_path) == []
