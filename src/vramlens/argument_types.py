"""The arguments of public functions, checked before anything is done with it: a wrong type is
told in words.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from vramlens.units import parse_size

_LONGEST = 40


def wrong_type(name: str, wanted: str, value: object) -> TypeError:
    """The error for an argument of a type that it does not take."""
    shown = repr(value)
    shown = shown if len(shown) <= _LONGEST else f"a {type(value).__name__}"
    return TypeError(f"{name} takes {wanted}, not {shown}")


def path_given(name: str, value: Any) -> str | os.PathLike[str]:
    """A file's path.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, str) or (
        isinstance(value, os.PathLike) and isinstance(os.fspath(value), str)
    ):
        return value
    raise wrong_type(name, "a file's path", value)


def size_given(name: str, value: Any) -> int | None:
    """Bytes, from a number or a text such as "24GiB"; None stays.

    Raises:
        TypeError: it is neither.
        UsageError: the text is no size.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return parse_size(value)
    return number_given(name, value, 'a number of bytes or a size such as "24GiB"')


def number_given(name: str, value: Any, wanted: str = "a whole number") -> int:
    """A whole number, NumPy's too; True and False are none.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise wrong_type(name, wanted, value)
    return int(value.__index__())


def device_given(value: Any) -> int | None:
    """A device's index; None stays.

    Raises:
        TypeError: it is none.
    """
    return None if value is None else number_given("device", value, "a device's index such as 0")


def texts_given(name: str, value: Any, wanted: str) -> tuple[str, ...]:
    """One text or several; none for None.

    Raises:
        TypeError: it is neither.
    """
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if isinstance(value, Sequence) and all(isinstance(text, str) for text in value):
        return tuple(value)
    raise wrong_type(name, wanted, value)


def sequence_given(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    """Several things; a text is no such.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return tuple(value)
    raise wrong_type(name, wanted, value)


def function_given(name: str, value: Any) -> Any:
    """A function; None stays.

    Raises:
        TypeError: it is none.
    """
    if value is None or callable(value):
        return value
    raise wrong_type(name, "a function", value)
