"""``vramlens explain``: where the memory is, why it ran out, what to change."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from typing import TYPE_CHECKING

from vramlens.cli.arguments import add_device, add_forms, add_output, positive, size
from vramlens.cli.message import say
from vramlens.cli.output import as_json, as_text, goes_to_file, write_answer
from vramlens.cli.standard_input import has_input
from vramlens.errors import InputError, NotARecording, UsageError, VramlensError

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation
    from vramlens.analyses.profile.profile import Profile
    from vramlens.ranks import Comparison

HELP = "Say where the memory is, why it ran out and what to change."
EXAMPLES = (
    ("vramlens explain run.vram --by module", "a recording, by module"),
    ("vramlens explain train.log", "an out-of-memory error's text"),
)
_GROUPINGS = ("line", "code", "module", "category", "phase", "region", "stack")
_MOST_NAMED = 3


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``explain``."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a recording, a PyTorch memory snapshot, a log with an out-of-memory error, a trace of PyTorch's"
        " profiler, or NCCL flight records, one a rank; - reads standard input; without it: what is piped in,"
        " else the example that comes with vramlens",
    )
    parser.add_argument(
        "--at",
        type=_moment,
        metavar="MOMENT",
        help="the moment to show: peak, oom, end or an event's number (default: the failure, else the peak); not for a"
        " trace",
    )
    parser.add_argument(
        "--by", choices=_GROUPINGS, help="what to group memory by (default: line); not for a trace"
    )
    parser.add_argument(
        "--top",
        type=positive,
        metavar="N",
        help="how many rows to show (default: 10; after a failure, and of a trace, as many as one screen has room for)",
    )
    add_device(parser)
    parser.add_argument(
        "--log",
        metavar="LOG",
        help="a file with the error's text: its figures complete those of the recording",
    )
    parser.add_argument(
        "--total", type=size, metavar="SIZE", help="the GPU's memory, for example 80GiB"
    )
    add_forms(parser, "json", "markdown")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Explains one file and writes the answer."""
    from vramlens import api

    if (
        not arguments.files
        and arguments.log is None
        and not goes_to_file(arguments.output)
        and has_input()
    ):
        arguments.files = ["-"]
    if _are_flight_records(arguments.files):
        return _explain_flights(arguments)
    path: str | None = next(iter(arguments.files), None)
    if path is None and goes_to_file(arguments.output):
        raise UsageError(_without_file(arguments.output))
    if path is None and arguments.log is not None:
        raise UsageError("--log needs a FILE: the recording that the error belongs to")
    if path is None:
        path = str(api.example_path())
        say(
            f"no FILE given (- reads standard input), so this is the example that comes with it: {path}"
        )
    if os.path.isdir(path):
        ranks = shlex.join(["vramlens", "ranks", path])
        raise InputError(
            f"{path}: is a directory; name one recording in it, or compare the ranks in it: {ranks}"
        )
    if arguments.log == "-" and path == "-":
        raise UsageError("standard input can be FILE or --log, not both")
    # To a person a failure is about the moment it happened; data keep to the peak unless told
    # otherwise.
    moment = arguments.at or ("peak" if arguments.json else None)
    try:
        explanation = _explained(path, arguments, moment)
    except NotARecording:
        hang = _hang_in(path)
        if hang is None:
            raise
        _write_comparison(hang, arguments)
        return 0
    inputs = [path] if arguments.log is None else [path, arguments.log]
    write_answer(_drawn(explanation, arguments), arguments.output, inputs)
    return 0


def _without_file(output: str) -> str:
    """What to say where only the output was named: often it is the recording itself, meant as
    FILE.
    """
    said = f"explain: -o {output} names the output, and no FILE was given; "
    if os.path.exists(output):
        return f"{said}did you mean: {shlex.join(['vramlens', 'explain', output])}?"
    return f"{said}name it: vramlens explain FILE -o {shlex.quote(output)}"


