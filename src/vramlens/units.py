"""Sizes in and out: KiB, MiB, GiB, and K, M, G alone, are powers of 1024; KB, MB, GB of 1000; a
bare number is bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from vramlens.errors import UsageError

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_FACTORS = {
    "": 1, "B": 1, "BYTE": 1, "BYTES": 1,
    "KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": 1024**4,
    "K": KIB, "M": MIB, "G": GIB, "T": 1024**4,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_MOST_BYTES = (1 << 63) - 1
"""What the columns of a recording hold: no device, and no limit, has more."""
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_SHARE = re.compile(r"\s*(?:([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%|(0\.[0-9]{1,9}))\s*", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes meant by ``24GiB``, ``80G`` (as much as 80GiB), ``512 MB`` or ``1048576``.

    Raises:
        UsageError: the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{text!r} is not a size: write 24GiB, 512MiB, 80G, 80GB or a number of bytes"
        )
    size = round(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor
    if size > _MOST_BYTES:
        raise UsageError(f"{text[:40]!r} is too large: nothing has more than 8 EiB")
    return size


def size_in_bytes(size: int | str) -> int:
    """The bytes of a size that is a number, or a text that ``parse_size`` reads."""
    return parse_size(size) if isinstance(size, str) else int(size)


def parse_tolerance(text: str) -> Callable[[int], int]:
    """What ``64MiB``, ``2%`` or ``0.02`` lets a number of bytes rise by: a function of it.

    Raises:
        UsageError: it is neither a size nor a share.
    """
    share = _SHARE.fullmatch(text)
    if share is not None:
        part = float(share[1]) / 100 if share[1] else float(share[2])
        return lambda size_bytes: int(size_bytes * part)
    try:
        fixed = parse_size(text)
    except (UsageError, OverflowError, ValueError):
        raise UsageError(f"{text[:40]!r} is not a size or a share: write 64MiB or 2%") from None
    return lambda _size_bytes: fixed


def check_limit(size_bytes: int, said: object) -> int:
    """The bytes that a process or a card may have; less than 1 MiB is a unit that was forgotten.

    Raises:
        UsageError: it is less than 1 MiB; ``said`` is how it was written.
    """
    if size_bytes >= MIB:
        return size_bytes
    number = str(said).strip().rstrip("BKMGTIbkmgti ")
    meant = f"; did you mean {number}GiB?" if size_bytes > 0 else ""
    raise UsageError(f"{said} is {counted(size_bytes, 'byte')}{meant}")


def format_size(size_bytes: int | float) -> str:
    """A size as PyTorch prints it (``512 bytes``, ``1.50 KiB``, ``57.00 MiB``, ``3.71 GiB``),
    sign kept.
    """
    sign, size = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    if size < KIB:
        return f"{sign}{size:.0f} bytes" if size != 1 else f"{sign}1 byte"
    for unit, factor in (("KiB", KIB), ("MiB", MIB)):
        if size < factor * 1024:
            return f"{sign}{size / factor:.2f} {unit}"
    return f"{sign}{size / GIB:.2f} GiB"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: ``1 hole``, ``3,000 holes``."""
    return f"{number:,} {agreeing(number, noun, plural or noun + 's')}"


def agreeing(number: int, singular: str, plural: str) -> str:
    """The form of a word for so many: ``is`` of 1, ``are`` of all other numbers."""
    return singular if number == 1 else plural


def format_duration(nanoseconds: int | float) -> str:
    """A time with its unit, in three digits: ``1.24 s``, ``471 ms``, ``23.1 us``; ``812 ns``
    below a microsecond.
    """
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(nanoseconds) >= factor * 0.9995:
            amount = nanoseconds / factor
            digits = sum(abs(amount) < limit for limit in (9.995, 99.95))
            return f"{amount:,.{digits}f} {unit}"
    return f"{nanoseconds:.0f} ns"


def joined(words: Sequence[str]) -> str:
    """Words in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def first_of(words: Sequence[object], most: int) -> str:
    """The first few, with how many more there are: ``a, b and 3 more``."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(map(str, words[:most])) + more


def listed(things: Sequence[object], most: int) -> str:
    """The first few, with ``…`` where there are more: ``0, 1, 2, …``."""
    return ", ".join(map(str, things[:most])) + (", …" if len(things) > most else "")
