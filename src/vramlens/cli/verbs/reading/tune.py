"""``vramlens tune``: which allocator settings are worth having for a recorded run."""

from __future__ import annotations

import argparse

from vramlens.cli.arguments import (
    CARDS_WORDS,
    add_cap,
    add_device,
    add_file,
    add_forms,
    add_output,
    add_recorded_cap,
    card_sizes,
    hints_on_settings,
)
from vramlens.cli.input import read_recording
from vramlens.cli.output import drawn, fills_a_screen, write_answer

HELP = "Try common allocator settings on a recording and find the best."
EXAMPLES = (
    ("vramlens tune run.vram", "the best allocator settings"),
    ("vramlens tune run.vram --cards 24G,80G", "which cards the run fits"),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``tune``."""
    add_file(parser)
    limit = parser.add_mutually_exclusive_group()
    add_cap(limit)
    limit.add_argument(
        "--cards",
        type=card_sizes,
        default=[],
        metavar="CARD,CARD",
        help=f"cards to check, with each setting: {CARDS_WORDS}",
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="SETTINGS",
        help="settings to try in addition to the usual ones",
    )
    parser.add_argument("--all", action="store_true", help="show every setting that was tried")
    add_recorded_cap(parser)
    add_device(parser)
    add_forms(parser, "json")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Tunes one file and writes the answer."""
    from vramlens.replay import WORTH_TRYING, tune_trace
    from vramlens.report.progress import reading_progress

    recording = read_recording(arguments.file)
    with reading_progress("trying settings") as progress, hints_on_settings():
        tuning = tune_trace(
            recording,
            cap_bytes=arguments.cap,
            cards=arguments.cards,
            confs=(*WORTH_TRYING, *arguments.conf),
            recorded_cap_bytes=arguments.recorded_cap,
            device=arguments.device,
            progress=progress,
        )
    all_rows = arguments.all or not fills_a_screen(arguments.output)
    text = drawn(tuning, arguments.format, arguments.output, all_rows=all_rows)
    write_answer(text, arguments.output, [arguments.file])
    return 0