def _are_flight_records(files: list[str]) -> bool:
    """Whether the files are flight records, which say something together.

    Raises:
        UsageError: they are several, and not all of them are.
    """
    from vramlens.read.flight_record import looks_like_flight_record

    if len(files) == 1:
        # What cannot be opened is told by what reads it.
        with contextlib.suppress(VramlensError, OSError):
            return looks_like_flight_record(files[0])
        return False
    for file in files:
        try:
            told = (
                ""
                if looks_like_flight_record(file)
                else "is no flight record"
                if os.path.exists(file)
                else "is not there"
            )
        except (VramlensError, OSError) as error:
            told = f"cannot be read ({error})"
        if told:
            compare = shlex.join(["vramlens", "ranks", *files[:_MOST_NAMED]]) + (
                " ..." if len(files) > _MOST_NAMED else ""
            )
            raise UsageError(
                f"explain takes one FILE, or several flight records: {file} {told}; ranks are compared by: {compare}"
            )
    return bool(files)


def _explain_flights(arguments: argparse.Namespace) -> int:
    """Says which rank missed or mismatched which collective."""
    for option in ("at", "by", "device", "log", "total", "top"):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} is for recordings; {arguments.files[0]} is a flight record"
            )
    from vramlens.fleet import compare_files

    _write_comparison(compare_files(arguments.files), arguments)
    return 0


def _hang_in(path: str) -> Comparison | None:
    """What a log tells of a hang by NCCL's watchdog; None where it does not."""
    from vramlens.ranks import compare
    from vramlens.read.watchdog_log import read_watchdog_lines

    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            flights = read_watchdog_lines(log, path)
    except OSError:  # standard input, which is read already, or a file that is compressed
        return None
    return compare((), flights) if flights else None


def _write_comparison(comparison: Comparison, arguments: argparse.Namespace) -> None:
    from vramlens.cli.verbs.ranks import comparison_drawn

    to_file = goes_to_file(arguments.output) or arguments.markdown
    text = comparison_drawn(comparison, json=arguments.json, to_file=to_file)
    if arguments.markdown:
        text = f"```\n{text.rstrip()}\n```\n"
    write_answer(text, arguments.output, arguments.files)


def _explained(path: str, arguments: argparse.Namespace, at: str | None) -> Explanation | Profile:
    from vramlens import api
    from vramlens.report.progress import reading_progress

    with reading_progress("reading") as progress:
        return api.explain(
            path,
            at=at,
            device=arguments.device,
            log=arguments.log,
            total_bytes=arguments.total,
            progress=progress,
        )


def _drawn(explanation: Explanation | Profile, arguments: argparse.Namespace) -> str:
    from vramlens.analyses.explanation import Explanation

    if not isinstance(explanation, Explanation):  # without importing what only profiler traces need
        for option in ("by", "at"):
            if getattr(arguments, option) is not None:
                raise UsageError(
                    f"--{option} is for recordings; {explanation.source} is a trace of PyTorch's profiler"
                )
        return _profile_drawn(explanation, arguments)
    by = arguments.by or "line"
    if arguments.json:
        from vramlens.report.explain.json import to_json

        return as_json(to_json(explanation))
    if arguments.markdown:
        from vramlens.report.explain.markdown import to_markdown

        return to_markdown(explanation, by, arguments.top)
    from vramlens.report.explain.text import render

    to_file = goes_to_file(arguments.output)
    whole = (
        to_file or arguments.by is not None
    )  # what was asked for by name is not cut to fit a screen
    return as_text(
        lambda console: render(explanation, console, by, arguments.top, whole=whole),
        to_file=to_file,
    )


def _profile_drawn(profile: Profile, arguments: argparse.Namespace) -> str:
    if arguments.json:
        from vramlens.report.profile.json import profile_to_json

        return as_json(profile_to_json(profile))
    if arguments.markdown:
        from vramlens.report.profile.story import profile_to_markdown

        return profile_to_markdown(profile, arguments.top)
    from vramlens.report.profile.story import render_profile

    to_file = goes_to_file(arguments.output)
    return as_text(
        lambda console: render_profile(profile, console, arguments.top, whole=to_file),
        to_file=to_file,
    )


def _moment(text: str) -> str:
    if text in ("peak", "oom", "end") or (text.isascii() and text.isdigit() and len(text) < 19):
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is no moment: say peak, oom, end or an event's number"
    )
