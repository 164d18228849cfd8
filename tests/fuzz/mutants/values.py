"""Changes to a tree of values (what JSON, TOML and pickles hold), and to bytes."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

HOSTILE_TEXTS = (
    "",
    "\x1b[31mred\x1b]0;title\x07",
    "\x9b31m",
    "a\rb\nc",
    "::error file=x::y",
    "```\n# end of the fence",
    "\u202eright to left",
    "\ud800",
    "x" * 5_000,
    "'; DROP TABLE ranks; --",
    "../../etc/passwd",
    "%s %n {0} {script}",
    "<script>alert(1)</script>",
    "0x" + "f" * 40,
    "9" * 5_000,
    "NaN",
)
NUMBERS = (
    *(
        0,
        -1,
        1,
        255,
        256,
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**32,
        2**43,
        2**50 - 1,
        2**50,
        2**53,
        2**62,
        2**63 - 1,
    ),
    *(
        2**63,
        2**64 - 1,
        2**64,
        -(2**63),
        10**30,
        0.5,
        -0.5,
        1e-308,
        1e15,
        1e308,
        float("nan"),
        float("inf"),
    ),
)
_PLAIN = (None, True, False, [], {}, [None], {"": None}, [[]], [{}])
_MOST_COPIES = 300
_LARGEST = 10_000_000  # characters of a tree: copies of copies of copies grow without end
_DEEP_MARK = "a list in a list in a list"
_DEEPEST = 100_000
_MOST_DEEP_PLACES = 20  # of a document: a change may have copied one without end


def as_json(value: Any) -> bytes:
    """JSON of a value; a marked place becomes lists nested deeper than any reader goes."""
    return deepened(json.dumps(value)).encode()


def deepened(text: str) -> str:
    """The text of a file, its first marked places replaced."""
    deep_list = "[" * _DEEPEST + "]" * _DEEPEST
    return text.replace(json.dumps(_DEEP_MARK), deep_list, _MOST_DEEP_PLACES)


def nasty(random: Random) -> Any:
    """A value that no file of ours holds at this place."""
    choice = random.random()
    if choice < 0.45:
        return random.choice(NUMBERS)
    if choice < 0.75:
        return random.choice(HOSTILE_TEXTS)
    if choice < 0.98:
        return copy.deepcopy(random.choice(_PLAIN))
    if choice < 0.99:
        return _DEEP_MARK
    value: Any = None
    for _ in range(random.choice((20, 200))):
        value = [value]
    return value


def mutated(value: Any, random: Random) -> Any:
    """A copy of a tree of lists and dicts with one to six changes somewhere in it."""
    changed = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        places = [container for container in _containers(changed) if container]
        if not places:
            return nasty(random)
        _change(random.choice(places), random, places)
        if _is_large(changed):
            return mutated(value, random)
    return changed


def _is_large(root: Any) -> bool:
    """Whether a tree has more characters than a mutant needs; what is in it twice counts twice."""
    waiting, characters = [root], 0
    while waiting and characters <= _LARGEST:
        value = waiting.pop()
        characters += len(value) if isinstance(value, str) else 4
        if isinstance(value, dict):
            characters += sum(map(len, value))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return characters > _LARGEST


def _containers(root: Any) -> list[Any]:
    """Every list and dict of a tree, the outermost first; no deeper than what a change may have
    made.
    """
    containers, at = [root] if isinstance(root, (list, dict)) else [], 0
    while at < len(containers) and at < 20_000:
        children = containers[at].values() if isinstance(containers[at], dict) else containers[at]
        containers += [child for child in children if isinstance(child, (list, dict))]
        at += 1
    return containers


def _change(container: Any, random: Random, places: list[Any]) -> None:
    key = random.choice(list(container) if isinstance(container, dict) else range(len(container)))
    choice = random.random()
    if choice < 0.45:
        container[key] = nasty(random)
    elif choice < 0.6:
        container[key] = _tweaked(container[key], random)
    elif choice < 0.7:
        del container[key]
    elif choice < 0.8:
        other = random.choice(places)
        container[key] = copy.deepcopy(
            random.choice(list(other.values() if isinstance(other, dict) else other))
        )
    elif isinstance(container, list):
        if choice < 0.9:
            container[key:key] = [container[key]] * random.choice((1, 2, _MOST_COPIES))
        else:
            random.shuffle(container)
    elif choice < 0.9:
        container[random.choice(HOSTILE_TEXTS)] = container[key]
    else:
        container |= {
            f"{key}{number}": container[key]
            for number in range(random.choice((1, 3, _MOST_COPIES)))
        }


def _tweaked(value: Any, random: Random) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return random.choice(
            (value + 1, value - 1, -value, value * 2, value * 2**20, value // 2, value // 2**10)
        )
    if isinstance(value, str):
        cut = random.randint(0, len(value))
        return value[:cut] + random.choice(HOSTILE_TEXTS) + value[cut:]
    return {"was": value} if random.random() < 0.5 else [value]


def damaged(data: bytes, random: Random) -> bytes:
    """Bytes with some changed, cut off, repeated, or swapped."""
    if not data:
        return bytes([random.randrange(256)])
    buffer = bytearray(data)
    for _ in range(random.choice((1, 2, 4, 16))):
        at = random.randrange(len(buffer) or 1)
        choice = random.random()
        if choice < 0.5 and buffer:
            buffer[at] = random.randrange(256)
        elif choice < 0.65:
            del buffer[at : at + random.choice((1, 4, 64, 1024))]
        elif choice < 0.8:
            buffer[at:at] = buffer[at : at + random.choice((1, 16, 256))] * random.choice(
                (1, 2, 20)
            )
        elif choice < 0.9:
            buffer[at:at] = random.choice(HOSTILE_TEXTS).encode("utf-8", "surrogatepass")
        else:
            del buffer[at:]
    return bytes(buffer)
