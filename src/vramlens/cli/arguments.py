"""Arguments that several verbs take: added alike, and read alike."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Iterator

from vramlens.cards.known_cards import CARDS, card_bytes
from vramlens.errors import InputError, UsageError
from vramlens.ground.conf_text import SIMULATED_KEYS
from vramlens.units import check_limit, parse_size

_FORMS = {
    "json": "print one JSON object",
    "markdown": "print Markdown for an issue or a pull request",
    "html": "print an HTML page without scripts",
}


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds ``FILE``: the one recording that the verb is about."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a recording or a PyTorch memory snapshot; - reads standard input",
    )


def add_device(
    parser: argparse.ArgumentParser, default: str = "the one with the most memory"
) -> None:
    """Adds ``--device``.

    Args:
        default: in words, which device it is where none is named.
    """
    parser.add_argument(
        "--device", type=device, metavar="N", help=f"the device, 0 or cuda:0 (default: {default})"
    )


def add_recorded_cap(parser: argparse.ArgumentParser) -> None:
    """Adds ``--recorded-cap``."""
    parser.add_argument(
        "--recorded-cap",
        type=size,
        metavar="SIZE",
        help="the memory limit of the recorded process, if the recording does not contain it",
    )


def add_cap(parser: argparse._ActionsContainer) -> None:
    """Adds ``--cap``."""
    parser.add_argument(
        "--cap",
        type=limit_size,
        metavar="SIZE",
        help="the process limit, as with set_per_process_memory_fraction (default: the "
        "recorded limit)",
    )


def add_total(parser: argparse.ArgumentParser) -> None:
    """Adds ``--total``."""
    parser.add_argument(
        "--total", type=size, metavar="SIZE", help="the size of the GPU's memory, for example 80G"
    )


@contextlib.contextmanager
def hints_on_settings() -> Iterator[None]:
    """Adds to what PyTorch says of ``--conf`` what was probably meant.

    Raises:
        SettingsError: as it was raised, with the hint.
    """
    from vramlens.replay.settings import SettingsError

    try:
        yield
    except SettingsError as error:
        hint = _hint_on(str(error))
        raise SettingsError(f"{str(error).rstrip('.')}{hint}" if hint else str(error)) from None


def _hint_on(message: str) -> str:
    equals = re.search(r"(?:^'|,)\s*([a-z_0-9]+)\s*=\s*([^,']+)", message.partition(": PyTorch")[0])
    if equals is not None:
        return f"; write a colon: {equals[1]}:{equals[2].strip()}"
    unknown = re.search(r"Unrecognized key '([^']{1,80})'", message)
    if unknown is None:
        return ""
    from difflib import get_close_matches

    near = get_close_matches(unknown[1].lower(), SIMULATED_KEYS, 1, 0.7)
    return f"; did you mean {near[0]}?" if near else ""


def add_forms(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds the forms that the answer may take instead of text, of which one can be asked for.

    Args:
        names: of ``json``, ``markdown`` and ``html``.
    """
    form = parser.add_mutually_exclusive_group()
    for name in names:
        form.add_argument(
            f"--{name}",
            action="store_const",
            const=name,
            dest="format",
            default="text",
            help=_FORMS[name],
        )


def add_redact(parser: argparse.ArgumentParser) -> None:
    """Adds ``--redact``; None where neither it nor anything else is asked for."""
    parser.add_argument(
        "--redact",
        action="store_true",
        default=None,
        help="leave out paths, arguments and the host name (default: as VRAMLENS_REDACT=1 says)",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds ``-o``: where the answer goes."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to a file instead of standard output"
    )


def device(text: str) -> int:
    """A device's index, from an argument."""
    named = re.fullmatch(r"(?:cuda:)?([0-9]{1,9})", text)
    if named is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a device: use 0 or cuda:0")
    return int(named[1])


def positive(text: str) -> int:
    """A number from 1 on, from an argument."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    if int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def size(text: str) -> int:
    """Bytes, from an argument."""
    try:
        size_bytes = parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except (OverflowError, ValueError):  # more digits than any number has
        raise argparse.ArgumentTypeError("is too large") from None
    if size_bytes < 1:
        raise argparse.ArgumentTypeError("must be more than 0")
    return size_bytes


def refuse_missing_script(path: str) -> None:
    """Raises InputError where there is no such script."""
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such script")


def size_or_none(text: str) -> int:
    """Bytes, from an argument that may be 0."""
    return 0 if text.strip() == "0" else size(text)


CARDS_WORDS = f"sizes or names (24G,H100; names: {', '.join(CARDS)})"


def card_sizes(text: str) -> list[int]:
    """The bytes of each card in ``24G,H100``."""
    try:
        return [card_bytes(card) for card in text.split(",")]
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def limit_size(text: str) -> int:
    """Bytes that a process or a card may have, from an argument; less than 1 MiB is a unit that
    was forgotten.
    """
    size_bytes = size(text)
    try:
        return check_limit(size_bytes, text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
