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
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, cast

from vramlens import __version__
from vramlens.allowance import Exhausted, allowance
from vramlens.cli import interruption
from vramlens.cli.message import say
from vramlens.errors import NoProgram, UnsafeInput, UsageError, VramlensError

# In the order of the help.
VERBS = (
    "run",
    "predict",
    "explain",
    "leaks",
    "view",
    "replay",
    "tune",
    "diff",
    "check",
    "ranks",
    "top",
    "export",
    "dump",
    "doctor",
)

_READING = frozenset(
    ("explain", "leaks", "view", "replay", "tune", "diff", "check", "ranks", "export")
)
"""The verbs whose input may come from anywhere: they are held to an allowance."""
_DESCRIPTION = "Where the memory of a GPU is, why it ran out, what to change."
_EPILOG = """\
examples:
  vramlens run train.py --epochs 3            your program as it is, and a recording of it
  vramlens predict train.py --cards 24GiB     its peak before it ever runs, without a GPU
  vramlens explain snapshot.pickle            a recording: the peak, who holds it, what to change
  vramlens explain train.log                  an out-of-memory error's text
  vramlens explain trace.json.gz              a trace of PyTorch's profiler
  vramlens explain                            a real failure that comes with vramlens
  vramlens leaks run.vram                     what grows with every step, at which line, and when it will fail
  vramlens view run.vram -o run.html          the picture, one file that needs nothing else
  vramlens diff before.vram after.vram        what a change did: failed before, completes now?
  vramlens check run.vram --update            a memory budget for CI
  vramlens ranks runs/r1                      which rank differs from its peers, and why
  vramlens top                                every GPU and process, now
  vramlens replay run.vram --conf expandable_segments:True    would other settings have helped?
  vramlens tune run.vram --cap 24GiB          which settings fit this run on a smaller card
  vramlens doctor                             what on this machine helps or hinders recording

exit codes: 0 done, 1 check or --fail, 2 wrong usage, 3 input refused, 130 Ctrl-C; run: the program's own
"""


class Command(Protocol):
    """One verb."""

    HELP: str

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

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


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
        return _run(argv)
    except VramlensError as error:
        if interruption.came():  # a library made this error of it
            raise KeyboardInterrupt from None
        say(str(error))
        return error.exit_code
    except MemoryError:
        say("not enough memory for this; try a machine with more, or a shorter recording")
        return VramlensError.exit_code
    except BrokenPipeError:
        return 0
    except RecursionError:
        say("the input is nested too deeply")
        return VramlensError.exit_code
    except OSError as error:  # a disk, a folder or a link that fails where nobody expects it
        if interruption.came():
            raise KeyboardInterrupt from None
        say(f"{error.filename or 'a file'}: {(error.strerror or str(error)).lower()}")
        return VramlensError.exit_code
    except Exception:
        if interruption.came():
            raise KeyboardInterrupt from None
        raise


def _run(argv: list[str]) -> int | Callable[[], int]:
    parser = _Parser(
        prog="vramlens",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"vramlens {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    commands = {}
    for name in VERBS:
        command = cast(Command, importlib.import_module(f"vramlens.cli.verbs.{name}"))
        commands[name] = command
        command.prepare_parser(verbs.add_parser(name, help=command.HELP, description=command.HELP))
    if argv and argv[0] == "help":
        argv = [*(word for word in argv[1:2] if word in VERBS), "--help"]
    if argv and _looks_like_a_file(argv[0]):
        raise UsageError(f"{argv[0]} is no verb; did you mean: vramlens explain {shlex.join(argv)}")
    if argv and (meant := _verb_meant(argv[0])) is not None:
        raise UsageError(f"{argv[0]} is no verb; did you mean {meant}? (see {parser.prog} --help)")
    try:
        arguments, unknown = parser.parse_known_args(argv)
    except SystemExit as done:  # --help and --version
        return done.code if isinstance(done.code, int) else 0
    if unknown:
        (verbs.choices[arguments.verb] if arguments.verb else parser).error(
            f"unrecognized arguments: {shlex.join(unknown)}"
        )
    if arguments.verb is None:
        parser.print_help(sys.stderr)
        return UsageError.exit_code
    if arguments.verb not in ("run", "predict"):
        # Nothing here multiplies matrices: NumPy need not start the threads that would. The user's
        #     program may.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments.argv = argv
    if arguments.verb not in _READING:
        return commands[arguments.verb].run(arguments)
    return _run_within_bounds(commands[arguments.verb], arguments)


def _run_within_bounds(command: Command, arguments: argparse.Namespace) -> int | Callable[[], int]:
    """Runs a verb that reads files; the exit code.

    Raises:
        UnsafeInput: it took more of the machine than its input justifies.
    """
    asked = [getattr(arguments, name, None) for name in ("conf", "cap", "cards")]
    answers = sum(len(several) for several in asked if isinstance(several, list))
    try:
        with allowance(1 + answers) as allowed:
            return command.run(arguments)
    except Exhausted:
        raise UnsafeInput(allowed.sentence()) from None


def _looks_like_a_file(word: str) -> bool:
    if word in VERBS or word.startswith("-"):
        return False
    return "." in word or "/" in word or os.sep in word or os.path.lexists(word)


def _verb_meant(word: str) -> str | None:
    """The verb that a mistyped word is close to; None for a verb, an option, and what is like
    none of them.
    """
    if word in VERBS or word.startswith("-"):
        return None
    from difflib import get_close_matches

    return next(iter(get_close_matches(word[:40].lower(), VERBS, 1, 0.7)), None)
