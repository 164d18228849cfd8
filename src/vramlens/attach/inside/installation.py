"""``vramlens.install()`` in a program that runs already."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from vramlens.program import install

_FOR_THE_VERDICT = ("numpy", "rich")


def installed(request: dict[str, Any]) -> dict[str, Any]:
    """Watches the program from now on; the parts of the answer."""
    install(request.get("recording") or None, redact=request.get("redact") or None)
    missing = [name for name in _FOR_THE_VERDICT if find_spec(name) is None]
    notes = []
    if missing:
        notes.append(
            f"the program's Python has no {' and no '.join(missing)}: a failure leaves its"
            " recording, and 'vramlens explain' elsewhere gives the verdict"
        )
    return {"installed": True, "uses_gpu": _uses_gpu(), "notes": notes}


def _uses_gpu() -> bool:
    """Whether PyTorch has begun to use a GPU here: only that is recorded."""
    torch = sys.modules.get("torch")  # it may be half imported
    modules = (getattr(torch, kind, None) for kind in ("cuda", "xpu"))
    answers = (getattr(module, "is_initialized", bool) for module in modules)
    return any(is_initialized() for is_initialized in answers)
