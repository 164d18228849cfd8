"""The command line: the one place that prints errors and sets exit codes.

Every verb is a module with ``HELP``, ``prepare_parser(parser)`` and ``run(arguments)``; it is
imported only when asked for, and its own imports of NumPy or rich wait until it runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, cast

from vramlens import __version__
from vramlens.allowance import Exhausted, allowance
from vramlens.cli import interruption
from vramlens.cli.help import DESCRIPTION, filled, main_epilog, verb_epilog
from vramlens.cli.message import say
from vramlens.errors import NoProgram, UnsafeInput, UsageError, VramlensError

_ROOMS = {
    "run": "running",
    "predict": "running",
    "strategies": "running",
    "explain": "reading",
    "leaks": "reading",
    "view": "reading",
    "replay": "reading",
    "tune": "reading",
    "diff": "reading",
    "check": "reading",
    "ranks": "reading",
    "top": "running",
    "export": "reading",
    "dump": "running",
    "attach": "running",
    "doctor": "running",
    "mcp": "running",
}
"""By verb, in the order of the help, the folder of its module. What is ``reading`` takes input from
anywhere: it is held to an allowance.
"""
VERBS = tuple(_ROOMS)
_ALIKE = 0.7
_LONGEST = 40


class VerbModule(Protocol):
    """One verb."""

    HELP: str
    EXAMPLES: tuple[tuple[str, str], ...]

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the verb's arguments."""

    def run(self, arguments: argparse.Namespace) -> int | Callable[[], int]:
        """Does it; the exit code, or the user's program, to be run where nothing catches what it
        raises.

        Raises:
            VramlensError: it could not be done.
        """


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is said."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse does, without what is for the script that ``check`` predicts."""
        words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(_without_script_words(words), namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Raises what to say of arguments that nothing takes."""
        meant = _option_meant(words, self._option_string_actions)
        hint = f"; did you mean {meant}?" if meant is not None else ""
        self.error(f"unrecognized arguments: {shlex.join(words)}{hint}")


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; shell completion and man pages are made from it."""
    return _parsers()[0]


def _parsers(names: Sequence[str] = VERBS) -> tuple[_Parser, dict[str, _Parser]]:
    """The parser of the command line with some verbs, and that of each of them."""
    command_line = _Parser(
        prog="vramlens",
        description=DESCRIPTION,
        epilog=main_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command_line.add_argument("--version", action="version", version=f"vramlens {__version__}")
    verbs = command_line.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    by_verb = {}
    for name in names:
        command = _command(name)
        by_verb[name] = verbs.add_parser(
            name,
            help=command.HELP,
            description=filled(command.HELP),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.prepare_parser(by_verb[name])
        by_verb[name].epilog = verb_epilog(by_verb[name].epilog, command.EXAMPLES)
    return command_line, by_verb


def _command(verb: str) -> VerbModule:
    return cast(VerbModule, importlib.import_module(f"vramlens.cli.verbs.{_ROOMS[verb]}.{verb}"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    interruption.watch()
    try:
        done = _answered(sys.argv[1:] if argv is None else list(argv))
        if interruption.came():
            return interruption.EXIT_CODE
    except KeyboardInterrupt:
        return interruption.EXIT_CODE
    finally:
        interruption.leave()
    if isinstance(done, int):
        return done
    try:
        return done()
    except NoProgram as error:
        say(str(error))
        return error.exit_code


def _answered(argv: list[str]) -> int | Callable[[], int]:
    """The exit code of a verb, after its errors were said; or the user's program.

    Raises:
        KeyboardInterrupt: Ctrl-C came, whatever became of it.
    """
    try:
        return _run_verb(argv)
    except BrokenPipeError:
        return 0
    except Exception as error:
        is_own = not isinstance(error, (MemoryError, RecursionError))
        if is_own and interruption.came():  # a library made this error of it
            raise KeyboardInterrupt from None
        reason = _reason_of(error)
        if reason is None:
            raise
        say(reason)
        return error.exit_code if isinstance(error, VramlensError) else VramlensError.exit_code


def _reason_of(error: Exception) -> str | None:
    """What to say of an error; None for one that nobody expects."""
    if isinstance(error, VramlensError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory for this; try a machine with more memory or a shorter recording"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply"
    if isinstance(error, OSError):  # a disk, a folder or a link fails where nobody expects it
        return f"{error.filename or 'a file'}: {(error.strerror or str(error)).lower()}"
    return None


def _with_help_option(argv: list[str]) -> list[str]:
    """``help VERB`` as ``VERB --help``."""
    if argv[:1] != ["help"]:
        return argv
    return [*(word for word in argv[1:2] if word in VERBS), "--help"]


def _run_verb(argv: list[str]) -> int | Callable[[], int]:
    argv = _with_help_option(argv)
    _refuse_mistyped_verb(argv)
    command_line, by_verb = _parsers(argv[:1] if argv and argv[0] in VERBS else VERBS)
    try:
        arguments, unknown = command_line.parse_known_args(argv)
    except SystemExit as done:  # --help and --version
        return done.code if isinstance(done.code, int) else 0
    if unknown:
        by_verb.get(arguments.verb, command_line).refuse(unknown)
    if arguments.verb is None:
        command_line.print_help(sys.stderr)
        return UsageError.exit_code
    if arguments.verb not in ("run", "predict", "strategies"):
        # Nothing here multiplies matrices: NumPy need not start the threads that would. The user's
        # program may.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments.argv = argv
    command = _command(arguments.verb)
    # A prediction runs the program: what that takes is the program's own business.
    if _ROOMS[arguments.verb] != "reading" or getattr(arguments, "predict", False):
        return command.run(arguments)
    return _run_within_bounds(command, arguments)


def _without_script_words(argv: list[str]) -> list[str]:
    """The command line without what follows ``--``, where that is for the script that ``check``
    predicts; ``argv`` keeps it.
    """
    words = argv[: argv.index("--")] if argv[:1] == ["check"] and "--" in argv else argv
    return words if "--predict" in words else argv


def _refuse_mistyped_verb(argv: list[str]) -> None:
    """Raises UsageError, with what was probably meant, where the first word is not a verb."""
    if not argv or argv[0] in VERBS:
        return
    first_file = next((word for word in argv if not word.startswith("-")), "")
    if first_file.endswith(".py"):
        raise UsageError(f"no verb is given; did you mean: vramlens run {shlex.join(argv)}")
    if argv[0].startswith("-"):
        return
    if _looks_like_a_file(argv[0]):
        raise UsageError(
            f"{argv[0]} is not a verb; did you mean: vramlens explain {shlex.join(argv)}"
        )
    meant = _closest(argv[0].lower(), VERBS)
    hint = f"the verbs are {', '.join(VERBS)}" if meant is None else f"did you mean {meant}?"
    raise UsageError(f"{argv[0]} is not a verb; {hint} (see vramlens --help)")


def _looks_like_a_file(word: str) -> bool:
    return "." in word or "/" in word or os.sep in word or os.path.lexists(word)


def _run_within_bounds(
    command: VerbModule, arguments: argparse.Namespace
) -> int | Callable[[], int]:
    """Runs a verb that reads files; the exit code.

    Raises:
        UnsafeInput: it took more of the machine than its input justifies.
    """
    options = [getattr(arguments, name, None) for name in ("conf", "cap", "cards")]
    answers = sum(len(choices) for choices in options if isinstance(choices, list))
    try:
        with allowance(1 + answers) as allowed:
            return command.run(arguments)
    except Exhausted:
        raise UnsafeInput(allowed.sentence()) from None


def _option_meant(words: Sequence[str], options: Iterable[str]) -> str | None:
    """The option that the first mistyped one among the words is close to."""
    names = [option[2:] for option in options if option.startswith("--")]
    for word in words:
        if word.startswith("--"):
            meant = _closest(word[2:].partition("=")[0].lower(), names)
            if meant is not None:
                return f"--{meant}"
    return None


def _closest(word: str, candidates: Sequence[str]) -> str | None:
    from difflib import get_close_matches

    letters = sorted(word)
    swapped = [candidate for candidate in candidates if sorted(candidate) == letters]
    return next(iter(swapped or get_close_matches(word[:_LONGEST], candidates, 1, _ALIKE)), None)
