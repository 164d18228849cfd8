"""``vramlens replay``: a recording run again through the allocator, as it was and under other
settings.
"""

from __future__ import annotations

import argparse

from vramlens.cli.arguments import (
    add_cap,
    add_device,
    add_file,
    add_forms,
    add_output,
    add_recorded_cap,
    hints_on_settings,
)
from vramlens.cli.input import read_recording
from vramlens.cli.output import drawn, write_answer

HELP = "Replay a recording through the allocator, with its own settings and with others."
EXAMPLES = (
    ("vramlens replay run.vram", "how exact the replay is"),
    ("vramlens replay run.vram --conf expandable_segments:True", "other settings"),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``replay``."""
    add_file(parser)
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="SETTINGS",
        help="settings to try, as in PYTORCH_ALLOC_CONF; repeatable (default: the recorded "
        "settings); '' is PyTorch's default",
    )
    add_cap(parser)
    add_recorded_cap(parser)
    add_device(parser)
    add_forms(parser, "json")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replays one file and writes the answer."""
    from vramlens.replay import replay_trace

    with hints_on_settings():
        answer = replay_trace(
            read_recording(arguments.file),
            confs=arguments.conf,
            cap_bytes=arguments.cap,
            recorded_cap_bytes=arguments.recorded_cap,
            device=arguments.device,
        )
    write_answer(
        drawn(answer, arguments.format, arguments.output), arguments.output, [arguments.file]
    )
    return 0
