"""``vramlens explain``: where the memory is, why it ran out, what to change."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vramlens.cli.arguments import add_device, add_output, add_total, positive
from vramlens.cli.input import has_input
from vramlens.cli.message import say
from vramlens.cli.output import (
    as_json,
    as_text,
    document_drawn,
    drawn,
    goes_to_file,
    write_answer,
)
from vramlens.errors import InputError, NotARecording, UsageError, VramlensError

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation
    from vramlens.analyses.finding import Finding
    from vramlens.analyses.profile.explained_profile import Profile
    from vramlens.fleet.rank_files import CandidateFile
    from vramlens.ranks import Comparison

HELP = "Explain what uses the memory, why it ran out and what to change."
EXAMPLES = (
    ("vramlens explain run.vram --by module", "a recording, by module"),
    ("vramlens explain train.log", "an out-of-memory error message"),
    ("vramlens explain run.vram --format gcc", "findings on their lines, for an editor"),
)
_GROUPINGS = ("line", "code", "module", "category", "phase", "region", "stack")
_ANNOTATIONS = ("github", "sarif", "gcc")
_MOST_NAMED = 3


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``explain``."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a recording, a PyTorch memory snapshot, a log with an out-of-memory error, a "
        "PyTorch profiler trace, or NCCL flight records, one per rank; - reads standard input "
        "(default: piped input, else the example that ships with vramlens)",
    )
    parser.add_argument(
        "--at",
        type=_moment,
        metavar="MOMENT",
        help="the moment to show: peak, oom, end or an event number (default: the failure, "
        "else the peak)",
    )
    parser.add_argument(
        "--by",
        choices=(*_GROUPINGS, "operator", "shape"),
        metavar="GROUP",
        help="what to group memory by: line, code, module, category, phase, region or stack"
        " (default: line); of a trace, what to group operators by: operator, shape or line",
    )
    parser.add_argument(
        "--sort",
        choices=("memory", "gpu", "cpu", "calls"),
        help="for a trace: sort operators by this (default: cpu)",
    )
    parser.add_argument(
        "--top",
        type=positive,
        metavar="N",
        help="how many rows to show (default: 10; for a failure or a trace, as many as fit on "
        "one screen)",
    )
    add_device(parser)
    parser.add_argument(
        "--log",
        metavar="LOG",
        help="a log with the error message: its numbers fill in what the recording lacks",
    )
    add_total(parser)
    _add_form(parser)
    add_output(parser)


def _add_form(parser: argparse.ArgumentParser) -> None:
    """Adds ``--format``, and the short names of two of them."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=("text", "json", "markdown", *_ANNOTATIONS),
        default="text",
        metavar="FORM",
        help="text, json, markdown, github, sarif or gcc; the last three put the findings on their"
        " lines, for pull requests and editors",
    )
    for name, meaning in (("json", "one JSON object"), ("markdown", "for an issue")):
        form.add_argument(
            f"--{name}",
            action="store_const",
            const=name,
            dest="format",
            help=f"the same as --format {name}: {meaning}",
        )


def run(arguments: argparse.Namespace) -> int:
    """Explains one file and writes the answer."""
    if _is_piped(arguments):
        arguments.files = ["-"]
    if _are_flight_records(arguments.files):
        return _explain_flights(arguments)
    path = _path_of(arguments)
    # To a person a failure is about the moment it happened; data keep to the peak unless told
    # otherwise.
    moment = arguments.at or ("peak" if arguments.format == "json" else None)
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


def _is_piped(arguments: argparse.Namespace) -> bool:
    """True where nothing is named, and standard input has something to explain."""
    names_input = bool(arguments.files) or arguments.log is not None
    return not names_input and not goes_to_file(arguments.output) and has_input()


def _path_of(arguments: argparse.Namespace) -> str:
    path: str = arguments.files[0] if arguments.files else _example(arguments)
    if os.path.isdir(path):
        ranks = shlex.join(["vramlens", "ranks", path])
        raise InputError(
            f"{path}: is a directory; choose one recording in it, or compare its ranks: {ranks}"
        )
    if arguments.log == "-" and path == "-":
        raise UsageError("standard input can be used for FILE or for --log, not for both")
    return path


def _example(arguments: argparse.Namespace) -> str:
    """The path of the example, which is explained where no file is named.

    Raises:
        UsageError: something else was named that needs a file.
    """
    from vramlens import api

    if goes_to_file(arguments.output):
        raise UsageError(_without_file(arguments.output))
    if arguments.log is not None:
        raise UsageError("--log needs a FILE: the recording of the run with this error")
    path = str(api.example_path())
    say(
        "no FILE given (- reads standard input); showing the example that ships with "
        f"vramlens: {path}"
    )
    return path


def _without_file(output: str) -> str:
    """What to say where only the output was named: often it is the recording itself, meant as
    FILE.
    """
    reason = f"explain: -o {output} is the output, and no FILE was given; "
    if os.path.exists(output):
        return f"{reason}did you mean: {shlex.join(['vramlens', 'explain', output])}?"
    return f"{reason}add it: vramlens explain FILE -o {shlex.quote(output)}"


