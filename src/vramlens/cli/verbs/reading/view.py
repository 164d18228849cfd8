"""``vramlens view``: the picture, as open a page on this machine or as one file."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramlens.allowance import release
from vramlens.cli import interruption
from vramlens.cli.arguments import add_device, hints_on_settings
from vramlens.cli.message import say
from vramlens.cli.output import goes_to_file, write_answer, write_stdout
from vramlens.errors import InputError, UsageError
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.trace import Trace
    from vramlens.view.local.server import LocalPage
    from vramlens.view.timeline.collective_calls import RankFlight

HELP = "Show a recording as an interactive page, or write it as one HTML file."
EXAMPLES = (
    ("vramlens view run.vram", "open a page on this machine"),
    ("vramlens view run.vram -o run.html", "write one self-contained file"),
    ("vramlens view --empty -o open.html", "write a page onto which recordings are dropped"),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``view``."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a recording, a PyTorch memory snapshot or a profiler trace; two are compared, more"
        " are shown side by side (rank*.vram); NCCL flight records of the ranks can be added, or a"
        " folder with all of them",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PAGE",
        help="write one self-contained HTML file instead of serving a page",
    )
    parser.add_argument(
        "--empty",
        action="store_true",
        help="write a page without a recording: it opens the files that are dropped onto it, on"
        " any machine with a browser (needs -o)",
    )
    add_device(parser, default="all")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="SETTINGS",
        help="also draw the reserved memory under these allocator settings; repeatable",
    )
    code = parser.add_mutually_exclusive_group()
    code.add_argument(
        "--sources",
        metavar="FOLDER",
        default=".",
        help="the folder of the program: the source lines go into the page (default: the "
        "current folder)",
    )
    code.add_argument("--no-sources", action="store_true", help="no source code in the page")
    parser.add_argument(
        "--port",
        type=_port,
        default=0,
        metavar="N",
        help="the port of the page (default: any free port)",
    )
    parser.add_argument(
        "--no-browser",
        action="store_true",
        help="print the address of the page without opening a browser",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the page, or serves it until it is interrupted."""
    from vramlens.report.progress import reading_progress
    from vramlens.view.comparison import joined, ranks_in_names
    from vramlens.view.page import Choices, data_of, one_file, title_of

    files: list[str] = arguments.files
    if arguments.empty:
        return _write_file_opener(files, arguments.output)
    if not files:
        raise UsageError("a FILE is required; --empty -o open.html writes a page that opens files")
    if len(files) > 1 and files.count("-") > 1:
        raise UsageError("standard input can be used for one FILE only")
    with reading_progress("reading") as progress:
        files, ranks, flights = _of_a_job(files)
        recordings = _loaded(files, progress)
    if not ranks:
        recordings = joined(recordings)
        ranks = ranks_in_names(recordings)
    choices = Choices(
        device=arguments.device,
        confs=tuple(arguments.conf),
        sources=None if arguments.no_sources else arguments.sources,
    )
    with hints_on_settings():
        data = data_of(recordings, choices, flights, ranks)
    title = title_of(recordings)
    if arguments.output is None:
        return _serve(data, title, arguments)
    page = one_file(data, title)
    write_answer(page, arguments.output, [*arguments.files, *files])
    if goes_to_file(arguments.output):
        content = f"{format_size(len(page))}, with {_counted_allocations(recordings)}"
        say(f"{arguments.output}: {content}; open it in a browser")
    return 0


def _counted_allocations(recordings: Sequence[Trace]) -> str:
    devices = [device for trace in recordings for device in trace.devices.values()]
    allocations = sum(len(device.allocations) for device in devices)
    if allocations == 1:
        return "the one allocation"
    return f"all of its {counted(allocations, 'allocation')}"


def _write_file_opener(files: list[str], output: str | None) -> int:
    from vramlens.view.file_opener import file_opener_page

    if files:
        raise UsageError("--empty takes no FILE: leave out one of the two")
    if output is None:
        raise UsageError("--empty writes a page: add -o open.html")
    page = file_opener_page()
    write_answer(page, output, [])
    if goes_to_file(output):
        say(
            f"{output}: {format_size(len(page))}; open it in a browser and drop a recording onto it"
        )
    return 0


def _is_of_a_job(file: str) -> bool:
    from vramlens.read.flight_record import looks_like_flight_record

    return os.path.isdir(file) or looks_like_flight_record(file)


def _of_a_job(files: list[str]) -> tuple[list[str], list[int], list[RankFlight | None]]:
    """The recordings among the files; of each, if a folder or flight records are there, its rank
    and flight record.
    """
    from vramlens.read.flight_record import read_flight_record
    from vramlens.view.timeline.collective_calls import RankFlight

    if not any(map(_is_of_a_job, files)):
        return files, [], []
    from vramlens.fleet.files import find_ranks

    job = find_ranks(files)
    for note in job.notes:
        say(note)
    ranks = [
        (rank.rank, rank.recording, rank.flight) for rank in job.ranks if rank.recording is not None
    ]
    if not ranks:
        raise UsageError(
            "flight records contain no memory: add the recordings of the ranks, or use "
            "vramlens explain"
        )
    flights = [
        None if flight is None else RankFlight(rank, read_flight_record(flight))
        for rank, _, flight in ranks
    ]
    return [recording for _, recording, _ in ranks], [rank for rank, _, _ in ranks], flights


def _loaded(files: list[str], progress: object) -> list[Trace]:
    from vramlens import api

    recordings: list[Trace] = []
    for number, file in enumerate(files):

        def report(share: float, done: int = number) -> None:
            if callable(progress):
                progress((done + share) / len(files))

        recordings.append(api.load(file, progress=report))
    return recordings


def _serve(data: bytes, title: str, arguments: argparse.Namespace) -> int:
    from vramlens.view.local.opening import tunnel_command
    from vramlens.view.local.server import LocalPage

    release()
    try:
        server = LocalPage(data, title, arguments.port)
    except OSError as error:
        raise InputError(
            f"--port {arguments.port}: {(error.strerror or str(error)).lower()}; leave it out"
        ) from None
    with server:
        write_stdout(f"{server.url}\n")
        say("the page is available until Ctrl-C; -o run.html writes a file instead")
        command = tunnel_command(os.environ, server.server_port)
        if command is not None:
            say(f"to open it on your own machine, run there: {command}")
        if not arguments.no_browser and _has_desktop():
            _open(server)
        interruption.leave()  # Ctrl-C is how it is ended
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    return 0


def _has_desktop() -> bool:
    """Whether a browser would open a window: without one, Python may start lynx or w3m over this
    terminal.
    """
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _open(server: LocalPage) -> None:
    """Asks the desktop for a browser, beside the server: some browsers return only when they are
    closed.
    """
    import threading
    import webbrowser

    def open_page() -> None:
        with contextlib.suppress(Exception):  # no desktop, no browser: the address is on the screen
            webbrowser.open(server.opening_url())

    threading.Thread(target=open_page, daemon=True).start()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use a number up to 65535")
    return int(text)
