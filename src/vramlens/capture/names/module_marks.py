"""Module marks: every allocation carries the path of the module that was running, in forward and in
backward.

The mark is a text that the allocator keeps for the calling thread. Global module hooks set it in
the forward pass; in the backward pass, hooks on the graph's nodes at the modules' borders do, on
whichever thread autograd runs them. The
hooks read and write nothing else: no node is added, no tensor kept, no random number drawn, and a
compiler that traces the program sees functions that return at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from vramlens.capture.names.module_hooks import after_each_module, before_each_module
from vramlens.capture.names.module_paths import ModulePaths
from vramlens.capture.torch_api import loaded_torch
from vramlens.capture.warn import say_once
from vramlens.ground.program_errors import let_through

EVAL_WITH_GRAD = " [eval+grad]"
"""Follows the path where the outermost module is in eval mode although gradients are enabled."""
WITHOUT_GRAD = " [no grad]"
"""Follows the path where gradients are disabled when the outermost module is called."""

_MOST_TENSORS = 8  # of a module's outputs


class _State:
    """The state of one thread.

    Attributes:
        entered: the modules that have begun and not ended, outermost first: id and path.
        suffix: what follows every path of this forward pass.
        marked: tensors of this forward pass whose nodes are marked already, by id.
        before: the mark from before the outermost module was entered.
    """

    __slots__ = ("before", "entered", "marked", "suffix")

    def __init__(self) -> None:
        self.entered: list[tuple[int, str]] = []
        self.marked: dict[int, weakref.ref[Any]] = {}
        self.suffix = self.before = ""


class _Threads(threading.local):
    """Each thread's state."""

    def __init__(self) -> None:
        self.state = _State()


class ModuleMarks:
    """The hooks; they mark from ``start`` to ``stop``.

    Attributes:
        is_on: whether they mark now.
        has_seen_autocast: whether a module has run under autocast.
    """

    def __init__(
        self, set_mark: Callable[[str], None], get_mark: Callable[[], str], paths: ModulePaths
    ) -> None:
        """Prepares; ``set_mark`` and ``get_mark`` are about the calling thread."""
        self._set, self._get, self._paths = set_mark, get_mark, paths
        self._threads = _Threads()
        self.is_on = False
        self.has_seen_autocast = False
        self._torch = loaded_torch()
        self._plain: dict[type, bool] = {self._torch.Tensor: True, self._torch.nn.Parameter: True}

    def install(self) -> None:
        """Puts the hooks in their place, for good."""
        entering, leaving = self._hooks()
        before_each_module(entering)
        after_each_module(leaving)

    def start(self) -> None:
        """Begins to mark."""
        self.is_on = True

    def stop(self) -> None:
        """Marks no more."""
        self.is_on = False
        self._set("")

    def forget_entered(self) -> None:
        """Nothing runs on this thread: what an interrupt left behind is dropped."""
        self._threads.state.entered.clear()

    def _hooks(  # noqa: C901 - they run before and after every module: a call would cost
        self,
    ) -> tuple[Callable[[Any, Any], None], Callable[[Any, Any, Any], None]]:
        """The hooks that run before and after every module: a few microseconds each, so everything
        is a local name.
        """
        torch, threads, set_mark, get_mark = self._torch, self._threads, self._set, self._get
        is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
        known_path, path_of = self._paths.known, self._paths.of
        plain, mark_backward = self._plain, self._mark_backward
        is_autocast_enabled = torch.is_autocast_enabled

        def entering(module: Any, args: Any) -> None:
            # First of all: what a compiler sees ends here, whether marks are on or not.
            if is_compiling() or not self.is_on:
                return
            try:
                state = threads.state
                entered, key = state.entered, id(module)
                path = known_path(key) or path_of(module)
                if not self.has_seen_autocast and is_autocast_enabled():
                    self.has_seen_autocast = True
                if not entered:
                    if not is_grad_enabled():
                        state.suffix = WITHOUT_GRAD
                    else:
                        state.suffix = "" if module.training else EVAL_WITH_GRAD
                    state.marked.clear()
                    state.before = get_mark()
                elif is_grad_enabled():
                    for tensor in args:  # when this module's backward is done, its caller's goes on
                        if type(tensor) in plain:
                            mark_backward(state, tensor, entered[-1][1])
                entered.append((key, path))
                set_mark(path + state.suffix)
            except Exception as error:
                let_through(error)
                _complain(error)

        def leaving(module: Any, _args: Any, output: Any) -> None:
            if is_compiling() or not self.is_on:
                return
            try:
                state = threads.state
                entered, key = state.entered, id(module)
                path = (
                    entered.pop()[1] if entered and entered[-1][0] == key else _left(entered, key)
                )
                if entered:
                    set_mark(entered[-1][1] + state.suffix)
                else:
                    # In a backward pass this is part of a checkpointed block that runs again: its
                    # caller's turn.
                    set_mark(path.rpartition(".")[0] if state.before else "")
                if path and is_grad_enabled():
                    if type(output) in plain:
                        mark_backward(state, output, path)
                    else:
                        for tensor in _values(output):
                            if self._is_plain(tensor):
                                mark_backward(state, tensor, path)
            except Exception as error:
                let_through(error)
                _complain(error)

        return entering, leaving

    def _mark_backward(self, state: _State, tensor: Any, path: str) -> None:
        """Has the node that made a tensor set the mark when its backward runs; the innermost
        module's call wins.
        """
        node = tensor.grad_fn
        if node is None:
            return
        marked, key, set_mark = state.marked, id(tensor), self._set
        if marked:
            marked_tensor = marked.get(key)
            if marked_tensor is None or marked_tensor() is not tensor:
                marked[key] = weakref.ref(tensor)
                is_compiling = self._torch.compiler.is_compiling
                node.register_prehook(lambda _: None if is_compiling() else set_mark(path))
            return
        marked[key] = weakref.ref(tensor)
        # What came first in the forward pass comes last in the backward pass: after it no module
        # runs.
        queue_callback = self._torch.autograd.Variable._execution_engine.queue_callback

        is_compiling = self._torch.compiler.is_compiling

        def last(_: Any) -> None:
            if not is_compiling():
                set_mark(path)
                queue_callback(lambda: set_mark(""))

        node.register_prehook(last)

    def _is_plain(self, candidate: Any) -> bool:
        """True for a tensor that can be asked for its node without running anybody's code."""
        cls = type(candidate)
        is_plain = self._plain.get(cls)
        if is_plain is None:
            is_plain = issubclass(cls, self._torch.Tensor) and (
                cls.__torch_function__ is self._torch._C._disabled_torch_function_impl
            )
            if is_plain:
                self._plain[cls] = True
        return is_plain


def _left(entered: list[tuple[int, str]], key: int) -> str:
    """Takes a module off the list with whatever an interrupt left above it; its path, or "" if
    it was never entered.
    """
    if any(key == other for other, _ in entered):
        while entered:
            other, path = entered.pop()
            if other == key:
                return path
    return ""


def _values(output: Any) -> Iterable[Any]:
    """The parts of a module's output: the elements of its tuple, list or dict, else itself."""
    if isinstance(output, dict):
        return tuple(output.values())[:_MOST_TENSORS]
    if isinstance(output, (tuple, list)):
        return output[:_MOST_TENSORS]
    return (output,)


def _complain(error: Exception) -> None:
    say_once(f"marking modules failed ({type(error).__name__}: {error}); the program continues")
