"""``vramlens attach``: into a running program that nobody prepared."""

from __future__ import annotations

import argparse
import time

from vramlens.cli.arguments import add_forms, add_redact, positive
from vramlens.cli.message import say
from vramlens.cli.output import as_json, as_text, fills_a_screen, write_stdout
from vramlens.errors import UsageError

HELP = "Look into a running program that was not started under vramlens."
EXAMPLES = (
    ("vramlens attach 4242", "what uses its memory now"),
    ("vramlens attach 4242 --steps 20 -o now.vram", "what grows with its steps"),
)
_NOTE = """\
Works on Python 3.10 to 3.14 on Linux, with or without a GPU. Only --install leaves anything in
the program.
"""
_LONGEST_WATCH_S = 3600.0
_PAUSE_S = 1.0
_TELLS_EVERY_S = 1.0


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``attach``."""
    parser.epilog = _NOTE
    parser.add_argument("pid", type=positive, metavar="PID", help="the process to look into")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--install", action="store_true", help="from now on, explain and record a failure"
    )
    mode.add_argument(
        "--steps", type=positive, metavar="N", help="watch N steps for leaks, and record them"
    )
    parser.add_argument(
        "--seconds", type=positive, metavar="N", help="watch steps for N seconds (at most)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the recording of the watched steps (GPU only)"
    )
    add_redact(parser)
    parser.add_argument(
        "--top",
        type=positive,
        metavar="N",
        help="rows of each table of what is there now (default: 10 holders, 5 tensors)",
    )
    parser.add_argument(
        "--pause",
        type=_seconds,
        default=_PAUSE_S,
        metavar="SECONDS",
        help="pause the program for at most this long (default: 1)",
    )
    parser.add_argument(
        "--copy", action="store_true", help="copy vramlens into a container that does not have it"
    )
    add_forms(parser, "json")


def run(arguments: argparse.Namespace) -> int:
    """Attaches, and prints what the process said."""
    from vramlens.attach.attachment import AttachRequest, attach
    from vramlens.attach.story import story, to_dict
    from vramlens.capture.recording.redact import is_redaction_wanted

    is_watch = bool(arguments.steps or arguments.seconds)
    _refuse_contradictions(arguments, is_watch)
    mode = "watch" if is_watch else "look"
    longest_s = _LONGEST_WATCH_S if is_watch else 0
    request = AttachRequest(
        "install" if arguments.install else mode,
        steps=arguments.steps or 0,
        seconds=float(arguments.seconds or longest_s),
        pause_s=arguments.pause,
        output=arguments.output,
        copies=arguments.copy,
        top=arguments.top or 0,
        redacted=is_redaction_wanted(arguments.redact),
    )
    tell = _ignore if arguments.format == "json" else _StepTeller(arguments.steps).tell
    attachment = attach(arguments.pid, request, tell)
    write_stdout(
        as_json(to_dict(attachment)) if arguments.format == "json" else _shown(story(attachment))
    )
    return 0


def _shown(text: str) -> str:
    """The text, broken at words where it goes to a terminal."""
    if not fills_a_screen(None):
        return text
    from vramlens.report.screen import broken_lines, layout_of, show

    return as_text(
        lambda console: show(console, broken_lines(text, layout_of(console))), to_file=False
    )


def _refuse_contradictions(arguments: argparse.Namespace, is_watch: bool) -> None:
    if arguments.install and arguments.seconds:
        raise UsageError("attach: --install watches from now on; leave --seconds out")
    if arguments.top and (is_watch or arguments.install):
        raise UsageError("attach: --top is for what is there now; leave it out")
    if arguments.output and not (is_watch or arguments.install):
        raise UsageError(
            "attach: -o needs --steps or --seconds: a recording is of steps; vramlens dump writes"
            " what was recorded already"
        )


class _StepTeller:
    """Says how many steps have ended, once a second at most."""

    def __init__(self, total: int | None) -> None:
        self._total = total or 0
        self._next_s = 0.0

    def tell(self, steps: int) -> None:
        """Called after each step."""
        if steps and time.monotonic() >= self._next_s:
            say(self._progress(steps))
            self._next_s = time.monotonic() + _TELLS_EVERY_S

    def _progress(self, steps: int) -> str:
        if not self._total:
            return f"step {steps:,}"
        if steps > self._total:  # they are of time
            return "waiting for a step of an optimizer, or a call of a model"
        return f"step {steps:,} of {self._total:,}"


def _ignore(steps: int) -> None:
    """Says nothing: the answer is data."""


def _seconds(text: str) -> float:
    """A number of seconds above 0.

    Raises:
        ValueError: it is not one.
    """
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise ValueError(text)
    return seconds
