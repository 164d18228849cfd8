"""Cases written by hand: large inputs, as programs have them.

Each table's ``BOTH`` is run in float32 and bfloat16, ``SINGLE`` in float32 only, ``HALF`` in both
types of 16 bits. An entry makes the function and its arguments of ``Tensors``.
"""

from __future__ import annotations

from operator_cases.by_hand import (
    choosing,
    layers,
    linear_algebra,
    optimizers,
    pointwise,
    reducing,
    steps,
)
from operator_cases.case import Case

_TABLES = layers, choosing, reducing, pointwise, linear_algebra, optimizers, steps
_DTYPES = {
    "BOTH": ("float32", "bfloat16"),
    "SINGLE": ("float32",),
    "HALF": ("bfloat16", "float16"),
}


def cases_by_hand() -> list[Case]:
    """All of them, in the order of the tables."""
    return [
        Case(name, dtype, build)
        for table in _TABLES
        for kind, dtypes in _DTYPES.items()
        for name, build in getattr(table, kind, {}).items()
        for dtype in dtypes
    ]
