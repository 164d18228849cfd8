"""Steps of programs without an optimizer: calls of the model, which are requests, batches, or
turns.

Nobody calls a model's ``forward`` but for work to do. The first module that is called, and by no
other's call (who attaches may come in the middle of one), is the outermost; whenever it is called
again, the work before it has ended.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from vramlens.capture.names.module_hooks import before_each_module
from vramlens.capture.warn import harmless
from vramlens.ground.program_errors import own_errors
from vramlens.live.heap.objects import class_name

_FIRST_TOLD = 3
"""The call from which on calls are steps. An optimizer steps after the first or second batch, and then
nobody needs to begin twice; each more is a request that is not judged.
"""


_FEWEST_OTHERS, _MANY_TIMES = 64, 4
"""Calls of other modules since the outermost was called last, and how many times as many as ever came
between two of its calls: then models of one class take turns, as those that a server loads and lets
go. With fewer, an evaluation by another model of the class would end the turns of the first.
"""


class ModuleCalls:
    """Tells each call of the outermost module from the third on, until it is told to stop; of any
    outermost one of its class where these take turns.
    """

    def __init__(self, torch: Any, called: Callable[[], None]) -> None:
        self._called = called
        self._is_compiling = torch.compiler.is_compiling
        self._root: weakref.ref[Any] = weakref.ref(self)
        self._root_name = ""
        self._count = 0
        self._others = self._most_others = 0
        self._take_turns = False
        self._call_code = torch.nn.Module._call_impl.__code__
        self._handle = before_each_module(self._entered)

    @property
    def root_name(self) -> str:
        """The class of the outermost module; empty while none was called."""
        return self._root_name

    def stop(self) -> None:
        """Listens no longer."""
        self._handle.remove()

    def _entered(self, module: Any, _arguments: Any) -> None:
        if self._is_compiling():
            return
        root = self._root()
        if root is module:
            self._most_others = max(self._most_others, self._others)
            self._others = 0
            self._tell()
        elif (root is None or root is self) and self._is_outermost():
            # None yet, or it is gone: models made anew for each request.
            self._root, self._root_name = weakref.ref(module), class_name(type(module))
            self._tell()
        elif self._takes_its_turn(root, module):
            self._tell()

    def _takes_its_turn(self, root: Any, module: Any) -> bool:
        """Whether a module is called as the outermost one was, which has not been for long."""
        self._others += 1
        if self._others > _FEWEST_OTHERS + _MANY_TIMES * self._most_others:
            self._take_turns = True
        return self._take_turns and type(module) is type(root) and self._is_outermost()

    def _is_outermost(self) -> bool:
        """Whether only one module's call is among the functions that run."""
        calls = 0
        with own_errors():  # an audit hook of the program may refuse frames
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and calls < 2:
                calls += frame.f_code is self._call_code
                frame = frame.f_back
            return calls < 2
        return False

    @harmless("counting calls of the model")
    def _tell(self) -> None:
        self._count += 1
        if self._count >= _FIRST_TOLD:
            self._called()


def has_compiled() -> bool:
    """Whether torch.compile has compiled something in this process: hooks that come and go would
    have it compiled anew.
    """
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters) and bool(counters.get("frames"))
