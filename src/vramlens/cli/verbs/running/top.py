"""``vramlens top``: every GPU and process, live."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vramlens.cli import interruption
from vramlens.cli.message import say
from vramlens.cli.output import as_json, write_stdout
from vramlens.errors import UsageError
from vramlens.foreign_text import text_of

if TYPE_CHECKING:
    from vramlens.monitor.machine.machine import MachineNow
    from vramlens.monitor.top.watching import MachineWatch, Sink

HELP = "Show every GPU and process, live, or export the numbers to a monitoring system."
EXAMPLES = (
    ("vramlens top", "every GPU and process, live"),
    ("vramlens top --alert 'used > 92%' --jsonl gpu.jsonl", "watch in the background"),
)
_WIDTH = 100
_SHORTEST_S = 0.1
_NOTE = """\
With a terminal and textual (pip install 'vramlens[tui]') it fills the screen; press ? for the keys. Otherwise it
prints plain lines. If the output goes to a file or a pipe, it prints once; with --jsonl, --prometheus, --otel or
--alert it runs without printing.

alerts: used, free, allocated, reserved, cached, host in bytes or %; growth in bytes per step; steps_left; gpu in %;
temperature in C; power in W; retries; failures. Examples: "used > 92%", "free < 2GiB for 30s", "growth > 5MiB/step",
"steps_left < 500".
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``top``."""
    parser.epilog = _NOTE
    parser.add_argument(
        "pid",
        nargs="?",
        type=int,
        metavar="PID",
        help="only this process and its GPUs, in more detail",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--once", action="store_true", help="print the state once as plain lines and exit"
    )
    form.add_argument(
        "--plain", action="store_true", help="print plain lines repeatedly instead of a screen"
    )
    form.add_argument(
        "--json", action="store_true", help="print the state once as one JSON object and exit"
    )
    parser.add_argument(
        "--interval", type=_seconds, metavar="SECONDS", help="time between two updates (default: 1)"
    )
    parser.add_argument(
        "--jsonl", metavar="FILE", help="append each update to a file, as one line of JSON"
    )
    parser.add_argument(
        "--prometheus", metavar="[HOST]:PORT", help="serve metrics; :9400 listens on all interfaces"
    )
    parser.add_argument(
        "--otel",
        nargs="?",
        const="",
        metavar="URL",
        help="send OpenTelemetry metrics over OTLP/HTTP (default: the endpoint in the OTEL_ "
        "variables)",
    )
    parser.add_argument(
        "--alert",
        action="append",
        default=[],
        metavar="RULE",
        help="such as 'used > 92%%'; repeatable",
    )
    parser.add_argument(
        "--exec",
        metavar="COMMAND",
        help="run this on an alert; its last argument is the message",
    )
    parser.add_argument("--webhook", metavar="URL", help="post alerts to this URL as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Shows the machine until it is told to end."""
    from vramlens.monitor.alerts.actions import Actions
    from vramlens.monitor.alerts.rules import parse_rule
    from vramlens.monitor.top.watching import MachineWatch

    rules = [parse_rule(text) for text in arguments.alert]
    if (arguments.exec or arguments.webhook) and not rules:
        raise UsageError("--exec and --webhook need an alert: --alert 'used > 92%'")
    is_terminal = _is_terminal()
    screen = _screen(arguments, is_terminal)
    options: dict[str, Any] = {} if screen is None else {"say_line": None}
    actions = Actions(command=arguments.exec, webhook=arguments.webhook, **options)
    sinks = _sinks(arguments)
    watching = MachineWatch(pid=arguments.pid, rules=rules, actions=actions, sinks=sinks)
    handler_before = signal.signal(signal.SIGTERM, _terminated)
    try:
        if screen is not None:
            watching.look()  # an error belongs to the shell, not to the screen
            return int(screen(watching, arguments.interval or 1.0))
        return _print(arguments, watching, is_terminal, bool(sinks or rules))
    except _Terminated:
        return 0
    finally:
        watching.close()
        signal.signal(signal.SIGTERM, handler_before or signal.SIG_DFL)


def _sinks(arguments: argparse.Namespace) -> list[Sink]:
    """Where each look goes beside the screen; all or none of them are open."""
    sinks: list[Sink] = []
    try:
        sinks.extend(_opened_sinks(arguments))  # those before one that fails stay in the list
    except BaseException:
        for sink in sinks:
            sink.close()
        raise
    return sinks


def _opened_sinks(arguments: argparse.Namespace) -> Iterator[Sink]:
    if arguments.jsonl:
        from vramlens.monitor.top.watching import JsonLines

        yield JsonLines(arguments.jsonl)
    if arguments.prometheus:
        from vramlens.integrations.prometheus import MachineExporter

        exporter = MachineExporter(arguments.prometheus)
        yield exporter
        say(f"metrics are at {exporter.address}")
    if arguments.otel is not None:
        from vramlens.integrations.opentelemetry import MachineMeter

        yield MachineMeter(arguments.otel or None, interval_s=arguments.interval or 10.0)


