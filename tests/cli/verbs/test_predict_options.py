"""Where the options of ``predict`` and those of the script may stand."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from vramlens.cards.known_cards import DEFAULT_GPU
from vramlens.cli.verbs.running import predict
from vramlens.errors import UsageError


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    predict.prepare_parser(parser)
    arguments = parser.parse_args(words)
    arguments.argv = list(words)
    predict._take_options_after_script(arguments)
    return arguments


def test_the_default_card_is_the_librarys() -> None:
    assert parsed("train.py").gpu == DEFAULT_GPU


def test_options_after_the_script_are_vramlens_own() -> None:
    arguments = parsed(
        "train.py", "--steps", "3", "--cards", "16GiB,80GB", "-o", "r.vram", "--json"
    )
    assert (arguments.steps, len(arguments.cards)) == (3, 2)
    assert (arguments.output, arguments.json) == ("r.vram", True)
    assert arguments.arguments == []


def test_options_before_the_script_stay() -> None:
    arguments = parsed("--gpu", "a100", "train.py", "--steps", "2")
    assert (arguments.gpu, arguments.steps) == ("a100", 2)


def test_all_others_go_to_the_script() -> None:
    arguments = parsed("train.py", "config.yaml", "--lr", "0.1", "--json", "--batch-size=4")
    assert arguments.json
    assert arguments.arguments == ["config.yaml", "--lr", "0.1", "--batch-size=4"]


def test_what_follows_two_dashes_goes_to_the_script_as_it_is() -> None:
    arguments = parsed("train.py", "--steps", "1", "--", "--steps", "100", "--json")
    assert (arguments.steps, arguments.json) == (1, False)
    assert arguments.arguments == ["--steps", "100", "--json"]


def test_a_wrong_value_after_the_script_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="--steps"):
        parsed("train.py", "--steps", "many")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--steps", "7"),
            "vramlens: --steps 7 was taken by predict; for the script, write it after --: vramlens"
            " predict train.py -- --steps 7",
        ),
        (
            ("--steps=7", "--lr", "1", "--json", "--rank", "0", "-o", "run.vram"),
            "vramlens: --steps=7, --json, -o run.vram were taken by predict; for the script, write"
            " them after --: vramlens predict train.py -- --steps=7 --json -o run.vram",
        ),
        (("--gpu", "a100", "--", "--steps", "7"), None),
        ((), None),
    ],
)
def test_an_option_that_the_script_has_too_is_told(
    words: tuple[str, ...],
    line: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--steps", "--json", "-o")
    text = "".join(f"parser.add_argument({option!r})\n" for option in options)
    (tmp_path / "train.py").write_text(f"{text}# as '--gpu' and '--rank'\n")
    parsed("train.py", *words)
    assert capsys.readouterr().err == ("" if line is None else f"{line}\n")
