"""vramlens: where the memory of a GPU is, why it ran out, what to change.

import vramlens

vramlens.install()                              # in the program: a verdict in every out-of-memory error
with vramlens.record("run.vram"): train()       # or a recording of a block

recording = vramlens.load("run.vram")           # anywhere else
recording.peak().by_line
recording.explain().findings
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vramlens.errors import InputError, NotARecording, UnsafeInput, UsageError, VramlensError

if TYPE_CHECKING:
    from vramlens.api import Recording, explain, load
    from vramlens.function_profile import profile
    from vramlens.live import LeakError, LeakWatch, holders, no_leaks, release, who_holds
    from vramlens.monitor import Monitor
    from vramlens.prediction import predict
    from vramlens.program import distributed_state, install, memory, record, snapshot, step
    from vramlens.questions import check, diff, export, ranks, view
    from vramlens.recovery import (
        AdaptiveBatchLoader,
        BalancedBatchSampler,
        find_batch_size,
        guard,
        guard_trainer,
        inject_oom,
        place,
        plan,
        retry,
        strategies,
    )

__version__ = "0.1.0"

__all__ = [
    "AdaptiveBatchLoader",
    "BalancedBatchSampler",
    "InputError",
    "LeakError",
    "LeakWatch",
    "Monitor",
    "NotARecording",
    "Recording",
    "UnsafeInput",
    "UsageError",
    "VramlensError",
    "__version__",
    "check",
    "diff",
    "distributed_state",
    "explain",
    "export",
    "find_batch_size",
    "guard",
    "guard_trainer",
    "holders",
    "inject_oom",
    "install",
    "load",
    "memory",
    "no_leaks",
    "place",
    "plan",
    "predict",
    "profile",
    "ranks",
    "record",
    "release",
    "retry",
    "snapshot",
    "step",
    "strategies",
    "view",
    "who_holds",
]

# Where each name lives; it is imported, with what it needs, only when it is asked for: ``vramlens
# --help`` is quick.
_HOMES = {
    "AdaptiveBatchLoader": "recovery",
    "BalancedBatchSampler": "recovery",
    "LeakError": "live",
    "LeakWatch": "live",
    "Monitor": "monitor",
    "Recording": "api",
    "check": "questions",
    "diff": "questions",
    "distributed_state": "program",
    "explain": "api",
    "find_batch_size": "recovery",
    "guard": "recovery",
    "guard_trainer": "recovery",
    "holders": "live",
    "inject_oom": "recovery",
    "install": "program",
    "load": "api",
    "memory": "program",
    "no_leaks": "live",
    "place": "recovery",
    "plan": "recovery",
    "predict": "prediction",
    "profile": "function_profile",
    "record": "program",
    "release": "live",
    "retry": "recovery",
    "snapshot": "program",
    "step": "program",
    "strategies": "recovery",
    "who_holds": "live",
}

_CALLABLE_PACKAGES = ("export", "ranks", "view")
"""Packages that are the function of their name, too (``ground.callable_package``)."""


def __dir__() -> list[str]:
    """What there is, for help and completion."""
    return list(__all__)


def __getattr__(name: str) -> Any:
    """Imports what needs NumPy, or sets something going, only when it is asked for."""
    if name in _CALLABLE_PACKAGES:
        return import_module(f"vramlens.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'vramlens' has no attribute {name!r}")
    return getattr(import_module(f"vramlens.{_HOMES[name]}"), name)


def load_ipython_extension(shell: Any) -> None:
    """Adds ``%%vramlens`` to a notebook: IPython calls this for ``%load_ext vramlens``."""
    import_module("vramlens.integrations.notebook").add_magic(shell)
