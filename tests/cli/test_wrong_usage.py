"""What is typed wrong: each is told in one line, with what was probably meant."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from support.recordings import DATA
from support.vram_files import vram
from vramlens.capture.warn import say as say_in_program
from vramlens.cli.main import VERBS, main
from vramlens.cli.message import say
from vramlens.cli.verbs.running import run

GRAPHS = DATA / "recordings/graphs.pickle.xz"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "job").mkdir()
    shutil.copy(GRAPHS, "run.pickle.xz")
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        ("explian x", 2, "explian is not a verb; did you mean explain? (see vramlens --help)"),
        ("rank x", 2, "rank is not a verb; did you mean ranks? (see vramlens --help)"),
        (
            "explain run.pickle.xz --fast",
            2,
            "unrecognized arguments: --fast (see vramlens explain --help)",
        ),
        ("--fast", 2, "unrecognized arguments: --fast (see vramlens --help)"),
        (
            "run --leaks python train.py --lr 1",
            3,
            "python: no such script; leave out 'python': vramlens run --leaks train.py --lr 1",
        ),
        (
            "run python3 -m pkg",
            3,
            "python3: no such script; leave out 'python3': vramlens run -m pkg",
        ),
        (
            "run python -u train.py",
            3,
            "python: no such script; leave out 'python' and its options",
        ),
        ("run pythonic.py x", 3, "pythonic.py: no such script"),
        ("predict pythonic.py", 3, "pythonic.py: no such script"),
        ("strategies pythonic.py", 3, "pythonic.py: no such script"),
        (
            "explain run.pickle.xz --tpo 3",
            2,
            "unrecognized arguments: --tpo 3; did you mean --top? (see vramlens explain --help)",
        ),
        (
            "frobnicate",
            2,
            f"frobnicate is not a verb; the verbs are {', '.join(VERBS)} (see vramlens --help)",
        ),
        (
            "explain job",
            3,
            "job: is a directory; choose one recording in it, or compare its ranks: vramlens ranks job",
        ),
        (
            "export run.pickle.xz",
            2,
            "export: --to is missing: one of perfetto, chrome, speedscope, flamegraph, csv, parquet, tensorboard,"
            " or a folder for a lake: --to lake/",
        ),
    ],
)
def test_says_what_was_probably_meant(typed, code, said, capsys):
    assert main(typed.split()) == code
    found = capsys.readouterr()
    assert found.err == f"vramlens: {said}\n"
    assert found.out == ""


@pytest.mark.parametrize("verb", ["replay", "view -o page.html", "tune"])
@pytest.mark.parametrize(
    ("conf", "hint"),
    [
        ("expandable_segments=True", "; write a colon: expandable_segments:True\n"),
        (
            "max_split_size_mb:64,expandable_segments=True",
            "; write a colon: expandable_segments:True\n",
        ),
        (
            "expandable_segment:True",
            "in CUDA allocator config; did you mean expandable_segments?\n",
        ),
        ("lunch:True", "Unrecognized key 'lunch' in CUDA allocator config.\n"),
    ],
)
def test_settings_with_a_slip(verb, conf, hint, capsys):
    assert main([*verb.split(), "run.pickle.xz", "--conf", conf]) == 2
    error = capsys.readouterr().err
    assert "PyTorch refuses it" in error
    assert error.endswith(hint)
    assert error.count("\n") == 1


def test_help_is_a_word_too(capsys):
    assert main(["help"]) == 0
    assert capsys.readouterr().out.startswith("usage: vramlens ")
    assert main(["help", "explain"]) == 0
    assert capsys.readouterr().out.startswith("usage: vramlens explain ")


def test_a_recording_that_is_cut_off(capsys):
    whole = vram(Path("a.vram"), os.urandom(5000)).read_bytes()
    Path("a.vram").write_bytes(whole[:3000])
    assert main(["explain", "a.vram"]) == 3
    assert (
        capsys.readouterr().err
        == "vramlens: a.vram: is cut off at 3,000 bytes: copy it again, or record again\n"
    )


@pytest.mark.parametrize(
    ("typed", "late"),
    [
        ("--leaks", "--leaks"),
        ("--lr 1 --max-events=5 --leaks --leaks", "--max-events, --leaks"),
        ("--steps 0:5", "--steps"),
        ("--steps=3:5", "--steps"),
        ("--steps 100", None),
        ("--steps", None),
        ("--output x --debug --profile --every 3", None),
        ("-- --leaks", None),
        ("--leaks_of=x leaks", None),
    ],
)
def test_options_behind_the_program_are_its_own(typed, late, capsys, monkeypatch):
    arguments = argparse.Namespace(program="train.py", arguments=typed.split())
    run._note_late_options(arguments)
    said = (
        f"vramlens: {late} after train.py went to train.py; vramlens's own options come before it\n"
    )
    assert capsys.readouterr().err == (said if late else "")
    monkeypatch.setenv("RANK", "1")
    run._note_late_options(arguments)
    assert capsys.readouterr().err == ""


def test_the_options_that_are_looked_for_exist():
    parser = argparse.ArgumentParser()
    run.prepare_parser(parser)
    assert {*run._UNLIKE_OTHERS, "--steps"} <= set(parser._option_string_actions)


@pytest.mark.parametrize("say", [say, say_in_program])
def test_a_terminal_breaks_lines_at_words(say, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    text = "the first words of it, " * 9 + "a/very/long/path" * 5
    for stream, lines in ((Terminal(), 7), (io.StringIO(), 1)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("COLUMNS", "40")
        say(text)
        found = stream.getvalue().splitlines()
        assert len(found) >= 2 if lines > 1 else len(found) == 1
        assert " ".join(found) == f"vramlens: {text}"
        if lines > 1:
            assert all(len(line) <= 40 for line in found[:-1])


def test_several_jobs_are_not_one_run(folder, capsys):
    pytest.importorskip("duckdb")
    for name in ("a/rank0", "a/rank1", "b/rank0"):
        Path(name).parent.mkdir(exist_ok=True)
        shutil.copy(GRAPHS, f"{name}.pickle.xz")
        Path(f"jobs/{name}").mkdir(parents=True)
        shutil.copy(GRAPHS, f"jobs/{name}/memory.pickle.xz")
    assert main(["export", "a", "b", "--to", "lake/"]) == 2
    assert (
        capsys.readouterr().err
        == "vramlens: 2 jobs (a, b) would become one run: choose the folder of one job\n"
    )
    assert main(["export", "jobs", "--to", "lake/"]) == 2
    assert "2 jobs (jobs/a, jobs/b)" in capsys.readouterr().err
    assert not Path("lake").exists()
    assert main(["export", "jobs/a", "--to", "lake/"]) == 0
