"""``vramlens check --predict``: what a script is predicted to need, held against a budget."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import pytest

from support.programs import python
from support.recordings import DATA
from vramlens.cli.main import main
from vramlens.cli.verbs.reading import check
from vramlens.prediction.predicted_peak import CardFit
from vramlens.units import GIB

GPT = str(DATA / "recordings" / "gpt.pickle.xz")
SCRIPT = """
import sys, torch
x = torch.ones(int(sys.argv[1]) << 18, device="cuda")
"""


class Stand:
    """Stands in for a prediction: what was asked for, and a recording to be checked."""

    reserved_bytes, low_bytes, high_bytes = 20 * GIB, 18 * GIB, 22 * GIB
    turns_are_open = False

    def __init__(self) -> None:
        self.asked: argparse.Namespace | None = None
        self.cards: list[CardFit] = []

    def predicted(self, arguments: argparse.Namespace) -> Stand:
        """What ``asked_prediction.predicted`` gives."""
        self.asked = argparse.Namespace(**vars(arguments))
        fits = {16 * GIB: False, 20 * GIB: None, 24 * GIB: True}
        self.cards = [CardFit(size, fits[size]) for size in arguments.cards]
        return self

    def write(self, path: str, *, redact: bool) -> None:
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
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "vram.toml").write_text('[budget]\npeak_allocated = "4 MiB"\n')
    words = ["check", "train.py", "--predict", "--steps", "1", "--", "16"]
    done = python(tmp_path, "-m", "vramlens", *words)
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


@pytest.mark.parametrize(
    ("cards", "code", "said"),
    [
        ("24G", 0, "Within budget: all 2 limits are met; card is closest: 4.00 GiB below"),
        ("16G,24G", 1, "Over budget: does not fit a card of 16.00 GiB: predicted peak reserved"),
        ("20G", 1, "Cannot tell: may not fit a card of 20.00 GiB: predicted peak reserved 20.00"),
    ],
)
def test_a_card_that_is_not_sure_to_fit_fails(
    stand: Stand, capsys: pytest.CaptureFixture[str], cards: str, code: int, said: str
) -> None:
    assert main(["check", "train.py", "--predict", "--cards", cards]) == code
    text = " ".join(capsys.readouterr().out.replace("\\", "").split())
    assert text.startswith(said)
    assert f"--cards {cards} train.py" in text


def test_cards_need_no_budget_file(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    Path("vram.toml").unlink()
    words = ["check", "train.py", "--predict", "--cards"]
    assert main([*words, "24G"]) == 0
    out = capsys.readouterr().out
    assert "--budget" not in out
    assert main([*words, "16G", "--format", "github"]) == 1
    assert "does not fit a card of 16.00 GiB%3A predicted" in capsys.readouterr().out
    assert main([*words, "16G", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["budget"] is None
    assert main([*words, "24G", "--budget", "vram.toml"]) == 3  # it was named


def test_a_budget_names_the_card(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    Path("vram.toml").write_text('[budget]\ncard = "16 GiB"\n')
    assert main(["check", "train.py", "--predict"]) == 1
    out = capsys.readouterr().out
    assert "does not fit a card of 16.00 GiB" in out
    assert "vram.toml:2" in out
    assert main(["check", "train.py", "--predict", "--update"]) == 0
    assert 'card = "16 GiB"' in Path("vram.toml").read_text()


def test_a_run_does_not_tell_whether_a_card_fits(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("vram.toml").write_text('[budget]\ncard = "24 GiB"\n')
    assert main(["check", GPT]) == 1
    assert "only a prediction shows that" in " ".join(capsys.readouterr().out.split())


def test_an_update_takes_no_cards(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "train.py", "--predict", "--update", "--cards", "24G"]) == 2
    assert "--update takes no --cards" in capsys.readouterr().err
