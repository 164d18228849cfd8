"""``vramlens run``: runs a program as it is and records its GPU memory."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from vramlens.cli.arguments import add_redact
from vramlens.cli.message import is_watched, say
from vramlens.errors import NoProgram, UsageError

if TYPE_CHECKING:
    from vramlens.capture.recording.session import RecordingPlan

HELP = "Run a program and record its GPU memory."
_RANGE = re.compile(r"([0-9]{0,12}):([0-9]{1,12})")
_PYTHON = re.compile(r"(?:.*[/\\])?python[0-9.]*(?:\.exe)?")
# Of this verb's options those that few programs have; --output, --debug, --every and --profile are
# common ones.
_UNLIKE_OTHERS = ("--max-events", "--redact", "--leaks", "--restart-on-oom", "--nvtx")
_NOTE = """\
A recording is written when memory runs out, on kill -USR2 PID or vramlens dump PID, after --steps,
every --every steps, and otherwise when the program ends, also by SIGTERM. A line on standard error
says where.
"""
EXAMPLES = (
    ("vramlens run train.py --epochs 3", "the program's own arguments come last"),
    ("vramlens run -m package.module", "like python -m"),
    (
        "torchrun --nproc-per-node 8 --no-python vramlens run -o runs/r1 train.py",
        "one recording per rank",
    ),
    ("vramlens run --steps 0:5 train.py", "record five steps, then continue without recording"),
    (
        "vramlens run --leaks train.py",
        "what grows and what keeps it (also without a GPU, and on SIGUSR2)",
    ),
    ("vramlens run --profile --steps 5:8 train.py", "a PyTorch profiler trace"),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``run``."""
    parser.epilog = _NOTE
    parser.usage = "vramlens run [options] (SCRIPT | -m MODULE) [arguments]"
    parser.add_argument(
        "-m", dest="module", action="store_true", help="PROGRAM is a module, as for python -m"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="a .vram file, or a folder, which gets SCRIPT-PID.vram, or rank00003.vram under"
        " torchrun (default: the current folder)",
    )
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--steps", type=_steps, metavar="A:B", help="record steps A to B-1, then stop recording"
    )
    when.add_argument(
        "--every",
        type=_count,
        metavar="N",
        help="write a recording every N steps and keep the last two",
    )
    parser.add_argument(
        "--max-events",
        type=_count,
        metavar="N",
        help="keep the last N events of each device (default: what fits in 1 GiB or 2%% of the"
        " machine's memory)",
    )
    add_redact(parser)
    parser.add_argument(
        "--profile", action="store_true", help="write a PyTorch profiler trace of --steps instead"
    )
    parser.add_argument(
        "--leaks",
        action="store_true",
        help="report at the end what grew with the steps and what keeps it; the exit code stays"
        " the program's (in CI: vramlens leaks --fail on a recording, or vramlens.no_leaks in a"
        " test)",
    )
    parser.add_argument(
        "--restart-on-oom",
        type=_count,
        metavar="N",
        help="restart after an out-of-memory error, at most N times, with the batch split that "
        "vramlens.guard learned",
    )
    parser.add_argument(
        "--nvtx", action="store_true", help="mark modules and operators for Nsight Systems"
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="turn on the cheap debug switches (see doctor --switches)",
    )
    parser.add_argument("program", metavar="PROGRAM", help="the script, or the module with -m")
    program_arguments = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="passed to the program unchanged"
    )
    program_arguments.required = False


def run(arguments: argparse.Namespace) -> Callable[[], int]:
    """Prepares the watch; gives the program, whose own ending is this process's ending."""
    from vramlens.capture.triggers.child_processes import follow_children
    from vramlens.program import begin_watch

    if not arguments.module and not os.path.exists(arguments.program):
        raise NoProgram(f"{arguments.program}: no such script{_without_python(arguments)}")
    if arguments.profile:
        _refuse_beside_profile(arguments)
    _refuse_output(arguments.output or "")
    _note_late_options(arguments)
    if arguments.restart_on_oom:
        from vramlens.recovery.guarding.restarting import supervised

        return lambda: supervised(sys.argv[1:], arguments.restart_on_oom)
    if arguments.debug:
        from vramlens.capture.doctor.switches import debug_bundle

        for name, value in debug_bundle().items():
            os.environ.setdefault(name, value)
    _note_missing_gpu(arguments)
    plan = _plan_of(arguments)
    command = [*(["-m"] if arguments.module else []), arguments.program, *arguments.arguments]
    session = begin_watch(plan, command)
    follow_children(plan)

    def program() -> int:
        try:
            _execute(arguments)
        except NoProgram:
            session.cancel()
            raise
        finally:
            session.program_ended()
        return 0

    return program


