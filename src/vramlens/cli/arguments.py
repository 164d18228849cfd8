"""Arguments that several verbs take: added alike, and read alike."""

from __future__ import annotations

import argparse
import re

from vramlens.errors import UsageError
from vramlens.units import MIB, counted, parse_size

_FORMS = {
    "json": "print data: one JSON object",
    "markdown": "print Markdown, for an issue or a pull request",
    "html": "print a page, without scripts",
}


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds ``FILE``: the one recording that the verb is about."""
    parser.add_argument("file", metavar="FILE", help="a recording or a PyTorch memory snapshot; - reads standard input")


def add_device(parser: argparse.ArgumentParser, default: str = "the one that holds most") -> None:
    """Adds ``--device``.

    Args:
        default: in words, which device it is where none is named.
    """
    parser.add_argument("--device", type=device, metavar="N", help=f"the device, 0 or cuda:0 (default: {default})")


def add_recorded_cap(parser: argparse.ArgumentParser) -> None:
    """Adds ``--recorded-cap``."""
    parser.add_argument(
        "--recorded-cap",
        type=size,
        metavar="SIZE",
        help="what the process could reserve when it was recorded, where the recording does not say",
    )


def add_forms(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds the forms that the answer may take instead of text, of which one can be asked for.

    Args:
        names: of ``json``, ``markdown`` and ``html``.
    """
    form = parser.add_mutually_exclusive_group()
    for name in names:
        form.add_argument(f"--{name}", action="store_true", help=_FORMS[name])


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds ``-o``: where the answer goes."""
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of standard output")


def device(text: str) -> int:
    """A device's index, from an argument."""
    named = re.fullmatch(r"(?:cuda:)?([0-9]{1,9})", text)
    if named is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no device: say 0 or cuda:0")
    return int(named[1])


def positive(text: str) -> int:
    """A number from 1 on, from an argument."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    if int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def size(text: str) -> int:
    """Bytes, from an argument."""
    try:
        found = parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except (OverflowError, ValueError):  # more digits than any number has
        raise argparse.ArgumentTypeError("is too large") from None
    if found < 1:
        raise argparse.ArgumentTypeError("must be more than 0")
    return found


def limit_size(text: str) -> int:
    """Bytes that a process or a card may have, from an argument; less than 1 MiB is a unit that was forgotten."""
    found = size(text)
    if found < MIB:
        number = text.strip().rstrip("BKMGTIbkmgti ")
        raise argparse.ArgumentTypeError(f"{text} is {counted(found, 'byte')}; did you mean {number}GiB?")
    return found
