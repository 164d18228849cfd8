"""Completion and the man page are made from the parser, by the commands of docs/howto/shell.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from vramlens.cli.main import VERBS

ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHON_PATH}
SHELL_PAGE = Path(__file__).parents[2] / "docs" / "howto" / "shell.md"
MAN_PAGE = "import sys; from argparse_manpage.cli import main; sys.exit(main())"


def test_the_shell_completes_verbs_and_options() -> None:
    pytest.importorskip("shtab", reason='the extra "docs" is not installed')
    done = subprocess.run(
        [sys.executable, "-m", "shtab", "--shell=bash", "vramlens.cli.main.parser"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    question = "COMP_WORDS=(vramlens {}); COMP_CWORD={}; _shtab_vramlens; echo ${{COMPREPLY[@]}}"
    for words, position, expected in (("ex", 1, "explain export"), ("leaks --at", 2, "--at-least")):
        answer = subprocess.run(
            ["bash", "-c", done.stdout + "\n" + question.format(words, position)],
            capture_output=True,
            text=True,
        )
        assert answer.stdout.split() == expected.split(), answer.stderr


def test_the_man_page_names_every_verb() -> None:
    pytest.importorskip("argparse_manpage", reason='the extra "docs" is not installed')
    text = SHELL_PAGE.read_text().replace("\\\n", " ")
    command = next(line for line in text.splitlines() if "argparse-manpage --module" in line)
    options = shlex.split(command.partition(">")[0])[1:]
    done = subprocess.run(
        [sys.executable, "-c", MAN_PAGE, *options],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    name = done.stdout.partition(".SH NAME")[2].strip().splitlines()[0]
    assert re.fullmatch(r"vramlens \\?- find out what .+", name)
    assert [verb for verb in VERBS if rf"fI\,{verb}\/" not in done.stdout] == []
