"""``vramlens replay``: a recording run again through the allocator, as it was and under other settings."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from vramlens.cli.explain import device, size
from vramlens.cli.output import Page, write_file, write_stdout
from vramlens.units import MIB, counted

if TYPE_CHECKING:
    from vramlens.replay import Answer

HELP = "Replay a recording through the allocator, under its own settings and under others."
_FILE_WIDTH = 100


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``replay``."""
    parser.add_argument("file", metavar="FILE", help="a recording or a PyTorch memory snapshot; - reads standard input")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="SETTINGS",
        help="settings to try, as in PYTORCH_ALLOC_CONF; again for more (default: the recorded ones); '' is PyTorch's"
        " default",
    )
    parser.add_argument(
        "--cap",
        type=limit_size,
        metavar="SIZE",
        help="what the process may reserve, as set_per_process_memory_fraction limits it (default: what it could)",
    )
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Adds what ``replay`` and ``tune`` share."""
    parser.add_argument(
        "--recorded-cap",
        type=size,
        metavar="SIZE",
        help="what the process could reserve when it was recorded, where the recording does not say",
    )
    parser.add_argument(
        "--device", type=device, metavar="N", help="the device, 0 or cuda:0 (default: the one that holds most)"
    )
    parser.add_argument("--json", action="store_true", help="print data: one JSON object")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of standard output")


def limit_size(text: str) -> int:
    """Bytes that a process or a card may have, from an argument; less than 1 MiB is a unit that was forgotten."""
    found = size(text)
    if found < MIB:
        number = text.strip().rstrip("BKMGTIbkmgti ")
        raise argparse.ArgumentTypeError(f"{text} is {counted(found, 'byte')}; did you mean {number}GiB?")
    return found


def run(arguments: argparse.Namespace) -> int:
    """Replays one file and writes the answer."""
    from vramlens import api
    from vramlens.replay import replay_trace
    from vramlens.report.progress import reading_progress

    with reading_progress("reading") as progress:
        recording = api.load(arguments.file, progress=progress)
    answer = replay_trace(
        recording,
        confs=arguments.conf,
        cap_bytes=arguments.cap,
        recorded_cap_bytes=arguments.recorded_cap,
        device=arguments.device,
    )
    write(arguments, _written(answer, arguments))
    return 0


def write(arguments: argparse.Namespace, text: str) -> None:
    """Writes the answer where it was asked for."""
    if arguments.output in (None, "-"):
        write_stdout(text)
    else:
        write_file(arguments.output, text, source=arguments.file)


def _written(answer: Answer, arguments: argparse.Namespace) -> str:
    if arguments.json:
        import json

        from vramlens.report.replay_json import answer_to_json

        return json.dumps(answer_to_json(answer), indent=2, allow_nan=False) + "\n"
    from rich.console import Console

    from vramlens.report.replay import render_answer

    to_file = arguments.output not in (None, "-")
    page = Page(None if to_file else sys.stdout)
    render_answer(answer, Console(file=page, width=_FILE_WIDTH if to_file else None))
    return page.getvalue()
