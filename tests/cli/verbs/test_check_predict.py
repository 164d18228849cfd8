"""``vramlens check --predict``: what a script is predicted to need, held against a budget."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.recordings import DATA
from vramlens.cli.main import main
from vramlens.cli.verbs.reading import check

GPT = str(DATA / "recordings" / "gpt.pickle.xz")
SCRIPT = """
import sys, torch
x = torch.ones(int(sys.argv[1]) << 18, device="cuda")
"""


class Stand:
    """Stands in for a prediction: what was asked for, and a recording to be checked."""

    def __init__(self) -> None:
        self.asked: argparse.Namespace | None = None

    def predicted(self, arguments: argparse.Namespace) -> Stand:
        """What ``asked_prediction.predicted`` gives."""
        self.asked = argparse.Namespace(**vars(arguments))
        return self

    def write(self, path: str) -> None:
        """Writes the recording."""
        shutil.copy(GPT, path)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    Path("train.py").write_text(SCRIPT)
    Path("vram.toml").write_text('[budget]\npeak_allocated = "80 GiB"\n')
    stand = Stand()
    monkeypatch.setattr(check, "predicted", stand.predicted)
    return stand


def test_it_takes_the_options_of_predict_and_the_arguments_of_the_script(stand: Stand) -> None:
    options = "--gpu a100 --steps 3 --patience 60 --torch 2.11.0 --conf backend:native"
    ranks = "--world-size 8 --rank 2 --batch 4"
    words = ["check", "train.py", "--predict", *options.split(), *ranks.split()]
    assert main([*words, "--", "4096", "--steps", "9"]) == 0
    asked = stand.asked
    assert asked is not None
    assert (asked.script, asked.arguments) == ("train.py", ["4096", "--steps", "9"])
    assert (asked.gpu, asked.steps, asked.patience, asked.torch) == ("a100", 3, 60, "2.11.0")
    assert (asked.world_size, asked.rank, asked.batch) == (8, 2, 4)
    assert asked.conf == "backend:native"


@pytest.mark.parametrize("option", ["--gpu a100", "--world-size 8", "--cards 24G"])
def test_they_are_refused_without_a_prediction(
    stand: Stand, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["check", GPT, *option.split()]) == 2
    assert f"{option.split()[0]} needs --predict" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--budget missing.toml", 3, "missing.toml: no such budget"),
        ("--budget empty.toml", 3, "has no limit in it"),
        ("--update --json", 2, "--update takes no"),
        ("-o train.py", 2, "is the input file"),
    ],
)
def test_what_cannot_be_answered_is_said_before_the_script_runs(
    stand: Stand, capsys: pytest.CaptureFixture[str], words: str, code: int, said: str
) -> None:
    Path("empty.toml").write_text("[budget]\n")
    assert main(["check", "train.py", "--predict", *words.split()]) == code
    assert said in capsys.readouterr().err
    assert stand.asked is None


def test_a_script_gets_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "vram.toml").write_text('[budget]\npeak_allocated = "4 MiB"\n')
    words = ["check", "train.py", "--predict", "--steps", "1", "--", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "vramlens", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    assert "16.00 MiB" in done.stdout


def test_the_next_command_asks_again_what_was_asked(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--predict", "--gpu", "a100", "--patience", "60", "--", "4096", "--lr", "1e-3"]
    assert main(["check", "train.py", *options]) == 0
    said = " ".join(capsys.readouterr().out.replace("\\", "").split())
    assert said.endswith(
        "vramlens check --predict --budget vram.toml --format github --gpu a100 --patience 60"
        " train.py -- 4096 --lr 1e-3"
    )


BROKEN = """[budget]
peak_allocated = "1 MiB"
alloc_retries = 0
fragmentation = 0
"""


@pytest.mark.parametrize("form", ["text", "json", "github", "markdown"])
def test_a_broken_limit_names_the_script_and_no_file_that_is_gone(
    stand: Stand, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    Path("vram.toml").write_text(BROKEN)
    assert main(["check", "train.py", "--predict", "--format", form, "--", "4096"]) == 1
    said = capsys.readouterr().out
    assert tempfile.gettempdir() not in said
    assert "vramlens predict train.py -- 4096" in " ".join(said.split())
    assert "vramlens explain" not in said
    if form == "json":
        assert json.loads(said)["source"] == "train.py"
