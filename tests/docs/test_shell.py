"""Completion and the man page are made from the parser, by the commands of docs/howto/shell.md."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.installed import PYTHON_PATH
from vramlens.cli.main import VERBS

ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHON_PATH}
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
    options = ["--module", "vramlens.cli.main", "--function", "parser"]
    done = subprocess.run(
        [sys.executable, "-c", MAN_PAGE, *options, "--project-name", "vramlens"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    assert [verb for verb in VERBS if rf"fI\,{verb}\/" not in done.stdout] == []