class _Terminated(BaseException):
    """SIGTERM: the end of a service, not an error."""


def _terminated(_number: int, _frame: Any) -> None:
    raise _Terminated


def _screen(arguments: argparse.Namespace, is_terminal: bool) -> Any:
    """What draws the screen; None where lines are wanted, or without textual."""
    wants_lines = arguments.once or arguments.plain or arguments.json
    if not is_terminal or wants_lines or not _is_in_front():
        return None
    try:
        import textual  # noqa: F401
    except ImportError:
        return None
    return _fill_screen


def _fill_screen(watching: MachineWatch, interval_s: float) -> int:
    """Fills the screen until whoever watches ends it, SIGTERM does, or the watched process has
    ended; the exit code.

    The terminal is afterwards as it was before, however this ends.
    """
    import asyncio

    from vramlens.monitor.top.top_screen import Screen

    screen = Screen(watching, interval_s)
    interruption.leave()  # asyncio has its own way with Ctrl-C

    def leave(number: int, frame: Any) -> None:
        # timeout(1) and systemd send SIGCONT with SIGTERM: textual would begin anew what is about
        # to end.
        if hasattr(signal, "SIGCONT"):
            signal.signal(signal.SIGCONT, _pass_over)
        try:
            asyncio.get_running_loop().call_soon_threadsafe(screen.exit)
        except RuntimeError:  # it has not begun, or is over
            _terminated(number, frame)

    with _terminal_restored():
        signal.signal(signal.SIGTERM, leave)
        try:
            screen.run(mouse=False)
        finally:
            signal.signal(signal.SIGTERM, _terminated)
    if watching.ended:
        write_stdout(f"Process {watching.pid} has ended.\n")
    return screen.return_code or 0


def _is_in_front() -> bool:
    """Whether the terminal is ours to fill: a program behind, as timeout(1) in a script puts it,
    would be stopped.
    """
    try:
        return sys.__stdin__ is not None and os.tcgetpgrp(sys.__stdin__.fileno()) == os.getpgrp()
    except AttributeError:  # Windows
        return True
    except (OSError, ValueError):  # standard input is not a terminal, or not that of this session
        return sys.__stdin__ is not None and sys.__stdin__.isatty()


def _pass_over(_number: int, _frame: Any) -> None:
    """Nothing: not SIG_IGN, which Python reports where the signal has come already."""


@contextlib.contextmanager
def _terminal_restored() -> Iterator[None]:
    """Gives the terminal back the modes that it had."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    before = terminal = None
    with contextlib.suppress(OSError, ValueError, termios.error):  # it is not one
        terminal = 0 if sys.__stdin__ is None else sys.__stdin__.fileno()
        before = termios.tcgetattr(terminal)
    try:
        yield
    finally:
        if before is not None and terminal is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _is_terminal() -> bool:
    """Whether both are: the screen is drawn on standard error, lines go to standard output."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))


def _is_repeated(arguments: argparse.Namespace, is_terminal: bool) -> bool:
    if arguments.plain or arguments.interval is not None:
        return True
    return is_terminal and not arguments.once


def _print(
    arguments: argparse.Namespace, watching: MachineWatch, is_terminal: bool, is_service: bool
) -> int:
    from vramlens.monitor.top.lines import machine_lines
    from vramlens.monitor.top.watching import machine_dict, run_every

    width = max(60, shutil.get_terminal_size((_WIDTH, 24)).columns) if is_terminal else _WIDTH
    is_repeated = _is_repeated(arguments, is_terminal)
    is_silent = is_service and not (is_terminal or arguments.plain or arguments.once)
    has_printed = False

    def print_look(now: MachineNow) -> bool:
        nonlocal has_printed
        if arguments.json:
            write_stdout(as_json(machine_dict(now)))
            return False
        if is_silent:
            return True
        lines = [f"Process {arguments.pid} has ended."]
        if not watching.ended:
            lines = machine_lines(now, watching.history, width, is_again=has_printed)
            lines += _kinds(now) if arguments.pid is not None else []
        has_printed = True
        text = text_of(lines) + "\n"
        if arguments.once or not is_repeated:
            write_stdout(text)
            return False
        return write_stdout(text + "\n")

    run_every(watching, arguments.interval or 1.0, print_look)
    if arguments.jsonl and (arguments.once or arguments.json):
        say(f"one line added to {arguments.jsonl}")
    return 0


def _kinds(now: MachineNow) -> Iterator[str]:
    """Yields what each device's memory is used for."""
    from vramlens.monitor.top.lines import kind_lines

    for device in now.devices:
        product = f" ({device.product})" if device.product else ""
        yield ""
        yield f"GPU {device.name}{product}:"
        yield from kind_lines(device)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST_S <= seconds <= 86400:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {_SHORTEST_S} to 86400"
        )
    return seconds