def _refuse_beside_profile(arguments: argparse.Namespace) -> None:
    from vramlens.capture.recording.redact import is_redaction_wanted

    if arguments.steps is None:
        raise UsageError(
            "run: --profile needs --steps A:B, because a trace of a whole run is too large to use"
        )
    if is_redaction_wanted(arguments.redact):
        raise UsageError(
            "run: a profiler trace cannot be redacted: use either --profile, or --redact"
            " (VRAMLENS_REDACT)"
        )
    if (arguments.output or "").endswith((".vram", ".json")):
        raise UsageError(
            f"run: -o {arguments.output}: --profile writes one file per rank: choose a folder"
        )


def _refuse_output(output: str) -> None:
    if "://" in output:
        raise UsageError(
            f"run: -o {output}: recordings go to a folder of this machine; export takes"
            " them to other places"
        )
    if os.path.exists(output) and not (os.path.isfile(output) or os.path.isdir(output)):
        raise UsageError(f"run: -o {output}: must be a file or a folder")


def _plan_of(arguments: argparse.Namespace) -> RecordingPlan:
    from vramlens.capture.recording.redact import is_redaction_wanted
    from vramlens.capture.recording.session import RecordingPlan

    first, last = arguments.steps or (None, None)
    return RecordingPlan(
        output=None if arguments.output is None else os.path.abspath(arguments.output),
        program=arguments.program,
        first_step=first,
        last_step=last,
        every=arguments.every or 0,
        at_exit=True,
        max_events=arguments.max_events,
        redacted=is_redaction_wanted(arguments.redact),
        profile=arguments.profile,
        nvtx=arguments.nvtx,
        leaks=arguments.leaks,
    )


def _execute(arguments: argparse.Namespace) -> None:
    """Runs the user's program; what ended it is noted where somebody waits to restart it."""
    from vramlens.capture.triggers.user_program import execute_module, execute_script

    execute = execute_module if arguments.module else execute_script
    try:
        execute(arguments.program, arguments.arguments)
    except NoProgram:
        raise
    except Exception as error:
        if "VRAMLENS_SPLIT_FILE" in os.environ:
            from vramlens.recovery.guarding.restarting import note_ending

            note_ending(error)
        raise


def _note_missing_gpu(arguments: argparse.Namespace) -> None:
    """Tells a person at a terminal that there is no GPU, before a run that would record nothing;
    else the end says it.

    Where standard error is kept, as in a file, it is the program's: it stays what it is until the
    program has ended.
    """
    from vramlens.capture.process.gpu_files import has_no_gpu

    if is_watched() and not arguments.leaks and os.environ.get("RANK", "0") == "0" and has_no_gpu():
        say(
            "no GPU here, so nothing will be recorded; run --leaks also finds leaks of tensors "
            "on the CPU"
        )


def _without_python(arguments: argparse.Namespace) -> str:
    """What to add where the program's name is Python's own, which is not to be named; else
    nothing.
    """
    words: list[str] = arguments.arguments
    if not _PYTHON.fullmatch(arguments.program) or not words:
        return ""
    argv: list[str] = arguments.argv
    before = argv[: len(argv) - len(words) - 1]
    has_options = words[0].startswith("-") and words[0] != "-m"
    if has_options or argv != [*before, arguments.program, *words]:
        return f"; leave out {arguments.program!r} and its options"
    return f"; leave out {arguments.program!r}: {shlex.join(['vramlens', *before, *words])}"


def _note_late_options(arguments: argparse.Namespace) -> None:
    """Says which of this verb's options came after the program's name: they are the program's,
    and it may know them.
    """
    late: list[str] = []
    program_arguments: list[str] = arguments.arguments
    for place, word in enumerate(program_arguments):
        if word == "--":
            break
        name, _, value = word.partition("=")
        if name not in _UNLIKE_OTHERS and name != "--steps":
            continue
        # Many programs have --steps 100; steps from one to another are vramlens's way to say it.
        if name == "--steps" and not _RANGE.fullmatch(
            value or "".join(program_arguments[place + 1 : place + 2])
        ):
            continue
        late.append(name)
    if late and os.environ.get("RANK", "0") == "0":  # once a job, not once a rank
        named, program = ", ".join(dict.fromkeys(late)), arguments.program
        say(f"{named} after {program} went to {program}; vramlens's own options come before it")


def _steps(text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    if match is None or int(match[1] or 0) >= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of steps: use 0:5 for the first five"
        )
    return int(match[1] or 0), int(match[2])


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)
