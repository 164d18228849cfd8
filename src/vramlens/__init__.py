"""vramlens: where the memory of a GPU is, why it ran out, what to change.

import vramlens

recording = vramlens.load("snapshot.pickle")
recording.peak().by_line
recording.explain().findings
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.errors import InputError, NotARecording, UnsafeInput, UsageError, VramlensError

if TYPE_CHECKING:
    from vramlens.api import Recording, explain, load

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "NotARecording",
    "Recording",
    "UnsafeInput",
    "UsageError",
    "VramlensError",
    "__version__",
    "explain",
    "load",
]

_FROM_API = ("Recording", "explain", "load")


def __getattr__(name: str) -> Any:
    """Imports what needs NumPy only when it is asked for: ``vramlens --help`` is quick."""
    if name in _FROM_API:
        from vramlens import api

        return getattr(api, name)
    raise AttributeError(f"module 'vramlens' has no attribute {name!r}")
