"""Hooks on all of the program's modules, of which PyTorch's warnings hear nothing.

A compiled module warns where there are global hooks (``OptimizedModule.__call__`` in
``torch/_dynamo/eval_frame.py``), and the warning is an error in programs that want it so. Ours return
at once in what is compiled, so they do not count there; the program's own do, as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramlens.capture.torch_api import loaded_torch

_ASKED = "_has_any_global_hook"
_own_hooks: set[int] = set()


def before_each_module(hook: Callable[[Any, Any], object]) -> Any:
    """Calls a function before each module's forward; the handle that removes it."""
    return _uncounted(_hooks_of_modules().register_module_forward_pre_hook(hook))


def after_each_module(hook: Callable[[Any, Any, Any], object]) -> Any:
    """Calls a function after each module's forward, one that failed too; the handle that removes
    it.
    """
    return _uncounted(_hooks_of_modules().register_module_forward_hook(hook, always_call=True))


def _hooks_of_modules() -> Any:
    return loaded_torch().nn.modules.module


def _uncounted(handle: Any) -> Any:
    modules = _hooks_of_modules()
    hook_check = getattr(modules, _ASKED, None)
    if hook_check is not None and hook_check is not _has_hook_of_program:
        setattr(modules, _ASKED, _has_hook_of_program)
    _own_hooks.add(handle.id)
    return handle


def _has_hook_of_program() -> bool:
    """Whether there are global hooks beside ours."""
    tables = [
        table
        for name, table in vars(_hooks_of_modules()).items()
        if name.startswith("_global_") and "_hooks" in name
    ]
    return any(number not in _own_hooks for table in tables for number in table)
