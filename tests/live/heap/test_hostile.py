"""Programs that make a search hard: huge and deep containers, threads that free, classes that
must not be called.
"""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

SECONDS = 15.0  # of this thread's own time; each takes one to three


def grown(kept: list[Any], make: Any = None) -> vramlens.live.LeakReport:  # type: ignore[name-defined]
    """A report after eight steps that each keep a tensor, in bounded time."""
    watch = vramlens.LeakWatch()
    for _ in range(8):
        tensor = torch.zeros(1000)
        kept.append(tensor if make is None else make(tensor))
        watch.step()
    del tensor
    began = time.thread_time()
    report = watch.report()
    text = str(report)
    assert time.thread_time() - began < SECONDS
    assert len(text) < 5000
    return report


def test_five_million_numbers_and_a_million_keys_on_the_way() -> None:
    table: dict[Any, Any] = dict.fromkeys(range(1_000_000), 0)
    kept: list[Any] = [7] * 5_000_000
    table["kept"] = kept
    (leak,) = grown(kept).found
    assert leak.bytes_per_step == 4000
    assert leak.owner is not None
    assert leak.owner.name in ("kept", "table['kept']")


def _nested(inner: Any) -> Any:
    for _ in range(50_000):
        inner = types.SimpleNamespace(held=[inner])
    return inner


def test_a_hundred_thousand_deep() -> None:
    innermost: list[Any] = []
    outer = [_nested(innermost)]
    watch = vramlens.LeakWatch()
    for _ in range(8):
        innermost.append(torch.zeros(1000))
        watch.step()
    del innermost  # now only the outermost leads there
    began = time.thread_time()
    report = watch.report()
    assert len(str(report)) < 5000
    assert time.thread_time() - began < SECONDS
    (leak,) = report.found
    assert leak.bytes_per_step == 4000
    assert leak.owner is not None
    assert leak.owner.name.startswith("outer[0]")
    assert len(leak.owner.name) < 100
    assert len(leak.owner.chain) < 100
    while outer:  # level by level: freeing it at once is deep, too
        inner = outer.pop()
        outer = inner.held if type(inner) is types.SimpleNamespace else []


def test_another_thread_frees_meanwhile() -> None:
    others: list[Any] = [torch.zeros(10) for _ in range(2000)]
    table: dict[int, Any] = {}
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            others[number % 2000] = torch.zeros(10)
            table[number % 500] = [torch.zeros(5).requires_grad_().exp()]
            table.pop((number * 7) % 500, None)

    kept: list[Any] = []
    thread = threading.Thread(target=churn, daemon=True)
    before = sys.getswitchinterval()
    thread.start()
    try:
        sys.setswitchinterval(1e-4)
        # Where objects are made this fast, the first of eight births may be taken for the second's step.
        leaks = grown(kept).leaks
        assert all(
            4000 <= leak.bytes_per_step <= 4000 * 8 // 7
            for leak in leaks
            if leak.owner and leak.owner.name == "kept"
        )
        assert vramlens.who_holds(kept[3]).owners[0].name == "kept"
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


calls: list[str] = []


def hostile(name: str) -> Any:
    def method(*_: Any, **__: Any) -> Any:
        calls.append(name)
        raise RuntimeError(name)

    return method


NAMES = (
    "__getattr__", "__getattribute__", "__len__", "__eq__", "__ne__", "__repr__", "__str__", "__hash__", "__iter__",
    "__bool__", "__contains__", "__getitem__", "__call__", "__dir__", "__format__", "__sizeof__", "__reduce_ex__",
)  # fmt: skip


def _take(self: Any, tensor: Any) -> None:
    object.__setattr__(self, "tensor", tensor)


# Every question is an error.
Angry: Any = type(
    "Angry",
    (),
    {
        "__init__": _take,
        "__class__": property(hostile("__class__")),
        **{name: hostile(name) for name in NAMES},
    },
)


class AngryDict(dict):  # type: ignore[type-arg]
    """A dict that must be read as a dict is."""

    def items(self) -> Any:
        calls.append("items")
        raise RuntimeError

    keys = values = items


class AngryList(list):  # type: ignore[type-arg]
    """A list that must be read as a list is."""

    def __iter__(self) -> Iterator[Any]:
        calls.append("iter")
        raise RuntimeError

    def __len__(self) -> int:
        calls.append("len")
        raise RuntimeError


class Meta(type):
    """A class of classes that asks back."""

    def __getattribute__(cls, name: str) -> Any:
        calls.append(f"metaclass {name}")
        return super().__getattribute__(name)

    def __instancecheck__(cls, instance: Any) -> bool:
        calls.append("instancecheck")
        raise RuntimeError


class OfMeta(metaclass=Meta):
    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class Key:
    """Hashed once, when it is put into a dict; compared by nobody."""

    def __hash__(self) -> int:
        calls.append("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        calls.append("eq")
        return self is other


class Traced(torch.Tensor):  # type: ignore[misc]
    """A tensor that hears of every operation."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        calls.append(f"torch function {function}")
        return super().__torch_function__(function, types, args, kwargs or {})


def _in_dict(tensor: Any) -> Any:
    held = AngryDict()
    dict.__setitem__(held, Key(), tensor)
    return held


def _in_list(tensor: Any) -> Any:
    held = AngryList()
    list.append(held, tensor)
    return held


MAKERS: tuple[Any, ...] = (
    Angry,
    _in_dict,
    _in_list,
    OfMeta,
    lambda tensor: tensor.as_subclass(Traced),
)


def test_nothing_of_the_program_is_called() -> None:
    kept: list[Any] = []
    watch = vramlens.LeakWatch()
    for _ in range(8):
        kept.extend(make(torch.zeros(1000)) for make in MAKERS)
        watch.step()
    calls.clear()
    (leak,) = watch.report().found
    told = vramlens.holders()
    held = torch.Tensor.as_subclass(list.__getitem__(kept[2], 0), torch.Tensor)
    owners = vramlens.who_holds(held).owners
    assert calls == []
    assert leak.bytes_per_step == len(MAKERS) * 4000
    assert told.rows
    assert owners