def _are_flight_records(files: list[str]) -> bool:
    """Whether the files are flight records, which say something together.

    Raises:
        UsageError: they are several, and not all of them are.
    """
    if len(files) == 1:  # what cannot be opened is told by what reads it
        return not _why_no_flight_record(files[0])
    for file in files:
        trouble = _why_no_flight_record(file)
        if trouble:
            raise UsageError(
                f"explain takes one FILE, or several flight records: {file} {trouble};"
                f" {_instead_of(files)}"
            )
    return bool(files)


def _why_no_flight_record(file: str) -> str:
    """Why a file is not a flight record; "" for one that is."""
    from vramlens.read.flight_record import looks_like_flight_record

    try:
        if looks_like_flight_record(file):
            return ""
    except (VramlensError, OSError) as error:
        return f"cannot be read ({error})"
    return "is not a flight record" if os.path.exists(file) else "does not exist"


def _instead_of(files: list[str]) -> str:
    """What to do with several files: a command that takes them."""
    from vramlens.fleet.rank_files import RECORDING

    candidates = list(_readable(files))
    if len(candidates) < len(files):  # logs, or files that are not there
        first = next((file for file in files if os.path.isfile(file)), "FILE")
        return f"one at a time: {shlex.join(['vramlens', 'explain', first])}"
    named = shlex.join(files[:_MOST_NAMED]) + (" ..." if len(files) > _MOST_NAMED else "")
    if len(files) != 2 or any(candidate.kind != RECORDING for candidate in candidates):
        return f"ranks are compared by: vramlens ranks {named}"
    if candidates[0].is_profiler_trace != candidates[1].is_profiler_trace:
        return f"a recording and a trace of the same run are shown together: vramlens view {named}"
    return f"compare before and after: vramlens diff {named}; or ranks: vramlens ranks {named}"


def _readable(files: list[str]) -> Iterator[CandidateFile]:
    from vramlens.fleet.rank_files import examine

    for file in files:
        with contextlib.suppress(VramlensError, OSError):
            candidate = examine(file)
            if candidate is not None:
                yield candidate


def _explain_flights(arguments: argparse.Namespace) -> int:
    """Says which rank missed or mismatched which collective."""
    for option in ("at", "by", "device", "log", "total", "top"):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} is only for recordings; {arguments.files[0]} is a flight record"
            )
    from vramlens.fleet import compare_files

    _refuse_annotations(arguments)
    _write_comparison(compare_files(arguments.files), arguments)
    return 0


def _refuse_annotations(arguments: argparse.Namespace) -> None:
    if arguments.format in _ANNOTATIONS:
        raise UsageError(
            f"--format {arguments.format} is for recordings, logs and traces;"
            f" {arguments.files[0]} is a flight record"
        )


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
    if arguments.format == "markdown":
        from vramlens.report.forms import document_of
        from vramlens.report.text import print_document

        document = document_of(comparison)
        text = as_text(lambda console: print_document(document, console), to_file=True)
        text = f"```\n{text.rstrip()}\n```\n"
    else:
        text = drawn(comparison, arguments.format, arguments.output)
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
        return _profile_drawn(explanation, arguments)
    if arguments.sort is not None:
        raise UsageError("--sort is only for PyTorch profiler traces")
    if arguments.by is not None and arguments.by not in _GROUPINGS:
        raise UsageError(f"--by {arguments.by} is only for PyTorch profiler traces")
    facts = explanation.recording
    if arguments.by is not None and explanation.heap is None and not facts.events:
        raise UsageError(
            f"--by {arguments.by} is only for recordings; {facts.source} has no events"
        )
    if arguments.format in _ANNOTATIONS:
        return _annotated(explanation.recording.source, explanation.findings, arguments)
    return drawn(
        explanation,
        arguments.format,
        arguments.output,
        whole=arguments.by is not None,  # what was asked for by name is not cut to fit a screen
        by=arguments.by or "line",
        top=arguments.top,
    )


def _annotated(source: str, findings: Sequence[Finding], arguments: argparse.Namespace) -> str:
    from vramlens.report.editor import annotated

    return annotated(arguments.format, source, findings, os.environ)


def _profile_drawn(profile: Profile, arguments: argparse.Namespace) -> str:
    from vramlens.analyses.profile.operator_tables import GROUPINGS
    from vramlens.report.forms import data_of

    if arguments.format in _ANNOTATIONS:
        return _annotated(profile.source, profile.findings, arguments)
    source = profile.source
    if arguments.by is not None and arguments.by not in GROUPINGS:
        raise UsageError(
            f"--by {arguments.by} is only for recordings; {source} is a PyTorch profiler trace: "
            f"{', '.join(GROUPINGS)}"
        )
    grouping, order = arguments.by or "operator", arguments.sort or "cpu"
    if arguments.format == "json":
        return as_json(data_of(profile, grouping=grouping, order=order))
    if arguments.by is None and arguments.sort is None:
        return drawn(profile, arguments.format, arguments.output, top=arguments.top)
    from vramlens.report.profile.operator_table import OperatorChoice, operators_document

    document = operators_document(profile, OperatorChoice(grouping, order), arguments.top)
    return document_drawn(document, arguments.format, arguments.output)


def _moment(text: str) -> str:
    if text in ("peak", "oom", "end") or (text.isascii() and text.isdigit() and len(text) < 19):
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a moment: use peak, oom, end or an event number"
    )
