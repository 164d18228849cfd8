"""Every command in the pages and in the help is one that the parser takes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramlens.cli.help import EXAMPLES
from vramlens.cli.main import VERBS, _command, parser
from vramlens.errors import UsageError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNS_A_PROGRAM = ("run",)
_PUNCTUATION = frozenset("|&;<>()")


def commands_in(page: Path) -> Iterator[str]:
    """The commands in the code of a page."""
    is_fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            yield from commands_in_line(line.replace("…", ""))


def commands_in_line(line: str) -> Iterator[str]:
    """The vramlens commands of one line of a shell."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    try:
        commands = split_at_punctuation(list(words))
    except ValueError:  # prose in a block of output
        return
    for command in commands:
        if "vramlens" not in command:
            continue
        command = command[command.index("vramlens") :]  # behind a prompt, torchrun, a variable
        if command[1:2] and command[1] in VERBS:
            yield shlex.join(command)


def split_at_punctuation(words: list[str]) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= _PUNCTUATION:
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def parsed(command: str) -> argparse.Namespace:
    return parser().parse_args(shlex.split(command.replace(" PID", " 4711"))[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_parser_takes_every_command_of_a_page(page: Path) -> None:
    refused = {}
    for command in commands_in(page):
        try:
            arguments = parsed(command)
        except UsageError as error:
            refused[command] = str(error)
        else:
            if lost_options(command, arguments):
                refused[command] = "these options go to the program"
    assert refused == {}


def test_the_parser_takes_every_example_of_the_help() -> None:
    examples = [command for command, _ in EXAMPLES]
    for verb in VERBS:
        examples += [command for command, _ in _command(verb).EXAMPLES]
    commands = [command for command in examples if command.startswith("vramlens ")]
    assert len(commands) >= 2 * len(VERBS)
    lost = {command: lost_options(command, parsed(command)) for command in commands}
    assert {command: options for command, options in lost.items() if options} == {}


def lost_options(command: str, arguments: argparse.Namespace) -> list[str]:
    """Options of the verb that stand behind the program, which gets them instead."""
    if arguments.verb not in RUNS_A_PROGRAM or "--" in shlex.split(command):
        return []
    behind = list(arguments.arguments)
    subparser = argparse.ArgumentParser(add_help=False)
    _command(arguments.verb).prepare_parser(subparser)
    return [word for word in behind if word in subparser._option_string_actions]


def test_an_option_behind_the_program_is_seen() -> None:
    command = "vramlens run train.py --leaks"
    assert lost_options(command, parsed(command)) == ["--leaks"]
