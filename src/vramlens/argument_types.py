"""The arguments of public functions, checked before anything is done with it: a wrong type is
told in words.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from vramlens.units import parse_size

_LONGEST = 40
_SIZE = 'a number of bytes or a size such as "24GiB"'
Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Check = Callable[[str, Any], object]
"""Given an argument's name and its value; raises where that is of a wrong type."""


def wrong_type(name: str, wanted: str, value: object) -> TypeError:
    """The error for an argument of a type that it does not take."""
    shown = repr(value)
    shown = shown if len(shown) <= _LONGEST else f"a {type(value).__name__}"
    return TypeError(f"{name} takes {wanted}, not {shown}")


def path_given(name: str, value: Any) -> str | os.PathLike[str]:
    """A file's path.

    Raises:
        TypeError: it is not one.
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
        UsageError: the text is not a size.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return parse_size(value)
    return number_given(name, value, _SIZE)


def limit_given(name: str, value: Any) -> int | str | None:
    """Bytes, from a number or a text such as "24GiB", or a name, which whoever takes it knows;
    None stays.

    Raises:
        TypeError: it is neither.
        UsageError: the text begins with a digit and is not a size.
    """
    if isinstance(value, str) and not value[:1].isdigit():
        return value
    return size_given(name, value)


def number_given(name: str, value: Any, wanted: str = "a whole number") -> int:
    """A whole number, NumPy's too; True and False are not.

    Raises:
        TypeError: it is not one.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise wrong_type(name, wanted, value)
    return int(value.__index__())


def device_given(value: Any) -> int | None:
    """A device's index; None stays.

    Raises:
        TypeError: it is not one.
    """
    return None if value is None else number_given("device", value, "a device's index such as 0")


def settings_given(conf: Any) -> tuple[str, ...]:
    """One text of allocator settings or several; none for None.

    Raises:
        TypeError: it is neither.
    """
    if conf is None or isinstance(conf, str):
        return () if conf is None else (conf,)
    if isinstance(conf, Sequence) and all(isinstance(text, str) for text in conf):
        return tuple(conf)
    raise wrong_type("conf", 'settings such as "expandable_segments:True"', conf)


def takes(
    **checks: Check,
) -> Callable[[Callable[Parameters, Answer]], Callable[Parameters, Answer]]:
    """A decorator that has arguments checked before the function does anything."""

    def decorate(function: Callable[Parameters, Answer]) -> Callable[Parameters, Answer]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer:
            passed = signature.bind(*args, **kwargs).arguments
            for name, check in checks.items():
                if name in passed:
                    check(name, passed[name])
            passed.clear()  # nothing of the program's is kept while it runs
            return function(*args, **kwargs)

        return checked

    return decorate


def optional(check: Check) -> Check:
    """A check that lets None pass."""

    def passes(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return passes


def required_size(name: str, value: Any) -> None:
    """Refuses what is not a size, None too."""
    if size_given(name, value) is None:
        raise wrong_type(name, _SIZE, value)


def required_function(name: str, value: Any) -> None:
    """Refuses what cannot be called, None too."""
    if not callable(value):
        raise wrong_type(name, "a function", value)


function_given = optional(required_function)


def seconds(name: str, value: Any) -> None:
    """Refuses what is not a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_type(name, "a number of seconds", value)


def text(name: str, value: Any) -> None:
    """Refuses what is not a text."""
    if not isinstance(value, str):
        raise wrong_type(name, "a text", value)


def texts(name: str, value: Any) -> None:
    """Refuses what is not a collection of texts; one text alone is not one."""
    if isinstance(value, Iterator):  # to look into it would use it up
        return
    is_collection = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    if not is_collection or not all(isinstance(part, str) for part in value):
        raise wrong_type(name, "a list of texts", value)


def several(name: str, value: Any) -> None:
    """Refuses what is not a collection; a text is not one."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise wrong_type(name, "a list", value)


def command_words(name: str, value: Any) -> None:
    """Refuses what is not a command: a text, or a list of texts."""
    if not isinstance(value, str):
        texts(name, value)


def flag(name: str, value: Any) -> None:
    """Refuses what is neither True nor False; NumPy's are."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
        raise wrong_type(name, "True or False", value)


def module(name: str, value: Any) -> None:
    """Refuses what is not a model: it has no parameters to ask for."""
    if isinstance(value, type) or not callable(getattr(value, "named_parameters", None)):
        raise wrong_type(name, "a torch.nn.Module", value)
