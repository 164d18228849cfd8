"""vramlens: where the memory of a GPU is, why it ran out, what to change.

import vramlens

vramlens.install()                              # in the program: a verdict in every out-of-memory error
with vramlens.record("run.vram"): train()       # or a recording of a block

recording = vramlens.load("run.vram")           # anywhere else
recording.peak().by_line
recording.explain().findings
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.errors import InputError, NotARecording, UnsafeInput, UsageError, VramlensError

if TYPE_CHECKING:
    from vramlens.api import Recording, explain, load
    from vramlens.function_profile import profile
    from vramlens.program import distributed_state, install, memory, record, snapshot, step

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "NotARecording",
    "Recording",
    "UnsafeInput",
    "UsageError",
    "VramlensError",
    "__version__",
    "distributed_state",
    "explain",
    "install",
    "load",
    "memory",
    "profile",
    "record",
    "snapshot",
    "step",
]

_FROM_API = ("Recording", "explain", "load")
_FROM_PROGRAM = ("distributed_state", "install", "memory", "record", "snapshot", "step")


def __dir__() -> list[str]:
    """What there is, for help and completion."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Imports what needs NumPy, or sets something going, only when it is asked for: ``vramlens --help`` is quick."""
    if name in _FROM_API:
        from vramlens import api

        return getattr(api, name)
    if name in _FROM_PROGRAM:
        from vramlens import program

        return getattr(program, name)
    if name == "profile":
        from vramlens.function_profile import profile

        return profile
    raise AttributeError(f"module 'vramlens' has no attribute {name!r}")
