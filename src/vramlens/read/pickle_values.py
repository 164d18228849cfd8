"""A small pickle as plain values: numbers, texts, lists, tuples and dicts, and nothing that could
run.

For files of a few thousand records (flight records); snapshots have a reader of their own in the
native core.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from vramlens.errors import NotARecording, UnsafeInput

_MARK = object()
_MOST_VALUES = 8_000_000
"""Opcodes that are obeyed: a flight record of 20,000 collectives has one and a half million."""
_LARGEST_MEMO = 1 << 24


class _Stop(Exception):
    """The pickle's end was met; its value."""


def read_values(data: bytes, name: str) -> Any:
    """The value that a pickle holds.

    Args:
        data: the whole pickle, of any protocol up to 5.
        name: of the file, for errors.

    Raises:
        UnsafeInput: it asks for anything but values (classes, calls, persistent objects), or for
            too many.
        NotARecording: it is damaged, or no pickle.
    """
    machine = _Machine(data)
    try:
        machine.run()
    except _Stop as stop:
        return stop.args[0]
    except _Refused as refused:
        raise UnsafeInput(f"{name}: refused at byte {machine.at:,}: {refused}") from None
    except (
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        struct.error,
        OverflowError,
    ):
        raise NotARecording(f"{name}: a damaged pickle (at byte {machine.at:,})") from None
    raise NotARecording(f"{name}: a pickle that ends early")


class _Refused(Exception):
    """An opcode that is not a value."""


class _Machine:
    """The stack machine of pickle, of which only the opcodes that make values are there.

    Containers that are shared stay shared: nothing is copied, so a small file cannot make large
        objects.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> None:
        for _ in range(_MOST_VALUES):
            if self.at >= len(self._data):
                return
            code = self._data[self.at]
            self.at += 1
            make = _OPCODES.get(code)
            if make is None:
                raise _Refused(f"opcode {chr(code)!r} creates more than plain values")
            make(self)
        raise _Refused("more values than a flight record has")

    # The pieces that opcodes are made of

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count < 0 or self.at + count > len(self._data):
            raise ValueError
        piece = self._data[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, form: str) -> Any:
        """The next number, in a form of ``struct``."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def push(self, value: Any) -> None:
        """Puts a value on the stack."""
        self._stack.append(value)

    def pop(self) -> Any:
        """Takes the topmost value."""
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError
        return value

    def top(self) -> Any:
        """The topmost value, which stays."""
        return self._stack[-1]

    def since_mark(self) -> list[Any]:
        """Takes everything above the last mark, and the mark."""
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError
        values = self._stack[place + 1 :]
        del self._stack[place:]
        return values

    def remember(self, key: int) -> None:
        """Keeps the topmost value under a number."""
        if not 0 <= key < _LARGEST_MEMO:
            raise ValueError
        self._memo[key] = self._stack[-1]

    def memoize(self) -> None:
        """Keeps the topmost value under the next number."""
        self.remember(len(self._memo))

    def recall(self, key: int) -> None:
        """Puts what is kept under a number on the stack."""
        self.push(self._memo[key])

    def text(self, length: int) -> None:
        """Puts the next bytes on the stack as a text."""
        self.push(self.take(length).decode("utf-8", "replace"))

    def set_items(self, pairs: list[Any]) -> None:
        """Puts keys and values into the dict on top; other keys than texts are passed over.

        No record has any, and Python's own hash of a deep tuple overflows the C stack, that of a
        shared one never ends.
        """
        target = self.top()
        if type(target) is not dict or len(pairs) % 2:
            raise ValueError
        target.update(
            (key, value)
            for key, value in zip(pairs[::2], pairs[1::2], strict=True)
            if type(key) is str
        )

    def append_all(self, values: list[Any]) -> None:
        """Adds values to the list on top."""
        target = self.top()
        if type(target) is not list:
            raise ValueError
        target.extend(values)

    def tuple_of(self, count: int) -> None:
        """Makes a tuple of the topmost values."""
        values = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def stop(self) -> None:
        """Ends."""
        raise _Stop(self.pop())


def _pairs(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items([key, value])


def _dict(machine: _Machine) -> None:
    pairs = machine.since_mark()
    machine.push({})
    machine.set_items(pairs)


def _long(machine: _Machine, length: int) -> None:
    if length > 64:
        raise ValueError
    machine.push(int.from_bytes(machine.take(length), "little", signed=True))


# Lib/pickletools.py of Python lists them all; 3.13's has none that is newer than protocol 5.
_OPCODES: dict[int, Callable[[_Machine], None]] = {
    ord(code): make
    for code, make in {
        "\x80": lambda m: m.take(1),
        "\x95": lambda m: m.take(8),
        "N": lambda m: m.push(None),
        "\x88": lambda m: m.push(True),
        "\x89": lambda m: m.push(False),
        "J": lambda m: m.push(m.number("<i")),
        "K": lambda m: m.push(m.number("<B")),
        "M": lambda m: m.push(m.number("<H")),
        "\x8a": lambda m: _long(m, m.number("<B")),
        "\x8b": lambda m: _long(m, m.number("<i")),
        "G": lambda m: m.push(m.number(">d")),
        "X": lambda m: m.text(m.number("<I")),
        "\x8c": lambda m: m.text(m.number("<B")),
        "\x8d": lambda m: m.text(m.number("<Q")),
        "B": lambda m: m.push(m.take(m.number("<I"))),
        "C": lambda m: m.push(m.take(m.number("<B"))),
        "T": lambda m: m.text(m.number("<i")),
        "U": lambda m: m.text(m.number("<B")),
        "}": lambda m: m.push({}),
        "]": lambda m: m.push([]),
        ")": lambda m: m.push(()),
        "(": lambda m: m.push(_MARK),
        "a": lambda m: (lambda value: m.append_all([value]))(m.pop()),
        "e": lambda m: (lambda values: m.append_all(values))(m.since_mark()),
        "s": _pairs,
        "u": lambda m: m.set_items(m.since_mark()),
        "d": _dict,
        "l": lambda m: m.push(m.since_mark()),
        "t": lambda m: m.push(tuple(m.since_mark())),
        "\x85": lambda m: m.tuple_of(1),
        "\x86": lambda m: m.tuple_of(2),
        "\x87": lambda m: m.tuple_of(3),
        "q": lambda m: m.remember(m.number("<B")),
        "r": lambda m: m.remember(m.number("<I")),
        "\x94": lambda m: m.memoize(),
        "h": lambda m: m.recall(m.number("<B")),
        "j": lambda m: m.recall(m.number("<I")),
        "0": lambda m: m.pop(),
        "2": lambda m: m.push(m.top()),
        "1": lambda m: m.since_mark(),
        ".": lambda m: m.stop(),
    }.items()
}
