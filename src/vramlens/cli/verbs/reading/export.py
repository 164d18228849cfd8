"""``vramlens export``: a recording in the formats of other tools, and the ranks of a job as a
lake of Parquet.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO

from vramlens.cli.arguments import add_device
from vramlens.cli.input import read_recording
from vramlens.cli.message import say
from vramlens.cli.output import (
    OutputError,
    abandon,
    fills_a_screen,
    goes_to_file,
    reason_of,
    refuse_inputs,
    write_stdout,
)
from vramlens.errors import InputError, UsageError
from vramlens.units import agreeing, counted, first_of, format_size

if TYPE_CHECKING:
    from vramlens.export import Format, Written
    from vramlens.fleet import Exported
    from vramlens.trace import Trace

HELP = (
    "Convert a recording for other tools (Perfetto, Chrome, speedscope, flame graphs, tables, "
    "TensorBoard), or a job into a lake."
)
EXAMPLES = (
    ("vramlens export run.vram --to perfetto", "for ui.perfetto.dev"),
    ("vramlens export runs/r1 --to lake/", "every rank, for vramlens ranks"),
)
_NAMES = ("perfetto", "chrome", "speedscope", "flamegraph", "csv", "parquet", "tensorboard")
_RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_MOST_NAMED = 8


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``export``."""
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="FILE",
        help="a recording or a PyTorch memory snapshot, - reads standard input; for a lake, files"
        " and folders",
    )
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        help=f"{', '.join(_NAMES)}; or a folder (lake/) or URL (s3://…): Parquet files of every "
        "rank, for 'vramlens ranks'",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the file, or a folder for tensorboard; - is standard output (default: named "
        "after the source, in the current folder)",
    )
    parser.add_argument(
        "--at",
        metavar="MOMENT",
        help="for flamegraph and speedscope: peak, oom, end or an event number (default: peak)",
    )
    add_device(parser, default="all; for flamegraph and tensorboard, the one with the most memory")
    parser.add_argument(
        "--run",
        metavar="ID",
        help="for a lake: the name of the run (default: named after the source)",
    )
    parser.add_argument(
        "--workers",
        metavar="WHERE",
        help="for a lake: where to read the ranks: a number of processes, or dask://HOST:PORT",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the file or the lake, and says what is in it."""
    target: str | None = arguments.to
    if target is None:
        raise UsageError(
            f"export: --to is missing: one of {', '.join(_NAMES)}, or a folder for a lake: --to"
            " lake/"
        )
    if target in _NAMES:
        for option in ("run", "workers"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option} is for a lake: --to FOLDER/")
        return _export_one(arguments)
    if not (target.endswith(("/", os.sep)) or os.path.isdir(target) or os.path.dirname(target)):
        raise UsageError(
            f"--to {target}: is not a format ({', '.join(_NAMES)}); a lake's folder ends in /: "
            f"--to {target}/"
        )
    for option, flag in (("output", "-o"), ("at", "--at"), ("device", "--device")):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"{flag} does not apply to a lake, which is the folder given with --to"
            )
    return _export_lake(arguments)


def _refuse_standard_output(form: Format, name: str) -> None:
    if form.is_folder:
        raise UsageError(f"-o -: {name} is not text; choose a folder")
    if not form.text and fills_a_screen(None):
        raise UsageError(f"-o -: {name} is not text; choose a file")


def _export_one(arguments: argparse.Namespace) -> int:
    from vramlens.export import FORMATS

    sources, name = arguments.sources, arguments.to
    if len(sources) > 1 or os.path.isdir(sources[0]):
        raise UsageError(
            f"--to {name} takes one recording; for many ranks at once, write a lake: --to lake/"
        )
    source, form = sources[0], FORMATS[name]
    target = _target(arguments.output, source, name)
    if arguments.at is not None and not form.has_moment:
        raise UsageError(f"--at is for flamegraph and speedscope; {name} contains every moment")
    if target == "-":
        _refuse_standard_output(form, name)
    if goes_to_file(target):
        refuse_inputs(target, [source])
    written = _write(read_recording(source), form, target, arguments)
    if goes_to_file(target):
        _tell(written, form, target)
    return 0


def _target(output: str | None, source: str, name: str) -> str:
    from vramlens.export import default_name

    if output and "://" in output:
        raise UsageError(f"-o {output}: name a local file; only a lake goes elsewhere")
    return output or default_name(source, name)


def _write(trace: Trace, form: Format, target: str, arguments: argparse.Namespace) -> Written:
    """Writes the file whole or not at all."""
    from vramlens.export import export_recording
    from vramlens.whole_file import whole_file

    def export(out: BinaryIO | str) -> Written:
        return export_recording(trace, arguments.to, out, at=arguments.at, device=arguments.device)

    try:
        if not goes_to_file(target):
            return _to_stdout(export)
        if form.is_folder:
            return export(target)
        if os.path.isdir(target):
            raise IsADirectoryError(None, "is a directory; choose a file name in it")
        with whole_file(target) as out:
            return export(out)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"{target}: {reason_of(error)}") from None


def _to_stdout(export: Callable[[BinaryIO | str], Written]) -> Written:
    """Writes to standard output; where its reader has gone away, ``main`` is told so."""
    stream = sys.stdout
    if stream is None:
        raise OutputError("standard output is closed; use -o FILE")
    try:
        written = export(stream.buffer)
        stream.buffer.flush()
    except BrokenPipeError:
        abandon(stream)
        raise
    return written


def _tell(written: Written, form: Format, target: str) -> None:
    """What is in the file, what is reduced in it, and what to do with it; beside the data, on
    standard error.
    """
    # A pipe has none.
    size = f"{format_size(os.path.getsize(target))}, " if os.path.isfile(target) else ""
    lines = [f"{target}: {size}{written.what}", *written.notes]
    for line in lines:
        say(line)
    say(f"next: {form.opens.format(shlex.quote(target))}")


def _export_lake(arguments: argparse.Namespace) -> int:
    from vramlens.fleet import export_lake
    from vramlens.fleet.lake import connect
    from vramlens.fleet.lake.store import store_of
    from vramlens.report.progress import reading_progress

    sources, root = arguments.sources, arguments.to
    store_of(root)  # what cannot be reached is told before anything is read
    if os.path.exists(root) and not os.path.isdir(root):
        raise UsageError(f"--to {root}: is a file; a lake is a folder")
    run_id = _run_of(sources[0]) if arguments.run is None else arguments.run
    if not _RUN.fullmatch(run_id):
        raise UsageError(
            f"--run {run_id}: letters, digits, '.', '_' and '-' only, and no '.' or '-' first"
        )
    connect().close()  # without DuckDB, say so once and not for each rank
    try:
        with reading_progress("exporting") as progress:
            exported = export_lake(
                sources,
                root,
                run_id,
                where=arguments.workers,
                progress=progress,
                is_given=arguments.run is not None,
            )
    except OSError as error:
        raise OutputError(f"{root}: {(error.strerror or str(error)).lower()}") from None
    if not exported.ranks:
        raise InputError(
            f"{root}: nothing was written:"
            f" {'; '.join(exported.notes[:2]) or 'no rank could be read'}"
        )
    write_stdout(_lake_words(exported, root))
    return 0


def _lake_words(exported: Exported, root: str) -> str:
    """What the lake has now, what is missing, and the next command."""
    from vramlens.fleet import Lake
    from vramlens.report.wording import visible

    events = "no new events; the existing data was kept"
    if exported.events:
        events = f"{counted(exported.events, 'new event')} written"
    run_id = exported.run
    lines = [f"{visible(root)}: run {run_id}, {counted(exported.ranks, 'rank')}; {events}"]
    if exported.missing:
        lines.append(_missing_words(exported.missing))
    lines += map(visible, exported.notes)
    run_option = f" --run {run_id}" if len(Lake(root).runs) > 1 else ""
    command = f"  vramlens ranks {shlex.quote(root)}{run_option}"
    return "\n".join([*lines, "", "Next, compare its ranks:", command, ""])


def _missing_words(missing: Sequence[int]) -> str:
    noun = agreeing(len(missing), "rank", "ranks")
    return f"missing: {noun} {first_of(missing, _MOST_NAMED)}"


def _run_of(source: str) -> str:
    """What a run is called after its folder or file: ``r1`` for ``runs/r1/``."""
    name = os.path.basename(os.path.realpath(source))
    if not os.path.isdir(source):
        name = re.sub(r"(?i)(?:\.vram|\.pickle|\.pkl)?(?:\.xz|\.gz|\.zst)?$", "", name)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name, flags=re.ASCII).strip("-.")[:100] or "run"
